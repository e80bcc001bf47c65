"""A student's own pre-flight: the visible checks of a notebook, before it is handed in.

The notebook is read as text and run in a process of its own. Set-up and exercises run whole; of every other cell only
the definitions, so that no training has to be waited for (`--all` runs all of it). Each check statement then runs by
itself, as the class grading does it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm


@dataclass(frozen=True)
class Verdict:
    """What became of one check cell."""

    name: str  # "check-ring", or the check's own name where the cell lost its id
    points: float | None  # None: the notebook does not say
    passed: bool
    message: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebook", type=Path, help="your notebook, as notebooks/01_hello_ranks/hello_ranks.ipynb")
    parser.add_argument("--all", action="store_true", help="run every cell, pictures and training included")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds for all of it (default 600)")


def main(arguments: Namespace) -> int:
    """Prints a line a check; 1 if any of them fails, 2 if the notebook cannot be read."""
    try:
        verdicts = check_notebook(arguments.notebook, everything=arguments.all, timeout_s=arguments.timeout, show=True)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(verdicts))
    return 0 if all(v.passed for v in verdicts) else 1


def table(verdicts: list[Verdict]) -> str:
    """The verdicts as text, points at the end."""
    lines = []
    for v in verdicts:
        points = "" if v.points is None else f"  {v.points if v.passed else 0:g} of {v.points:g}"
        lines.append(f"{'pass' if v.passed else 'FAIL'}  {v.name:<28}{points}")
        lines += [f"        {line}" for line in v.message.splitlines()]
    known = [v for v in verdicts if v.points is not None]
    got = sum(v.points for v in known if v.passed)
    lines.append(f"{sum(v.passed for v in verdicts)} of {len(verdicts)} checks pass")
    if known:
        lines[-1] += f", {got:g} of {sum(v.points for v in known):g} points that visible checks give"
    return "\n".join(lines)


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook: source, role, name, points.

    Raises:
        ValueError: no file, not a notebook, or a notebook without a check.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8-sig"))
        cells = [_cell(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; give the path of your .ipynb file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a notebook ({type(error).__name__}); save it again from Jupyter") from None
    if not any(cell["role"] == "check" for cell in cells):
        raise ValueError(f"{path} has no check in it; is it a notebook of this course?")
    return cells


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    source = cell["source"]
    source = "".join(source) if isinstance(source, list) else source
    marks = cell.get("metadata", {}).get("nbgrader", {})
    role = "exercise" if marks.get("solution") or marks.get("grade_id") == "setup" else ""
    names = _check_names(source)
    if names:
        role = "check"
    return {"source": source, "role": role, "name": marks.get("grade_id") or ", ".join(names),
            "points": marks.get("points") if role == "check" else None}  # fmt: skip


def _check_names(source: str) -> list[str]:
    """The checks that a cell calls, if calling checks is all it does."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return []
    names = []
    for statement in body:
        called = statement.value if isinstance(statement, ast.Expr) else None
        name = ast.unparse(called.func) if isinstance(called, ast.Call) else ""
        if not name.startswith("checks.lesson_"):
            return []
        names.append(name.removeprefix("checks."))
    return names


def check_notebook(
    path: Path, *, everything: bool = False, timeout_s: float = 600, show: bool = False
) -> list[Verdict]:
    """A verdict a check cell, in the notebook's order; the notebook runs in a process of its own.

    Raises:
        ValueError: the file is not a notebook of the course.
    """
    cells = read_cells(path)
    wanted = [cell for cell in cells if cell["role"] == "check"]
    found: list[Verdict] = []
    command = [sys.executable, "-m", "hw_utils.commands.check_process"]
    job = json.dumps({"cells": cells, "everything": everything, "folder": str(path.resolve().parent)})
    with (
        tqdm(total=len(wanted), desc=path.name, unit="check", disable=not show, file=sys.stdout, leave=False) as bar,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as runner,
    ):
        timer = _kill_after(runner, timeout_s)
        try:
            runner.stdin.write(job)
            runner.stdin.close()
            for line in runner.stdout:
                cell = wanted[len(found)]
                found.append(Verdict(cell["name"], cell["points"], **json.loads(line)))
                bar.update()
        finally:
            timer.cancel()
            runner.kill()
    for cell in wanted[len(found) :]:
        found.append(
            Verdict(cell["name"], cell["points"], False, "did not run: the notebook's process ended before it")
        )
    return found


def _kill_after(process: subprocess.Popen, seconds: float):
    import threading

    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer
