"""What students must not get, and whether it is in a folder of theirs.

Secret are: every line of a solution that no lesson shows openly, hidden cases, planted mistakes, and whatever belongs
to the instructor's side.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tests.checks.wrong_answers import Wrong, planted
from tools.lesson import Cell, Lesson, starter_source

TRIVIAL_CHARS = 20  # a shorter line, or a shorter case, may be in any program
WINDOW = 3  # so many lines of a solution in a row are no coincidence, wherever they stand
INSTRUCTORS = re.compile(r"\b(hw_grader|wrong_answers|BEGIN SOLUTION|HIDDEN TESTS)\b|\b(solutions|lessons|tests)/\d\d_")
INSTRUCTORS_FOLDERS = ("hw_grader", "lessons", "solutions", "tests", "tools", "gradebook.db", "nbgrader_config.py")


@dataclass(frozen=True)
class Secret:
    """A text that no published file may hold, and where it comes from.

    kind: "line" of a solution, which counts in a notebook; "lines" in a row, "case" and "name", which count anywhere.
    """

    kind: str
    text: str  # normalised
    source: str


def normal(line: str) -> str:
    """A line without its indent, its comment, its spacing and its kind of quotes."""
    return re.sub(r"\s+", "", re.sub(r"(^|\s)#.*$", "", line)).replace("'", '"')


def secrets(lessons: Iterable[Lesson], mistakes: Iterable[Wrong] | None = None) -> list[Secret]:
    """Everything that must stay with the instructor; what a lesson shows openly is no secret."""
    lessons = list(lessons)
    shown = "\n".join(normal(line) for x in lessons for cell in x.cells for line in starter_source(cell).splitlines())
    found: set[Secret] = set()
    for lesson in lessons:
        for cell in lesson.cells:
            found |= {s for s in _of_solution(cell, f"{lesson.name}, solution of {cell.name}") if s.text not in shown}
            if cell.role == "check":
                found |= set(_of_cases(cell, f"{lesson.name}, hidden case of {cell.name}"))
    for wrong in planted() if mistakes is None else mistakes:
        if len(wrong.name) >= 12:
            found.add(Secret("name", wrong.name, f"planted mistake of {wrong.check}"))
    return sorted(found, key=lambda secret: (secret.source, secret.text))


def _of_solution(cell: Cell, source: str) -> Iterator[Secret]:
    lines = [normal(line) for line in cell.solution.splitlines() if normal(line)]
    yield from (Secret("line", line, source) for line in lines if len(line) >= TRIVIAL_CHARS)
    size = min(WINDOW, len(lines))
    windows = ["\n".join(lines[n : n + size]) for n in range(len(lines) - size + 1)]
    yield from (Secret("lines", window, source) for window in windows if len(window) >= 2 * TRIVIAL_CHARS)


def _of_cases(cell: Cell, source: str) -> Iterator[Secret]:
    for call in cell.calls:
        for case in (call.cases or []) if call.hidden else []:
            if len(_canonical(case)) >= TRIVIAL_CHARS:
                yield Secret("case", _canonical(case), source)


def _canonical(case: dict) -> str:
    """A case as text, whatever the order of its keys."""
    return normal(repr(dict(sorted(case.items()))))


def _cases_in(text: str) -> str:
    """Every flat dictionary of literals in a text, as canonical texts."""
    found = []
    for match in re.finditer(r"\{[^{}]*:[^{}]*\}", text):
        try:
            found.append(_canonical(ast.literal_eval(match[0])))
        except (ValueError, SyntaxError, TypeError):
            continue  # an f-string's braces, JSON, a set
    return "\n".join(found)


def find_leaks(folder: Path, lessons: Iterable[Lesson], mistakes: Iterable[Wrong] | None = None) -> list[str]:
    """What leaked into the folder, one text a leak."""
    lessons = list(lessons)
    guarded = secrets(lessons, mistakes)
    leaks = [f"{name} belongs to the instructor" for name in INSTRUCTORS_FOLDERS if (folder / name).exists()]
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts):
        leaks += [f"{path.relative_to(folder).as_posix()}: {leak}" for leak in _leaks_in(path, guarded)]
    return leaks + visible_hidden_cases(lessons)


def _leaks_in(path: Path, guarded: list[Secret]) -> Iterator[str]:
    text = _text_of(path)
    for match in INSTRUCTORS.finditer(text):
        yield f"names {match[0]}"
    yield from leaks_in(text, guarded, every_line=path.suffix == ".ipynb")


def leaks_in(text: str, guarded: list[Secret], *, every_line: bool) -> Iterator[str]:
    """The secrets that a text holds; single lines of a solution count in what a student works in."""
    lines = [line for line in map(normal, text.splitlines()) if line]
    inside = {
        "line": "\n".join(lines) if every_line else "",
        "lines": "\n".join(lines),
        "case": "".join(lines) + "\n" + _cases_in(text),
    }
    for secret in guarded:
        found = _has_word(text, secret.text) if secret.kind == "name" else secret.text in inside[secret.kind]
        if found:
            yield f"has {secret.text!r} ({secret.source})"


def _has_word(text: str, word: str) -> bool:
    return word in text and re.search(rf"\b{re.escape(word)}\b", text) is not None


def _text_of(path: Path) -> str:
    """A file's text; of a notebook all that its cells hold, outputs and metadata included."""
    text = path.read_bytes().decode("utf-8", "replace")
    if path.suffix != ".ipynb":
        return text
    notebook = nbformat.reads(text, as_version=4)
    cells = [f"{cell.source}\n{cell.metadata}\n{cell.get('outputs', '')}" for cell in notebook.cells]
    return "\n".join([*cells, str(notebook.metadata)])


def visible_hidden_cases(lessons: Iterable[Lesson]) -> list[str]:
    """Hidden cases that a check of hw_utils shows already: then they are not hidden."""
    return [
        f"hw_utils.checks.{call.check} already has the hidden case {case!r} of {lesson.name}"
        for lesson in lessons
        for cell in lesson.with_role("check")
        for call in cell.calls
        if call.hidden
        for case in call.cases or []
        if case in _cases_of(call.check)
    ]


def _cases_of(check: str) -> list[dict]:
    module, _, name = check.partition(".")
    return [dict(case) for case in getattr(importlib.import_module(f"hw_utils.checks.{module}"), name).cases]
