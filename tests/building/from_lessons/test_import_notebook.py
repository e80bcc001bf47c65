"""An edited notebook comes back into its lesson."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from tests.building.from_lessons.tiny_course import FIXTURE, SOLUTION, cell, edit
from tools.build import build
from tools.import_notebook import import_notebook
from tools.lesson import LessonError, parse_lesson, read_lesson
from tools.notebook import to_lesson_text, to_notebook


def test_import_gives_back_the_lesson_unchanged(course):
    lesson = course / "lessons" / FIXTURE.name
    assert import_notebook(course / SOLUTION, course) == lesson
    assert lesson.read_text() == FIXTURE.read_text()


def test_import_brings_back_an_edit_made_in_jupyterlab(course):
    def change(nb):
        cell(nb, "hello").source = cell(nb, "hello").source.replace("Hello", "Good day")
        cell(nb, "check-hello").metadata.nbgrader.points = 4.0
        cell(nb, "check-hello-again").metadata.nbgrader.points = 0.5
        nb.cells.insert(3, new_markdown_cell("A new cell\n\n- with a list"))
        nb.cells.append(new_code_cell("print('new')", metadata={"scrolled": True, "tags": ["hide-input", "mine"]}))
        marks = {"cell_type": "code", "grade": True, "grade_id": "cell-3f9b", "locked": True, "points": 2}
        marks |= {"schema_version": 3, "solution": False, "task": False}
        nb.cells.append(new_code_cell("checks.lesson_01.hello(hello)", metadata={"nbgrader": marks}))
        nb.cells.append(nb.cells.pop(2))

    edit(course / SOLUTION, change)
    edited = nbformat.read(course / SOLUTION, as_version=4)
    import_notebook(course / SOLUTION, course)
    build(course, unchecked=True)
    built = nbformat.read(course / SOLUTION, as_version=4)

    def content(nb):
        return [(c.cell_type, c.source, c.metadata.get("nbgrader")) for c in nb.cells]

    assert content(built) == content(edited)
    text = (course / "lessons" / FIXTURE.name).read_text()
    assert '# %% check="hello" points=4\n' in text
    assert '# %% check="cell-3f9b" points=2 grade_id="cell-3f9b"' in text


ODD_CELLS = [
    new_code_cell(""),
    new_markdown_cell(""),
    new_code_cell("\n\nx = 1"),
    new_code_cell('s = """\n# %% in a string\n"""'),
    new_markdown_cell("# %% in markdown"),
    new_markdown_cell('"""quoted"""\n\n\n\nfar below'),
    new_code_cell("# a comment only"),
    new_code_cell("# %matplotlib inline"),
    new_code_cell("def f():\n    pass\n\n\n\n\ndef g():\n    pass"),
    new_markdown_cell("  indented\n\ttab  \nbreak"),
    new_markdown_cell("```python\n# %% a cell\n```"),
    new_markdown_cell("---\ntitle: a rule\n---"),
    nbformat.v4.new_raw_cell("raw text"),
]


@pytest.mark.parametrize("odd", ODD_CELLS, ids=lambda c: repr(c.source)[:30])
def test_odd_cells_survive_the_way_through_text(odd):
    notebook = to_notebook(read_lesson(FIXTURE))
    notebook.cells.insert(3, odd)
    back = to_notebook(parse_lesson(to_lesson_text(notebook, FIXTURE), FIXTURE))
    assert [(c.cell_type, c.source) for c in back.cells] == [(c.cell_type, c.source) for c in notebook.cells]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda nb: nb.cells[3].update(attachments={"a.png": {"image/png": "AA=="}}), "pasted image"),
        (lambda nb: cell(nb, "setup").update(source="import os"), "set-up cell"),
        (lambda nb: nb.cells[2].update(source="# %% no cell"), "does not survive|no cell"),
        (lambda nb: cell(nb, "why_ranks").metadata.nbgrader.update(task=True), "task cell"),
        (lambda nb: cell(nb, "check-hello").update(source="assert True"), "only statements like"),
    ],
)
def test_import_refuses_what_a_lesson_cannot_hold_and_changes_nothing(course, change, says):
    edit(course / SOLUTION, change)
    with pytest.raises(LessonError, match=says):
        import_notebook(course / SOLUTION, course)
    assert (course / "lessons" / FIXTURE.name).read_text() == FIXTURE.read_text()
