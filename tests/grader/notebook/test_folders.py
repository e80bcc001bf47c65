"""Whatever a student's folder holds, what comes out is that student's row, and nobody else waits for it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_grader.course.read_submissions import Reader, handed_in
from hw_grader.grade import submissions
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import MAX_NAME_BYTES, entries, find_submission, remove_links, student_name
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from tests.grader.small_course import ASSIGNMENT, EXERCISES, NOTEBOOK, as_bytes, hand_in, make_course, submission

FOLDERS = {}
STRANGE = ("[ab]c", "two\nlines", " a b ", "n" * 250, os.fsdecode(b"caf\xe9"), "*", "a~b", "<b>x<b>", "{0}", ".hidden",
           "O'Brien", "\u202egpj", "ü" * 120, "-rf", "%0A", 'say "hi"')  # fmt: skip


def folder(make):
    """Registers something that fills a student's folder; its docstring is what the row must say."""
    FOLDERS[make.__name__] = make
    return make


def zipped(compression: int = zipfile.ZIP_DEFLATED, name: str = "small.ipynb") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr(name, as_bytes(submission()))
    return file.getvalue()


def broken(data: bytes, at: int = 60) -> bytes:
    return data[:at] + bytes(255 - b for b in data[at : at + 200]) + data[at + 200 :]


@folder
def broken_deflate(path: Path):
    """cannot be read"""
    (path / "a.zip").write_bytes(broken(zipped()))


@folder
def broken_lzma(path: Path):
    """cannot be read"""
    (path / "a.zip").write_bytes(broken(zipped(zipfile.ZIP_LZMA)))


@folder
def broken_bz2(path: Path):
    """cannot be read"""
    (path / "a.zip").write_bytes(broken(zipped(zipfile.ZIP_BZIP2)))


@folder
def zip_cut_short(path: Path):
    """cannot be read"""
    (path / "a.zip").write_bytes(zipped()[:300])


@folder
def zip_is_a_pipe(path: Path):
    """not a regular file"""
    os.mkfifo(path / "x.zip")


@folder
def notebook_is_a_pipe(path: Path):
    """not a regular file"""
    os.mkfifo(path / "small.ipynb")


@folder
def zip_is_a_folder(path: Path):
    """there is no notebook"""
    (path / "x.zip").mkdir()


@folder
def deep_folders(path: Path):
    """there is no notebook"""
    here = os.open(path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@folder
def a_folder_called_as_the_notebook(path: Path):
    """there is no notebook"""
    (path / "small.ipynb").mkdir()


@folder
def a_folder_called_as_some_notebook(path: Path):
    """there is no notebook"""
    (path / "work.ipynb").mkdir()


@folder
def no_text(path: Path):
    """not a notebook"""
    (path / "small.ipynb").write_bytes(b"\xff\xfe\x00\x01" * 100)


@folder
def deep_json(path: Path):
    """not a notebook"""
    (path / "small.ipynb").write_bytes(b'{"cells":' + b"[" * 10**6)


@folder
def numbers_that_do_not_end(path: Path):
    """not a notebook"""
    (path / "small.ipynb").write_bytes(b'{"cells": ' + b"9" * 10**6 + b"}")


@folder
def a_loop_of_links(path: Path):
    """is a link"""
    (path / "small.ipynb").symlink_to("small.ipynb")


@folder
def a_socket(path: Path):
    """small.ipynb"""
    os.mknod(path / "small.ipynb", 0o140644)


@folder
def a_name_with_a_newline(path: Path):
    """not a notebook"""
    (path / "x\ny.ipynb").write_bytes(b"{")


@folder
def a_name_that_is_no_text(path: Path):
    """not a notebook"""
    (path / os.fsdecode(b"\xff.ipynb")).write_bytes(b"{")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    return root, read_trusted(make_course(root)), root / "solutions" / ASSIGNMENT / f"{NOTEBOOK}.ipynb"


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.close()


def is_a_row(found, trusted: TrustedNotebook) -> nbformat.NotebookNode:
    """The notebook of a submission that has all that grading needs."""
    notebook = nbformat.from_dict(json.loads(found.restored))
    ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in notebook.cells]
    assert sorted(filter(None, ids)) == sorted(trusted.marked)
    json.dumps([found.notes, found.timestamp]).encode()
    "".join(found.notes).encode()
    assert found.key
    return notebook


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_folder_of_any_kind_is_a_row_that_says_why(name, tmp_path, course, reader, request):
    _, trusted, solution = course
    path = tmp_path / "eve" / ASSIGNMENT
    path.mkdir(parents=True)
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", path], check=True))  # Python's own way is recursive
    FOLDERS[name](path)
    found = reader.read(path, "eve", trusted, solution, TimeLimits())
    notebook = is_a_row(found, trusted)
    assert FOLDERS[name].__doc__ in notebook.metadata["hw_grader"]["unreadable"] + str(found.notes)
    remove_links(path)
    assert all(entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) for entry in entries(path))


def test_a_class_of_strange_names_has_a_row_each_in_order(tmp_path):
    make_course(tmp_path)
    for name in STRANGE:
        hand_in(tmp_path, name, as_bytes(submission({"hello": f"# {name!a}"})))
    (tmp_path / "submitted" / "file").write_text("no folder")
    (tmp_path / "submitted" / "link").symlink_to(tmp_path / "solutions")
    (tmp_path / "submitted" / "gives a file").mkdir()
    (tmp_path / "submitted" / "gives a file" / ASSIGNMENT).write_text("a file")
    trusted = read_trusted(tmp_path / "solutions" / ASSIGNMENT / f"{NOTEBOOK}.ipynb")
    found = {s.student: s for s in submissions(tmp_path, trusted)}
    assert set(found) == {*map(student_name, STRANGE), "link", "gives a file"}
    for name in STRANGE:
        assert json.dumps(ascii(name))[1:-1] in found[student_name(name)].restored.decode()
    assert "is a link" in is_a_row(found["link"], trusted).metadata["hw_grader"]["unreadable"]
    assert "file in the place" in is_a_row(found["gives a file"], trusted).metadata["hw_grader"]["unreadable"]


@given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=2, unique=True))
def test_no_two_folders_are_kept_under_one_name_and_every_name_is_a_files(names):
    kept = [student_name(name) for name in names]
    assert kept[0] != kept[1]
    assert all(0 < len(k.encode()) <= MAX_NAME_BYTES and k == k.strip() and k[0] != "." for k in kept)
    assert not set("".join(kept)) & set("/[]*?<>\"'&{}\n\0")


def test_statements_by_the_megabyte_are_not_parsed_one_by_one(tmp_path, course, reader):
    _, trusted, solution = course
    cells = [nbformat.v4.new_code_cell("1;" * 100_000) for _ in range(20)]
    path = tmp_path / "eve" / ASSIGNMENT
    path.mkdir(parents=True)
    (path / f"{NOTEBOOK}.ipynb").write_bytes(as_bytes(nbformat.v4.new_notebook(cells=cells)))
    found = reader.read(path, "eve", trusted, solution, TimeLimits())
    assert "unreadable" not in is_a_row(found, trusted).metadata["hw_grader"]
    cells = [nbformat.v4.new_code_cell("1;" * 100_000) for _ in range(40)]
    (path / f"{NOTEBOOK}.ipynb").write_bytes(as_bytes(nbformat.v4.new_notebook(cells=cells)))
    found = reader.read(path, "eve", trusted, solution, TimeLimits())
    assert "is the limit" in is_a_row(found, trusted).metadata["hw_grader"]["unreadable"]


def test_what_takes_too_much_time_or_memory_is_one_row_and_the_next_is_read(tmp_path, course):
    _, trusted, solution = course
    path = tmp_path / "eve" / ASSIGNMENT
    path.mkdir(parents=True)
    (path / f"{NOTEBOOK}.ipynb").write_bytes(b'{"cells":[' + b"[],{}," * 8_000_000 + b"1]}")
    good = hand_in(tmp_path, "ada", as_bytes(submission()))
    for limits in ({"cpu_s": 1}, {"memory_bytes": 400 * 2**20}, {"read_s": 0.05}):
        reader = Reader(**limits)
        about = is_a_row(reader.read(path, "eve", trusted, solution, TimeLimits()), trusted).metadata["hw_grader"]
        assert about.get("unreadable"), limits
        if "read_s" not in limits:
            found = reader.read(good, "ada", trusted, solution, TimeLimits())
            assert "unreadable" not in is_a_row(found, trusted).metadata["hw_grader"]
        reader.close()


@pytest.mark.parametrize(
    "text", ["tomorrow", "9" * 900, "2026-02-30 10:00", "0001-01-01", "\0", "12:00 \udcff", "\n" * 50]
)
def test_a_timestamp_that_is_no_date_costs_nothing(tmp_path, text):
    folder = hand_in(tmp_path, "ada", as_bytes(submission()))
    (folder / "timestamp.txt").write_bytes(text.encode(errors="surrogateescape"))
    found = find_submission(folder, "ada", ASSIGNMENT, NOTEBOOK)
    assert (found.timestamp, found.data) == ("", as_bytes(submission()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["code", "cells", "hello"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cells",
                    "metadata",
                    "nbgrader",
                    "grade_id",
                    "source",
                    "cell_type",
                    "id",
                    "worksheets",
                    "nbformat",
                    "input",
                    "outputs",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)
ANY_BYTES = st.binary(max_size=300)
NAMES = st.binary(min_size=1, max_size=60).filter(lambda b: b"/" not in b and b"\0" not in b and b.strip(b"."))
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(
    document=JSON, where=st.integers(0, 30), key=st.sampled_from(["source", "metadata", "cell_type", "id", "outputs"])
)
def test_fuzz_any_notebook_gives_every_graded_cell_once(course, document, where, key):
    _, trusted, _ = course
    notebook = json.loads(as_bytes(submission()))
    notebook["cells"][where % len(notebook["cells"])][key] = document
    notebook["cells"].insert(where % len(notebook["cells"]), document)
    for data in (
        json.dumps(notebook).encode(),
        json.dumps(document).encode(),
        json.dumps({"cells": document}).encode(),
    ):
        restored = restore(data, trusted)
        ids = [c.metadata.get("nbgrader", {}).get("grade_id") for c in restored.cells]
        assert sorted(filter(None, ids)) == sorted(trusted.marked)
        json.dumps(restored, ensure_ascii=False).encode()
        nbformat.validate(restored)


@QUICK
@given(names=st.lists(NAMES, max_size=5, unique=True), data=ANY_BYTES, flips=st.lists(st.integers(0, 2000)),
       kind=st.sampled_from([0, 8, 12, 14]))  # fmt: skip
def test_fuzz_any_folder_and_any_zip_is_a_row(course, tmp_path_factory, names, data, flips, kind):
    _, trusted, _ = course
    path = tmp_path_factory.mktemp("fuzz") / ASSIGNMENT
    path.mkdir()
    archive = bytearray(zipped(kind))
    for n in flips:
        archive[n % len(archive)] ^= 255
    for n, name in enumerate(names):
        target = os.fsencode(path) + b"/" + name + (b"", b".ipynb", b".zip")[n % 3]
        if n % 4 == 3:
            target += b"/inner"
            os.makedirs(target)
        elif not os.path.isdir(target):
            with open(target, "wb") as file:
                file.write(data if n % 3 < 2 else archive)
    (path / "all.zip").write_bytes(archive)
    (path / "timestamp.txt").write_bytes(data)
    is_a_row(handed_in(path, "eve", trusted, TimeLimits()), trusted)


def test_what_is_read_is_what_was_handed_in(tmp_path, course, reader):
    _, trusted, solution = course
    folder = hand_in(tmp_path, "ada", as_bytes(submission()))
    notebook = is_a_row(reader.read(folder, "ada", trusted, solution, TimeLimits()), trusted)
    sources = {c.metadata.get("nbgrader", {}).get("grade_id"): c.source for c in notebook.cells}
    assert all(text in sources[name] for name, (_, text, *_) in EXERCISES.items())
