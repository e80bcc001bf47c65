"""PyTorch's own tests of torch.distributed (in its wheel) as workers: their bodies, on ranks that are connected.

`torch.testing._internal.distributed.distributed_test` spawns processes for every test and waits with files; here the
body alone is the worker and `on_cpu` has taken out the GPU. The decorators read BACKEND and WORLD_SIZE when the file is
imported, so there is one warm process for each world size.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
import unittest
import warnings
from functools import cache

from torch.testing._internal import common_distributed, common_utils

from tests.outside.on_cpu import NAMES, on_cpu, one_gpu_a_rank

MODULE = "torch.testing._internal.distributed.distributed_test"
SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
POLL_S = 0.01
PASSED, SKIPPED = "passed", "skipped"


@cache
def body_class() -> type:
    """torch's test class, without its GPU and without its processes."""
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "4")
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("PYTORCH_PRINT_REPRO_ON_FAILURE", "0")
    before, common_distributed.init_multigpu_helper = common_distributed.init_multigpu_helper, one_gpu_a_rank
    spec = importlib.util.find_spec(MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    vars(module).update(NAMES)
    try:
        with open(spec.origin) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(on_cpu(file.read(), spec.origin), vars(module))
    finally:
        common_distributed.init_multigpu_helper = before

    class Body(module.DistributedTest._DistTestBase, common_utils.TestCase):
        def _barrier(self, wait_for: int | None = None, timeout: float = 30) -> None:
            """With files, as torch's own, so that it works when the group is broken; named by rank, not by process."""
            self.n_barriers = getattr(self, "n_barriers", 0) + 1
            name = os.path.join(os.environ["TEMP_DIR"], "barrier", f"{self.n_barriers}-")
            open(f"{name}{self.rank}", "w").close()
            deadline = time.perf_counter() + timeout
            while sum(os.path.exists(f"{name}{r}") for r in range(self.world_size)) < (wait_for or self.world_size):
                if time.perf_counter() > deadline:
                    raise RuntimeError("barrier timeout")
                time.sleep(POLL_S)

        @property
        def init_method(self) -> str:
            return f"file://{self.file_name}"

    return Body


def names() -> list[str]:
    """Every test of the file, in its own order of names."""
    return sorted(name for name in dir(body_class()) if name.startswith("test_"))


def worker(rank: int, world_size: int, name: str) -> str:
    """Runs a test's body; "passed", or "skipped: why"."""
    try:
        body = body_class()(name)
        body.rank, body.world_size = rank, world_size
        body.file_name = os.path.join(os.environ["TEMP_DIR"], "init_file")
        sys.modules[MODULE].INIT_METHOD = os.environ["INIT_METHOD"]
        common_utils.set_rng_seed()
        getattr(body, name)()
    except unittest.SkipTest as skip:
        return f"{SKIPPED}: {skip}"
    except SystemExit as end:
        if end.code not in SKIPS:
            raise
        return f"{SKIPPED}: {SKIPS[end.code]}"
    return PASSED


class Folders:
    """The directories that the tests want to find; fresh for every test."""

    def __enter__(self) -> dict[str, str]:
        self.folder = tempfile.mkdtemp(prefix="outside-")
        for name in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(self.folder, name))
        return {"TEMP_DIR": self.folder, "INIT_METHOD": f"file://{self.folder}/init_dir/shared_init_file"}

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


if os.environ.get("BACKEND"):  # in a warm process: ranks are forked with it
    body_class()
