"""The pages that people read: links that lead somewhere, a reference that is current."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import api

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


def named_files(text: str) -> set[str]:
    """`traffic/ports.py` and `ports.py` name ports.py; what stands for any cell or lesson is no file."""
    return set(re.findall(r"(?<![\w*.}-])\w+\.py\b", text)) - {"cell.py", "NN_name.py", "09_name.py", "lesson_NN.py"}


def docstrings(path: Path) -> str:
    places = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, places))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def test_a_file_that_a_page_or_a_docstring_names_exists():
    folders = ("hw_utils", "hw_grader", "tools", "tests", "lessons")
    sources = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    texts = {path: docstrings(path) for path in sources if "hostile" not in path.parts}
    texts |= {page: page.read_text(encoding="utf-8") for page in PAGES}
    known = {path.name for path in sources}
    gone = {str(path.relative_to(ROOT)): named_files(text) - known for path, text in texts.items()}
    assert {path: names for path, names in gone.items() if names} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_a_page_names_exists(page):
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.M)
    assert sorted(set(named) - known) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_instructors_command_is_make_or_names_the_environments_python(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?:python -m |^|`)hw_grader [a-z_]+.*", text, re.M) == []
    assert re.findall(r"(?:(?<!\.venv/bin/)python -m |^|`)nbgrader [a-z_]+.*", text, re.M) == []


def test_the_reference_is_what_the_docstrings_say():
    assert api.PAGE.read_text(encoding="utf-8") == api.page()


@pytest.mark.parametrize("lesson", sorted((ROOT / "lessons").glob("0*.py")), ids=lambda path: path.stem)
def test_a_lesson_sends_to_the_pages_of_the_torch_that_is_pinned(lesson):
    """Pages of "stable" move and are renamed with each release of torch; those of a version stay where they are."""
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)", (ROOT / "requirements-cpu.txt").read_text(encoding="utf-8"), re.M)
    named = re.findall(r"pytorch\.org/docs/([^/]+)/", lesson.read_text(encoding="utf-8"))
    assert set(named) <= {pinned}


def test_marks_lists_and_downloads_are_never_in_the_repository(tmp_path):
    private = ["class.csv", "late.csv", "gradebook.db", "gradebook.db.2026-03-01", "anna.db", "grades.csv", "one.zip",
               "submitted/a/b", "attempts/names.csv", "autograded/a", "feedback/a", "records/a", "downloaded/a",
               "build/export/canvas.csv"]  # fmt: skip
    public = ["lessons.csv", "lessons/01_hello_ranks.py", "docs/lms.md", "hw_grader/grade.py"]
    shutil.copy(ROOT / ".gitignore", tmp_path)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    said = subprocess.run([*git, "check-ignore", *private, *public], capture_output=True, text=True).stdout
    assert said.split() == private
