"""What students get: complete, working by itself, and without anything that is the instructor's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement

from hw_utils.checks import lesson_01
from tests.building.from_lessons.tiny_course import FIXTURE
from tests.checks.wrong_answers import Wrong
from tools.build import build, read_lessons
from tools.lesson import ROOT, parse_lesson, read_lesson
from tools.notebook import course_address
from tools.publish import COPIED, PublishFailed, main, publish, require_address, students_project
from tools.publish.leaks import find_leaks, secrets, visible_hidden_cases
from tools.publish.lesson_choice import ChoiceError, chosen_lessons
from tools.publish.pins import students_pins

NOTEBOOK = "notebooks/01_tiny_lesson/tiny_lesson.ipynb"
ADDRESS = "https://git.example.org/a-school/its-course"
MISTAKE = Wrong("greets_from_the_wrong_rank", "lesson_01.hello", "", ())


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A course of one tiny lesson with the real hw_utils, and in `students` beside it what is published of it."""
    folder = tmp_path_factory.mktemp("once")
    root = folder / "course"
    shutil.copytree(FIXTURE.parent, root / "lessons")
    shutil.copytree(ROOT / "hw_utils", root / "hw_utils", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs").mkdir()
    for name in (*COPIED, "pyproject.toml", "requirements-cpu.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    build(root, unchecked=True)
    publish(folder / "students", root, ADDRESS)
    assert find_leaks(folder / "students", [read_lesson(FIXTURE)], [MISTAKE]) == []
    return folder


@pytest.fixture
def course(once, tmp_path):
    """A copy of the course, for a test to change."""
    return Path(shutil.copytree(once / "course", tmp_path / "course"))


@pytest.fixture
def published(once, tmp_path):
    """A copy of what is published of it."""
    return Path(shutil.copytree(once / "students", tmp_path / "students"))


def plant(folder: Path, text: str, name: str = NOTEBOOK) -> None:
    """Puts a text into a published file."""
    path = folder / name
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.append(nbformat.v4.new_code_cell(text))
        nbformat.write(notebook, path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)


def test_students_get_exactly_their_part(published):
    assert sorted(p.name for p in published.iterdir()) == [
        ".binder",
        ".devcontainer",
        ".dockerignore",
        ".gitignore",
        ".published.json",
        "Dockerfile",
        "LICENSE",
        "LICENSE-TEXTS",
        "README.md",
        "START_HERE.md",
        "docs",
        "environment-cpu.yml",
        "hw_utils",
        "lab",
        "notebooks",
        "pyproject.toml",
        "requirements.txt",
    ]
    assert [p.relative_to(published).as_posix() for p in published.rglob("*.ipynb")] == [NOTEBOOK]
    assert not list(published.rglob("__pycache__"))
    for page in published.rglob("*.md"):
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for page in ("README.md", "START_HERE.md"):
        assert f"| [1. A tiny lesson]({NOTEBOOK}) | 6.5 |" in (published / page).read_text()


def test_the_published_package_works_by_itself(published):
    released = nbformat.read(published / NOTEBOOK, as_version=4)
    cells = [c.source for c in released.cells if c.cell_type == "code"]
    program = "\n".join([cells[0], cells[3], "import hw_utils; print(hw_utils.__file__)", cells[4]])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=published, capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == str(published / "hw_utils" / "__init__.py")
    assert "hello is not written yet" in done.stderr


def test_the_students_project_has_every_module_and_nothing_of_the_instructors(published):
    about = (published / "pyproject.toml").read_text()
    assert 'packages.find = { include = ["hw_utils*"] }' in about
    folders = {p.parent for p in (published / "hw_utils").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)  # what setuptools finds as a package
    rows = re.findall(r'^"([\w.]+)" = \[(.+)\]$', about[about.index("[tool.setuptools.package-data]") :], re.M)
    globs = [(_package(published, name), glob) for name, files in rows for glob in re.findall(r'"(.+?)"', files)]
    named = {path for folder, glob in globs for path in folder.glob(glob)}
    assert named == {p for p in (published / "hw_utils").rglob("*") if p.is_file() and p.suffix != ".py"}
    for word in ("hw_grader", "nbgrader", "dask", "[tool.ruff"):
        assert word not in about
    assert students_project((ROOT / "pyproject.toml").read_text(), ADDRESS) == about


def _package(folder: Path, name: str) -> Path:
    return folder.joinpath(*name.split("."))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('secret_greeting = f"Rank {rank}: Hello, {name}!"', NOTEBOOK),
        ("    secret_greeting  =  f'Rank {rank}: Hello, {name}!'   # copied", NOTEBOOK),
        ("So that it can tell which share of the data belongs to it.", NOTEBOOK),
        ('checks.lesson_01.hello(hello, cases=[{"name": "Grace",\n "world_size": 5}])', NOTEBOOK),
        ('CASE = {"world_size": 5, "name": "Grace"}\n', "hw_utils/checks/lesson_01/__init__.py"),
        ('secret_greeting = f"Rank {rank}: Hello, {name}!"\nprint(secret_greeting)\n', "hw_utils/core/hardware.py"),
        ("def greets_from_the_wrong_rank(): ...\n", "hw_utils/core/hardware.py"),
        ("### BEGIN SOLUTION\n", NOTEBOOK),
        ("from hw_grader.notebook.trusted_notebook import read_release\n", "hw_utils/core/hardware.py"),
        ("see solutions/01_tiny_lesson\n", "README.md"),
        ("x = 1\n", "solutions/01_tiny_lesson/notes.txt"),
        ("x = 1\n", "tests/wrong.py"),
    ],
)
def test_a_planted_leak_is_found(published, text, name):
    plant(published, text, name)
    leaks = find_leaks(published, [read_lesson(FIXTURE)], [MISTAKE])
    assert leaks, f"{text!r} in {name} was not found"
    assert all(leak.startswith((name, name.split("/")[0])) for leak in leaks)


def test_a_leak_in_outputs_or_metadata_of_a_notebook_is_found(published):
    lessons = [read_lesson(FIXTURE)]
    notebook = nbformat.read(published / NOTEBOOK, as_version=4)
    line = 'secret_greeting = f"Rank {rank}: Hello, {name}!"'
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text=line)]
    nbformat.write(notebook, published / NOTEBOOK)
    assert find_leaks(published, lessons, [MISTAKE])


def test_every_line_of_a_solution_that_is_not_shown_is_guarded():
    texts = {secret.text for secret in secrets([read_lesson(FIXTURE)], [MISTAKE])}
    assert 'secret_greeting=f"Rank{rank}:Hello,{name}!"' in texts
    assert '{"world_size":5,"name":"Grace"}' in texts or '{"name":"Grace","world_size":5}' in texts
    assert "greets_from_the_wrong_rank" in texts


def test_a_hidden_case_that_the_check_shows_is_told():
    visible = dict(lesson_01.hello.cases[0])
    text = FIXTURE.read_text().replace('{"world_size": 5, "name": "Grace"}', repr(visible))
    assert visible_hidden_cases([parse_lesson(text, FIXTURE)]) == [
        f"hw_utils.checks.lesson_01.hello already has the hidden case {visible!r} of 01_tiny_lesson"
    ]


def test_a_leak_stops_the_publication_and_nothing_is_written(course, tmp_path):
    plant(course, 'secret_greeting = f"Rank {rank}: Hello, {name}!"\nprint(secret_greeting)\n', "hw_utils/core/link.py")
    with pytest.raises(PublishFailed, match=r"hw_utils/core/link\.py: has"):
        publish(tmp_path / "students", course)
    assert not (tmp_path / "students").exists()


def test_publishing_again_updates_our_files_and_keeps_others(course, published):
    (published / "my notes.txt").write_text("mine")
    (published / ".git").mkdir()
    lesson = course / "lessons" / FIXTURE.name
    lesson.write_text(lesson.read_text().replace("numbers = [1, 2, 3]", "numbers = [1, 2, 4]"))
    (course / "hw_utils" / "core" / "collective_algorithms.py").rename(course / "hw_utils" / "core" / "plans.py")
    assert set(publish(published, course, ADDRESS)) == {NOTEBOOK, "hw_utils/core/plans.py"}
    assert not (published / "hw_utils" / "core" / "collective_algorithms.py").exists()
    assert (published / "my notes.txt").read_text() == "mine"
    assert NOTEBOOK in json.loads((published / ".published.json").read_text())


def test_a_changed_or_foreign_file_is_never_overwritten(course, published):
    plant(published, "my own work")
    with pytest.raises(PublishFailed, match="changed since: notebooks/01_tiny_lesson"):
        publish(published, course, ADDRESS)
    assert "my own work" in (published / NOTEBOOK).read_text()


def test_an_address_that_nobody_has_set_stops_the_publication_with_the_next_step(tmp_path, capsys):
    for address in ("", "https://github.com/OWNER/course", "my-course"):
        with pytest.raises(PublishFailed, match=r"(?s)in pyproject\.toml.*or give it for once:  make publish DIR="):
            require_address(address)
    if course_address():
        pytest.skip("this course has its address")
    assert main([str(tmp_path / "students")]) == 1
    assert "Repository still says OWNER" in capsys.readouterr().err
    assert not (tmp_path / "students").exists()


def test_the_address_given_for_once_stands_wherever_students_install_from(published):
    (setup,) = (c for c in nbformat.read(published / NOTEBOOK, as_version=4).cells if c.id == "setup")
    assert f'INSTALL = "git+{ADDRESS}"' in setup.source
    assert f'Repository = "{ADDRESS}"' in (published / "pyproject.toml").read_text()
    assert not [p for p in published.rglob("*") if p.is_file() and b"OWNER/" in p.read_bytes()]


def test_the_students_pins_are_the_courses_and_leave_out_what_only_instructors_need(published):
    lines = [line for line in (published / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    assert lines.pop() == "-e .[lab]"
    pinned = {Requirement(line).name: str(Requirement(line).specifier) for line in lines}
    course = dict(re.findall(r"^([\w.-]+)(==\S+)$", (ROOT / "requirements-cpu.txt").read_text(), re.M))
    assert pinned.items() <= course.items()
    assert {"torch", "torchvision", "numpy", "jupyterlab", "ipykernel", "jupyter_server"} <= pinned.keys()
    assert not {"nbgrader", "dask", "pytest", "accelerate", "nh3"} & pinned.keys()


def test_a_need_without_a_pin_is_told():
    about = (ROOT / "pyproject.toml").read_text()
    pins = re.sub(r"^torchvision==.*$", "", (ROOT / "requirements-cpu.txt").read_text(), flags=re.M)
    with pytest.raises(ValueError, match=r"has a pin.*torchvision"):
        students_pins(about, pins)


def test_every_page_gives_the_same_lines_to_install():
    pages = [ROOT / "README.md", ROOT / "docs" / "first_hour.md", ROOT / "tools" / "publish" / "course" / "README.md"]
    for page in pages:
        text = page.read_text()
        assert "uv pip install --torch-backend=cpu -r requirements" in text, page
        assert "2.7 GB" in text, page
        assert "3.10 to 3.13" in text, page


def test_the_real_course_can_be_published(tmp_path):
    assert f"notebooks/{'01_hello_ranks/hello_ranks'}.ipynb" in publish(tmp_path / "students")


def two_lessons(course: Path, choice: str) -> None:
    text = FIXTURE.read_text().replace("lesson_01.hello", "lesson_02.ring_sum").replace("Grace", "Barbara")
    (course / "lessons" / "02_other.py").write_text(text)
    (course / "lessons.csv").write_text(f"lesson,opens\n{choice}")


def test_only_the_lessons_that_were_chosen_and_are_open_are_published(course, tmp_path, monkeypatch):
    two_lessons(course, "02_other,2026-03-01 08:00 +0100\n01_tiny_lesson,\n")
    lessons = read_lessons(course)
    before, after = (datetime(2026, 3, 1, hour, tzinfo=timezone.utc) for hour in (6, 8))
    found, later = chosen_lessons(course, lessons, before)
    assert [x.name for x in found] == ["01_tiny_lesson"]
    assert later == ["02_other opens 2026-03-01 08:00 +0100: publish again then"]
    assert [x.name for x in chosen_lessons(course, lessons, after)[0]] == ["01_tiny_lesson", "02_other"]
    (course / "lessons.csv").write_text("lesson,opens\n02_other,2000-01-01\n01_tiny_lesson,2999-01-01\n")
    publish(tmp_path / "students", course)
    assert sorted(p.name for p in (tmp_path / "students" / "notebooks").iterdir()) == ["02_other"]
    assert "02_other/other.ipynb" in (tmp_path / "students" / "README.md").read_text()
    assert "tiny_lesson" not in (tmp_path / "students" / "README.md").read_text()


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("03_none,\n", "line 2: a row names one lesson of lessons/"),
        ("01_tiny_lesson,\n01_tiny_lesson,\n", "line 3: .* each once"),
        ("01_tiny_lesson,soon\n", "opens is a date as 2026-03-01 23:59"),
        ("01_tiny_lesson,2999-01-01\n", "no lesson is open yet; the first one is 01_tiny_lesson"),
        ("", "no lesson is open yet; the first one is none"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_told_and_nothing_is_written(course, tmp_path, choice, says):
    two_lessons(course, choice)
    with pytest.raises(ChoiceError, match=says):
        publish(tmp_path / "students", course)
    assert not (tmp_path / "students").exists()
