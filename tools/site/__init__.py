"""The course as a web site: `make site` writes build/site, for GitHub Pages or any other place that serves files.

A lesson's page is the students' notebook with the pictures of the executed solution; no line of a solution, and no
answer of a check, is in it. Sphinx with MyST-NB makes the pages. What is built is scanned for leaks and dead links.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat

from hw_utils.pictures.player import play
from tools.build import RELEASE, BuildFailed, make, read_lessons
from tools.lesson import ROOT, Lesson
from tools.notebook import course_address
from tools.site.executed import executed
from tools.site.figures import ring_run
from tools.site.inspect import dead_links, leaks
from tools.site.pages import badges, guide, lesson_page

HERE = Path(__file__).parent
GUIDES = {  # the file in the repository -> its group in the site's table of contents
    "docs/first_hour.md": "GUIDES",
    "docs/instructor.md": "GUIDES",
    "docs/lms.md": "GUIDES",
    "docs/grading.md": "GUIDES",
    "docs/jupyterhub.md": "GUIDES",
    "CONTRIBUTING.md": "GUIDES",
    "docs/virtual_gpus.md": "CLUSTER",
    "docs/virtual_ranks.md": "CLUSTER",
    "docs/memory.md": "CLUSTER",
    "docs/architecture.md": "REFERENCE",
    "docs/api.md": "REFERENCE",
}


class SiteFailed(RuntimeError):
    """No site was written; the message says why."""


def build_site(
    target: Path, root: Path = ROOT, names: Iterable[str] = (), cache: Path | None = None, address: str | None = None
) -> list[str]:
    """Writes the site into `target`; Sphinx's warnings, a text each.

    `names` are the lessons (all if empty), `cache` is where executed solutions are kept (build/executed).

    Raises:
        SiteFailed: something leaked, a link leads nowhere, or Sphinx stopped.
    """
    lessons = read_lessons(root, names)
    address = course_address(root) if address is None else address
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        source, made = Path(folder, "source"), Path(folder, "site")
        assemble(source, lessons, root, cache or root / "build" / "executed", address)
        warnings = _sphinx(source, made)
        if found := leaks(made, read_lessons(root)):
            raise SiteFailed("\n".join(["this must not be on a public page:", *found]))
        if found := dead_links(made):
            raise SiteFailed("\n".join(["links that lead nowhere:", *found]))
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, target)
    return warnings


def assemble(source: Path, lessons: list[Lesson], root: Path, cache: Path, address: str) -> None:
    """Writes what Sphinx reads: the lessons' pages, the guides, the front page, its settings."""
    (source / "lessons").mkdir(parents=True)
    shutil.copy(HERE / "conf.py", source)
    shutil.copytree(HERE / "static", source / "_static")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        make(lessons, made, address)
        for lesson, solution in zip(lessons, executed(lessons, made, cache)):
            released = nbformat.read(made / RELEASE / lesson.product, as_version=4)
            page = lesson_page(released, solution, source / "lessons" / lesson.name, badges(address, lesson.product))
            nbformat.write(page, source / "lessons" / f"{lesson.name}.ipynb")
    pictures = [p for p in sorted((root / "docs").glob("*")) if p.suffix in (".png", ".svg")]
    there = [name for name in GUIDES if (root / name).exists()]
    groups = set(GUIDES.values())
    known = {f"notebooks/{x.product}": f"lessons/{x.name}.ipynb" for x in lessons}
    known |= {name: name for name in there} | {p.relative_to(root).as_posix(): f"docs/{p.name}" for p in pictures}
    known |= {"README.md": "index.md"}
    (source / "docs").mkdir()
    for picture in pictures:
        shutil.copy(picture, source / "docs")
    for name in there:
        (source / name).write_text(guide((root / name).read_text(encoding="utf-8"), name, known), encoding="utf-8")
    front = (HERE / "index.md").read_text(encoding="utf-8")
    table = "\n".join(f"| [{_title(x)}](lessons/{x.name}.ipynb) | {x.points:g} |" for x in lessons)
    contents = {
        "LESSONS": table,
        "START": _start(address, lessons),
        "PLAYER": f"```{{raw}} html\n{play(ring_run())._repr_html_()}\n```",
        "TOC_LESSONS": "\n".join(f"lessons/{x.name}" for x in lessons),
        **{f"TOC_{group}": "\n".join(x.removesuffix(".md") for x in there if GUIDES[x] == group) for group in groups},
    }
    front = re.sub(r"\b[A-Z_]{5,}\b", lambda match: contents.get(match[0], match[0]), front)
    (source / "index.md").write_text(front, encoding="utf-8")


def _title(lesson: Lesson) -> str:
    return lesson.cells[0].source.splitlines()[0].removeprefix("# ")


def _start(address: str, lessons: list[Lesson]) -> str:
    if not address:
        return "Get the course's folder from your instructor; its README has one line to install for each system."
    return (
        f"{badges(address, lessons[0].product)}\n\nOr on your own machine: `git clone {address}`; its README goes on."
    )


def _sphinx(source: Path, target: Path) -> list[str]:
    if subprocess.run([sys.executable, "-c", "import sphinx, myst_nb, furo"], capture_output=True).returncode:
        raise SiteFailed("the site's tools are not installed; next: make env, or pip install -e '.[site]'")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-d", str(source / ".doctrees")]
    done = subprocess.run([*command, str(source), str(target)], capture_output=True, text=True)
    said = [line.replace(f"{source}/", "") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        raise SiteFailed("\n".join(["Sphinx stopped:", *said[-20:]]))
    for page in target.rglob("*.html"):
        page.write_text(accessible(page.read_text(encoding="utf-8")), encoding="utf-8")
    for rest in (".buildinfo", "objects.inv", "jupyter_execute", "_sources"):
        path = target / rest
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (target / ".nojekyll").touch()  # GitHub Pages: serve _static/ too
    return [line for line in said if "WARNING" in line or "ERROR" in line]


def accessible(page: str) -> str:
    """What furo leaves out: code that scrolls is reached by keyboard, and the menu's headings have a level."""
    page = page.replace("<pre>", '<pre tabindex="0">')
    return page.replace('role="heading">', 'role="heading" aria-level="2">')


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make site", description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", help="as 01_hello_ranks (default: all)")
    parser.add_argument("--target", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    parser.add_argument("--repository", help="from where students install (default: Repository in pyproject.toml)")
    options = parser.parse_args(arguments)
    try:
        warnings = build_site(options.target, names=options.lessons, address=options.repository)
    except (SiteFailed, BuildFailed) as error:
        print(f"No site was written: {error}", file=sys.stderr)
        return 1
    print("\n".join(warnings))
    print(f"{options.target / 'index.html'}: no solution is in it, every link leads somewhere")
    if not (options.repository or course_address()):
        print("It has no Colab and Binder badges, as Repository in pyproject.toml is not set.")
    return 0
