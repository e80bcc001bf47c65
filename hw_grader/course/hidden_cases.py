"""What a student is told about a hidden case: that it fails, and a cause in our own words.

Nothing that a student's process says about such a case is repeated, whatever it is: it may hold the case. Which kind of
exception it chose is such a word, too: of Python's seventy, each could stand for a number.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from hw_grader.sandbox.bubblewrap import package_folder

_CASE = "Every case shown in the notebook is right, but one that is not shown "
OF_HIDDEN = {
    "fail": _CASE + "fails.",
    "limit": _CASE + "takes too long, or needs or gives too much.",
    "crashed": _CASE + "ends the process.",
    "tampered": _CASE + "gives data that no driver makes.",
    "grader-fault": "not graded yet",
}
# What an honest answer raises in a case that it did not think of; all others are one kind.
_TOLD = frozenset({"Deadlock", "TimedOut", "IndexError", "ZeroDivisionError", "OutOfMemoryError"})
_MAX_PARTS, _MAX_CHARS = 2, 1000
_CAUSE = "\n  likely cause: "


def of_error(name: Any) -> str:
    """A hidden case in which the code raised: the exception's name if it is one of a few, or that there was one."""
    if name == "WorkerFailed":  # a runner's word: students know exceptions of ranks
        return _with_cause("one of your ranks raises an exception")
    known = isinstance(name, str) and name in _TOLD
    return _with_cause(f"your code raises {name if known else 'an exception'}")


def of_cause(cause: Any) -> str:
    """A hidden case that was judged wrong: with the cause if all of it are sentences of the checks' source."""
    return _with_cause(cause if isinstance(cause, str) and _is_ours(cause) else "")


def _with_cause(cause: str) -> str:
    return f"{OF_HIDDEN['fail']}{_CAUSE}{cause}" if cause else OF_HIDDEN["fail"]


def cause_in(told: str) -> str:
    """The cause in what `of_error` or `of_cause` gave; empty if there is none."""
    return told.partition(_CAUSE)[2]


def _is_ours(cause: str) -> bool:
    """Whether one or two of the sentences make it up; a cause with a value put in may give a case away."""
    ends = {0}
    for _ in range(_MAX_PARTS if len(cause) <= _MAX_CHARS else 0):
        ends = {n + len(s) for n in ends for s in _sentences() if cause.startswith(s, n)}
        if len(cause) in ends:
            return True
    return False


@lru_cache(maxsize=1)
def _sentences() -> frozenset[str]:
    """The constant texts of a few words, and without a number, in the source of the checks."""
    found: set[str] = set()
    for file in (package_folder() / "checks").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        found |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
                  and id(n) not in parts}  # fmt: skip
    return frozenset(s for s in found if " " in s and len(s) < _MAX_CHARS and not any(map(str.isdigit, s)))
