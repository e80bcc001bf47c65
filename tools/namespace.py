"""A lesson's solution as a Python namespace: the reference answers, for tests and benchmarks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from tools.lesson import ROOT, Cell, Lesson, read_lesson
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
