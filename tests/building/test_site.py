"""The course's site: complete, with pictures, without a line of a solution, and without a link that leads nowhere."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import nbformat
import pytest

from tests.building.from_lessons.tiny_course import FIXTURE
from tools.build import build
from tools.lesson import ROOT, read_lesson
from tools.site import GUIDES, SiteFailed, build_site
from tools.site.inspect import dead_links, leaks
from tools.site.pages import badges, guide, lesson_page

ADDRESS = "https://github.com/a-school/its-course"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SECRET = 'secret_greeting = f"Rank {rank}: Hello, {name}!"'


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of one tiny lesson, with the guides."""
    root = tmp_path_factory.mktemp("site") / "course"
    shutil.copytree(FIXTURE.parent, root / "lessons")
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copy(ROOT / "CONTRIBUTING.md", root)
    build(root, unchecked=True)
    return root


@pytest.fixture(scope="module")
def site(course):
    """The site of it, its solution really executed."""
    if not all(map(find_spec, ("sphinx", "myst_nb", "furo"))):
        if os.environ.get("CI") == "true":
            pytest.fail("the site's tools are missing: make env")
        pytest.skip("the site's tools are not installed: make env")
    target = course.parent / "made"
    warnings = build_site(target, course, address=ADDRESS)
    assert warnings == []
    return target


def test_every_page_of_the_docs_is_on_the_site():
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(GUIDES)


@pytest.mark.slow
def test_the_site_has_the_lesson_every_guide_a_search_and_the_badges(site, course):
    for page in ["index", "lessons/01_tiny_lesson", "search", *(n.removesuffix(".md") for n in GUIDES)]:
        assert (site / f"{page}.html").exists() == (page in ("index", "search") or page.startswith("lessons")
            or (course / f"{page}.md").exists()), page  # fmt: skip
    lesson = (site / "lessons" / "01_tiny_lesson.html").read_text()
    assert "colab.research.google.com/github/a-school/its-course/blob/HEAD/notebooks/01_tiny_lesson" in lesson
    assert "mybinder.org/v2/gh/a-school/its-course/HEAD?urlpath=lab%2Ftree%2Fnotebooks%2F01_tiny_lesson" in lesson
    assert "NotImplementedError" in lesson
    assert "secret_greeting" not in lesson
    assert 'class="hw-player"' in (site / "index.html").read_text()
    assert (site / "searchindex.js").stat().st_size > 1000
    assert not [p for p in site.rglob("*") if p.suffix in (".ipynb", ".md", ".doctree", ".pickle")]


@pytest.mark.slow
@pytest.mark.parametrize("planted", [SECRET, "print('a line of nobody')"])
def test_the_scan_reads_pages_as_their_readers_do(site, tmp_path, planted):
    lessons = [read_lesson(FIXTURE)]
    assert leaks(site, lessons) == []
    copy = shutil.copytree(site, tmp_path / "copy")
    page = copy / "lessons" / "01_tiny_lesson.html"
    coloured = "".join(f"<span>{c.replace('<', '&lt;')}</span>" for c in planted)
    page.write_text(page.read_text().replace("</article>", f"<pre>{coloured}</pre></article>"))
    assert bool(leaks(copy, lessons)) == (planted == SECRET)


@pytest.mark.slow
def test_a_dead_link_and_a_thing_from_elsewhere_are_found(site, tmp_path):
    assert dead_links(site) == []
    copy = shutil.copytree(site, tmp_path / "copy")
    added = '<a href="gone.html">a</a><a href="#nowhere">b</a><script src="https://cdn.example.org/x.js"></script>'
    (copy / "index.html").write_text((copy / "index.html").read_text().replace("</article>", f"{added}</article>"))
    assert [x.split(":")[0].split(" fetches")[0] for x in dead_links(copy)] == ["index.html"] * 3


@pytest.mark.slow
def test_a_leak_stops_the_site_and_leaves_the_last_one(site, course, monkeypatch, tmp_path):
    root = shutil.copytree(course, tmp_path / "course")
    (root / "docs" / "first_hour.md").write_text(f"# A guide\n\n```\n{SECRET}\nprint(secret_greeting)\n```\n")
    target = shutil.copytree(site, tmp_path / "made")
    before = (target / "index.html").read_bytes()
    with pytest.raises(SiteFailed, match="first_hour"):
        build_site(target, root, address=ADDRESS)
    assert (target / "index.html").read_bytes() == before


def cell(name: str, source: str, outputs=(), **marks):
    made = nbformat.v4.new_code_cell(source, id=name, outputs=list(outputs))
    made.metadata = {"nbgrader": {"grade_id": name, **marks}} if marks else {}
    return made


def test_a_page_shows_what_experiments_draw_and_neither_answers_nor_checks(tmp_path):
    said = nbformat.v4.new_output("stream", text="ok: hidden world size 11")
    drawn = nbformat.v4.new_output("display_data", data={"image/png": PNG, "text/plain": "x"})
    drawn.metadata["image/png"] = {"alt": "four [ranks]"}
    axes = nbformat.v4.new_output("execute_result", data={"text/plain": "<Axes: title={'left': 'a'}>"})
    title = nbformat.v4.new_markdown_cell("# 1. A lesson\n\ntext")
    answer, check = {"solution": True, "grade": False}, {"solution": False, "grade": True}
    solution = [cell("answer", SECRET, [said], **answer), cell("check-a", "", [said], **check)]
    solution.append(cell("plot", "draw()", [axes, drawn]))
    stub = [title, cell("answer", "stub", **answer), cell("check-a", "", **check), cell("plot", "draw()")]
    page = lesson_page(
        nbformat.v4.new_notebook(cells=stub), nbformat.v4.new_notebook(cells=solution), tmp_path / "pictures", "BADGES"
    )
    assert page.cells[0].source == "# 1. A lesson\n\nBADGES\n\ntext"
    assert [len(c.get("outputs", [])) for c in page.cells] == [0, 0, 0, 1]
    assert page.cells[3].outputs[0].data == {"text/markdown": "![four  ranks ](pictures/plot-1.png)"}
    assert (tmp_path / "pictures" / "plot-1.png").read_bytes()[1:4] == b"PNG"
    assert "secret" not in nbformat.writes(page)


@pytest.mark.parametrize(
    ("address", "colab", "binder"),
    [
        ("https://github.com/a/b.git", "github/a/b/blob/HEAD/notebooks/01_x/x.ipynb", "v2/gh/a/b/HEAD?"),
        ("https://gitlab.com/a/c/b", "", "v2/gl/a%2Fc%2Fb/HEAD?"),
        ("https://git.example.org/a/b", "", "v2/git/https%3A%2F%2Fgit.example.org%2Fa%2Fb/HEAD?"),
    ],
)
def test_badges_lead_where_the_course_lies(address, colab, binder):
    found = badges(address, "01_x/x.ipynb")
    assert binder in found
    assert ("colab" in found) == bool(colab)
    assert colab in found
    assert badges("", "01_x/x.ipynb") == ""


def test_a_guides_links_lead_to_the_sites_pages_or_are_words():
    known = {"docs/grading.md": "docs/grading.md", "notebooks/01_x/x.ipynb": "lessons/01_x.ipynb"}
    text = "[a](grading.md#walls) [b](../notebooks/01_x/x.ipynb) [c](../Makefile) [d](https://x.org/) [e](#here)\n"
    fenced = "```\n[c](../Makefile)\n```\n"
    assert guide(text + fenced, "docs/first_hour.md", known) == (
        "[a](grading.md#walls) [b](../lessons/01_x.ipynb) c [d](https://x.org/) [e](#here)\n" + fenced
    )


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_pages_are_readable_at_every_width_in_both_themes(site, browser, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    for name in ("index.html", "lessons/01_tiny_lesson.html"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto((site / name).as_uri())
        found = Axe().run(page).response["violations"]
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        page.close()
        serious = [f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found if v["impact"] in ("serious", "critical")]
        assert (serious, wide) == ([], 0), name
