"""A lesson: one py:percent file in lessons/, read into cells with their markers.

# %% setup                            the builder fills it in
# %% exercise="ring"                  the student edits it
# %% check="ring" points=15           autograded; grade_id "check-ring"
# %% [markdown] manual="why" points=4 graded by hand
# %% locked="helpers"                 shown, restored before grading
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jupytext
from nbformat import NotebookNode

from hw_grader.notebook.rubric import items_of

ROOT = Path(__file__).resolve().parent.parent
ROLES = ("exercise", "check", "manual", "locked")
KEPT_TAGS = ("hide-input", "nbval-ignore-output", "nbval-skip", "raises-exception")
_REGIONS = {"SOLUTION": "a solution", "HIDDEN TESTS": "hidden tests"}


class LessonError(ValueError):
    """A lesson breaks the rules; the message has one line a problem: file, line, rule, next step."""

    def __init__(self, path: Path | str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}{problem}" for problem in problems))


@dataclass(frozen=True)
class Call:
    """One statement of a check cell: `checks.lesson_02.ring(f, cases=[...])`."""

    check: str  # "lesson_02.ring"
    arguments: tuple[str, ...]  # names in the student's namespace
    cases: list[dict[str, Any]] | None  # None: the check's own, visible ones
    hidden: bool


@dataclass(frozen=True)
class Cell:
    """One cell as it stands in the lesson. `name` is the marker's value, `line` the marker's line in the file."""

    kind: str  # "code", "markdown" or "raw"
    source: str
    role: str = ""  # "", "setup" or one of ROLES
    name: str = ""
    points: float | None = None
    tags: tuple[str, ...] = ()
    line: int = 0
    explicit_id: str = ""

    @property
    def grade_id(self) -> str:
        """nbgrader's id of a marked cell; empty for an ordinary one."""
        if self.explicit_id:
            return self.explicit_id
        return {"": "", "setup": "setup", "check": f"check-{self.name}"}.get(self.role, self.name)

    @property
    def solution(self) -> str:
        """The text of the solution regions, which no student may see."""
        return _region(self.source, "SOLUTION")[1]

    @property
    def hidden(self) -> str:
        """The text of the hidden-test regions."""
        return _region(self.source, "HIDDEN TESTS")[1]

    @property
    def calls(self) -> list[Call]:
        """The statements of a check cell, visible ones first as they stand.

        Raises:
            ValueError: a statement that is not `checks.lesson_NN.name(names..., cases=[literals])`.
        """
        shown, hidden = _region(self.source, "HIDDEN TESTS")
        return [*_calls(shown, False), *_calls(hidden, True)]


@dataclass(frozen=True)
class Lesson:
    """A lesson's cells. `name` is "01_hello_ranks", its notebook `notebook` is "hello_ranks"."""

    path: Path
    cells: list[Cell] = field(repr=False)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def notebook(self) -> str:
        return self.name.partition("_")[2] or self.name

    @property
    def product(self) -> str:
        """Where its notebook lies below solutions/ and notebooks/."""
        return f"{self.name}/{self.notebook}.ipynb"

    @property
    def points(self) -> float:
        return sum(cell.points or 0 for cell in self.cells)

    def with_role(self, role: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.role == role]


def lesson_files(folder: Path = ROOT / "lessons") -> list[Path]:
    """Every lesson's file, in order."""
    return sorted(folder.glob("[0-9]*_*.py"))


def read_lesson(path: Path | str) -> Lesson:
    """The lesson in a file, checked.

    Raises:
        LessonError: what breaks the format, all of it at once.
    """
    path = Path(path)
    lesson = parse_lesson(path.read_text(encoding="utf-8"), path)
    problems = find_problems(lesson)
    if problems:
        raise LessonError(path.name, problems)
    return lesson


def parse_lesson(text: str, path: Path | str) -> Lesson:
    """The lesson's cells, not checked but for the shape of their markers."""
    path = Path(path)
    if not text.startswith("# %% [markdown]"):
        raise LessonError(path.name, [":1: a lesson starts with `# %% [markdown]` and has no jupytext header"])
    nodes = jupytext.reads(text, fmt="py:percent").cells
    lines = marker_lines(text)
    if len(lines) != len(nodes):
        raise LessonError(
            path.name, [f": has {len(lines)} lines that start with `# %%` but {len(nodes)} cells; is one in a string?"]
        )
    problems: list[str] = []
    cells = [_cell(node, line, problems) for node, line in zip(nodes, lines)]
    if problems:
        raise LessonError(path.name, problems)
    return Lesson(path, cells)


def marker_lines(text: str) -> list[int]:
    """The lines at which cells begin: comments, not what only looks like one inside a string."""
    try:
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):  # told later, by the cell that is not Python
        return [n for n, line in enumerate(text.split("\n"), 1) if re.match(r"# %%(\s|$)", line)]
    return [t.start[0] for t in tokens if t.start[1] == 0 and re.match(r"# %%(\s|$)", t.string)]


def _cell(node: NotebookNode, line: int, problems: list[str]) -> Cell:
    marks = {k: v for k, v in node.metadata.items() if not k.startswith("lines_to_")}  # jupytext's own bookkeeping
    title = marks.pop("title", "")
    points, tags, explicit = marks.pop("points", None), marks.pop("tags", []), marks.pop("grade_id", "")
    roles = [role for role in ROLES if role in marks] + (["setup"] if title == "setup" else [])
    unknown = [key for key in marks if key not in ROLES] + ([title] if title not in ("", "setup") else [])
    if unknown:
        problems.append(
            f":{line}: unknown marker {', '.join(unknown)}; known are setup, {', '.join(ROLES)}, points, tags"
        )
    if len(roles) > 1:
        problems.append(f":{line}: a cell has one role, got {' and '.join(roles)}")
    if points is not None and not (isinstance(points, int | float) and points >= 0):
        problems.append(f":{line}: points must be a number of at least 0, got {points!r}")
        points = None
    role = roles[0] if roles else ""
    name = str(marks.get(role, ""))
    return Cell(node.cell_type, node.source.rstrip("\n"), role, name, points, tuple(tags), line, explicit)


def find_problems(lesson: Lesson) -> list[str]:
    """What breaks the rules, one text a problem, each starting with `:line: `."""
    problems = [f":{cell.line}: {text}" for cell in lesson.cells for text in _cell_problems(lesson, cell)]
    seen: dict[str, int] = {}
    for cell in lesson.cells:
        if cell.grade_id and cell.grade_id in seen:
            problems.append(
                f":{cell.line}: the name {cell.grade_id!r} is already taken at line {seen[cell.grade_id]};"
                " every marked cell has its own"
            )
        seen.setdefault(cell.grade_id, cell.line)
    return problems


def _cell_problems(lesson: Lesson, cell: Cell) -> list[str]:
    found = [*_name_problems(cell), *_region_problems(cell)]
    if cell.tags and not set(cell.tags) <= set(KEPT_TAGS):
        found.append(f"unknown tag in {list(cell.tags)}; known are {', '.join(KEPT_TAGS)}")
    if cell.role == "setup" and cell.source.strip():
        found.append("the set-up cell is filled in by the builder (tools/setup_cell.py); leave it empty")
    if cell.kind == "code" and not found:
        found += _code_problems(lesson, cell)
    if cell.role == "manual" and not found:
        found += _rubric_problems(cell)
    return found


def _name_problems(cell: Cell) -> list[str]:
    found = []
    if cell.role and not re.fullmatch(r"[A-Za-z0-9_-]{1,58}", cell.grade_id):
        found.append(f"a name is 1 to 58 letters, digits, - or _; got {cell.name!r}")
    if cell.role in ("check", "manual") and cell.points is None:
        found.append(f'{cell.role}="{cell.name}" needs points, as in `# %% {cell.role}="{cell.name}" points=5`')
    if cell.role not in ("check", "manual") and cell.points is not None:
        found.append("only a check or a manual cell has points")
    if cell.role in ("exercise", "check", "setup") and cell.kind != "code":
        found.append(f"{cell.role} cells are code cells; remove [{cell.kind}]")
    return found


def _region_problems(cell: Cell) -> list[str]:
    found = []
    for region, what in _REGIONS.items():
        begins, ends = cell.source.count(f"BEGIN {region}"), cell.source.count(f"END {region}")
        allowed = cell.role in (("exercise", "manual") if region == "SOLUTION" else ("check",))
        if begins != ends or not _in_turn(cell.source, region):
            found.append(f"{what}: every `### BEGIN {region}` needs its `### END {region}`, got {begins} and {ends}")
        elif begins and not allowed:
            found.append(f"{what} in a cell that is not {'an exercise' if region == 'SOLUTION' else 'a check'}")
        elif not begins and region == "SOLUTION" and cell.role in ("exercise", "manual"):
            found.append(f'{cell.role}="{cell.name}" needs `### BEGIN SOLUTION` and `### END SOLUTION`')
    return found


def _rubric_problems(cell: Cell) -> list[str]:
    items = items_of(cell.source)
    if not items:
        return [f'manual="{cell.name}" needs a **Rubric** with a line a point, as `- 1 point: names the reason`']
    given = sum(item.points for item in items)
    return [] if given == cell.points else [f"the rubric gives {given:g} points, the cell has {cell.points:g}"]


def _in_turn(source: str, region: str) -> bool:
    marks = re.findall(rf"(BEGIN|END) {region}", source)
    return marks == ["BEGIN", "END"] * (len(marks) // 2)


def _code_problems(lesson: Lesson, cell: Cell) -> list[str]:
    found = []
    if any(line.startswith(("%", "!")) for line in cell.source.splitlines()):
        found.append("magics and shell lines do not run everywhere; write Python")
    for text, what in ((cell.source, "the cell"), (starter_source(cell), "what is left without the solution")):
        try:
            ast.parse(text)
        except SyntaxError as error:
            found.append(f"{what} is not Python: {error.msg} (line {error.lineno} of the cell)")
    if cell.role == "check" and not found:
        found += _check_problems(lesson, cell)
    return found


def _check_problems(lesson: Lesson, cell: Cell) -> list[str]:
    try:
        calls = cell.calls
    except ValueError as error:
        return [str(error)]
    found = [] if any(not call.hidden for call in calls) else ["a check cell needs a visible statement"]
    wanted = f"lesson_{lesson.name.partition('_')[0]}."
    return found + [
        f"checks.{c.check} in a lesson whose checks are checks.{wanted}*"
        for c in calls
        if not c.check.startswith(wanted)
    ]


def _region(source: str, region: str) -> tuple[str, str]:
    """(the text outside the regions, the text inside them), without the marker lines."""
    outside, inside, within = [], [], False
    for line in source.splitlines():
        if f"BEGIN {region}" in line:
            within = True
        elif f"END {region}" in line:
            within = False
        else:
            (inside if within else outside).append(line)
    return "\n".join(outside), "\n".join(inside)


def starter_source(cell: Cell) -> str:
    """The cell as a student first sees it: nbgrader's stub for the solution, no hidden tests."""
    kept, within = [], False
    for line in cell.source.splitlines():
        if "BEGIN SOLUTION" in line:
            within = True
            indent = line[: len(line) - len(line.lstrip())]
            stub = (
                ["YOUR ANSWER HERE"] if cell.kind == "markdown" else ["# YOUR CODE HERE", "raise NotImplementedError()"]
            )
            kept += [indent + text for text in stub]
        elif "END SOLUTION" in line:
            within = False
        elif not within:
            kept.append(line)
    return _region("\n".join(kept), "HIDDEN TESTS")[0]


def _calls(source: str, hidden: bool) -> list[Call]:
    return [_call(statement, hidden) for statement in ast.parse(source).body]


def _call(statement: ast.stmt, hidden: bool) -> Call:
    text = ast.unparse(statement)
    call = statement.value if isinstance(statement, ast.Expr) else None
    match = re.fullmatch(r"checks\.(lesson_\d+\.\w+)", ast.unparse(call.func)) if isinstance(call, ast.Call) else None
    if match is None:
        raise ValueError(f"a check cell has only statements like `checks.lesson_02.ring(f)`, got `{text}`")
    arguments = tuple(ast.unparse(a) for a in call.args)
    if not all(re.fullmatch(r"\w+(\.\w+)*", a) and not a[0].isdigit() for a in arguments):
        raise ValueError(f"the arguments of a check are names of the student's namespace, got `{text}`")
    if any(k.arg != "cases" for k in call.keywords):
        raise ValueError(f"a check takes names and `cases=`, got `{text}`")
    try:
        cases = ast.literal_eval(call.keywords[0].value) if call.keywords else None
    except ValueError:
        raise ValueError(f"cases are literals: a list of dictionaries, got `{text}`") from None
    if cases is not None and not (isinstance(cases, list) and cases and all(isinstance(c, dict) for c in cases)):
        raise ValueError(f"cases are a list of at least one dictionary, got `{text}`")
    return Call(match[1], arguments, cases, hidden)
