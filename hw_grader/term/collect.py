"""From downloads to submitted/: whose file it is, which lesson, which attempt counts, and who is missing.

Nothing is overwritten: of several attempts the newest lies in submitted/STUDENT/LESSON, the others in
attempts/STUDENT/LESSON/, each with its time. What could not be placed stays in the download, and is named.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nbgrader.plugins.zipcollect import FileNameCollectorPlugin
from tqdm import tqdm

from hw_grader.notebook.submission import one_line
from hw_grader.term.class_list import ClassList, Sender
from hw_grader.term.downloads import MAX_PATH_CHARS, File, Read, Room, TooMuch, files_of, is_wanted, notebooks_in
from hw_grader.term.lms_file_names import METADATA, Named, read_metadata, read_name, remember_names, usual_lms, utc

ATTEMPTS = "attempts"
_TYPED = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"  # what `python -m hw_utils submit --student` takes

_MOST_SHOWN_CHARS = 100_000  # of a line, in which a whole class may stand
_STAMP_BYTES = 100  # of a timestamp.txt, which lies beside each of many notebooks
WHEN = "a date such as 2026-03-02 10:00 +0100"


@dataclass(frozen=True)
class Attempt:
    """One notebook that somebody handed in; `when` is UTC as in timestamp.txt, or empty."""

    sender: Sender
    lesson: str
    kept: Path  # in a folder of this run, under its checksum
    when: str
    path: str  # in the download, for people
    is_late: bool = False
    lms_path: str = ""  # the name by which the LMS takes a file back

    @property
    def data(self) -> bytes:
        return self.kept.read_bytes()


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
        return "\n".join(one_line(line, _MOST_SHOWN_CHARS) for line in lines) or "no notebook was found"


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
    found = Collected()
    with tempfile.TemporaryDirectory(prefix="collect-") as folder:  # a class need not fit into memory
        attempts: dict[tuple[str, str], list[Attempt]] = {}
        for download in tqdm(downloads, desc="collect", unit="zip", disable=None):
            for attempt in _attempts(download, names, lesson, found, Path(folder)):
                if student := _student(attempt, known, found):
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


def _student(attempt: Attempt, known: ClassList, found: Collected) -> str:
    """Who of the class handed it in; "", and a line, if nobody can be meant."""
    student, why = known.find(attempt.sender)
    if why:
        found.unknown.append(f"{attempt.path}: {one_line(why)}")
        return ""
    typed = attempt.sender.login
    if attempt.sender.lms and typed and known.students and typed.lower() != student.lower():
        found.notes.append(f"{student}: handed in as {typed}; the account at {attempt.sender.lms} counts")
    return student


def _attempts(download: Path, names: dict[str, str], lesson: str, found: Collected, folder: Path) -> Iterator[Attempt]:
    """Every notebook of one download, with what is said about it; the notebooks themselves go into the folder."""
    try:
        files = dict(files_of(download, found.notes))
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        found.unknown.append(f"{download}: no zip that can be read ({error}); download it again")
        return
    about, usual, rooms = _metadata(files, download, found), usual_lms(files), defaultdict(Room)
    for path, read in files.items():
        if not is_wanted(path):
            continue
        shown = one_line(f"{download.name}: {path}")
        if len(path) > MAX_PATH_CHARS:
            found.unknown.append(f"{shown}...: a name of {len(path):,} characters; {MAX_PATH_CHARS:,} is the limit")
            continue
        named = read_name(path, about, usual)
        room = rooms[(named.sender.lms, named.sender.id) if named else path]
        try:
            for file in _notebooks(path, read, room, files, shown):
                yield from _notebook(file, named, names, lesson, found, folder)
        except TooMuch as error:
            if not room.is_said:
                found.unknown.append(f"{shown}: {error} looked at")
            room.is_said = True
        except Exception as error:  # zlib, lzma, bz2, zipfile, a link: each raises what it likes
            found.unknown.append(f"{shown}: cannot be read: {one_line(str(error))}")


def _notebooks(path: str, read: Read, room: Room, files: Mapping[str, Read], shown: str) -> Iterator[File]:
    """One file of a download: a notebook, or a student's zip with notebooks."""
    data = room.take(read)
    if not path.lower().endswith(".zip"):
        yield File(path, data, files, shown)
        return
    packed = notebooks_in(data, room, shown)
    first = next(packed, None)
    if first is None:
        raise ValueError("it holds no notebook")
    yield first
    yield from packed


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


def _notebook(
    file: File, named: Named | None, names: dict[str, str], lesson: str, found: Collected, folder: Path
) -> Iterator[Attempt]:
    path, shown = file.path, one_line(file.shown)
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
        stamp = file.beside.get(str(PurePosixPath(path).parent / "timestamp.txt"))
        own = utc(stamp(_STAMP_BYTES).decode("utf-8", "replace").strip()) if stamp else ""
        when, late, lms_path = (named.when, named.is_late, named.path) if named else ("", False, "")
        kept = folder / hashlib.sha256(file.data).hexdigest()
        kept.write_bytes(file.data)
        yield Attempt(sender, one, kept, when or own, shown, late, lms_path)
        for partner in named.partners if named else ():
            found.notes.append(one_line(f"{partner}: handed in together with {sender}"))
            yield Attempt(partner, one, kept, when or own, shown, late, lms_path)


def _lesson_of(file: str, path: str, names: dict[str, str]) -> str:
    """The lesson whose notebook this is: by its name (LMS add `-1` or ` (1)`), else by a lesson's name in the path."""
    stem = re.sub(r"(?:[-_ ]?\(\d+\)|-\d+)+$", "", PurePosixPath(file).stem).lower().replace(" ", "_")
    fits = [name for name in names if name.lower() == stem] or [name for name in names if name.lower() in stem]
    fits = [max(fits, key=len)] if fits else []
    lessons = {names[name] for name in fits} or {one for one in names.values() if one in path}
    return lessons.pop() if len(lessons) == 1 else ""


def _place(root: Path, student: str, lesson: str, attempts: list[Attempt], names, found: Collected) -> Attempt | None:
    """Puts the newest attempt into submitted/ and the others beside; says which.

    Gives the newest, unless what lies in submitted/ is newer still.
    """
    file = next(stem for stem, one in names.items() if one == lesson) + ".ipynb"
    folder = root / "submitted" / student / lesson
    by_content: dict[Path, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: a.when):
        by_content.pop(attempt.kept, None)
        by_content[attempt.kept] = attempt
    fresh = list(by_content.values())
    newest = fresh[-1]
    if len(fresh) > 1:
        shown = "; ".join(f"{a.when or 'no time'}: {a.path}" for a in fresh)
        how = f"the one of {newest.when} counts" if newest.when else "no time is known, the last one counts: look"
        if newest.when and fresh[-2].when == newest.when:
            how = f"several of {newest.when}, the last one counts: look"
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
            f"and the student's own clock {newest.when}: look at" if newest.when else f"but not when: write {WHEN} into"
        )
        found.notes.append(f"{student}, {lesson}: the LMS says late, {said} {folder.relative_to(root)}/timestamp.txt")
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
        if stamp.is_file():
            with stamp.open(errors="replace") as file:
                when = utc(file.read(_STAMP_BYTES).strip())
            found |= {"timestamp": when} if when else {}
        return found
