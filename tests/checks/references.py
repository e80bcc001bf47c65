"""The names that a lesson's cells define, without the cells that run anything: what checks are tried on."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache, reduce
from typing import Any

from tools.lesson import Call, Cell, Lesson, lesson_files, read_lesson, starter_source
from tools.notebook import setup_source


@lru_cache
def lessons() -> tuple[Lesson, ...]:
    return tuple(read_lesson(path) for path in lesson_files())


def namespace(lesson: Lesson, *, starter: bool = False) -> dict[str, Any]:
    """Runs set-up, exercises and the definitions of the other cells; a starter's stubs instead of solutions."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in lesson.cells:
        if cell.kind == "code" and cell.role != "check":
            try:
                exec(_compiled(lesson, cell, starter), names)
            except NotImplementedError:
                if not starter:
                    raise
    return names


def answers_of(call: Call, names: dict[str, Any]) -> list[Any]:
    """What a check is called with: its arguments are names, some with attributes."""
    parts = (argument.split(".") for argument in call.arguments)
    return [reduce(getattr, attributes, names[name]) for name, *attributes in parts]


def _compiled(lesson: Lesson, cell: Cell, starter: bool) -> Any:
    source = setup_source() if cell.role == "setup" else starter_source(cell) if starter else cell.source
    tree = ast.parse(source)
    if not cell.role:
        tree.body = [statement for statement in tree.body if _only_defines(statement)]
    file = f"<ipython-input-{lesson.name}-{cell.line}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    return compile(tree, file, "exec")


def _only_defines(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
        return True
    if isinstance(statement, ast.Assign):
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            return False
        return True
    return False
