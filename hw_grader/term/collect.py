"""From downloads to submitted/: whose file it is, which lesson, which attempt counts, and who is missing.

Nothing is overwritten: of several attempts the newest lies in submitted/STUDENT/LESSON, the others in
attempts/STUDENT/LESSON/, each with its time. What could not be placed stays in the download, and is named.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from nbgrader.plugins.zipcollect import FileNameCollectorPlugin
from tqdm import tqdm

from hw_grader.notebook.restore import MAX_BYTES
from hw_grader.notebook.submission import one_line, read_file
from hw_grader.term.class_list import ClassList, Sender
from hw_grader.term.lms_names import METADATA, Named, read_metadata, read_name, remember_names, usual_lms, utc

MAX_FILES = 100_000  # of one download
_MAX_INSIDE = 200  # of a zip that a student made
_MAX_INSIDE_BYTES = 2 * MAX_BYTES  # of all that is read of it
ATTEMPTS = "attempts"
_TYPED = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"  # what `python -m hw_utils submit --student` takes


@dataclass(frozen=True)
class Attempt:
    """One notebook that somebody handed in; `when` is UTC as in timestamp.txt, or empty."""

    sender: Sender
    lesson: str
    data: bytes
    when: str
    path: str  # in the download, for people
    is_late: bool = False
    lms_path: str = ""  # the name by which the LMS takes a file back


@dataclass
class Collected:
    """What came of a download; every list holds lines for the instructor."""

    lessons: dict[str, dict[str, str]] = field(default_factory=dict)  # lesson -> student -> what was done
    missing: dict[str, list[str]] = field(default_factory=dict)  # lesson -> students of the class list
    double: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.unknown

    def __str__(self) -> str:
        lines = []
        for lesson, students in sorted(self.lessons.items()):
            done = list(students.values())
            counts = ", ".join(f"{done.count(what)} {what}" for what in dict.fromkeys(done))
            lines.append(f"{lesson}: {len(students)} students ({counts})")
            if missing := self.missing.get(lesson):
                lines.append(f"  missing, {len(missing)}: {', '.join(missing)}")
        for title, said in (("several attempts", self.double), ("not placed", self.unknown), ("notes", self.notes)):
            if said:
                lines += [f"{title}, {len(said)}:", *(f"  {line}" for line in said)]
        return "\n".join(lines) or "no notebook was found"


def collect(root: Path, downloads: list[Path], known: ClassList, lesson: str = "") -> Collected:
    """Places every notebook of the downloads, zips or folders, below submitted/.

    lesson: what everything in them is for; without it the notebook's name tells, or the kit's own folder.

    Raises:
        FileNotFoundError: a download that is not there, or a lesson that the course does not have.
    """
    names = {path.stem: path.parent.name for path in sorted((root / "solutions").glob("*/*.ipynb"))}
    if lesson and lesson not in names.values():
        raise FileNotFoundError(f"a lesson is a folder of solutions/ ({', '.join(names.values())}), got {lesson!r}")
    for download in downloads:
        if not download.exists():
            raise FileNotFoundError(f"a download is a zip or a folder that is there, got {download}")
    found, attempts = Collected(), {}
    for download in tqdm(downloads, desc="collect", unit="zip", disable=None):
        for attempt in _attempts(download, names, lesson, found):
            student, why = known.find(attempt.sender)
            if why:
                found.unknown.append(f"{attempt.path}: {why}")
                continue
            typed = attempt.sender.login
            if attempt.sender.lms and typed and known.students and typed.lower() != student.lower():
                found.notes.append(f"{student}: handed in as {typed}; the account at {attempt.sender.lms} counts")
            attempts.setdefault((student, attempt.lesson), []).append(attempt)
    counts = {
        (one, student): _place(root, student, one, several, names, found)
        for (student, one), several in sorted(attempts.items())
    }
    remember_names(root / ATTEMPTS, {who: (a.sender.lms, a.lms_path) for who, a in counts.items() if a and a.lms_path})
    for one in found.lessons:
        here = {path.parent.name for path in (root / "submitted").glob(f"*/{one}") if any(path.glob("*.ipynb"))}
        found.missing[one] = [student for student in known.students if student not in here]
    return found


def _attempts(download: Path, names: dict[str, str], lesson: str, found: Collected) -> Iterator[Attempt]:
    """Every notebook of one download, with what is said about it."""
    try:
        files = dict(_files(download, found))
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        found.unknown.append(f"{download}: no zip that can be read ({error}); download it again")
        return
    about, usual = _metadata(files, download, found), usual_lms(files)
    for path, read in files.items():
        if PurePosixPath(path).suffix.lower() not in (".ipynb", ".zip") or "__MACOSX" in path:
            continue
        shown = one_line(f"{download.name}: {path}")
        try:
            data = read()
        except Exception as error:  # zlib, lzma, bz2, zipfile, a link: each raises what it likes
            found.unknown.append(f"{shown}: cannot be read: {one_line(str(error))}")
            continue
        named = read_name(path, about, usual)
        try:
            yield from _of_file(path, data, named, names, lesson, shown, files, found)
        except Exception as error:  # of what a student has packed, as above
            found.unknown.append(f"{shown}: cannot be read: {one_line(str(error))}")


def _metadata(files: dict, download: Path, found: Collected) -> dict:
    """What the LMS's own file says; one that lies in a submission is a student's."""
    own = [path for path in files if PurePosixPath(path).name == METADATA and read_name(path, {}) is None]
    if not own:
        return {}
    path = min(own, key=lambda path: len(PurePosixPath(path).parts))
    try:
        return read_metadata(files[path]().decode("utf-8", "replace"))
    except Exception as error:  # zipfile and yaml raise what they like
        found.unknown.append(f"{download}: {one_line(path)} cannot be read: {one_line(str(error))}")
        return {}


def _of_file(path, data, named: Named | None, names, lesson, shown, files, found: Collected) -> Iterator[Attempt]:
    """One file of a download: a notebook, or a student's zip with notebooks."""
    if path.lower().endswith(".zip"):
        inside, n_found = _inside(data, shown, found), 0
        for inner, read in inside.items():
            if inner.lower().endswith(".ipynb") and "__MACOSX" not in inner:
                n_found += 1
                yield from _notebook(inner, read(), named, names, lesson, f"{shown}, {one_line(inner)}", inside, found)
        if not n_found:
            found.unknown.append(f"{shown}: holds no notebook")
        return
    yield from _notebook(path, data, named, names, lesson, shown, files, found)


def _notebook(path, data, named: Named | None, names, lesson, shown, beside, found: Collected) -> Iterator[Attempt]:
    parts = PurePosixPath(path).parts
    is_kits = len(parts) >= 3 and parts[-2] in names.values() and re.fullmatch(_TYPED, parts[-3])
    login = parts[-3] if is_kits else ""
    sender = named.sender if named else Sender()
    sender = Sender(**{**vars(sender), "login": login})
    one = lesson or (parts[-2] if is_kits else _lesson_of(named.file if named else path, path, names))
    if not named and not login:
        found.unknown.append(f"{shown}: its name has no form of an LMS and no STUDENT/LESSON/ before it")
    elif not one:
        found.unknown.append(f"{shown}: of which lesson? Give ASSIGNMENT= with what this download is for")
    elif lesson and is_kits and parts[-2] != lesson:
        found.unknown.append(f"{shown}: is {parts[-2]}, not {lesson}; collect it without ASSIGNMENT=")
    else:
        stamp = beside.get(str(PurePosixPath(path).parent / "timestamp.txt"))
        own = utc(stamp()[:100].decode("utf-8", "replace").strip()) if stamp else ""
        when, late, lms_path = (named.when, named.is_late, named.path) if named else ("", False, "")
        yield Attempt(sender, one, data, when or own, shown, late, lms_path)


def _lesson_of(file: str, path: str, names: dict[str, str]) -> str:
    """The lesson whose notebook this is: by its name (LMS add `-1` or ` (1)`), else by a lesson's name in the path."""
    stem = re.sub(r"(?:[-_ ]?\(\d+\)|-\d+)+$", "", PurePosixPath(file).stem).lower().replace(" ", "_")
    fits = [name for name in names if name.lower() == stem] or [name for name in names if name.lower() in stem]
    fits = [max(fits, key=len)] if fits else []
    lessons = {names[name] for name in fits} or {one for one in names.values() if one in path}
    return lessons.pop() if len(lessons) == 1 else ""


def _files(download: Path, found: Collected) -> Iterator[tuple[str, object]]:
    """(path inside, what reads it) of a zip's or a folder's files; nothing is unpacked, so no path in it matters."""
    if download.is_dir():
        for path in sorted(download.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(download).as_posix(), lambda path=path: read_file(path, download)
    elif download.suffix.lower() == ".ipynb":
        yield download.name, download.read_bytes
    else:
        yield from _members(zipfile.ZipFile(download), MAX_FILES, found, download.name).items()


def _inside(data: bytes, shown: str, found: Collected) -> dict:
    try:
        inside = _members(zipfile.ZipFile(io.BytesIO(data)), _MAX_INSIDE, found, shown)
    except Exception as error:  # as above
        found.unknown.append(f"{shown}: a zip that cannot be read: {one_line(str(error))}")
        return {}
    room = _MAX_INSIDE_BYTES

    def within(read) -> bytes:
        nonlocal room
        content = read()
        room -= len(content)
        if room < 0:
            raise ValueError(f"more than {_MAX_INSIDE_BYTES:,} bytes in one zip")
        return content

    return {path: partial(within, read) for path, read in inside.items()}


def _members(archive: zipfile.ZipFile, most: int, found: Collected, shown: str) -> dict:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > most:
        found.notes.append(f"{shown}: has {len(infos)} files; only the first {most} were looked at")

    def reader(info: zipfile.ZipInfo):
        def read() -> bytes:
            with archive.open(info) as member:
                data = member.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES:,} bytes")
            return data

        return read

    return {info.filename.replace("\\", "/"): reader(info) for info in infos[:most]}


def _place(root: Path, student: str, lesson: str, attempts: list[Attempt], names, found: Collected) -> Attempt | None:
    """Puts the newest attempt into submitted/ and the others beside; says which.

    Gives the newest, unless what lies in submitted/ is newer still.
    """
    file = next(stem for stem, one in names.items() if one == lesson) + ".ipynb"
    folder = root / "submitted" / student / lesson
    by_content: dict[bytes, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: a.when):
        by_content.pop(attempt.data, None)
        by_content[attempt.data] = attempt
    fresh = list(by_content.values())
    newest = fresh[-1]
    if len(fresh) > 1:
        shown = "; ".join(f"{a.when or 'no time'}: {a.path}" for a in fresh)
        how = f"the one of {newest.when} counts" if newest.when else "no time is known, the last one counts: look"
        found.double.append(f"{student}, {lesson}: {how} ({shown})")
    there, done = _there(folder, file), "new"
    for attempt in fresh:
        if attempt is not newest:
            _write(_beside(root, student, lesson, attempt.when, attempt.data), file, attempt.data, attempt.when)
    if there is not None and there[0] == newest.data:
        done = "as before"
    elif there is not None and there[1] > newest.when:
        done = "older than what is there"
        found.double.append(f"{student}, {lesson}: {newest.path} is older than submitted/ ({there[1]}); kept beside it")
        _write(_beside(root, student, lesson, newest.when, newest.data), file, newest.data, newest.when)
    else:
        if there is not None:
            done = "newer than before"
            beside = _beside(root, student, lesson, there[1], there[0])
            found.double.append(
                f"{student}, {lesson}: a newer attempt; the one before is in {beside.relative_to(root)}"
            )
            _write(beside, file, *there)
        _write(folder, file, newest.data, newest.when)
    if newest.is_late:
        said = (
            f"and the student's own clock {newest.when}: look" if newest.when else "but not when: write timestamp.txt"
        )
        found.notes.append(f"{student}, {lesson}: the LMS says late, {said} in {folder}")
    found.lessons.setdefault(lesson, {})[student] = done
    return None if done == "older than what is there" else newest


def _there(folder: Path, file: str) -> tuple[bytes, str] | None:
    if not (folder / file).is_file():
        return None
    stamp = folder / "timestamp.txt"
    return (folder / file).read_bytes(), utc(stamp.read_text(errors="replace").strip()) if stamp.is_file() else ""


def _beside(root: Path, student: str, lesson: str, when: str, data: bytes) -> Path:
    """A folder of attempts/ for this attempt: by its time, with a number where another one has that time."""
    folder = root / ATTEMPTS / student / lesson / (re.sub(r"\D+", "-", when).strip("-") or "no-time")
    number, free = 1, folder
    while free.exists() and not any(path.read_bytes() == data for path in free.glob("*.ipynb")):
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _write(folder: Path, file: str, data: bytes, when: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{file}.part"
    part.write_bytes(data)
    part.replace(folder / file)
    if when:
        (folder / "timestamp.txt").write_text(when + "\n")
    else:
        (folder / "timestamp.txt").unlink(missing_ok=True)


class KitZips(FileNameCollectorPlugin):
    """nbgrader's own `zip_collect` on the zips of `python -m hw_utils submit`, with their times."""

    def collect(self, submitted_file: str) -> dict | None:
        """The student, the file and when; None for what is no notebook of the lesson that is collected."""
        found = super().collect(submitted_file)
        if found is None or found.pop("assignment", None) not in (None, self.parent.coursedir.assignment_id):
            return None
        stamp = Path(submitted_file).with_name("timestamp.txt")
        if stamp.is_file() and (when := utc(stamp.read_text(errors="replace")[:100].strip())):
            found["timestamp"] = when
        return found
