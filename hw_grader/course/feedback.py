"""The page that a student gets back: what was lost and why, then the notebook with all verdicts.

One self-contained file of at most 1 MB. Everything of the student's is escaped, HTML output passes nh3, and no hidden
test can be in it: the graded notebook does not hold them (see trusted_verdict_step.write_verdicts).
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import Exporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from hw_grader.notebook.sanitize import safe_html
from hw_grader.notebook.trusted_notebook import released

MAX_BYTES = 1_000_000
_MAX_TEXT_CHARS, _MAX_HTML_CHARS = 10_000, 500_000
_MAX_PICTURE_BYTES = 200_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_MAX_WHY_CHARS = 1_500
_NO_COMMENT = "No response."  # nbgrader's own, for a cell that was left as it came

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_PAGE = jinja2.Environment(loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True).get_template("feedback.html")


class FeedbackExporter(HTMLExporter):
    """nbgrader's feedback step with this page; its preprocessors have put scores and comments into the notebook."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[str, dict]:
        graded, resources = Exporter.from_notebook_node(self, nb, resources, **kw)
        resources["output_extension"] = ".html"
        about = resources.get("nbgrader", {})
        return page(graded, {**about, **_in_gradebook(about)}), resources


def _in_gradebook(about: dict[str, Any]) -> dict[str, Any]:
    """The student's name, and the ids of the cells that nobody has graded yet."""
    with Gradebook(about["db_url"]) as gradebook:
        notebook = gradebook.find_submission_notebook(about["notebook"], about["assignment"], about["student"])
        student = notebook.assignment.student
        name = " ".join(part for part in (student.first_name, student.last_name) if part)
        return {"name": name, "waiting": {grade.name for grade in notebook.grades if grade.needs_manual_grade}}


def page(graded: NotebookNode, about: dict[str, Any]) -> str:
    """The HTML; pictures go first when it is too long, then whole cells from the end.

    about: nbgrader's "assignment", "student", "score", "max_score" and "late_penalty" (points), with "name" of the
        student and "waiting", the grade ids without a mark; each may be missing.
    """
    waiting = about.get("waiting", set())
    for pictures in (True, False):
        cells = [
            _cell(cell, pictures, waiting)
            for cell in graded.cells
            if cell.cell_type == "code" or _marks(cell).get("grade")
        ]
        html = _render(cells, about, cut=False)
        if len(html.encode()) <= MAX_BYTES:
            return html
    low, high = 0, len(cells)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(cells[:middle], about) else (low, middle - 1)
    return _render(cells[:low], about, cut=True)


def _fits(cells: list[dict], about: dict[str, Any]) -> bool:
    return len(_render(cells, about, cut=True).encode()) <= MAX_BYTES


def _render(cells: list[dict], about: dict[str, Any], *, cut: bool) -> str:
    checks = [c for c in cells if c["max"]]
    title = f"{about.get('assignment', '')}: {about.get('name') or about.get('student', '')}".strip(": ")
    late = float(about.get("late_penalty") or 0)
    points = max(0.0, float(about.get("score", sum(c["points"] for c in checks))))
    most = float(about.get("max_score", sum(c["max"] for c in checks)))
    return _PAGE.render(
        title=title or "Feedback", cells=[_shown(c) for c in cells], checks=[_shown(c) for c in checks],
        lost=[_shown(c) for c in checks if c["mark"] == "lost"], points=f"{points:g}", max_points=f"{most:g}",
        late=f"{late:g}" if late else "", cut=cut,
    )  # fmt: skip


def _shown(cell: dict[str, Any]) -> dict[str, Any]:
    return {**cell, "points": f"{cell['points']:g}", "max": f"{cell['max']:g}" if cell["max"] else ""}


def _marks(cell: NotebookNode) -> dict:
    return cell.metadata.get("nbgrader", {})


def _cell(cell: NotebookNode, pictures: bool, waiting: set[str]) -> dict[str, Any]:
    marks = _marks(cell)
    name = marks.get("grade_id", "")
    most = float(marks.get("points", 0)) if marks.get("grade") else 0.0
    points = float(marks.get("score", 0) or 0)
    mark = "" if not most else "pass" if points >= most else "lost"
    comment = marks.get("comment") or ""
    return {
        "id": name,
        "name": name.removeprefix("check-"),
        "source": released(cell.source, cell.cell_type)[:_MAX_TEXT_CHARS],
        "outputs": [part for output in cell.get("outputs", []) for part in _output(output, pictures)],
        "mark": mark,
        "why": _why(cell) if mark == "lost" else "",
        "waits": name in waiting,
        "points": points,
        "max": most,
        "comment": "" if comment == _NO_COMMENT and (points or not most) else comment,
    }


def _why(cell: NotebookNode) -> str:
    """What the check said: the verdict's own words, with cause and hint."""
    said = [o for o in cell.get("outputs", []) if o.output_type == "error"]
    text = "\n".join("\n".join(o.traceback) or f"{o.ename}: {o.evalue}" for o in said)
    return _ANSI.sub("", text).removeprefix("CheckFailed: ")[:_MAX_WHY_CHARS]


def _output(output: NotebookNode, pictures: bool) -> list[Markup]:
    if output.output_type == "stream":
        return [_pre(output.text)]
    if output.output_type == "error":
        return [_pre("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")]
    data = output.get("data", {})
    if isinstance(data.get("image/png"), str) and (picture := _picture(data["image/png"])):
        return [picture if pictures else _pre("[picture left out]")]
    if isinstance(data.get("text/html"), str):
        return [_markup(safe_html(data["text/html"][:_MAX_HTML_CHARS]))]
    return [_pre(data["text/plain"])] if isinstance(data.get("text/plain"), str) else []


def _markup(html: str) -> Markup:
    return Markup(html)


def _pre(text: str) -> Markup:
    text = _ANSI.sub("", text)
    short = text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "\n[cut]"
    return _markup("<pre>{}</pre>").format(short)


def _picture(text: str) -> Markup | None:
    """An image element, if the text is base64 of a PNG of reasonable size."""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return None
    if not data.startswith(b"\x89PNG\r\n\x1a\n") or len(data) > _MAX_PICTURE_BYTES:
        return None
    return _markup('<p><img alt="output of this cell" src="data:image/png;base64,{}"></p>').format(
        base64.b64encode(data).decode()
    )
