"""Downloads of a class of three, and what is collected of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hw_grader.term.class_list import read_class
from hw_grader.term.collect import collect
from tests.grader.small_course import ASSIGNMENT, as_bytes, submission

CLASS = """student,first name,last name,email,canvas,moodle,brightspace,sis_id
ada,Ada,Lovelace,ada@x.edu,4711,101,201,S1
zoe,Zoë,Li-Müller,zoe@x.edu,4712,102,202,S2
bob,Bob,Brown,bob@x.edu,4713,103,203,S3
"""
NOTEBOOK = as_bytes(submission())


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def kit_zip(folder: Path, student: str, data: bytes, when: str = "2026-03-03 10:00:00 UTC") -> Path:
    files = {f"{student}/{ASSIGNMENT}/small.ipynb": data, f"{student}/{ASSIGNMENT}/timestamp.txt": when.encode()}
    return zipped(folder / f"{student}-{ASSIGNMENT}.zip", files)


def run(course: Path, *paths: Path):
    return collect(course, list(paths), read_class(course / "class.csv"))


def handed_in(course: Path) -> set[str]:
    return {path.parent.parent.name for path in (course / "submitted").glob(f"*/{ASSIGNMENT}/small.ipynb")}
