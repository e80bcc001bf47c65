"""A course of one tiny lesson: its files, and edits of them."""

from __future__ import annotations

from pathlib import Path

import nbformat

FIXTURE = Path(__file__).parent / "fixtures" / "lessons" / "01_tiny_lesson.py"
SOLUTION, RELEASE = "solutions/01_tiny_lesson/tiny_lesson.ipynb", "notebooks/01_tiny_lesson/tiny_lesson.ipynb"


def edit(path: Path, change) -> None:
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def cell(notebook, grade_id: str):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def rewrite(course: Path, old: str, new: str) -> None:
    lesson = course / "lessons" / FIXTURE.name
    text = lesson.read_text()
    assert old in text
    lesson.write_text(text.replace(old, new))
