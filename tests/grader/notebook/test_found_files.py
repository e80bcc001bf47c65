"""Which file of a student's folder is graded: under other names, in zips, behind links, too large."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hw_grader.notebook.submission import find_submission, remove_links
from tests.grader.small_course import (
    ASSIGNMENT,
    NOTEBOOK,
    as_bytes,
    hand_in,
    make_course,
    submission,
)


def find(root: Path, student: str = "ada"):
    return find_submission(root / "submitted" / student / ASSIGNMENT, student, ASSIGNMENT, NOTEBOOK)


def test_a_renamed_notebook_is_found(tmp_path):
    hand_in(tmp_path, "ada", b"{}", "small (1) final.ipynb")
    found = find(tmp_path)
    assert found.data == b"{}"
    assert "small (1) final.ipynb was graded" in found.notes[0]


@pytest.mark.parametrize("name", ["SMALL.IPYNB", "small.ipynb.txt", "small.ipynb.json", "Small (1).Ipynb"])
def test_a_notebook_under_the_name_that_a_browser_gave_it_is_found_in_a_folder_and_in_a_zip(tmp_path, name):
    folder = hand_in(tmp_path, "ada", b"{}", name)
    (folder / f"._{name}").write_bytes(b"a Mac's notes on the file")
    assert find(tmp_path).data == b"{}"
    folder = hand_in(tmp_path, "bob", b"", "readme.txt")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr(f"hw/._{name}", "a Mac's notes on the file")
        archive.writestr(f"hw/{name}", "{}")
    assert find(tmp_path, "bob").data == b"{}"


def test_a_link_is_not_followed(tmp_path):
    make_course(tmp_path)
    folder = hand_in(tmp_path, "ada", b"x", "readme.txt")
    (folder / "small.ipynb").symlink_to(tmp_path / "solutions" / ASSIGNMENT / "small.ipynb")
    (folder / "all").symlink_to(tmp_path / "solutions")
    found = find(tmp_path)
    assert found.data == b""
    assert "link" in found.notes[0]
    assert sorted(remove_links(folder)) == ["all", "small.ipynb"]
    assert (tmp_path / "solutions" / ASSIGNMENT / "small.ipynb").exists()


def test_a_folder_that_is_a_link_is_not_followed(tmp_path):
    make_course(tmp_path)
    folder = hand_in(tmp_path, "ada", b"x", "readme.txt")
    (folder / "inner").symlink_to(tmp_path / "solutions" / ASSIGNMENT)
    assert find(tmp_path).data == b""


def test_paths_in_a_zip_go_nowhere(tmp_path):
    folder = hand_in(tmp_path, "ada", b"", "readme.txt")
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("../../../../evil.ipynb", as_bytes(submission()))
        archive.writestr("/etc/evil", "x")
    before = sorted(tmp_path.rglob("*"))
    assert find(tmp_path).data == as_bytes(submission())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    folder = hand_in(tmp_path, "ada", b"", "readme.txt")
    with (folder / "small.ipynb").open("wb") as file:
        file.truncate(2**30)
    found = find(tmp_path)
    assert found.data == b""
    assert "is the limit" in found.notes[0]
