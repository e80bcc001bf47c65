"""The files of a download: what an LMS's zip or a folder holds, and what students have packed into zips of their own.

Nothing is unpacked where a path in a zip would say, so no such path matters. What one student has handed in may be
`MOST_BYTES` and `MOST_FILES` when it is unpacked, zips in zips counted together.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from hw_grader.notebook.restore import MAX_BYTES
from hw_grader.notebook.submission import read_file

MAX_FILES = 100_000  # of one download
MAX_PATH_CHARS = 1_000
MOST_BYTES, MOST_FILES = 2 * MAX_BYTES, 400  # of one student in one download
_MAX_DEPTH = 3  # of zips in a student's zip
_ENTRY = b"PK\x01\x02"  # how each entry of a zip's list of files begins

_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others are unpacked as a whole, however little is asked for

Read = Callable[..., bytes]  # with a number, no more than so many of the first bytes


class TooMuch(ValueError):
    """A student's share of a download is used up; said once a student."""


@dataclass
class Room:
    """What may still be read of one student's."""

    n_bytes: int = MOST_BYTES
    n_files: int = MOST_FILES
    is_said: bool = False

    def take(self, read: Read) -> bytes:
        """The bytes, counted.

        Raises:
            TooMuch: more bytes or files than one student may have.
        """
        if self.n_bytes <= 0 or self.n_files <= 0:
            raise TooMuch(self._rule)
        data = read()
        self.n_bytes, self.n_files = self.n_bytes - len(data), self.n_files - 1
        if self.n_bytes < 0:
            raise TooMuch(self._rule)
        return data

    @property
    def _rule(self) -> str:
        return f"one student's files in one download may have {MOST_BYTES:,} bytes and be {MOST_FILES}; the rest is not"


@dataclass(frozen=True)
class File:
    """A notebook that a student has packed: its path in the innermost zip, and that zip's other files."""

    path: str
    data: bytes
    beside: Mapping[str, Read]
    shown: str  # the way to it, for people


def as_paths(words: Sequence[str]) -> list[Path]:
    """The downloads that are meant: words that only together name a file are one, as in `DDL-Lesson 2-1234.zip`.

    What names nothing stays as it is, for the error that says so.
    """
    paths, begin = [], 0
    while begin < len(words):
        ends = range(begin + 1, len(words) + 1)
        names = {end: Path(" ".join(words[begin:end])).expanduser() for end in ends}
        end = next((end for end, path in names.items() if path.exists()), begin + 1)
        paths.append(names[end])
        begin = end
    return paths


def files_of(download: Path, notes: list[str]) -> Iterator[tuple[str, Read]]:
    """(path inside, what reads it) of a zip's or a folder's files."""
    if download.is_dir():
        for path in sorted(download.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(download).as_posix(), partial(read_file, path, download, MAX_BYTES)
    elif download.suffix.lower() == ".ipynb":
        yield download.name, download.read_bytes
    else:
        archive = zipfile.ZipFile(download)
        if (n := len(archive.infolist())) > MAX_FILES:
            notes.append(f"{download.name}: has {n} files; only the first {MAX_FILES} were looked at")
        yield from list(_members(archive).items())[:MAX_FILES]


def notebooks_in(data: bytes, room: Room, shown: str, depth: int = 1) -> Iterator[File]:
    """Every notebook of a student's zip, and of zips in it.

    Raises:
        TooMuch: see `Room`; other errors, of many kinds, if it cannot be read.
    """
    if data.count(_ENTRY) > 2 * MOST_FILES:  # before they become objects
        raise TooMuch(f"a student's zip may have {MOST_FILES} files")
    inside = _members(zipfile.ZipFile(io.BytesIO(data)))
    for path, read in inside.items():
        if is_wanted(path):
            here = f"{shown}, {path}"
            if path.lower().endswith(".ipynb"):
                yield File(path, room.take(read), inside, here)
            elif depth < _MAX_DEPTH:
                yield from notebooks_in(room.take(read), room, here, depth + 1)


def is_wanted(path: str) -> bool:
    """Whether it is a notebook or a zip, and no Mac's notes on one."""
    return PurePosixPath(path).suffix.lower() in (".ipynb", ".zip") and "__MACOSX" not in path


def _members(archive: zipfile.ZipFile) -> dict[str, Read]:
    def reader(info: zipfile.ZipInfo) -> Read:
        def read(first: int = MAX_BYTES + 1) -> bytes:
            if info.compress_type not in _BOUNDED:
                raise ValueError("it is packed in an unusual way (bzip2, lzma); as usual it is deflated")
            with archive.open(info) as member:
                data = member.read(first)
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            return data

        return read

    return {info.filename.replace("\\", "/"): reader(info) for info in archive.infolist() if not info.is_dir()}
