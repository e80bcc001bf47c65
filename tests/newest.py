"""The engines, every check on its reference answers and doctor on the oldest and the newest torch that pip gives.

python -m tests.newest            # both; the environments (6 GB each: CUDA builds) are kept in the user's cache
python -m tests.newest 2.12.0     # one
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hw_utils.core.versions import TORCH_OLDEST
from tools.lesson import ROOT

OLDEST = ".".join(map(str, (*TORCH_OLDEST, 0)))
NEWEST = "newest"
BESIDES = (
    "cloudpickle", "greenlet", "ipywidgets", "matplotlib", "numpy", "psutil", "scikit-learn", "tqdm", "torchvision",
    "expecttest", "filelock", "hypothesis", "jupytext", "nbformat", "nbgrader", "pytest", "pytest-timeout",
)  # fmt: skip
SUITE = (
    "tests/core/test_torch_names.py", "tests/gloo/test_groups.py", "tests/processes/test_launch.py",
    "tests/processes/test_fresh_processes.py", "tests/processes/test_before_the_first_line.py", "tests/virtual",
)  # fmt: skip
CHECKS = ("tests/checks/test_checks.py", "-k", "reference_passes")


def environment(version: str) -> Path:
    """The Python of an environment with that torch, made if there is none; the newest is brought up to date."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "distributed-course" / f"torch-{version}-py{sys.version_info[0]}{sys.version_info[1]}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    torch = ["--upgrade", "torch"] if version == NEWEST else [f"torch=={version}"]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *torch, *BESIDES], check=True)
    return python


def main(versions: list[str]) -> int:
    """Runs doctor and the suite on each; 1 if one of them failed."""
    failed: list[str] = []
    for version in versions or [OLDEST, NEWEST]:
        python = environment(version)
        clean = {**os.environ, "PYTHONPATH": str(ROOT)}
        tests = ["pytest", "-q", "-p", "no:cacheprovider", "-m", "not alone"]
        names = [["tests.core.torch_names"]] if version in (OLDEST, NEWEST) else []
        for command in (*names, ["hw_utils", "doctor"], [*tests, *SUITE], [*tests, *CHECKS]):
            print(f"== torch {version}: {' '.join(command[:2])}", flush=True)
            if subprocess.run([python, "-m", *command], cwd=ROOT, env=clean).returncode:
                failed.append(f"torch {version}: {command[0]}")
    print(f"failed: {', '.join(failed)}" if failed else "all suites passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
