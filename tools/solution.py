"""A lesson's solution: the names that it gives, the checks that it has to pass, what they are worth."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import nbformat

from hw_utils.checks.check import Check
from hw_utils.commands.check import check_notebook
from tools.lesson import ROOT, Call, Cell, Lesson, read_lesson
from tools.notebook import setup_source

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def solution_namespace(lesson: str | Path | Lesson) -> dict[str, Any]:
    """The names that a lesson's set-up, exercises and definitions give; no check and no experiment is run.

    Of the ordinary cells only imports, functions, classes and assignments of literals are taken.
    Lines in tracebacks are those of the lesson's file.

        ring_all_reduce = solution_namespace("02_all_reduce")["ring_all_reduce"]
    """
    if not isinstance(lesson, Lesson):
        path = Path(lesson)
        lesson = read_lesson(path if path.suffix else ROOT / "lessons" / f"{lesson}.py")
    namespace: dict[str, Any] = {"__name__": f"lesson_{lesson.name}"}
    exec(compile(setup_source(), "tools/setup_cell.py", "exec"), namespace)
    for cell in lesson.cells:
        if cell.kind == "code" and cell.role in ("", "exercise", "locked"):
            exec(_code(lesson, cell), namespace)
    return namespace


def _code(lesson: Lesson, cell: Cell):
    tree = ast.parse(cell.source)
    if not cell.role:
        tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS) or _is_literal_assignment(node)]
    ast.increment_lineno(tree, cell.line)
    return compile(tree, str(lesson.path.resolve()), "exec")


def _is_literal_assignment(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True


def unknown_checks(lesson: Lesson) -> list[str]:
    """Calls that no check answers to, `file:line: what, and what there is`."""
    return [
        f"{lesson.path.name}:{cell.line}: {problem}"
        for cell in lesson.with_role("check")
        for call in cell.calls
        if (problem := _problem(call))
    ]


def _problem(call: Call) -> str:
    module, _, name = call.check.partition(".")
    package = f"hw_utils.checks.{module}"
    try:
        known = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return f"checks.{call.check} is not there: a lesson's checks are the package hw_utils/checks/{module}/"
    check = getattr(known, name, None)
    if not isinstance(check, Check):
        there = sorted(name for name, value in vars(known).items() if isinstance(value, Check))
        return f"checks.{call.check} is not there; {package} has {', '.join(there)}"
    answers = [p.name for p in inspect.signature(check).parameters.values() if p.name != "cases"]
    if len(call.arguments) != len(answers):
        return f"checks.{call.check} takes {', '.join(answers)}; got {', '.join(call.arguments) or 'nothing'}"
    for case in call.cases or []:
        try:
            inspect.signature(check.driver).bind(*answers, **case)
        except TypeError as error:
            return f"checks.{call.check} has no such case {case}: {error}"
    return ""


def is_new(before: Path, after: Path) -> bool:
    """Whether a lesson's code is not what it was: a check may pass no longer."""
    return _cells_of(before) != _cells_of(after)


def _cells_of(path: Path) -> list[str] | None:
    if not path.exists():
        return None
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def failing_checks(solution: Path) -> list[str]:
    """Runs every check of a solution, hidden cases too, in a process of its own: which ones it fails, and why."""
    return [
        f"{solution.parent.name}: the solution fails {verdict.name}: {verdict.message}"
        for verdict in check_notebook(solution, show=True)
        if not verdict.passed
    ]


def changed_points(before: Path, after: Path) -> str:
    """`60 points, 55 before (check-overlap 10 -> 15)`; empty if nothing changed or there was no lesson before."""
    if not before.exists():
        return ""
    old, new = _points(before), _points(after)
    if old == new:
        return ""
    changed = [f"{name} {old.get(name, 0):g} -> {new.get(name, 0):g}" for name in {**old, **new}
               if old.get(name) != new.get(name)]  # fmt: skip
    return f"{sum(new.values()):g} points, {sum(old.values()):g} before ({', '.join(changed)})"


def _points(path: Path) -> dict[str, float]:
    marks = [cell.metadata.get("nbgrader", {}) for cell in nbformat.read(path, as_version=4).cells]
    return {mark["grade_id"]: mark["points"] for mark in marks if mark.get("grade")}
