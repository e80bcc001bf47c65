"""What is wrong with a built site: secrets that leaked, links that lead nowhere, things fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

from tools.lesson import ROOT, Lesson
from tools.publish.leaks import leaks_in, normal, secrets

TEXTS = (".html", ".js", ".json", ".txt", ".css", ".svg", ".xml", ".ipynb", ".md")


def leaks(site: Path, lessons: Iterable[Lesson]) -> list[str]:
    """What students must not get, one text a leak; every line of a lesson's page counts, as in a notebook."""
    open_code = "\n".join(map(normal, _kit().splitlines()))
    guarded = [s for s in secrets(lessons) if s.kind != "line" or s.text not in open_code]
    found = []
    for path in sorted(p for p in site.rglob("*") if p.suffix in TEXTS):
        name = path.relative_to(site)
        of_lesson = name.parts[0] == "lessons"
        found += [f"{name.as_posix()}: {leak}" for leak in leaks_in(_text(path), guarded, every_line=of_lesson)]
    return found


def _kit() -> str:
    """hw_utils, which every student reads: a line of a solution that stands there too is no secret by itself."""
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "hw_utils").rglob("*.py")))


def dead_links(site: Path) -> list[str]:
    """Links to pages, parts of pages and files that are not there, and what a page would fetch from elsewhere."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for kind, target in _references(page):
            where = urlsplit(target)
            if where.scheme or where.netloc:
                if kind != "a" and where.scheme != "data":
                    found.append(f"{page.relative_to(site)} fetches {target}")
                continue
            there = (page.parent / unquote(where.path)).resolve() if where.path else page.resolve()
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{page.relative_to(site)}: {target}")
            elif where.fragment and there.suffix == ".html" and unquote(where.fragment) not in _parts(there):
                found.append(f"{page.relative_to(site)}: no part {target}")
    return found


def _references(page: Path) -> list[tuple[str, str]]:
    """(kind of element, address) of everything that the page names."""
    soup = _soup(page)
    asked = [(tag.name, tag.get("href") or tag.get("src")) for tag in soup.find_all(["a", "img", "script", "iframe"])]
    asked += [("link", tag["href"]) for tag in soup.find_all("link", href=True) if tag.get("rel") != ["canonical"]]
    return [(kind, target) for kind, target in asked if target]


@cache
def _parts(page: Path) -> frozenset[str]:
    return frozenset(["", *(tag["id"] for tag in _soup(page).find_all(id=True))])


def _soup(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def _text(path: Path) -> str:
    if path.suffix == ".html":
        return _soup(path).get_text()  # highlighting puts every word of a program into an element of its own
    return path.read_text(encoding="utf-8", errors="replace")
