"""HTML and drawings that are short to write and long to show: what nh3 or a browser makes of them is not.

An element that is never closed is open for all that follows, and made again in each paragraph; a group that is used ten
times by the next one, and that by the next, is a million shapes after six. Both are told from the text alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

MOST_OPEN = 40  # elements at once; those of tables, lists and coloured code are closed one after the other
_MOST_DEPTH = 100  # of a drawing's elements
_MOST_USED = 5_000_000  # bytes of what a drawing's references stand for, together
# A tag as every reader understands it, or else a sign that may begin one.
_VALUE = r"\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>=`]+"
_TAG = re.compile(rf"<(/?)([a-zA-Z][a-zA-Z0-9-]*)(?:\s+[\w:.-]+(?:\s*=\s*(?:{_VALUE}))?)*\s*/?>|<(?=[a-zA-Z/!?])")
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_REFERENCE = re.compile(r"url\(\s*[\"']?#([^)\"'\s]*)")
_NO_PARTS = re.compile(r"(filter|foreignobject|set|animate\w*)\Z")
_NO_STYLES = re.compile(r"filter|\\|@")  # a backslash may stand for any letter


def is_deep(html: str) -> bool:
    """Whether more elements may be open at once than a page needs.

    A tag that closes another one than the last opened, and all that is no plain tag, counts as one that stays open.

    >>> is_deep("<ul>" + "<li><b>x</b></li>" * 1000 + "</ul>"), is_deep("<ul><li>" * 1000)
    (False, True)
    """
    open_: list[str] = []
    n_wrong = 0
    for tag in _TAG.finditer(html):
        is_end, name = tag[1], (tag[2] or "").lower()
        if is_end and open_ and open_[-1] == name:
            open_.pop()
        elif not name or is_end:
            n_wrong += 1
        elif name not in _VOID:
            open_.append(name)
        if len(open_) + n_wrong > MOST_OPEN:
            return True
    return False


def is_heavy(drawing: str) -> bool:
    """Whether an SVG, a whole document, may keep a browser busy, or is none that it shows."""
    found = _Parts(parser := expat.ParserCreate())
    try:
        parser.Parse(drawing.encode(errors="replace"), True)
    except (expat.ExpatError, _Heavy):
        return True
    targets = [found.by_id.get(name, _Part()) for name in found.references]
    return any(part.n_references for part in targets) or sum(part.n_bytes for part in targets) > _MOST_USED


class _Heavy(Exception):
    """What is seen of a drawing by now is enough."""


@dataclass
class _Part:
    """An element and all in it."""

    n_bytes: int = 0
    n_references: int = 0
    begin: int = 0
    names: list[str] = field(default_factory=list)


class _Parts:
    """A drawing's elements by their ids, and what is referred to anywhere, as often as it is."""

    def __init__(self, parser: expat.XMLParserType) -> None:
        self.parser, self.by_id, self.references = parser, dict[str, _Part](), list[str]()
        self.open, self.in_style = [_Part()], False
        parser.StartElementHandler, parser.EndElementHandler = self._begin, self._end
        parser.CharacterDataHandler = self._text

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2].lower()
        if _NO_PARTS.match(name) or len(self.open) > _MOST_DEPTH:
            raise _Heavy
        part = _Part(begin=self.parser.CurrentByteIndex)
        for key, value in attributes.items():
            key = key.rpartition(":")[2].lower()
            if key == "filter" or (key == "style" and _NO_STYLES.search(value.lower())) or "\\" in value:
                raise _Heavy
            part.names += [value] * (key == "id")
            found = [value.strip()[1:]] if key == "href" and value.strip().startswith("#") else []
            found += _REFERENCE.findall(value)
            part.n_references += len(found)
            self.references += found
        self.open.append(part)
        self.in_style = name == "style"

    def _end(self, _: str) -> None:
        part = self.open.pop()
        part.n_bytes = self.parser.CurrentByteIndex - part.begin
        self.open[-1].n_references += part.n_references
        self.in_style = False
        for name in part.names:
            self.by_id[name] = max(part, self.by_id.get(name, part), key=lambda one: (one.n_references, one.n_bytes))

    def _text(self, text: str) -> None:
        if self.in_style and (_NO_STYLES.search(text.lower()) or "url" in text.lower()):
            raise _Heavy
