"""What came from a student, outputs and written answers, made safe to store and to show."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape
from itertools import accumulate
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import nh3
from jinja2 import pass_context
from jinja2.runtime import Context

from hw_grader.notebook.heavy_html import is_deep, is_heavy

MAX_OUTPUTS = 100
_MAX_TEXT_CHARS = 120_000
_MAX_MARKDOWN_CHARS = 20_000  # of a cell that is rendered
_MAX_HTML_CHARS = 500_000  # pictures are in it
_MAX_PICTURE_CHARS = 2_000_000
_MAX_CELL_CHARS = 5_000_000
_KINDS = ("text/plain", "text/html", "image/png", "text/markdown", "text/latex")  # none that a browser runs
_TAGS = {"b", "i", "em", "strong", "code", "pre", "p", "br", "hr", "ul", "ol", "li", "table", "thead", "tbody", "tr",
         "th", "td", "caption", "h1", "h2", "h3", "h4", "h5", "h6", "span", "div", "sub", "sup", "del", "blockquote",
         "img"}  # fmt: skip
_PICTURE = re.compile(r"data:image/(png|jpeg|gif);base64,[A-Za-z0-9+/=\s]*\Z")
_BOX = re.compile(r'\bviewBox="([\d. ]+)"')
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DRAWN = re.compile(r"<img alt=\"([^\"<>]*)\" style=\"[^\"<>]*\" src='data:image/svg\+xml,%3Csvg([^'<>]*)'>")
# Formulas that would keep a page's reader busy: many nested commands, or commands that are made of others.
_MOST_TEX = 400
_MAKES_COMMANDS = re.compile(r"\\(def|let|(re)?new(command|environment)|DeclareMathOperator|require|mmlToken)(?![a-z])")
_MOST_FORMULA_CHARS, _MOST_FORMULA_DEPTH, _MOST_COMMANDS = 1_000, 20, 150  # of one; 195 braces crash a tab
_FORMULA_ENDS = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}
_DEEPER = {"{": 1, "}": -1}
_FORMULA_BEGINS = re.compile(r"(?<!\\)\$\$?|\\[(\[]|\\begin\{([^{}]{1,30})\}|\\(?:eq)?ref\{[^{}]{0,100}\}")
_TAG_OR_CODE = re.compile(r'<(pre|code)>.*?</\1>|<(?:[^<>"]|"[^"]*")*>', re.DOTALL)  # in clean HTML
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*\Z")
# Controls that a terminal obeys, signs that turn a line's direction, halves that no file holds; colours (ESC [ ... m)
# are kept on request.
_UNSEEN = re.compile("(\x1b\\[[0-9;]*m)|[\\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_outputs(outputs: Any, room: int = _MAX_CELL_CHARS) -> list[dict[str, Any]]:
    """Of what the student's process says a cell wrote: what has the notebook format's form, within limits.

    room: how many bytes a submission may still hold (see `n_bytes_of`).
    """
    cleaned: list[dict[str, Any]] = []
    room = min(room, _MAX_CELL_CHARS)
    for output in outputs[:MAX_OUTPUTS] if isinstance(outputs, list) else ():
        made = _clean(output) if isinstance(output, dict) else None
        room -= n_bytes_of(made) if made else 0
        if made and room > 0:
            cleaned.append(made)
    return cleaned


def n_bytes_of(outputs: Any) -> int:
    """What outputs take in a record's file, where a letter that is not ASCII is written with up to 12."""
    return len(json.dumps(outputs))


def _clean(output: dict) -> dict[str, Any] | None:
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return {"output_type": "stream", "name": name, "text": safe_text(output.get("text"))}
    if kind == "error":
        lines = output.get("traceback")
        lines = [safe_text(line, 5_000) for line in lines[:80]] if isinstance(lines, list) else []
        return {"output_type": "error", "ename": safe_text(output.get("ename"), 200),
                "evalue": safe_text(output.get("evalue"), 2_000), "traceback": lines}  # fmt: skip
    if kind in ("display_data", "execute_result"):
        data = output.get("data") if isinstance(output.get("data"), dict) else {}
        kept = {k: _shown(k, data[k]) for k in _KINDS if isinstance(data.get(k), str) and len(data[k]) <= _limit(k)}
        kept = {k: v for k, v in kept.items() if v}
        if not kept:
            return None
        made = {"output_type": kind, "data": kept, "metadata": {}}
        return {**made, "execution_count": None} if kind == "execute_result" else made
    return None


def _shown(kind: str, content: str) -> str:
    """The content made safe; empty if there is nothing left."""
    if kind == "image/png":
        return content if _BASE64.match(content) else ""
    if kind == "text/html":
        return safe_html(content)
    if kind == "text/markdown":
        return safe_markdown(content)  # HTML in it stays as it is when Markdown is rendered
    if kind == "text/latex" and is_much_tex(content):
        return ""
    return safe_text(content)


def _limit(kind: str) -> int:
    if kind == "text/html":
        return _MAX_HTML_CHARS
    return _MAX_PICTURE_CHARS if kind.startswith("image/") else _MAX_TEXT_CHARS


class OwnHtml(str):
    """HTML that this kit wrote, which pages show as it is; what a student wrote is never one."""


def visible(text: str, *, colours: bool = False) -> str:
    """The text with what would act on a terminal or hide in a page written out.

    >>> visible("a\x1b[2J\u202eb")
    'a\\\\x1b[2J\\\\u202eb'
    """
    return _UNSEEN.sub(lambda found: found[0] if found[1] and colours else ascii(found[0])[1:-1], text)


def safe_text(value: Any, limit: int = _MAX_TEXT_CHARS) -> str:
    """Text that a file can hold, and that no terminal obeys: half a surrogate becomes `?`, a bar's CR stays."""
    if not isinstance(value, str):
        return ""
    lines = value[:limit].encode(errors="replace").decode().split("\r")
    return "\r".join(visible(line, colours=True) for line in lines)


def safe_html(html: str) -> str:
    """HTML that runs, loads, links and hides nothing: text, lists, tables, and pictures that it holds itself.

    Neither links nor other addresses are left: a page of the instructor's that asks the server for something, asks
    with the instructor's session. A drawing becomes such a picture, in which no browser runs or loads anything.
    """
    html, *players = html.split('<div class="stage" style="display: none">')  # what plays; a still is beside it
    html = "".join([html, *(player.partition("<!-- stage -->")[2] for player in players)])
    html = _DRAWN.sub(lambda drawn: f'<svg aria-label="{drawn[1]}"{unquote(drawn[2])}', html)  # a figure of the kit's
    html, drawings = _put_aside(re.sub("[\ue000\ue001]", "", html.encode(errors="replace").decode()))
    if is_deep(html):
        return _TOO_DEEP
    html = nh3.clean(html, tags=_TAGS, attributes={"img": {"src", "alt"}}, attribute_filter=_attribute,
                     url_schemes={"data"})  # fmt: skip
    whole = re.sub("\ue000(\\d+)\ue001", lambda place: "".join(drawings[int(place[1]) :][:1]), html)
    return f'<div class="tex2jax_ignore">{whole}</div>' if is_much_tex(html) else whole


_SVG_TAG = re.compile(r"</svg>|<svg(?=[\s/>])[^<>]*>")
_TOO_DEEP = "<p>[HTML with many elements in one another, or not closed, is left out]</p>"
_TOO_HEAVY = "[a drawing with many parts made of parts is left out]"


def is_much_tex(text: str) -> bool:
    """Whether formulas in it stay text on a page: so many commands and braces, or some that make new ones."""
    return text.count("\\") + text.count("{") > _MOST_TEX or _MAKES_COMMANDS.search(text) is not None


def _put_aside(html: str) -> tuple[str, list[str]]:
    """The text with a mark where a drawing was, and the drawings as pictures; each character is looked at once."""
    parts, drawings, end = [], [], 0
    while (begin := html.find("<svg", end)) >= 0 and (inside := html.find(">", begin)) >= 0:
        attributes = html[begin + len("<svg") : inside]
        box = _BOX.search(attributes)
        if box is None or not attributes[0].isspace():
            parts.append(html[end : inside + 1])
            end = inside + 1
            continue
        if (close := _end_of_drawing(html, inside)) < 0:
            break
        parts += [html[end:begin], f"\ue000{len(drawings)}\ue001"]
        drawings.append(_as_image(attributes, box[1], html[inside + 1 : close]))
        end = close + len("</svg>")
    return "".join([*parts, html[end:]]), drawings


def _end_of_drawing(html: str, inside: int) -> int:
    """Where the drawing whose first tag ends at `inside` is closed, with those in it; -1 where it is not."""
    n_open = 1
    for tag in _SVG_TAG.finditer(html, inside):
        n_open += -1 if tag[0] == "</svg>" else not tag[0].endswith("/>")
        if n_open == 0:
            return tag.start()
    return -1


def _as_image(attributes: str, box: str, parts: str) -> str:
    """The drawing as a picture that holds itself."""
    *_, width, height = [*box.split(), "600", "300"][:4]
    size = f'viewBox="{box}" width="{width}" height="{height}"'
    whole = f'<svg xmlns="{_SVG}" xmlns:xlink="{_XLINK}" {size}>{parts}</svg>'
    label = re.search(r'aria-label="([^"]*)"', attributes)
    alt = escape(unescape(label[1] if label else ""), quote=True)
    if is_heavy(whole):
        return f"<em>{_TOO_HEAVY} {alt}</em>"
    return f'<img alt="{alt}" src="data:image/svg+xml;base64,{base64.b64encode(whole.encode()).decode()}">'


def pasted_pictures(cell: Any) -> dict[str, str]:
    """Name -> address of the pictures that were pasted into a text cell, which hold themselves."""
    found, room = {}, _MAX_CELL_CHARS
    attached = cell.get("attachments")
    for name, kinds in attached.items() if isinstance(attached, dict) else ():
        for kind, content in kinds.items() if isinstance(kinds, dict) else ():
            lines = content if isinstance(content, list) else [content]
            address = f"data:{kind};base64,{''.join(line for line in lines if isinstance(line, str))}"
            room -= len(address)
            if room > 0 and _PICTURE.match(address):
                found[str(name)] = address
    return found


@dataclass
class Formulas:
    """What one page may still set as formulas, of all its texts together; what is beyond stays as it was written.

    A page sets nothing but what is marked here (see templates/formgrader_page).
    """

    n_formulas: int = 300  # beginnings of which no end is found are counted, too
    n_chars: int = 6_000

    def marked(self, html: str) -> str:
        """Clean HTML with each formula in a span of the class `formula`; none in code, none across elements.

        >>> Formulas().marked("<p>for $n$ ranks</p>")
        '<p>for <span class="formula">$n$</span> ranks</p>'
        """
        parts, end = [], 0
        for tag in _TAG_OR_CODE.finditer(html):
            parts += [*self._marked_text(html[end : tag.start()]), tag[0]]
            end = tag.end()
        return "".join([*parts, *self._marked_text(html[end:])])

    def _marked_text(self, text: str) -> list[str]:
        parts, done, place = [], 0, 0
        while self.n_formulas > 0 and (begin := _FORMULA_BEGINS.search(text, place)):
            self.n_formulas -= 1
            end = _end_of_formula(text, begin)
            if not end and len(text) - begin.start() > _MOST_FORMULA_CHARS:
                break  # nobody knows whether the next sign begins a formula or ends this one
            formula, place = text[begin.start() : end], end or begin.end()
            if end and len(formula) <= self.n_chars and not _keeps_busy(formula):
                self.n_chars -= len(formula)
                parts += [text[done : begin.start()], f'<span class="formula">{formula}</span>']
                done = end
        return [*parts, text[done:]]


def _end_of_formula(text: str, begin: re.Match) -> int:
    """Where the formula ends, as MathJax sees it: outside of braces; 0 if it does not, or not soon."""
    if "ref{" in begin[0]:
        return begin.end()
    end, depth = _FORMULA_ENDS.get(begin[0], f"\\end{{{begin[1]}}}"), 0
    signs = re.compile(rf"{re.escape(end)}|\\.|[{{}}]", re.DOTALL)
    for sign in signs.finditer(text, begin.end(), begin.start() + _MOST_FORMULA_CHARS):
        if sign[0] == end and depth == 0:
            return sign.end()
        depth = max(0, depth + _DEEPER.get(sign[0], 0))
    return 0


def _keeps_busy(formula: str) -> bool:
    depth = max(accumulate(_DEEPER.get(sign, 0) for sign in formula), default=0)
    is_much = depth > _MOST_FORMULA_DEPTH or formula.count("\\") > _MOST_COMMANDS
    return is_much or _MAKES_COMMANDS.search(formula) is not None


def _formulas_of_page(context: Context) -> Formulas:
    return context["resources"].setdefault("formulas", Formulas())


@pass_context
def markdown_of_cell(context: Context, source: str) -> str:
    """The filter of nbgrader's pages for the text of a cell, or of an output."""
    html = safe_markdown(source, pasted_pictures(context.get("cell") or {}))
    return html if isinstance(source, OwnHtml) else _formulas_of_page(context).marked(html)


@pass_context
def latex_of_output(context: Context, source: str) -> str:
    """The filter of nbgrader's pages for an output that is a formula."""
    return _formulas_of_page(context).marked(escape(source))


def safe_markdown(source: str, pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """Markdown as such HTML: what nbgrader's pages show of a student's text; HTML of the kit's own stays as it is.

    pictures: name -> address of those that the text may show as `attachment:name`.
    """
    from nbconvert.filters import markdown2html

    if isinstance(source, OwnHtml):
        return source
    names: list[str] = []

    def put_aside(found: re.Match) -> str:
        names.append(unquote(found[1]))
        return f"](pasted-{len(names) - 1}"

    try:
        if len(source) > _MAX_MARKDOWN_CHARS:
            raise ValueError("the renderer's work grows with the square of some texts")
        html = markdown2html(re.sub(r"\]\(\s*attachment:([^)\s]*)", put_aside, source))
        address = {f'src="pasted-{n}"': f'src="{pictures.get(name, "")}"' for n, name in enumerate(names)}
        html = safe_html(re.sub(r'src="pasted-\d+"', lambda found: address.get(found[0], ""), html))
        if html == _TOO_DEEP:
            raise ValueError("nothing that was written is left out")
        return html
    except Exception:  # a text that the renderer cannot take is shown as it was written
        return f"<pre>{escape(safe_text(source))}</pre>"


def _attribute(tag: str, name: str, value: str) -> str | None:
    value = re.sub("[\ue000\ue001]", "", value)  # no drawing comes into an attribute
    return value if name == "alt" or _PICTURE.match(value) else None
