"""The page that a student gets back: each check's verdict and why, their own code and what it printed.

One self-contained file of at most 1 MB. Everything of the student's is escaped, HTML output passes nh3, and no hidden
test can be in it: the graded notebook does not hold them (see nbgrader_hook.write_verdicts).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import jinja2
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import Exporter
from nbformat import NotebookNode

from hw_grader.notebook.outputs import safe_html
from hw_grader.notebook.release import released

MAX_BYTES = 1_000_000
_MAX_TEXT_CHARS, _MAX_HTML_CHARS = 10_000, 500_000
_MAX_PICTURE_BYTES = 200_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_PAGE = jinja2.Environment(autoescape=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>{{ title }}</title><style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
section { border-left: .4rem solid transparent; padding-left: .8rem }
.pass { border-color: #0072b2 } .lost { border-color: #d55e00 }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
img { max-width: 100%; background: #fff }
</style></head><body><main><h1>{{ title }}</h1><p>{{ points }} of {{ max_points }} points</p>
<table><caption>Points</caption><thead><tr><th scope="col">check</th><th scope="col">points</th><th scope="col">of</th>
</tr></thead><tbody>{% for c in checks %}<tr><th scope="row"><a href="#{{ c.id }}">{{ c.id }}</a></th>
<td>{{ c.points }}</td><td>{{ c.max }}</td></tr>{% endfor %}</tbody></table>
{% for cell in cells %}<section class="{{ cell.mark }}" {% if cell.id %}id="{{ cell.id }}"{% endif %}>
{% if cell.id %}<h2>{{ cell.id }}{% if cell.max %}: {{ cell.points }} of {{ cell.max }}{% endif %}</h2>{% endif %}
{% if cell.source %}<pre>{{ cell.source }}</pre>{% endif %}
{% for o in cell.outputs %}{{ o }}{% endfor %}
{% if cell.comment %}<p><strong>Comment:</strong> {{ cell.comment }}</p>{% endif %}
</section>{% endfor %}{% if cut %}<p>The page was longer than 1 MB; the rest is left out.</p>{% endif %}
</main></body></html>
""")


class FeedbackExporter(HTMLExporter):
    """nbgrader's feedback step with this page; its preprocessors have put scores and comments into the notebook."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[str, dict]:
        graded, resources = Exporter.from_notebook_node(self, nb, resources, **kw)
        resources["output_extension"] = ".html"
        about = resources.get("nbgrader", {})
        return page(graded, about), resources


def page(graded: NotebookNode, about: dict[str, Any]) -> str:
    """The HTML; pictures go first when it is too long, then whole cells from the end."""
    for pictures in (True, False):
        cells = [
            _cell(cell, pictures) for cell in graded.cells if cell.cell_type == "code" or _marks(cell).get("grade")
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
    title = f"{about.get('assignment', '')}: {about.get('notebook', '')}".strip(": ") or "Feedback"
    points = about.get("score", sum(c["points"] for c in checks))
    most = about.get("max_score", sum(c["max"] for c in checks))
    return _PAGE.render(title=title, cells=cells, checks=checks, points=f"{points:g}", max_points=f"{most:g}", cut=cut)


def _marks(cell: NotebookNode) -> dict:
    return cell.metadata.get("nbgrader", {})


def _cell(cell: NotebookNode, pictures: bool) -> dict[str, Any]:
    marks = _marks(cell)
    most = float(marks.get("points", 0)) if marks.get("grade") else 0.0
    points = float(marks.get("score", 0) or 0)
    mark = "" if not most else "pass" if points >= most else "lost"
    outputs = [part for output in cell.get("outputs", []) for part in _output(output, pictures)]
    source = released(cell.source, cell.cell_type)[:_MAX_TEXT_CHARS]
    return {
        "id": marks.get("grade_id", ""),
        "source": source,
        "outputs": outputs,
        "mark": mark,
        "points": points,
        "max": most,
        "comment": marks.get("comment") or "",
    }


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
