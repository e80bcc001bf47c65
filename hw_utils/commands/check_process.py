"""The process in which a pre-flight runs a notebook: a JSON job on stdin, a JSON line a check on its own stdout."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import sys
from typing import Any

from hw_utils.core.errors import HwError, is_stubs

_ROOM = 4_000  # characters of a message


def main() -> None:
    job = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as silent:
        os.dup2(silent.fileno(), 1)  # what cells print, from C++ too, is not part of the report
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(job["folder"])
    names: dict[str, Any] = {"__name__": "__main__"}
    sys.modules["__main__"].__dict__.update(names)
    trouble: list[str] = []
    for number, cell in enumerate(job["cells"], 1):
        if cell["role"] == "check":
            message = _check(cell["source"], names)
            if message and trouble:
                message = "\n".join([message, *trouble[-2:]])
            print(json.dumps({"passed": not message, "message": message[:_ROOM]}), file=report, flush=True)
            continue
        whole = job["everything"] or cell["role"] == "exercise"
        problem = _run(cell["source"], names, number, whole)
        if problem:
            trouble.append(problem)


def _run(source: str, names: dict[str, Any], number: int, whole: bool) -> str:
    """Runs a cell, or its definitions only; what went wrong, in one line."""
    file = f"<ipython-input-{number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        tree = ast.parse(source)
        if not whole:
            tree.body = [statement for statement in tree.body if _only_defines(statement)]
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, file, "exec"), names)
    except (Exception, SystemExit) as error:
        if whole and not is_stubs(error):  # the check says so
            return f"(cell {number} of the code cells stopped with {type(error).__name__}: {error})"
    return ""


def _only_defines(statement: ast.stmt) -> bool:
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(statement, kinds):
        return True
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        return not any(
            isinstance(node, ast.Call | ast.ListComp | ast.GeneratorExp) for node in ast.walk(statement.value)
        )
    return False


def _check(source: str, names: dict[str, Any]) -> str:
    """Why a check cell does not pass; empty if it does. Each statement must say `ok:` once more."""
    for statement in ast.parse(source).body:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                exec(compile(ast.Module([statement], []), "<check>", "exec"), names)
        except HwError as error:
            return str(error)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"
        if not said.getvalue().startswith("ok: "):
            return "the check did not report a result; is `checks` still the course's own?"
    return ""


if __name__ == "__main__":
    main()
