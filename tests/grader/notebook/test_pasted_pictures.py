"""A picture that a student pasted into a text is there for who grades it by hand, and nothing else is."""

from __future__ import annotations

import base64

import pytest
from jinja2 import Environment

from hw_grader.notebook.restore import restore
from hw_grader.notebook.sanitize import markdown_of_cell
from hw_grader.notebook.trusted_notebook import read_trusted
from tests.grader.small_course import as_bytes, make_course, submission

PICTURE = base64.b64encode(b"\x89PNG some picture").decode()


def shown(cell: dict) -> str:
    pages = Environment()
    pages.filters["markdown2html"] = markdown_of_cell
    return pages.from_string("{{ cell.source | markdown2html }}").render(cell=cell, resources={})


@pytest.fixture
def restored(tmp_path):
    def of_text(source: str, attachments: object) -> dict:
        notebook = submission()
        notebook.cells.append({"cell_type": "markdown", "id": "text", "metadata": {}, "source": source,
                               "attachments": attachments})  # fmt: skip
        found = restore(as_bytes(notebook), read_trusted(make_course(tmp_path)))
        return next(cell for cell in found.cells if cell.source == source)

    return of_text


@pytest.mark.parametrize("content", [PICTURE, [PICTURE[:8], PICTURE[8:]]])
def test_a_pasted_picture_is_on_the_grading_page(restored, content):
    cell = restored("my plot: ![it](attachment:a%20plot.png)", {"a plot.png": {"image/png": content}})
    assert f'src="data:image/png;base64,{PICTURE}"' in shown(cell)


@pytest.mark.parametrize(
    "attachments",
    [
        "no dictionary",
        {"a.png": ["no kinds"]},
        {"a.png": {"image/svg+xml": PICTURE}},
        {"a.png": {"image/png": '" onerror="alert(1)'}},
        {"a.png": {'image/png" onerror="alert(1)': PICTURE}},
        {"a.png": {"image/png": "A" * 6_000_000}},  # more than a cell may hold
        {"other.png": {"image/png": PICTURE}},
    ],
)
def test_nothing_but_such_a_picture_is_shown(restored, attachments):
    page = shown(restored("![it](attachment:a.png) ![none](pasted-0) ![far](pasted-7)", attachments))
    assert "data:" not in page
    assert "onerror" not in page
    assert "it" in page
