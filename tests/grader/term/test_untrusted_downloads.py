"""What a student put into a download, by name or by content, takes no other student's place, memory or time."""

from __future__ import annotations

import json
import zipfile

import pytest

from hw_grader.term.collect import Collected
from hw_grader.term.lms_file_names import METADATA, read_name, usual_lms
from tests.grader.small_course import ASSIGNMENT, as_bytes, submission
from tests.grader.term.downloads import NOTEBOOK, handed_in, kit_zip, run, zipped


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


@pytest.mark.parametrize("before", ["../", "/", "a/../../", "..\\"])
def test_a_path_that_leads_elsewhere_is_no_systems(before):
    assert read_name(f"{before}Eve E_12_assignsubmission_file_/x.ipynb", {}) is None


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


def test_of_a_time_beside_a_notebook_no_more_is_unpacked_than_a_time_has(course, monkeypatch):
    long = b"2026-03-01 10:00:00 UTC" + b" " * 200_000
    inner = zipped(
        course / "inner.zip", {f"ada/{ASSIGNMENT}/small.ipynb": NOTEBOOK, f"ada/{ASSIGNMENT}/timestamp.txt": long}
    )
    read, unpacked = zipfile.ZipExtFile.read, []

    def counted(member, n=-1):
        data = read(member, n)
        if member.name.endswith(".txt"):
            unpacked.append(len(data))
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    found = run(course, zipped(course / "canvas.zip", {"lovelaceada_4711_90001_all.zip": inner.read_bytes()}))
    assert found.lessons == {ASSIGNMENT: {"ada": "new"}}
    assert (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text() == "2026-03-01 10:00:00 UTC\n"
    assert unpacked == [100]


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", ["small.ipynb", "timestamp.txt"])
def test_what_can_only_be_unpacked_as_a_whole_is_not_and_is_named(course, how, name):
    with zipfile.ZipFile(course / "inner.zip", "w") as archive:
        for file, data in (("small.ipynb", NOTEBOOK), ("timestamp.txt", b"2026-03-01 10:00:00 UTC")):
            archive.writestr(f"ada/{ASSIGNMENT}/{file}", data, how if file == name else zipfile.ZIP_DEFLATED)
    inner = (course / "inner.zip").read_bytes()
    found = run(course, zipped(course / "canvas.zip", {"lovelaceada_4711_90001_all.zip": inner}))
    assert "lovelaceada_4711_90001_all.zip: cannot be read: it is packed in an unusual way" in found.unknown[0]


def test_a_time_beside_a_notebook_in_a_folder_is_read_as_in_a_zip(course):
    folder = course / "download" / "lovelaceada_4711_90001_x" / "ada" / ASSIGNMENT
    folder.mkdir(parents=True)
    (folder / "small.ipynb").write_bytes(NOTEBOOK)
    (folder / "timestamp.txt").write_text("2026-03-01 10:00:00 UTC" + " " * 200_000)
    assert run(course, course / "download").lessons == {ASSIGNMENT: {"ada": "new"}}
    assert (course / "submitted" / "ada" / ASSIGNMENT / "timestamp.txt").read_text() == "2026-03-01 10:00:00 UTC\n"


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


def test_a_name_without_an_end_is_a_line_and_takes_no_time(course):
    long = "_1" * 30_000 + "_small.ipynb"
    found = run(course, zipped(course / "canvas.zip", {long: NOTEBOOK, "brownbob_4713_9_small.ipynb": NOTEBOOK}))
    assert "characters" in found.unknown[0]
    assert handed_in(course) == {"bob"}


def test_no_name_that_somebody_chose_reaches_a_terminal_as_more_than_text(course):
    hostile = "Eve\x1b[2J\x1b]0;owned\x07\n\u202eE"
    told = (
        "submission_1:\n  :submitters:\n  - :sid: 'S1'\n    :name: Ada\n"
        f"  - :sid: ''\n    :name: {json.dumps(hostile)}\n"
    )
    downloads = [
        zipped(course / "moodle.zip", {f"{hostile}_12_assignsubmission_file_/small.ipynb": NOTEBOOK}),
        zipped(
            course / "gradescope.zip",
            {f"export/{METADATA}": told.encode(), "export/submission_1/small.ipynb": NOTEBOOK},
        ),
    ]
    found = run(course, *downloads)
    assert len([line for line in found.unknown if "nobody in the class list has the name Eve?[2J" in line]) == 2
    assert len([line for line in found.notes if line.startswith("Eve?[2J") and "together with" in line]) == 1
    lines = [*found.unknown, *found.notes, *str(found).splitlines()]
    assert all(line.isprintable() for line in lines)
    assert str(Collected(double=[hostile])) == "several attempts, 1:\n  Eve?[2J?]0;owned???E"
