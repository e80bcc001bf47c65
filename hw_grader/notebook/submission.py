"""What was handed in: finds a student's notebook, and reads it without following a link out of the folder.

Whatever a folder holds, `find_submission` gives a `Submission`, with a note where something could not be read. It runs
in a process with limits (see read_submissions.py) wherever a class is graded.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path, PurePath, PurePosixPath
from unicodedata import category

from dateutil import parser

from hw_grader.notebook.restore import MAX_BYTES

MAX_FILES = 1_000  # of a zip file that are looked at
MAX_ENTRIES = 20_000  # of a folder
MAX_NAME_BYTES = 100
_PLAIN = frozenset(" ._-@+,()")  # besides letters and digits, in a student's name


class Refused(ValueError):
    """A file that must not be read: a link, a device, a path that leaves the folder, too much of it."""


@dataclass
class Submission:
    """One student's folder for one assignment; `data` is empty if there is nothing to grade."""

    student: str
    assignment: str
    data: bytes = b""
    timestamp: str = ""
    notes: list[str] = field(default_factory=list)
    restored: bytes = b""  # the notebook put in order, as JSON (see read_submissions.py)
    key: str = ""  # of that (see grading.submission_key)


def student_name(folder: str) -> str:
    """The name under which a folder's student is kept: the folder's own, if files, pages and nbgrader can hold it.

    Other characters become `~` and their bytes in hexadecimal; what is too long is cut, with a checksum. Two folders
    never have the same name.

    >>> student_name("Zoë Li"), student_name("[ab]c")
    ('Zoë Li', '~5Bab~5Dc')
    """
    edges = (0, len(folder) - 1)
    name = "".join(
        c if category(c)[0] in "LMN" or (c in _PLAIN and not (c in " ." and n in edges)) else _bytes_of(c)
        for n, c in enumerate(folder)
    )
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    checksum = hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]
    return name.encode()[: MAX_NAME_BYTES - 20].decode(errors="ignore").rstrip(" .") + "~~" + checksum


def _bytes_of(character: str) -> str:
    return "".join(f"~{byte:02X}" for byte in character.encode(errors="surrogateescape"))


def one_line(text: str, n_chars: int = 200) -> str:
    """Text for a note: on one line, without what no file can hold, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text[:n_chars].encode(errors="replace").decode())


def read_file(path: Path, folder: Path, max_bytes: int = MAX_BYTES, first: int = -1) -> bytes:
    """The bytes of a regular file that lies in `folder`, or no more than the first few.

    Raises:
        Refused: it is a link, lies behind one, is no regular file, is too large.
    """
    with os.fdopen(_open(path, folder, max_bytes), "rb") as file:
        return file.read(max_bytes if first < 0 else first)


def _open(path: Path, folder: Path, max_bytes: int) -> int:
    inside = path.relative_to(folder)
    for parent in [folder / Path(*inside.parts[:n]) for n in range(1, len(inside.parts))]:
        if parent.is_symlink():
            raise Refused(f"{inside} lies behind a link")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise Refused(f"{inside} is a link or cannot be read: {getattr(error, 'strerror', error)}") from None
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and about.st_size <= max_bytes:
        return fd
    os.close(fd)
    if not stat.S_ISREG(about.st_mode):
        raise Refused(f"{inside} is not a regular file")
    raise Refused(f"{inside} has {about.st_size:,} bytes; {max_bytes:,} is the limit")


def find_submission(folder: Path, student: str, assignment: str, notebook: str) -> Submission:
    """The notebook of a student's folder: by its name, else the only one there is, else the one in a zip file."""
    found = Submission(student, assignment)
    try:
        if folder.is_symlink() or folder.parent.is_symlink():
            raise Refused("the folder is a link")
        if not folder.is_dir():
            raise Refused("there is a file in the place of the folder")
        found.data = _notebook(folder, notebook, found.notes)
        found.timestamp = _timestamp(folder, found.notes)
    except Exception as error:  # one student's folder is one student's row, whatever is in it
        kind = "" if isinstance(error, Refused) else f"the folder cannot be read: {type(error).__name__}: "
        found.notes.append(f"{kind}{error}")
    found.notes = [one_line(note) for note in found.notes]
    return found


def _timestamp(folder: Path, notes: list[str]) -> str:
    """What timestamp.txt says, if it is a date of this world; as UTC, since nbgrader takes +0100 for 100 seconds."""
    if not os.path.lexists(folder / "timestamp.txt"):
        return ""
    text = read_file(folder / "timestamp.txt", folder, 1000).decode(errors="replace").strip()
    if when := _date(text):
        return f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if when.tzinfo else text
    notes.append(f"timestamp.txt is no date, and counts as if it were not there: {text[:50]}")
    return ""


def _date(text: str) -> datetime | None:
    try:
        when = parser.parse(text)
        return when if text.isprintable() and 1970 < when.year < 2100 else None
    except Exception:  # dateutil raises many kinds
        return None


def _notebook(folder: Path, notebook: str, notes: list[str]) -> bytes:
    exact = folder / f"{notebook}.ipynb"
    if os.path.lexists(exact) and (exact.is_symlink() or not exact.is_dir()):
        return read_file(exact, folder)
    files = [Path(entry.path) for _, entry in zip(range(MAX_ENTRIES), entries(folder)) if not _is_folder(entry)]
    others = sorted(p for p in files if is_notebook(p) and ".ipynb_checkpoints" not in p.parts)
    if not others:
        return _zipped(sorted(p for p in files if p.suffix.lower() == ".zip"), folder, notebook, notes)
    chosen = max(others, key=lambda p: (notebook.lower() in p.stem.lower(), -len(p.parts)))
    notes.append(f"{notebook}.ipynb was not there; {chosen.relative_to(folder)} was graded")
    return read_file(chosen, folder)


def entries(folder: Path) -> Iterator[os.DirEntry]:
    """Everything below a folder, at any depth, behind no link; what cannot be opened is passed over."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                level = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        yield from level
        waiting += [entry.path for entry in reversed(level) if _is_folder(entry)]


def is_notebook(path: PurePath) -> bool:
    """Whether its name is a notebook's, also as browsers save it (`x.ipynb.txt`), and no Mac's notes on a file."""
    return path.name.lower().endswith((".ipynb", ".ipynb.txt", ".ipynb.json")) and not path.name.startswith("._")


def _is_folder(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _zipped(paths: list[Path], folder: Path, notebook: str, notes: list[str]) -> bytes:
    """The notebook inside a handed-in zip file; nothing is unpacked to disk, so no path in it matters."""
    for path in paths:
        try:
            with os.fdopen(_open(path, folder, MAX_BYTES), "rb") as file, zipfile.ZipFile(file) as archive:
                inside = [info for info in archive.infolist()[:MAX_FILES] if _is_notebook(info)]
                for info in sorted(inside, key=lambda info: notebook.lower() not in info.filename.lower()):
                    with archive.open(info) as member:
                        data = member.read(MAX_BYTES)
                    notes.append(f"{PurePosixPath(info.filename).name} in {path.name} was graded")
                    return data
        except Exception as error:  # zlib, lzma, bz2, zipfile: each raises what it likes
            notes.append(f"{path.name} cannot be read: {type(error).__name__}: {error}")
    raise Refused(f"there is no notebook {notebook}.ipynb")


def _is_notebook(info: zipfile.ZipInfo) -> bool:
    name = PurePosixPath(info.filename)
    return is_notebook(name) and "__MACOSX" not in name.parts and info.file_size <= MAX_BYTES


def remove_links(folder: Path) -> list[str]:
    """Removes every link below `folder`, so that nobody later copies what it points to; their names."""
    removed = []
    for entry in list(entries(folder)):
        if not _is_folder(entry) and not entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)
            removed.append(str(Path(entry.path).relative_to(folder)))
    return removed
