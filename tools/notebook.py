"""A lesson as a notebook with nbgrader's metadata, and such a notebook as a lesson again."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from hw_grader.notebook.content_hash import marks, stamp
from tools.lesson import KEPT_TAGS, ROOT, Cell, Lesson, LessonError, parse_lesson

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
NBGRADER_ROLE = {  # (grade, solution, locked) -> role
    (False, True, False): "exercise",
    (True, False, True): "check",
    (True, False, False): "check",
    (True, True, False): "manual",
    (True, True, True): "manual",
    (False, False, True): "locked",
}


def course_address(root: Path = ROOT) -> str:
    """`Repository` of pyproject.toml: from where students install. Empty as long as nobody has set it."""
    about = (root / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^Repository = "([^"]*)"', about, re.M)
    return found[1] if found and not re.search(r"\bOWNER\b", found[1]) else ""


def setup_source(address: str | None = None) -> str:
    """The set-up cell's text, with the course's address (default: that of pyproject.toml)."""
    address = course_address() if address is None else address
    template = Path(__file__).with_name("setup_cell.py").read_text(encoding="utf-8").rstrip("\n")
    return template.replace("git+REPOSITORY", f"git+{address}" if address else "")


def to_notebook(lesson: Lesson, address: str | None = None) -> NotebookNode:
    """The lesson's notebook, without outputs; the same lesson and address give the same bytes."""
    notebook = nbformat.v4.new_notebook(metadata=json.loads(json.dumps(METADATA)))
    seen: Counter[str] = Counter()
    for cell in lesson.cells:
        node = _node(cell, address)
        node["id"] = cell.grade_id or _content_id(node, seen)
        notebook.cells.append(node)
    stamp(notebook, with_outputs=False)
    return notebook


def _node(cell: Cell, address: str | None) -> NotebookNode:
    source = setup_source(address) if cell.role == "setup" else cell.source
    metadata: dict = {"tags": list(cell.tags)} if cell.tags else {}
    if cell.role:
        metadata["nbgrader"] = _nbgrader(cell)
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    return make.get(cell.kind, nbformat.v4.new_raw_cell)(source, metadata=metadata)


def _nbgrader(cell: Cell) -> dict:
    grade, solution = cell.role in ("check", "manual"), cell.role in ("exercise", "manual")
    metadata = {
        "cell_type": cell.kind,
        "grade": grade,
        "grade_id": cell.grade_id,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return {**metadata, "points": cell.points} if grade else metadata


def _content_id(node: NotebookNode, seen: Counter[str]) -> str:
    """An id from the cell's content; a cell that occurs twice is counted."""
    digest = hashlib.sha256(f"{node.cell_type}\n{node.source}".encode()).hexdigest()[:12]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def to_text(notebook: NotebookNode) -> str:
    """The notebook's bytes as they are committed."""
    return nbformat.writes(notebook, version=4) + "\n"


def to_lesson_text(notebook: NotebookNode, path: Path) -> str:
    """The lesson whose notebook this is: an instructor's edit, brought back.

    Raises:
        LessonError: something in the notebook that a lesson cannot hold.
    """
    problems: list[str] = []
    nodes = [_marked_node(n, node, problems) for n, node in enumerate(notebook.cells, 1)]
    if problems:
        raise LessonError(path.name, problems)
    plain = nbformat.v4.new_notebook(cells=nodes)
    plain.metadata["jupytext"] = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "all"}
    text = jupytext.writes(plain, fmt="py:percent")
    _require_same_cells(notebook, parse_lesson(text, path))
    return text


def _marked_node(n: int, node: NotebookNode, problems: list[str]) -> NotebookNode:
    found = _markers(n, node, problems)
    if node.get("attachments"):
        problems.append(f": cell {n} has a pasted image, which a text file cannot hold; link to a file instead")
    source = node.source
    if found.get("title") == "setup":
        if source.rstrip() != setup_source():
            problems.append(f": cell {n}, the set-up cell, was edited; edit tools/setup_cell.py, then restore the cell")
        source = ""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    return make.get(node.cell_type, nbformat.v4.new_raw_cell)(source.rstrip("\n"), metadata=found)


def _markers(n: int, node: NotebookNode, problems: list[str]) -> dict:
    tags = [t for t in node.metadata.get("tags", []) if t in KEPT_TAGS]
    marks: dict = {"tags": tags} if tags else {}
    meta = node.metadata.get("nbgrader")
    if not meta:
        return marks
    if meta.get("task"):
        problems.append(f": cell {n} is an nbgrader task cell; make it a manually graded answer")
        return marks
    role = NBGRADER_ROLE.get((meta.get("grade"), meta.get("solution"), meta.get("locked")))
    if role is None:
        return marks
    if role == "locked" and meta["grade_id"] == "setup":
        return {"title": "setup"}
    return {**_named(role, meta), **marks}


def _named(role: str, meta: dict) -> dict:
    """`{"check": "ring", "points": 5}`; an id that does not follow from the name is kept beside it."""
    grade_id = meta["grade_id"]
    name = grade_id.removeprefix("check-") if role == "check" else grade_id
    marks = {role: name}
    if meta["grade"]:
        marks["points"] = int(meta["points"]) if float(meta["points"]).is_integer() else meta["points"]
    if role == "check" and not grade_id.startswith("check-"):
        marks["grade_id"] = grade_id
    return marks


def _require_same_cells(notebook: NotebookNode, lesson: Lesson) -> None:
    built = to_notebook(lesson)
    want = [(c.cell_type, c.source.rstrip("\n"), marks(c).get("grade_id")) for c in notebook.cells]
    got = [(c.cell_type, c.source.rstrip("\n"), marks(c).get("grade_id")) for c in built.cells]
    for n, (a, b) in enumerate(zip(want, got), 1):
        if a != b:
            raise LessonError(lesson.path.name, [f": cell {n} does not survive as text: {a!r} would become {b!r}"])
    if len(want) != len(got):
        raise LessonError(lesson.path.name, [f": {len(want)} cells would become {len(got)}"])
