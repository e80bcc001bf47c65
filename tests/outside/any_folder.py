"""Tests in a folder of somebody else's, written for torch's own test classes, over the three engines.

    python -m tests.outside.any_folder ../pytorch/test/distributed/tensor --show      # a folder, or single files
    python -m tests.outside.any_folder FOLDER --path STUBS --only fsdp --engine raw simulate

A file's classes may stand on MultiProcessTestCase (DTensorTestBase, FSDPTest), MultiThreadedTestCase or
MultiProcContinuousTest of `torch.testing._internal`: each method's body is the worker, on as many ranks as its class
asks for. Of a class that stands on TestCase alone it is one rank, whose groups are the test's own (a "fake" one).
Valid is what passes on bare gloo. Nothing of the folder is copied.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed, common_fsdp, common_utils
from torch.testing._internal.distributed._tensor import common_dtensor  # noqa: F401 (imported once for all ranks)

from tests.outside.expected import ENGINES
from tests.outside.warm import Outcome, Warm, side_by_side

BASES = (
    common_distributed.MultiProcessTestCase, common_distributed.MultiThreadedTestCase,
    common_distributed.MultiProcContinuousTest,
)  # fmt: skip
SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
DEVICES = 8  # that tests may count
MARK = "=cases "  # before a line of the list
AHEAD = "OUTSIDE_IMPORTS"  # names an environment variable: modules of torch that the files take long to import
WORLD_SIZE = 4  # of a class that takes as many ranks as there are devices


for _name in os.environ.get(AHEAD, "").split():
    with suppress(Exception):  # a test that needs it will see the error itself
        importlib.import_module(_name)


class Case(NamedTuple):
    """One test method."""

    file: str
    class_name: str
    method: str
    world_size: int


def cases_of(file: str) -> list[Case]:
    """Every test of a file, in the file's own order."""
    module, found = _imported(file), []
    for name, cls in list(vars(module).items()):
        is_body = isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == module.__name__
        for method in unittest.TestLoader().getTestCaseNames(cls) if is_body else ():
            size = cls(method).world_size if issubclass(cls, BASES) else 1
            found.append(Case(file, name, method, size if isinstance(size, int) and size > 0 else WORLD_SIZE))
    return found


def _imported(file: str):
    torch.accelerator.device_count = lambda: DEVICES
    common_fsdp.DEVICE_COUNT = WORLD_SIZE
    path = Path(file)
    parents = [path.parent, *path.parent.parents]
    root = next(p for p in parents if not (p / "__init__.py").exists())
    for folder in (str(root), str(path.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def worker(rank: int, world_size: int, case: Case, is_raw: bool, file_name: str) -> str:
    """Runs a test's body on a rank; "passed", or "skipped: why"."""
    try:
        _run(rank, world_size, getattr(_imported(case.file), case.class_name), case.method, is_raw, file_name)
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as end:
        if end.code not in SKIPS:
            raise
        return f"skipped: {SKIPS[end.code]}"
    return "passed"


def _run(rank: int, world_size: int, cls: type, method: str, is_raw: bool, file_name: str) -> None:
    """What torch's base class does in a rank's process, without the pipe to the parent."""

    class Body(cls):
        def run_test(self, name: str, pipe) -> None:
            common_utils.set_rng_seed()
            getattr(self, name)()

    Body.__name__, Body.__qualname__, Body.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    if issubclass(cls, common_distributed.MultiThreadedTestCase):
        body = Body(method)
        body.rank = rank
        body.perThreadSetUp()
        getattr(body, method)()
        return
    if is_raw:
        dist.destroy_process_group()
    else:
        from hw_utils.scripts import process_group_setup, torchrun_script  # bare gloo never imports it

        process_group_setup.keep_back()  # there is no group until the test makes one
        for name in torchrun_script.environment(rank, world_size, 0, world_size):
            os.environ.pop(name, None)  # the test's processes are none of torchrun's
    if not issubclass(cls, BASES):
        _run_alone(cls, method)
    elif issubclass(cls, common_distributed.MultiProcContinuousTest):
        Body.rank, Body.world_size = rank, world_size
        Body.backend_str = classmethod(lambda _: "gloo")
        Body._init_pg(rank, world_size, file_name)
        Body._run_test_given_id(method)
    else:
        Body._run(rank, method, file_name, None)


def _run_alone(cls: type, method: str) -> None:
    cls.setUpClass()
    body = cls(method)
    body.setUp()
    try:
        getattr(body, method)()
    finally:
        body.tearDown()
        body.doCleanups()


# The driver.


def _listed(files: list[str], environ: dict[str, str]) -> tuple[list[Case], list[str], list[str]]:
    """All cases; which files could not be imported, with the reason; and the modules of torch that they import."""
    command = [sys.executable, "-m", "tests.outside.any_folder", "--list", *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}, check=True)
    lines = [json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)]
    imported = dict.fromkeys(name for line in lines for name in line.get("imported", []))
    cases = [Case(*c) for line in lines for c in line.get("cases", [])]
    return cases, [line["bad"] for line in lines if "bad" in line], list(imported)


def _list(files: list[str]) -> None:
    """Prints every file's cases, each found by a fork of its own: names of modules may be the same."""
    before = set(sys.modules)
    for file in files:
        sys.stdout.flush()
        if os.fork():
            os.wait()
            continue
        try:
            line = {"cases": cases_of(file), "imported": _of_torch(name for name in sys.modules if name not in before)}
        except BaseException as error:
            line = {"bad": f"{file}: {type(error).__name__}: {error}"}
        print(f"\n{MARK}{json.dumps(line)}", flush=True)
        os._exit(0)


def _of_torch(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("torch.")]


def run(cases: list[tuple[str, Case]], environ: dict[str, str], jobs: int, timeout_s: float) -> Iterator[tuple]:
    """(engine, case, outcome) as they come; `jobs` at a time."""

    def run_one(warm: dict[str, Warm], item: tuple[str, Case]) -> tuple:
        engine, case = item
        kind = "raw" if engine == "raw" else "engines"
        if kind not in warm:
            warm[kind] = Warm(kind, "tests.outside.any_folder", environ)
        with tempfile.TemporaryDirectory(prefix="outside-") as folder:
            args = (case, engine == "raw", os.path.join(folder, "init"))
            return *item, warm[kind].run(engine, worker, case.world_size, args, timeout_s=timeout_s)

    return side_by_side(cases, jobs, run_one)


def status(outcome: Outcome) -> str:
    """ "passed", "failed" or "skipped"."""
    if not outcome.passed:
        return "failed"
    return "passed" if set(outcome.results) == {"passed"} else "skipped"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.any_folder", description=__doc__)
    parser.add_argument("files", nargs="+", help="files, or folders with files test_*.py")
    parser.add_argument("--engine", nargs="+", default=list(ENGINES), choices=ENGINES, help="default: all three")
    parser.add_argument("--only", default="", help="only tests with this in file.class.method")
    parser.add_argument("--path", default="", help="folders for PYTHONPATH: stubs of packages that are not here")
    parser.add_argument("--known", help="results of an earlier run (--save): run what passed raw there")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a test may take (default: 60)")
    parser.add_argument("--show", action="store_true", help="print the whole message of each failure")
    parser.add_argument("--save", metavar="FILE", help="add every result, one JSON object a line")
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list:
        _list(arguments.files)
        return 0
    environ = {"PYTHONPATH": os.pathsep.join(p for p in (arguments.path, os.getcwd()) if p)}
    files = [f for name in arguments.files for f in ([name] if os.path.isfile(name) else _files(name))]
    cases, bad, imported = _listed([os.path.abspath(f) for f in files], environ)
    environ[AHEAD] = " ".join(imported)
    print("\n".join(f"not imported: {line}" for line in bad))
    cases = [c for c in cases if arguments.only in f"{c.file}.{c.class_name}.{c.method}"]
    raw = {}
    if arguments.known:
        with open(arguments.known) as file:
            raw = {Case(*r["case"]): r["status"] for r in map(json.loads, file) if r["engine"] == "raw"}
    found: dict[tuple[str, Case], str] = {}
    for engines in (["raw"], ["launch", "simulate"]):  # the engines run what bare gloo passes
        pairs = [(e, c) for c in cases for e in engines if e in arguments.engine]
        if engines != ["raw"] and raw:
            pairs = [(e, c) for e, c in pairs if raw.get(c) == "passed"]
        for engine, case, outcome in run(pairs, environ, arguments.jobs, arguments.timeout):
            found[engine, case] = status(outcome)
            _tell(arguments, engine, case, outcome)
        raw.update({c: s for (e, c), s in found.items() if e == "raw"})
    _print_table(found, raw, arguments.engine)
    return 0


def _tell(arguments: argparse.Namespace, engine: str, case: Case, outcome: Outcome) -> None:
    """Adds it to the file of results; prints a failure."""
    if arguments.save:
        record = {
            "engine": engine, "case": case, "status": status(outcome), "reason": outcome.reason,
            "seconds": outcome.seconds, "n_bytes": outcome.extra.get("n_bytes"), "details": outcome.details,
        }  # fmt: skip
        with open(arguments.save, "a") as file:
            file.write(json.dumps(record) + "\n")
    if status(outcome) == "failed" and (arguments.show or engine != "raw"):
        text = outcome.details if arguments.show else outcome.reason
        print(f"{engine}: {Path(case.file).name} {case.class_name}.{case.method}: {text}", flush=True)


def _files(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(folder, "**", "test_*.py"), recursive=True))


def _print_table(found: dict[tuple[str, Case], str], raw: dict[Case, str], engines: list[str]) -> None:
    """A row a folder: how many of what bare gloo passes does each engine pass?"""
    cases = sorted({case for _, case in found})
    folders = {case: Path(case.file).parent.name for case in cases}
    print(f"{'folder':30} {'ran':>5} {'valid':>6} " + " ".join(f"{e:>9}" for e in engines))
    for name in [*sorted(set(folders.values())), "all"]:
        own = [c for c in cases if name in (folders[c], "all")]
        valid = [c for c in own if raw.get(c) == "passed"]
        cells = [sum(found.get((e, c)) == "passed" for c in valid) for e in engines]
        print(f"{name:30} {len(own):5} {len(valid):6} " + " ".join(f"{n:9}" for n in cells))


if __name__ == "__main__":
    from tests.outside import any_folder  # by its name: workers are sent to other processes

    sys.exit(any_folder.main())
