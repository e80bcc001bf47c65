"""A new version of the course in a student's folder: nothing that somebody wrote is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from hw_utils.commands import update
from hw_utils.commands.merge_answers import is_written, merge, text_of

RELEASE = Path("notebooks/01_hello_ranks/hello_ranks.ipynb")
NAME = "notebooks/01_hello_ranks/hello_ranks.ipynb"
MINE = 'def hello(rank, world_size, name):\n    print(f"Rank {rank}: mine")\n'


def released() -> dict:
    return json.loads(RELEASE.read_text())


def cell(notebook: dict, name: str) -> dict:
    (found,) = (c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name)
    return found


def texts(notebook: dict) -> list[str]:
    return [text_of(c) for c in notebook["cells"]]


def own(source: str, kind: str = "code") -> dict:
    extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "id": "d00f" + str(len(source)), "metadata": {}, "source": source, **extra}


def test_no_cell_of_an_untouched_release_counts_as_written():
    for path in sorted(Path("notebooks").glob("*/*.ipynb")):
        assert [text_of(c) for c in json.loads(path.read_text())["cells"] if is_written(c)] == []


def test_an_untouched_notebook_becomes_the_new_release():
    new = released()
    cell(new, "hello")["source"] = "def hello(rank):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    done = merge(released(), new)
    assert done.notebook == new
    assert (done.answers, done.own, done.homeless) == ([], 0, [])


def test_an_answer_goes_into_the_new_releases_cell_and_the_text_around_it_is_new():
    mine, new = released(), released()
    cell(mine, "hello")["source"] = MINE
    mine["cells"][0]["source"] = text_of(mine["cells"][0])
    new["cells"][0]["source"] = "# 1. Hello again"
    new["cells"][0]["id"] = "0123456789ab"
    cell(new, "check-hello")["source"] = "checks.lesson_01.hello(hello)  # better"
    done = merge(mine, new)
    assert text_of(cell(done.notebook, "hello")) == MINE
    assert texts(done.notebook)[0] == "# 1. Hello again"
    assert text_of(cell(done.notebook, "check-hello")).endswith("# better")
    assert done.answers == ["hello"]
    assert len(done.notebook["cells"]) == len(new["cells"])


def test_cells_of_ones_own_stay_where_they_were_also_when_the_lesson_moved():
    mine, new = released(), released()
    at = mine["cells"].index(cell(mine, "hello"))
    mine["cells"].insert(at + 1, own("hello(0, 1, 'me')"))
    mine["cells"].insert(at + 2, own("a note", "markdown"))
    new["cells"].insert(1, own("a new introduction", "markdown"))
    done = merge(mine, new)
    at = done.notebook["cells"].index(cell(done.notebook, "hello"))
    assert texts(done.notebook)[at + 1 : at + 3] == ["hello(0, 1, 'me')", "a note"]
    assert done.own == 2


def test_a_changed_experiment_of_the_lesson_is_kept_also_if_the_new_lesson_has_another():
    mine, new = released(), released()
    (n, experiment), *_ = ((n, c) for n, c in enumerate(mine["cells"]) if c["cell_type"] == "code" and n > 3)
    experiment["source"] = "run = launch(who_am_i, 7)"
    assert texts(merge(mine, new).notebook)[n] == "run = launch(who_am_i, 7)"
    new["cells"][n]["id"], new["cells"][n]["source"] = "0123456789ab", "run = launch(who_am_i, 5)"
    found = texts(merge(mine, new).notebook)
    assert {"run = launch(who_am_i, 7)", "run = launch(who_am_i, 5)"} <= set(found)


def test_an_answer_whose_exercise_is_gone_or_renamed_goes_to_the_end_once_and_unmarked():
    mine, new = released(), released()
    cell(mine, "hello")["source"] = MINE
    cell(new, "hello")["metadata"]["nbgrader"]["grade_id"] = "greet"
    done = merge(mine, new)
    assert done.homeless == ["hello"]
    assert "no place in the new one" in texts(done.notebook)[-2]
    assert texts(done.notebook)[-1] == MINE
    assert "nbgrader" not in done.notebook["cells"][-1]["metadata"]
    assert merge(done.notebook, new).notebook["cells"] == done.notebook["cells"]


def test_a_deleted_exercise_comes_back_as_the_new_stub_and_a_doubled_one_is_there_once():
    mine, new = released(), released()
    mine["cells"].remove(cell(mine, "hello"))
    assert cell(merge(mine, new).notebook, "hello") == cell(new, "hello")

    mine = released()
    double = deepcopy(cell(mine, "hello"))
    double["source"], double["id"] = MINE, "double"
    mine["cells"].append(double)
    done = merge(mine, new)
    assert text_of(cell(done.notebook, "hello")) == MINE

    mine["cells"][texts(mine).index(text_of(cell(new, "hello")))]["source"] = "def hello(rank):\n    return None"
    done = merge(mine, new)
    assert "return None" in text_of(cell(done.notebook, "hello"))
    assert MINE in texts(done.notebook)


def test_merging_twice_changes_nothing_more():
    mine, new = released(), released()
    cell(mine, "hello")["source"] = MINE
    mine["cells"].insert(4, own("x = 1"))
    once = merge(mine, new).notebook
    assert merge(once, new).notebook["cells"] == once["cells"]


def test_ids_are_not_needed():
    mine = released()
    for c in mine["cells"]:
        c.pop("id")
    cell(mine, "hello")["source"] = MINE
    done = merge(mine, released())
    assert done.own == 0
    assert text_of(cell(done.notebook, "hello")) == MINE


# Folders


def write_course(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    (folder / ".published.json").write_text(json.dumps(digests))
    return folder


@pytest.fixture
def course(tmp_path):
    """A student's folder with the first version."""
    old = {"hw_utils/__init__.py": "v = 1\n", "hw_utils/gone.py": "", "README.md": "one\n", NAME: RELEASE.read_text()}
    return write_course(tmp_path / "mine", old)


@pytest.fixture
def newer(tmp_path):
    """The second version of the course."""
    text = RELEASE.read_text().replace("# 1. Hello, ranks", "# 1. Hello, all ranks")
    new = {"hw_utils/__init__.py": "v = 2\n", "hw_utils/added.py": "", "README.md": "two\n", NAME: text}
    return write_course(tmp_path / "new" / "course-main", new)


def updated(course: Path, source: Path | str) -> str:
    with update.new_version(str(source)) as new:
        plan = update.prepare(course, new)
        return update.summary(plan, update.carry_out(course, plan))


def test_what_nobody_changed_is_renewed_without_a_backup(course, newer):
    said = updated(course, newer)
    assert "4 files new or renewed, 1 removed." in said
    assert (course / "hw_utils" / "__init__.py").read_text() == "v = 2\n"
    assert not (course / "hw_utils" / "gone.py").exists()
    assert "Hello, all ranks" in (course / NAME).read_text()
    assert not (course / "before-update").exists()
    assert updated(course, newer) == "Already up to date."


def test_what_the_student_wrote_is_in_the_new_notebook_and_as_it_was_in_the_backup(course, newer):
    mine = released()
    cell(mine, "hello")["source"] = MINE
    (course / NAME).write_text(json.dumps(mine))
    (course / "README.md").write_text("my notes\n")
    (course / "hw_utils" / "gone.py").write_text("patched = True\n")
    (course / "notebooks" / "01_hello_ranks" / "mine.ipynb").write_text("a copy under another name")
    said = updated(course, newer)
    now = json.loads((course / NAME).read_text())
    assert text_of(cell(now, "hello")) == MINE
    assert texts(now)[0].startswith("# 1. Hello, all ranks")
    (backup,) = (course / "before-update").iterdir()
    assert json.loads((backup / NAME).read_text()) == mine
    assert (backup / "README.md").read_text() == "my notes\n"
    assert (backup / "hw_utils" / "gone.py").read_text() == "patched = True\n"
    assert (course / "notebooks" / "01_hello_ranks" / "mine.ipynb").read_text() == "a copy under another name"
    assert f"{NAME}: 1 answers kept" in said
    assert str(backup) in said


def test_backups_of_one_day_do_not_overwrite_each_other(course, newer):
    for n in range(3):
        (course / "README.md").write_text(f"notes {n}\n")
        updated(course, newer)
    kept = {(p / "README.md").read_text() for p in (course / "before-update").iterdir()}
    assert kept == {"notes 0\n", "notes 1\n", "notes 2\n"}


def test_a_notebook_that_is_damaged_is_backed_up_and_replaced(course, newer):
    (course / NAME).write_text('{"cells": [3')
    assert "cannot be read as a notebook" in updated(course, newer)
    (backup,) = (course / "before-update").iterdir()
    assert (backup / NAME).read_text() == '{"cells": [3'


def test_a_zip_and_a_git_address_are_as_good_as_a_folder(course, newer, tmp_path):
    packed = shutil.make_archive(str(tmp_path / "new-version"), "zip", newer.parent)
    assert "4 files" in updated(course, packed)
    (course / "README.md").write_text("one\n")
    me = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*me, "commit", "-qm", "new"]):
        subprocess.run(["git", *command], cwd=newer, check=True)
    assert "README.md: you had changed it" in updated(course, f"git+{newer.as_uri()}")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda c, n: (n / "hw_utils" / "added.py").unlink(), "damaged: hw_utils/added.py is missing"),
        (lambda c, n: (n / ".published.json").unlink(), "is no published course"),
        (lambda c, n: (c / ".published.json").unlink(), "run this in your course folder"),
        (lambda c, n: (n / ".published.json").write_text('{"../../evil": "0"}'), "files outside the course"),
        (lambda c, n: (n / ".published.json").write_text("["), "cannot be read"),
    ],
)
def test_a_bad_source_or_folder_changes_nothing(course, newer, spoil, says):
    spoil(course, newer)
    before = {p: p.read_bytes() for p in course.rglob("*") if p.is_file()}
    with pytest.raises(update.UpdateFailed, match=says):
        updated(course, newer)
    assert {p: p.read_bytes() for p in course.rglob("*") if p.is_file()} == before


def test_the_command_says_what_it_would_do_and_refuses_in_one_line(course, newer, tmp_path):
    command = [sys.executable, "-m", "hw_utils", "update", "--course", str(course)]
    dry = subprocess.run([*command, str(newer), "--dry-run"], capture_output=True, text=True)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "4 files new or renewed" in dry.stdout
    assert (course / "README.md").read_text() == "one\n"
    bad = subprocess.run([*command, str(tmp_path / "nothing")], capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stderr.startswith("Nothing was changed: the new version is a folder, a .zip or a git address")
