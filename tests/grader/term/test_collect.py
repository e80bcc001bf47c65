"""Downloads of four systems and the kit's own zips: who, which lesson, which attempt; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hw_grader.__main__ import main
from hw_grader.term.class_list import Sender, read_class
from hw_grader.term.collect import collect
from hw_grader.term.lms_file_names import read_metadata, read_name, usual_lms
from hw_utils.commands.submit import pack
from tests.grader.small_course import ASSIGNMENT, as_bytes, make_course, submission

CLASS = """student,first name,last name,email,canvas,moodle,brightspace,sis_id
ada,Ada,Lovelace,ada@x.edu,4711,101,201,S1
zoe,Zoë,Li-Müller,zoe@x.edu,4712,102,202,S2
bob,Bob,Brown,bob@x.edu,4713,103,203,S3
"""
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
NOTEBOOK = as_bytes(submission())
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


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def kit_zip(folder: Path, student: str, data: bytes, when: str = "2026-03-03 10:00:00 UTC") -> Path:
    files = {f"{student}/{ASSIGNMENT}/small.ipynb": data, f"{student}/{ASSIGNMENT}/timestamp.txt": when.encode()}
    return zipped(folder / f"{student}-{ASSIGNMENT}.zip", files)


@pytest.fixture
def course(tmp_path):
    make_course(tmp_path)
    (tmp_path / "class.csv").write_text(CLASS, encoding="utf-8")
    return tmp_path


def run(course: Path, *paths: Path):
    return collect(course, list(paths), read_class(course / "class.csv"))


def handed_in(course: Path) -> set[str]:
    return {path.parent.parent.name for path in (course / "submitted").glob(f"*/{ASSIGNMENT}/small.ipynb")}


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


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("Eve E_12_assignsubmission_file_/Ada L_4711_assignsubmission_file_/x.ipynb", "12"),
        ("Eve E_12_assignsubmission_file_Ada L_4711_assignsubmission_file_x.ipynb", "12"),
        ("put around/Eve E_12_assignsubmission_file_/x.ipynb", "12"),
    ],
)
def test_what_a_student_calls_a_file_names_no_other_student(path, number):
    assert read_name(path, {}).sender.id == number


def test_a_students_file_that_looks_like_the_systems_own_is_not_believed(course):
    data = as_bytes(submission())
    told = b"submission_1:\n  :submitters:\n  - :sid: ada\n    :name: Ada\n"
    eve = "Eve E_12_assignsubmission_file_/"
    path = zipped(
        course / "moodle.zip",
        {f"{eve}submission_metadata.yml": told, f"{eve}submission_1/{ASSIGNMENT}.ipynb": data},
    )
    run(course, path)
    assert "ada" not in handed_in(course)


def test_a_zip_in_which_a_member_is_damaged_stops_nobody(course):
    data = as_bytes(submission())
    inner = zipped(course / "inner.zip", {f"eve/{ASSIGNMENT}/x.ipynb": data}).read_bytes()
    place = inner.index(b"x.ipynb") + 12
    broken = inner[:place] + bytes(255 - byte for byte in inner[place : place + 20]) + inner[place + 20 :]
    names = [f"{name}_{number}_assignsubmission_file_/" for name, number in (("Eve E", 12), ("Ada L", 4711))]
    found = run(
        course, zipped(course / "moodle.zip", {f"{names[0]}a.zip": broken, f"{names[1]}{ASSIGNMENT}.ipynb": data})
    )
    assert any("a.zip: cannot be read" in line for line in found.unknown)


def test_a_file_called_as_another_system_would_is_still_its_owners(course):
    eves, adas = as_bytes(submission({"predictions": "predictions = {}"})), as_bytes(submission())
    files = {
        "lovelaceada_4711_90001_small.ipynb": adas,
        "brownbob_4713_90003_Ada Lovelace_101_assignsubmission_file_small.ipynb": eves,
    }
    run(course, zipped(course / "canvas.zip", files))
    assert handed_in(course) == {"ada", "bob"}
    assert (course / "submitted" / "ada" / ASSIGNMENT / "small.ipynb").read_bytes() == adas


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


def test_one_students_zips_do_not_fill_memory_or_disk(course, monkeypatch):
    monkeypatch.setattr("hw_grader.term.downloads.Room.__init__.__defaults__", (5 * len(NOTEBOOK), 400, False))
    inner = zipped(course / "inner.zip", {f"{k}/small.ipynb": NOTEBOOK + b" " * k for k in range(40)}).read_bytes()
    files = {
        "brownbob_4713_90003_small.zip": inner,
        "brownbob_4713_90004_small.zip": inner,
        "lovelaceada_4711_90001_small.ipynb": NOTEBOOK,
    }
    found = run(course, zipped(course / "canvas.zip", files))
    assert [line for line in found.unknown if "one student's files" in line] == found.unknown
    assert len(found.unknown) == 1
    assert "brownbob" in found.unknown[0]
    assert "ada" in handed_in(course)
    assert len(list((course / "attempts").rglob("*.ipynb"))) < 5


def test_a_students_zip_of_very_many_files_is_refused_before_it_is_read(course):
    inner = zipped(course / "inner.zip", {f"{k}.txt": b"" for k in range(900)}).read_bytes()
    found = run(course, zipped(course / "canvas.zip", {"brownbob_4713_90003_small.zip": inner}))
    assert "may have 400 files" in found.unknown[0]


def test_zips_in_a_students_zip_are_opened_as_long_as_somebody_could_have_meant_it(course):
    kits = kit_zip(course, "ada", NOTEBOOK, "2026-03-01 10:00:00 UTC").read_bytes()
    for n in range(2):
        kits = zipped(course / f"{n}.zip", {f"Archive {n}.zip": kits}).read_bytes()
    found = run(course, zipped(course / "canvas.zip", {"lovelaceada_4711_90001_all.zip": kits}))
    assert found.lessons == {ASSIGNMENT: {"ada": "new"}}
    assert (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text().startswith("2026-03-01 ")
    deeper = zipped(course / "deep.zip", {"a.zip": kits}).read_bytes()
    found = run(course, zipped(course / "canvas.zip", {"brownbob_4713_90001_all.zip": deeper}))
    assert "no notebook" in found.unknown[0]


@pytest.mark.parametrize(
    ("path", "lms", "number"),
    [
        ("brownbob_4713_90003_Ada Lovelace_101_assignsubmission_file_small.ipynb", "canvas", "4713"),
        ("203-77 - Bob Brown - Mar 3, 2026 1125 AM/Ada L_101_assignsubmission_file_/small.ipynb", "brightspace", "203"),
        ("Bob Brown_103_assignsubmission_file_/201-77 - Ada L - Mar 3, 2026 1125 AM/small.ipynb", "moodle", "103"),
        ("Bob Brown_103_assignsubmission_file_/lovelaceada_4711_9_small.ipynb", "moodle", "103"),
        ("203-77 - Bob Brown - Mar 3, 2026 1125 AM/lovelaceada_4711_9_small.ipynb", "brightspace", "203"),
    ],
)
def test_also_alone_in_a_download_a_file_is_its_owners_whatever_it_is_called(path, lms, number):
    found = read_name(path, {}, usual_lms([path]))
    assert (found.sender.lms, found.sender.id) == (lms, number)


def test_of_attempts_of_one_time_the_last_one_counts_as_it_is_said(course):
    one, two = (as_bytes(submission({"predictions": f"predictions = {n}"})) for n in range(2))
    files = {f"201-77 - Ada Lovelace - Mar 3, 2026 1125 AM/{k}/small.ipynb": data for k, data in enumerate((one, two))}
    found = run(course, zipped(course / "download.zip", files))
    assert "several of" in found.double[0]
    assert "the last one counts" in found.double[0]
    assert (course / "submitted" / "ada" / ASSIGNMENT / "small.ipynb").read_bytes() == two


def test_a_name_without_an_end_is_a_line_and_takes_no_time(course):
    long = "_1" * 30_000 + "_small.ipynb"
    found = run(course, zipped(course / "canvas.zip", {long: NOTEBOOK, "brownbob_4713_9_small.ipynb": NOTEBOOK}))
    assert "characters" in found.unknown[0]
    assert handed_in(course) == {"bob"}
