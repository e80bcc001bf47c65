"""The trusted side of an assignment: its cells, its checks with their hidden cases, its points.

Read from the instructor's notebook (solutions/NN_name/name.ipynb). Nothing here comes from a student.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import nbformat

from hw_grader.notebook.course_secret import secret_of

_REGION = {
    name: [re.compile(rf"[ \t]*### {end} {name}\b") for end in ("BEGIN", "END")]
    for name in ("SOLUTION", "HIDDEN TESTS")
}
MAX_PARSED_CHARS = 20_000  # parsing takes 10 us a character
_STUB = {"code": "raise NotImplementedError()", "markdown": "YOUR ANSWER HERE"}


class TrustedNotebookError(ValueError):
    """The instructor's notebook cannot be graded with; says the cell and the rule."""


@dataclass(frozen=True)
class Call:
    """One statement of a check cell: `checks.lesson_02.ring(f, cases=[...])`."""

    check: str  # "lesson_02.ring"
    names: tuple[str, ...]  # "ring", "context.world_size"
    cases: list[dict[str, Any]] | None  # None: the check's own
    hidden: bool


@dataclass(frozen=True)
class Cell:
    """One cell of the instructor's notebook, as the student received it."""

    place: int
    kind: str  # "code", "markdown", "raw"
    source: str  # without solution and hidden tests
    cell_id: str
    marks: dict[str, Any] = field(default_factory=dict)  # nbgrader's metadata
    calls: tuple[Call, ...] = ()

    @property
    def grade_id(self) -> str:
        return self.marks.get("grade_id", "")

    @property
    def is_check(self) -> bool:
        """Graded by machine."""
        return bool(self.calls)

    @property
    def is_locked(self) -> bool:
        """Restored before grading: set-up and given helpers."""
        return bool(self.marks.get("locked")) and not self.is_check

    @property
    def is_students(self) -> bool:
        """An exercise, or an answer graded by hand."""
        return bool(self.marks.get("solution"))

    @property
    def points(self) -> float:
        return float(self.marks.get("points", 0))

    @property
    def names(self) -> frozenset[str]:
        """What the cell defines at its top level."""
        return defined(self.source)


@dataclass(frozen=True)
class TrustedNotebook:
    """An assignment's trusted notebook."""

    assignment: str
    notebook: str
    cells: tuple[Cell, ...]
    digest: str  # of everything a verdict depends on
    secret: bytes = field(default=b"", repr=False)  # the course's (see course_secret.py)
    runs_all: bool = False  # cells that no answer uses are run too (see unused_cells)
    only: frozenset[str] = frozenset()  # grade ids of the checks to run; all of them if empty

    @property
    def checks(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_check]

    @property
    def to_run(self) -> list[Cell]:
        return [cell for cell in self.checks if not self.only or cell.grade_id in self.only]

    @property
    def marked(self) -> dict[str, Cell]:
        return {cell.grade_id: cell for cell in self.cells if cell.grade_id}

    @property
    def max_points(self) -> float:
        return sum(cell.points for cell in self.checks)


def read_trusted(path: Path | str) -> TrustedNotebook:
    """The trusted notebook in a file.

    Raises:
        ReleaseError: a check cell that holds anything but checks, or no check at all.
    """
    path = Path(path)
    notebook = nbformat.read(path, as_version=4)
    cells = tuple(_cell(place, node) for place, node in enumerate(notebook.cells))
    if not any(cell.is_check for cell in cells):
        raise TrustedNotebookError(f"{path.name}: no check cell; is this the instructor's notebook?")
    parts = [[c.kind, c.source, c.marks, repr(c.calls)] for c in cells]
    digest = hashlib.sha256((json.dumps(parts, sort_keys=True) + package_digest()).encode()).hexdigest()
    return TrustedNotebook(path.parent.name, path.stem, cells, digest, secret_of(path.absolute().parents[2]))


def package_digest() -> str:
    """A hash of hw_utils and of the grader's own inside part: a new version of a check grades anew."""
    from hw_grader.sandbox.bubblewrap import package_folder

    here = Path(__file__).parent.parent
    files = sorted(package_folder().rglob("*.py")) + sorted(here.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _cell(place: int, node: Any) -> Cell:
    marks = {k: v for k, v in node.metadata.get("nbgrader", {}).items() if k != "checksum"}
    calls: list[Call] = []
    if marks.get("grade") and node.cell_type == "code" and not marks.get("solution"):
        parts = list(_regions("HIDDEN TESTS", node.source))
        shown = "".join(text for text, is_inside in parts if not is_inside)
        hidden = "\n".join(text for text, is_inside in parts if is_inside)
        where = f"cell {marks['grade_id']}"
        calls = [*parse_calls(shown, where, hidden=False), *parse_calls(hidden, where, hidden=True)]
    return Cell(place, node.cell_type, released(node.source, node.cell_type), node.get("id", ""), marks, tuple(calls))


def released(source: str, kind: str) -> str:
    """A cell's text as the student gets it."""
    source = "".join(text for text, is_inside in _regions("HIDDEN TESTS", source) if not is_inside)
    stub = _STUB.get(kind, "") + "\n"
    parts = _regions("SOLUTION", source)
    return "".join(_indentation(text) + stub if is_inside else text for text, is_inside in parts).rstrip("\n")


def _regions(name: str, source: str) -> Iterator[tuple[str, bool]]:
    """The lines of `source`, and as one piece those from each BEGIN to the next END; whether they are that.

    Line by line: students' texts come here too, and a search for an END behind each BEGIN has no end itself.
    """
    begin, end = _REGION[name]
    held: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", source):
        if held or begin.match(line):
            held.append(line)
            if len(held) > 1 and end.match(line):
                yield "".join(held), True
                held = []
        else:
            yield line, False
    yield "".join(held), False


def _indentation(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]


def parse_calls(source: str, where: str, *, hidden: bool) -> list[Call]:
    """The checks that a check cell calls.

    Raises:
        ReleaseError: a statement that is not `checks.lesson_NN.name(names..., cases=[literals])`.
    """
    return [_call(statement, where, hidden) for statement in ast.parse(source).body]


def _call(statement: ast.stmt, where: str, hidden: bool) -> Call:
    rule = "a check cell holds only `checks.lesson_NN.name(names..., cases=[literals])`"
    found = ast.unparse(statement)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and ast.unparse(call.func).startswith("checks.lesson_")):
        raise TrustedNotebookError(f"{where}: {rule}; found: {found[:200]}")
    names = [ast.unparse(a) for a in call.args]
    if not all(name.replace(".", "").isidentifier() for name in names):
        raise TrustedNotebookError(f"{where}: {rule}; an answer is a name or an attribute, found: {found[:200]}")
    cases = None
    for keyword in call.keywords:
        if keyword.arg != "cases":
            raise TrustedNotebookError(f"{where}: {rule}; found: {found[:200]}")
        try:
            cases = ast.literal_eval(keyword.value)
        except ValueError:
            raise TrustedNotebookError(f"{where}: cases must be literals; found: {found[:200]}") from None
    return Call(ast.unparse(call.func).removeprefix("checks."), tuple(names), cases, hidden)


@lru_cache(maxsize=500)
def defined(source: str) -> frozenset[str]:
    """The names that a code cell defines at its top level; none if it does not parse, or is too long to try."""
    try:
        if len(source) > MAX_PARSED_CHARS:
            return frozenset()
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return frozenset(names)
