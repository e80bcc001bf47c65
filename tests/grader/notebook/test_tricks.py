"""Tricks with the JSON of a notebook, on each of lessons 01 to 08: what is graded is the release, whatever came back.

Hypothesis makes the tricks: cells doubled, moved, left out, their ids, kinds, marks and texts changed, attachments and
metadata of any kind put in.
"""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw_grader.notebook.restore import restore
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted

ROOT = Path(__file__).resolve().parents[3]
LESSONS = sorted((ROOT / "solutions").glob("*/*.ipynb"))

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=8), inside, max_size=3),
    max_leaves=6,
)
MARKS = ("grade_id", "points", "grade", "solution", "locked", "task", "cell_type", "schema_version", "checksum")
TRICKS = {
    "double": lambda cells, a, b, value: cells.insert(b, copy.deepcopy(cells[a])),
    "move": lambda cells, a, b, value: cells.insert(b, cells.pop(a)),
    "leave out": lambda cells, a, b, value: cells.pop(a) if len(cells) > 1 else None,
    "id of another": lambda cells, a, b, value: cells[a].update(id=cells[b].get("id")),
    "marks of another": lambda cells, a, b, value: cells[a].update(metadata=copy.deepcopy(cells[b].get("metadata"))),
    "text of another": lambda cells, a, b, value: cells[a].update(source=cells[b].get("source")),
    "kind": lambda cells, a, b, value: cells[a].update(cell_type=("raw", "code", "markdown", value)[b % 4]),
    "mark": lambda cells, a, b, value: mark(cells[a], MARKS[b % len(MARKS)], value),
    "attachments": lambda cells, a, b, value: cells[a].update(attachments=value),
    "key": lambda cells, a, b, value: cells[a].update({("id", "metadata", "source", "outputs")[b % 4]: value}),
}


def mark(cell: dict, name: str, value: object) -> None:
    marks = (cell.get("metadata") or {}).get("nbgrader") if isinstance(cell.get("metadata"), dict) else None
    if isinstance(marks, dict):
        marks[name] = value


@functools.cache
def lesson(path: Path) -> tuple[TrustedNotebook, str]:
    given_out = ROOT / "notebooks" / path.parent.name / path.name
    return read_trusted(path), given_out.read_text()


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.parent.name)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(TRICKS)), st.integers(0, 999), st.integers(0, 999), anything),
                min_size=1, max_size=12))  # fmt: skip
def test_no_trick_with_the_notebooks_json_changes_what_is_asked_or_what_it_is_worth(path, tricks):
    trusted, text = lesson(path)
    notebook = json.loads(text)
    for name, a, b, value in tricks:
        cells = notebook["cells"]
        TRICKS[name](cells, a % len(cells), b % len(cells), value)
    restored = restore(json.dumps(notebook).encode(), trusted)
    if restored.metadata["hw_grader"].get("unreadable"):
        return
    found = [
        (c.metadata["nbgrader"]["grade_id"], c)
        for c in restored.cells
        if c.metadata.get("nbgrader", {}).get("grade_id")
    ]
    assert sorted(name for name, _ in found) == sorted(trusted.marked)
    for name, cell in found:
        own = trusted.marked[name]
        marks = {key: value for key, value in cell.metadata.nbgrader.items() if key != "checksum"}
        assert marks == own.marks
        assert cell.cell_type == own.kind
        assert cell.source == own.source or not (own.is_check or own.is_locked)
    nbformat.validate(restored)
