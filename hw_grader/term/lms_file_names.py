"""How each LMS names what it lets one download: path in the zip -> who handed in, which file, when.

Canvas       lovelaceada_LATE_4711_815_hello_ranks-1.ipynb   (Assignment, Download Submissions)
Moodle       Ada Lovelace_4711_assignsubmission_file_/hello_ranks.ipynb   (with or without folders)
Brightspace  4711-815 - Ada Lovelace - Mar 3, 2026 1125 AM/hello_ranks.ipynb   (or ` - ` in the place of the folder)
Gradescope   submission_815/hello_ranks.ipynb, and submission_metadata.yml beside it
the kit      ada/01_hello_ranks/hello_ranks.ipynb   (python -m hw_utils submit)
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from dateutil import parser

from hw_grader.course.scores import safe, unsafe
from hw_grader.term.class_list import Sender
from hw_grader.term.downloads import MAX_PATH_CHARS

_WHEN = r"(?:[A-Z][a-z]{2,8}\.? \d{1,2}|\d{1,2} [A-Z][a-z]{2,8}\.?),? \d{4} \d{3,4}(?: ?[AP]M)?"
# The outermost folder of such a form is the LMS's; what lies in it, and how that is called, is the student's. Moodle
# leaves no `_` in a name.
_FORMS = {
    "moodle": r"(?:.*?/)??(?P<name>[^/_]+)_(?P<id>\d+)_assignsubmission_[a-z]+(?:_/|/|_)(?P<file>.+)",
    "brightspace": rf"(?:.*?/)??(?P<id>\d+)-\d+ ?- ?(?P<name>[^/]+?) ?- ?(?P<when>{_WHEN})(?:/| ?- ?)(?P<file>.+)",
    "canvas": r"(?:.*/)?(?P<name>[^/]+?)(?P<late>_LATE)?_(?P<id>\d+)_\d+_(?P<file>[^/]+)",
}
_NAMES = "names.csv"
_GRADESCOPE = re.compile(r"(?:.*?/)??(?P<key>submission_\d+)/(?P<file>.+)", re.DOTALL)
METADATA = "submission_metadata.yml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Named:
    """What a path says: the sender, the file's own name, when (UTC, or ""), and whether the LMS calls it late.

    `path` is the LMS's name of the file, without folders that were put around it: by it the LMS knows it again.
    `partners` handed in the same with the sender, as a group.
    """

    sender: Sender
    file: str
    when: str = ""
    is_late: bool = False
    path: str = ""
    partners: tuple[Sender, ...] = ()


def usual_lms(paths: Iterable[str]) -> str:
    """The LMS whose form most of a download's files have; "" if none has one.

    A student's text stands behind the LMS's own, so of two forms that all files have, the one that ends first is it.
    """
    counts, n_own = Counter(), Counter()
    for path in paths:
        for lms, form in _FORMS.items():
            if len(path) <= MAX_PATH_CHARS and (found := re.fullmatch(form, path, re.DOTALL)):
                counts[lms] += 1
                n_own[lms] += found.start("file")
    return max(_FORMS, key=lambda lms: (counts[lms], -n_own[lms])) if counts else ""


def read_name(path: str, about: Mapping[str, Named], usual: str = "") -> Named | None:
    """What the path of one file in an LMS's zip says; None if it has no LMS's form.

    about: what Gradescope's metadata says of each submission (see `read_metadata`). usual: the LMS that counts where
    a name has the form of several: students may call a file as another LMS would.
    """
    place = PurePosixPath(path.replace("\\", "/"))
    if place.is_absolute() or ".." in place.parts:
        return None  # in what is given back it would lie elsewhere
    scoped = _GRADESCOPE.fullmatch(path)
    if scoped and scoped["key"] in about:
        said = about[scoped["key"]]
        return replace(said, file=scoped["file"])
    for lms in sorted(_FORMS, key=lambda lms: lms != usual):
        found = re.fullmatch(_FORMS[lms], path, re.DOTALL)
        if found:
            parts = found.groupdict()
            name = "" if parts["name"].startswith(("Participant", "anon")) else parts["name"]
            when = utc(parts["when"]) if parts.get("when") else ""
            own = path[min(found.start("name"), found.start("id")) :]
            return Named(Sender(lms, name, parts["id"]), parts["file"], when, bool(parts.get("late")), own)
    return None


def read_metadata(text: str) -> dict[str, Named]:
    """Gradescope's submission_metadata.yml: submission -> its submitters and when; {} if it is none."""
    try:
        loaded = yaml.load(text, Loader=_LOADER)  # results and history of everybody are in it: tens of MB
    except yaml.YAMLError:
        return {}
    found = {}
    for key, said in (loaded if isinstance(loaded, dict) else {}).items():
        submitters = _get(said, "submitters")
        if isinstance(submitters, list) and submitters:
            sender, *partners = (_submitter(one, str(key)) for one in submitters)
            when = utc(_get(said, "created_at"))
            found[str(key).lstrip(":")] = Named(sender, "", when, partners=tuple(partners))
    return found


def _submitter(said: Any, key: str) -> Sender:
    name, mail, number = (str(_get(said, what) or "") for what in ("name", "email", "sid"))
    return Sender("gradescope", name, key.rpartition("_")[2], mail, number)


def remember_names(folder: Path, names: Mapping[tuple[str, str], tuple[str, str]]) -> None:
    """Keeps, in a CSV file of the folder, under which name an LMS knows a submission, to give something back for it.

    names: (lesson, student) -> (LMS, path in its download); what was kept of others stays.
    """
    if not names:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{_NAMES}.part").open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["lesson", "student", "lms", "path"])
        for who, named in sorted({**known_names(folder), **names}.items()):
            writer.writerow(map(safe, (*who, *named)))
    (folder / f".{_NAMES}.part").replace(folder / _NAMES)


def known_names(folder: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """What `remember_names` kept in the folder."""
    if not (folder / _NAMES).is_file():
        return {}
    with (folder / _NAMES).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = [map(unsafe, row) for row in csv.reader(file) if len(row) == 4][1:]
    return {(lesson, student): (lms, path) for lesson, student, lms, path in rows}


def _get(said: Any, name: str) -> Any:
    """The value under `name` or Ruby's `:name`."""
    return said.get(f":{name}", said.get(name)) if isinstance(said, dict) else None


def utc(when: Any) -> str:
    """A date as timestamp.txt has it, "2026-03-03 11:25:00 UTC"; without a zone it is this machine's; "" if none."""
    try:
        if not isinstance(when, datetime):
            text = re.sub(r"\b(\d{1,2})(\d\d)(?= ?[AP]M\b|$)", r"\1:\2", str(when))  # Brightspace has no colon
            when = parser.parse(text if re.search(r"\d:\d\d", text) else str(when))
        return f"{when.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, TypeError):
        return ""
