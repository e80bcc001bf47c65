"""Downloads of four systems and the kit's own zips: who, which lesson, which attempt; nothing is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hw_grader.__main__ import main
from hw_grader.term.class_list import Sender, read_class
from hw_grader.term.lms_file_names import read_metadata, read_name
from hw_utils.commands.submit import pack
from tests.grader.small_course import ASSIGNMENT, as_bytes, submission
from tests.grader.term.downloads import CLASS, NOTEBOOK, handed_in, kit_zip, run, zipped

GRADESCOPE = """---
:submission_815:
  :submitters:
  - :name: Ada Lovelace
    :sid: 'S1'
    :email: ada@x.edu
  :created_at: 2026-03-03 11:25:00.000000000 Z
:submission_816:
  :submitters:
  - :name: Z. Li
    :sid: 'S2'
    :email: other@x.edu
  :created_at: 2026-03-04 11:25:00.000000000 Z
"""
PATHS = {
    "canvas": ("lovelaceada_4711_90001_small.ipynb", "limüllerzoë_LATE_4712_90002_small-1.ipynb"),
    "moodle": (
        "Ada Lovelace_101_assignsubmission_file_/small.ipynb",
        "Zoe Li-Muller_102_assignsubmission_file_small.ipynb",
    ),
    "brightspace": (
        "201-77 - Ada Lovelace - Mar 3, 2026 1125 AM/small.ipynb",
        "202-78 - Zoë Li-Müller - 4 March, 2026 905 PM - small (1).ipynb",
    ),
    "gradescope": ("export/submission_815/small.ipynb", "export/submission_816/my_small.ipynb"),
}


@pytest.mark.parametrize("numbers", [True, False], ids=["by number", "by name"])
@pytest.mark.parametrize("lms", PATHS)
def test_every_systems_download_is_placed_and_who_is_missing_is_said(course, lms, numbers):
    if not numbers:
        rows = [line.split(",") for line in CLASS.splitlines()]
        (course / "class.csv").write_text("\n".join(",".join([*r[:4], r[7]]) for r in rows), encoding="utf-8")
    files = dict.fromkeys(PATHS[lms], NOTEBOOK) | {"index.html": b"<html>"}
    if lms == "gradescope":
        files["export/submission_metadata.yml"] = GRADESCOPE.encode()
    found = run(course, zipped(course / "download.zip", files))
    assert found.unknown == []
    assert handed_in(course) == {"ada", "zoe"}
    assert found.missing == {ASSIGNMENT: ["bob"]}
    if lms in ("gradescope", "brightspace"):
        stamp = (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text()
        assert stamp.startswith("2026-03-03 ")
        assert stamp.endswith(" UTC\n")
    if lms == "canvas":
        assert any("zoe" in note and "late" in note for note in found.notes)


@pytest.mark.parametrize("lms", [lms for lms in PATHS if lms != "gradescope"])
def test_a_kit_zip_inside_a_download_keeps_its_time_and_the_account_counts(course, lms):
    inner = kit_zip(course, "someone", NOTEBOOK).read_bytes()
    path = PATHS[lms][0].replace("small.ipynb", f"someone-{ASSIGNMENT}.zip")
    found = run(course, zipped(course / "download.zip", {path: inner}))
    assert handed_in(course) == {"ada"}
    assert any("someone" in note for note in found.notes)
    if lms != "brightspace":  # whose own time counts
        assert (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text() == "2026-03-03 10:00:00 UTC\n"


def test_a_group_at_gradescope_handed_in_for_each_of_its_members(course):
    partner = "  - :name: Zoë Li\n    :sid: 'S2'\n    :email: zoe@x.edu\n  :created_at: 2026-03-03"
    told = GRADESCOPE.split(":submission_816")[0].replace("  :created_at: 2026-03-03", partner)
    inner = f"export/submission_815/ada/{ASSIGNMENT}/small.ipynb"  # a zip of `submit`, which Gradescope unpacks
    files = {"export/submission_metadata.yml": told.encode(), inner: NOTEBOOK}
    found = run(course, zipped(course / "download.zip", files))
    assert (found.unknown, handed_in(course)) == ([], {"ada", "zoe"})
    assert found.notes == ["Zoë Li, zoe@x.edu, gradescope 815: handed in together with Ada Lovelace, ada@x.edu, "
                           "gradescope 815, ada"]  # fmt: skip


def test_a_download_with_blanks_in_its_name_is_one_download(course, capsys, monkeypatch):
    monkeypatch.chdir(course)
    zipped(course / "DDL-Lesson 2-1234.zip", dict.fromkeys(PATHS["moodle"], NOTEBOOK))
    kit_zip(course, "bob", NOTEBOOK)
    words = [f"bob-{ASSIGNMENT}.zip", "DDL-Lesson", "2-1234.zip"]  # as make gives ZIPS="..." on
    assert main(["collect", *words]) == 0
    assert f"{ASSIGNMENT}: 3 students (3 new)" in capsys.readouterr().out
    assert main(["collect", "DDL-Lesson", "3.zip"]) == 2
    assert "got DDL-Lesson" in capsys.readouterr().err


def test_what_submit_writes_is_collected(course):
    folder = course / "notebooks" / ASSIGNMENT
    folder.mkdir(parents=True)
    (folder / "small.ipynb").write_bytes(NOTEBOOK)
    packed, _ = pack(folder / "small.ipynb", "ada", course / "ada.zip", checked=False)
    assert run(course, packed).lessons == {ASSIGNMENT: {"ada": "new"}}
    assert (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").exists()


def test_nothing_is_overwritten_and_the_newest_counts(course):
    one, two, three = (as_bytes(submission({"predictions": f"predictions = {n}"})) for n in range(3))
    run(course, kit_zip(course, "ada", two, "2026-03-02 10:00:00 UTC"))
    found = run(course, kit_zip(course, "ada", one, "2026-03-01 10:00:00 UTC"))
    assert found.lessons[ASSIGNMENT] == {"ada": "older than what is there"}
    found = run(course, kit_zip(course, "ada", three, "2026-03-03 10:00:00 UTC"))
    assert found.lessons[ASSIGNMENT] == {"ada": "newer than before"}
    assert "attempts/ada" in found.double[0]
    folder = course / "submitted" / "ada" / ASSIGNMENT
    assert (folder / "small.ipynb").read_bytes() == three
    kept = {path.read_bytes() for path in (course / "attempts").rglob("*.ipynb")}
    assert kept == {one, two}
    again = run(course, kit_zip(course, "ada", three, "2026-03-03 10:00:00 UTC"))
    assert again.lessons[ASSIGNMENT] == {"ada": "as before"}
    assert len(list((course / "attempts").rglob("*.ipynb"))) == 2


def test_two_attempts_in_one_download_are_said(course):
    one, two = (as_bytes(submission({"predictions": f"predictions = {n}"})) for n in range(2))
    files = {
        "201-77 - Ada Lovelace - Mar 3, 2026 1125 AM/small.ipynb": two,
        "201-77 - Ada Lovelace - Mar 1, 2026 1125 AM/small.ipynb": one,
    }
    found = run(course, zipped(course / "download.zip", files))
    assert len(found.double) == 1
    assert (course / "submitted" / "ada" / ASSIGNMENT / "small.ipynb").read_bytes() == two
    assert [path.read_bytes() for path in (course / "attempts").rglob("*.ipynb")] == [one]


def test_what_cannot_be_placed_is_named_and_the_rest_goes_on(course):
    files = {
        "mallory_9999_1_small.ipynb": NOTEBOOK,
        "lovelaceada_4711_2_essay.ipynb": NOTEBOOK,
        "lovelaceada_4711_3_broken.zip": b"PK no zip",
        "../../escape/small.ipynb": NOTEBOOK,
        "brownbob_4713_4_small.ipynb": NOTEBOOK,
    }
    found = run(course, zipped(course / "download.zip", files), zipped(course / "x.zip", {"readme.txt": b""}))
    assert handed_in(course) == {"bob"}
    said = "\n".join(found.unknown)
    assert all(word in said for word in ("mallory", "essay", "broken", "escape"))
    assert not (course.parent / "escape").exists()
    assert not found.is_clean


def test_two_students_of_one_name_need_a_number(course):
    with (course / "class.csv").open("a") as file:
        file.write("ada2,Ada,Lovelace,ada2@x.edu,4799,,,\n")
    known = read_class(course / "class.csv")
    assert "ada and ada2" in known.find(Sender("canvas", "lovelaceada", "1"))[1]
    assert known.find(Sender("canvas", "lovelaceada", "4799")) == ("ada2", "")


def test_names_that_no_system_makes_are_none_and_broken_metadata_is_empty():
    assert read_name("notes/small.ipynb", {}) is None
    assert read_name("submission_815/small.ipynb", {}) is None
    assert read_metadata(": [") == {}
    assert read_metadata("- 1") == {}


def test_the_command_says_what_is_wrong(course, capsys):
    assert main(["--course", str(course), "collect"]) == 2  # without a download
    assert main(["--course", str(course), "collect", str(course / "none.zip")]) == 2
    assert main(["--course", str(course), "collect", str(course), "--assignment", "09_x"]) == 2
    assert "09_x" in capsys.readouterr().err
    kit_zip(course, "ada", NOTEBOOK)
    assert main(["--course", str(course), "collect", str(course / f"ada-{ASSIGNMENT}.zip")]) == 0
    assert "missing, 2: zoe, bob" in capsys.readouterr().out


def test_nbgraders_own_zip_collect_takes_the_kits_zips(course):
    archive = course / "downloaded" / ASSIGNMENT / "archive"
    archive.mkdir(parents=True)
    (course / "notebooks" / ASSIGNMENT).mkdir(parents=True)
    (course / "notebooks" / ASSIGNMENT / "small.ipynb").write_bytes(NOTEBOOK)
    kit_zip(archive, "ada", NOTEBOOK)
    kit_zip(archive, "bob.b", NOTEBOOK)
    command = [sys.executable, "-m", "nbgrader", "zip_collect", ASSIGNMENT]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert handed_in(course) == {"ada", "bob.b"}
    assert "2026-03-03 10:00:00" in (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text()


def test_of_attempts_without_a_time_the_last_one_counts_as_it_is_said(course):
    one, two = (as_bytes(submission({"predictions": f"predictions = {n}"})) for n in range(2))
    names = [f"Ada Lovelace_101_assignsubmission_file_/{k}/small.ipynb" for k in range(3)]
    found = run(course, zipped(course / "moodle.zip", dict(zip(names, (two, one, two)))))
    assert "the last one counts" in found.double[0]
    assert (course / "submitted" / "ada" / ASSIGNMENT / "small.ipynb").read_bytes() == two


def test_late_by_the_system_is_said_whatever_a_students_clock_tells(course):
    inner = kit_zip(course, "zoe", NOTEBOOK, "2026-01-01 10:00:00 UTC").read_bytes()
    path = f"limüllerzoë_LATE_4712_90002_zoe-{ASSIGNMENT}.zip"
    found = run(course, zipped(course / "canvas.zip", {path: inner}))
    assert [note for note in found.notes if "the LMS says late" in note and "2026-01-01 10:00:00" in note] != []


def test_of_attempts_of_one_time_the_last_one_counts_as_it_is_said(course):
    one, two = (as_bytes(submission({"predictions": f"predictions = {n}"})) for n in range(2))
    files = {f"201-77 - Ada Lovelace - Mar 3, 2026 1125 AM/{k}/small.ipynb": data for k, data in enumerate((one, two))}
    found = run(course, zipped(course / "download.zip", files))
    assert "several of" in found.double[0]
    assert "the last one counts" in found.double[0]
    assert (course / "submitted" / "ada" / ASSIGNMENT / "small.ipynb").read_bytes() == two
