"""What was handed in: finds a student's notebook, and reads it without following a link out of the folder."""

from __future__ import annotations

import os
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nbformat import NotebookNode

from hw_grader.match import MAX_BYTES, restore
from hw_grader.release import Release

MAX_FILES = 1_000
MAX_FOLDER_BYTES = 256 * 2**20


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


def read_file(path: Path, folder: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file that lies in `folder`.

    Raises:
        Refused: it is a link, lies behind one, is no regular file, is too large.
    """
    inside = path.relative_to(folder)
    for parent in [folder / Path(*inside.parts[:n]) for n in range(1, len(inside.parts))]:
        if parent.is_symlink():
            raise Refused(f"{inside} lies behind a link")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(f"{inside} is a link or cannot be read: {error.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Refused(f"{inside} is not a regular file")
        if about.st_size > max_bytes:
            raise Refused(f"{inside} has {about.st_size:,} bytes; {max_bytes:,} is the limit")
        return file.read(max_bytes)


def restored(path: Path, release: Release) -> NotebookNode:
    """A submitted notebook, put in order; one that must not be read is `unreadable`, with the reason."""
    try:
        return restore(read_file(path, path.parent), release)
    except Refused as error:
        return restore(b"", release, refused=str(error))


def find_submission(folder: Path, student: str, assignment: str, notebook: str) -> Submission:
    """The notebook of a student's folder: by its name, else the only one there is, else the one in a zip file."""
    found = Submission(student, assignment)
    try:
        found.data = _notebook(folder, notebook, found.notes)
        if (folder / "timestamp.txt").exists():
            found.timestamp = read_file(folder / "timestamp.txt", folder, 1000).decode(errors="replace").strip()
    except Refused as error:
        found.notes.append(str(error))
    return found


def _notebook(folder: Path, notebook: str, notes: list[str]) -> bytes:
    exact = folder / f"{notebook}.ipynb"
    if os.path.lexists(exact):
        return read_file(exact, folder)
    others = sorted(p for p in folder.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
    if not others:
        return _zipped(folder, notebook, notes)
    chosen = max(others, key=lambda p: (notebook.lower() in p.stem.lower(), len(others) == 1, -len(p.parts)))
    notes.append(f"{notebook}.ipynb was not there; {chosen.relative_to(folder)} was graded")
    return read_file(chosen, folder)


def _zipped(folder: Path, notebook: str, notes: list[str]) -> bytes:
    """The notebook inside a handed-in zip file; nothing is unpacked to disk, so no path in it matters."""
    for path in sorted(folder.glob("*.zip")):
        try:
            with zipfile.ZipFile(path) if not path.is_symlink() else _refuse(path) as archive:
                for info in archive.infolist()[:MAX_FILES]:
                    name = PurePosixPath(info.filename)
                    if name.suffix == ".ipynb" and "__MACOSX" not in name.parts and info.file_size <= MAX_BYTES:
                        with archive.open(info) as file:
                            notes.append(f"{name.name} in {path.name} was graded")
                            return file.read(MAX_BYTES)
        except (zipfile.BadZipFile, RuntimeError, OSError) as error:
            notes.append(f"{path.name}: {error}")
    raise Refused(f"there is no notebook {notebook}.ipynb")


def _refuse(path: Path):
    raise Refused(f"{path.name} is a link")


def remove_links(folder: Path) -> list[str]:
    """Removes every link below `folder`, so that nobody later copies what it points to; their names."""
    removed = []
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(root) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                path.unlink()
                removed.append(str(path.relative_to(folder)))
    return removed
