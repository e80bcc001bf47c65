"""A failure before the worker's first line is the kit's: its own traceback, what to do, never the student's line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hw_utils.core import versions
from tools.lesson import ROOT

# Runs in every Python process that is started, as another version of torch would.
FAULTS = {
    "every rank's group": """
import torch.distributed.distributed_c10d as c10d
class Gloo(c10d.ProcessGroupGloo):
    def __init__(self, store, rank, size, *, not_yet_named, **named):
        raise AssertionError
c10d.ProcessGroupGloo = Gloo
""",
    "rank 1's group": """
import torch.distributed.distributed_c10d as c10d
class Gloo(c10d.ProcessGroupGloo):
    def __init__(self, store, rank, size, *more, **named):
        if rank == 1:
            raise TypeError("this torch names not_yet_named")
        super().__init__(store, rank, size, *more, **named)
c10d.ProcessGroupGloo = Gloo
""",
    "a rank's process": """
import os
import torch.distributed.distributed_c10d as c10d
class Gloo(c10d.ProcessGroupGloo):
    def __init__(self, store, rank, size, *more, **named):
        os.write(2, b"last words\\n")
        os._exit(5)
c10d.ProcessGroupGloo = Gloo
""",
    "the process that starts ranks": """
import sys
if sys.argv[0] == "-c":
    raise SystemExit("not_yet_named")
""",
}
PROGRAM = """
from hw_utils import launch

def my_own_worker(rank, world_size):
    return rank

if __name__ == "__main__":
    launch(my_own_worker, 2)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_before_the_workers_first_line_is_told_as_the_kits(fault, start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAULTS[fault])
    (tmp_path / "mine.py").write_text(PROGRAM)
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HW_UTILS_START": start}
    environment["TMPDIR"] = str(folder)
    if fault != "the process that starts ranks":
        environment["HW_UTILS_PRELOAD"] = "0"  # no process but those that the launch needs
    done = subprocess.run(
        [sys.executable, tmp_path / "mine.py"], capture_output=True, text=True, timeout=300, env=environment
    )
    told = done.stderr[done.stderr.index("hw_utils.core.errors.WorkerFailed: ") :]
    assert done.returncode == 1
    assert "your code is not the cause: run  python -m hw_utils doctor" in told
    assert f"torch {versions.importlib.metadata.version('torch')}" in told
    assert "write simulate in the place of launch" in told
    assert "os._exit?" not in told
    assert "mine.py" not in told
    expected = {
        "every rank's group": "before your function began: TypeError: ",
        "rank 1's group": "rank 1: before your function began: TypeError: this torch names not_yet_named",
        "a rank's process": "before your function began: its process ended with exit code 5\n    last words\n",
        "the process that starts ranks": "not_yet_named",
    }
    assert expected[fault] in told
    if "group" in fault:
        assert "Traceback (most recent call last):" in told
        assert "not_yet_named" in told
    assert list(folder.glob("hw_utils*")) == []


@pytest.mark.parametrize(("system", "wsl"), [("Windows", True), ("Darwin", False), ("Linux", False)])
def test_the_next_step_fits_the_system(monkeypatch, system, wsl):
    monkeypatch.setattr(versions.platform, "system", lambda: system)
    assert ("WSL2" in versions.what_to_do()) is wsl
    assert f", {system}" in versions.what_to_do()


def test_a_version_that_nobody_has_tried_is_named_with_those_that_were():
    major, minor = versions.TORCH_NEWEST
    assert versions.untried(f"{major}.{minor}.7+cpu") == ""
    assert versions.untried("2.10.0+cu128") == ""
    assert versions.untried("2.9.1").endswith("pip install 'torch>=2.10'")
    for newer in (f"{major}.{minor + 1}.0a0+git12", f"{major + 1}.0.0"):
        assert versions.untried(newer).startswith(
            f"torch {newer} is newer than those this course was tried with (2.10 to "
        )


def test_the_range_of_torch_begins_with_the_oldest_that_was_tried():
    oldest = ".".join(map(str, versions.TORCH_OLDEST))
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
