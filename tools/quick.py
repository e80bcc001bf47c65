"""`make quick`: lint, drift, and the tests of the rooms that differ from main.

    python -m tools.quick [--base REV] [--list]

A room's tests lie under the room's name: hw_utils/virtual -> tests/virtual, hw_grader/course -> tests/grader/course.
Slow tests, browsers and those that measure time are left to `make test`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import PurePosixPath

from tools.lesson import ROOT

ALWAYS = "tests/building/test_rooms.py"
BESIDE = {  # what lies in no room of the same name -> its tests
    "hw_utils/launch.py": "tests/processes/test_launch.py tests/processes/test_fresh_processes.py",
    "hw_utils/simulate.py": "tests/virtual/test_simulate.py",
    "hw_utils/commands": "tests/front_door/test_commands.py",
    "hw_utils/scripts": "tests/front_door/test_spawned_ranks.py",
    "hw_utils/__init__.py": "tests/building/test_docs.py",
    "hw_grader/grade.py": "tests/grader/course",
    "hw_grader/report.py": "tests/grader/course",
    "tools": "tests/building",
    "docs": "tests/building/test_docs.py",
    "README.md": "tests/building/test_docs.py",
    "pyproject.toml": "tests/building/test_environment.py",
}


def changed(base: str) -> list[str]:
    """Files that differ from where this branch left `base`, committed or not."""
    fork = _git("merge-base", "HEAD", base) or ["HEAD"]
    return sorted({*_git("diff", "--name-only", fork[0]), *_git("ls-files", "--others", "--exclude-standard")})


def tests_of(file: str) -> list[str]:
    """The tests that prove a file; none for a built notebook, which drift proves.

    >>> tests_of("hw_utils/virtual/traffic/ledger_rows.py")
    ['tests/virtual']
    >>> tests_of("lessons/02_all_reduce.py")
    ['tests/building/test_lessons.py', 'tests/checks/by_hand/test_lesson_02.py']
    """
    parts = PurePosixPath(file).parts
    if parts[0] == "lessons" or (parts[:2] == ("hw_utils", "checks") and len(parts) > 3):
        number = parts[1][:2] if parts[0] == "lessons" else parts[2].removeprefix("lesson_")
        own = f"tests/checks/by_hand/test_lesson_{number}.py"
        return ["tests/building/test_lessons.py", *([own] if (ROOT / own).exists() else [])]
    for prefix, tests in BESIDE.items():
        if file == prefix or file.startswith(prefix + "/"):
            return tests.split()
    if parts[0] == "tests" and parts[-1].startswith("test_"):
        return [file] if (ROOT / file).exists() else []
    room = {"hw_utils": "tests", "hw_grader": "tests/grader", "tests": ""}.get(parts[0])
    if room is None or len(parts) < 3:
        return []
    tests = "/".join(parts[:-1]) if parts[0] == "tests" else f"{room}/{parts[1]}"
    return [tests] if (ROOT / tests).is_dir() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.quick", description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="main", help="the branch to compare with (default: main)")
    parser.add_argument("--list", action="store_true", help="only says which tests these are")
    chosen = parser.parse_args()
    tests = sorted({ALWAYS, *(test for file in changed(chosen.base) for test in tests_of(file))})
    print("tests:", *tests, flush=True)
    if chosen.list:
        return 0
    python = [sys.executable, "-m"]
    steps = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["tools.build", "--check"]]
    fast = ["pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "not slow and not browser and not alone"]
    return next((code for step in [*steps, [*fast, *tests]] if (code := _run([*python, *step]))), 0)


def _run(command: list[str]) -> int:
    return subprocess.run(command, cwd=ROOT).returncode


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
