"""The class list: who is in the course, and under which names the LMS and the gradebook know them.

Any LMS's own export of its participants will do: columns are found by their usual names (`COLUMNS`). `student` is the
name in submitted/ and in the gradebook; without such a column it is the login, else the mail's part before the @.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.api import Gradebook

from hw_grader.notebook.submission import student_name

LMS = ("canvas", "moodle", "gradescope", "brightspace")
COLUMNS = {  # ours -> what the systems call it, in small letters and without what is no letter
    "student": ("student", "studentid", "username", "user", "login", "loginid", "sisloginid"),
    "name": ("name", "fullname", "displayname", "studentname"),
    "first": ("firstname", "givenname"),
    "last": ("lastname", "surname", "familyname"),
    "mail": ("mail", "email", "emailaddress"),
    "number": ("sid", "sisuserid", "sisid", "idnumber", "orgdefinedid", "number", "matriculation"),
    "section": ("section", "group", "groups"),
    "canvas": ("canvas", "canvasid", "canvasuserid", "id"),
    "moodle": ("moodle", "moodleid", "identifier", "participant"),
    "gradescope": ("gradescope", "gradescopeid"),
    "brightspace": ("brightspace", "brightspaceid", "dl", "dlid"),
}


class ClassListError(ValueError):
    """The list cannot be used; says the rule, the line, and what to do."""


@dataclass(frozen=True)
class Student:
    """One row of the class list; `ids` holds the number by which an LMS knows the student."""

    student: str
    first: str = ""
    last: str = ""
    mail: str = ""
    number: str = ""
    section: str = ""
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}".strip()


@dataclass(frozen=True)
class Sender:
    """Whom an LMS names as the one who handed in; `login` is what the student typed into `submit`."""

    lms: str = ""
    name: str = ""
    id: str = ""
    mail: str = ""
    number: str = ""
    login: str = ""

    def __str__(self) -> str:
        known = (self.name, self.mail, f"{self.lms} {self.id}".strip() if self.id else "", self.login)
        return ", ".join(dict.fromkeys(text for text in known if text)) or "nobody"


class ClassList:
    """Finds the student that a sender is. An empty one believes every sender (see `find`)."""

    def __init__(self, students: list[Student]) -> None:
        self.students = {s.student: s for s in students}

    def find(self, sender: Sender) -> tuple[str, str]:
        """(the student, "") or ("", why nobody of the list can be meant): by number, mail, login, then name.

        With an empty list the student is the mail's first part, or name and number of the LMS; what was typed counts
        only where nobody else says who it is.
        """
        if not self.students:
            typed = "" if sender.lms else sender.login
            return student_name(typed or sender.mail.partition("@")[0] or _made_up(sender)), ""
        everybody = self.students.values()
        if sender.id and (found := [s for s in everybody if s.ids.get(sender.lms) == sender.id]):
            return _only(found, f"{sender.lms} number {sender.id}")
        if sender.mail and (found := [s for s in everybody if s.mail.lower() == sender.mail.lower()]):
            return _only(found, f"mail {sender.mail}")
        if sender.number and (found := [s for s in everybody if s.number == sender.number]):
            return _only(found, f"number {sender.number}")
        if sender.login and not sender.lms:  # nobody but the student says who it is
            found = [s for s in everybody if sender.login.lower() in (s.student.lower(), s.mail.lower())]
            return _only(found, f"user name {sender.login}")
        found = [s for s in everybody if sender.name and _letters(sender.name) in _spellings(s)]
        if not found and len(words := _words(sender.name)) > 1:  # a middle name, another order
            found = [s for s in everybody if s.name and _words(s.name) == words]
        return _only(found, f"name {sender.name}")


def _only(found: list[Student], what: str) -> tuple[str, str]:
    if len(found) == 1:
        return found[0].student, ""
    if found:
        return (
            "",
            f"{what} fits {' and '.join(s.student for s in found)}: give the list a column with the LMS's numbers",
        )
    return "", f"nobody in the class list has the {what}"


def _made_up(sender: Sender) -> str:
    return "_".join(text for text in (re.sub(r"\W+", "-", sender.name.strip()), sender.id) if text) or "unknown"


def _words(text: str) -> frozenset[str]:
    plain = unicodedata.normalize("NFKD", text)
    return frozenset(re.findall(r"\w+", "".join(c for c in plain if not unicodedata.combining(c)).casefold()))


def _letters(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c for c in plain if c.isalnum()).casefold()


def _spellings(student: Student) -> set[str]:
    return {_letters(student.first + student.last), _letters(student.last + student.first)} - {""}


def read_class(path: Path | None) -> ClassList:
    """The class list of a CSV file (commas, semicolons or tabs); an empty one if there is no file.

    Raises:
        ClassListError: no such columns, a row without a student, or the same student or number twice.
    """
    if path is None or not path.exists():
        return ClassList([])
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    head = text.partition("\n")[0]
    rows = list(csv.reader(io.StringIO(text), delimiter=max(",;\t", key=head.count)))
    places = _places(rows[0] if rows else [], path)
    students, lines = [], {}
    for line, row in enumerate(rows[1:], 2):
        cells = {ours: row[n].strip() for ours, n in places.items() if n < len(row)}
        if not any(cells.values()) or cells.get("name", "").startswith("Points Possible"):
            continue  # an empty line; Canvas's second one
        student = _student(cells)
        if not student.student:
            raise ClassListError(f"{path}, line {line}: every row needs a student, a login or a mail, got {row}")
        for what in [student.student.lower(), *(f"{lms} number {i}" for lms, i in student.ids.items())]:
            if what in lines:
                raise ClassListError(f"{path}, line {line}: {what} stands in line {lines[what]} too; remove one")
            lines[what] = line
        students.append(student)
    if not students:
        raise ClassListError(f"{path} holds no student; a class list has a head line and one line a student")
    return ClassList(students)


def bring_names(root: Path) -> ClassList:
    """Reads class.csv, and gives the gradebook the names and mails of those who are in it; gives the class list.

    Raises:
        ClassListError: see `read_class`.
    """
    known = read_class(root / "class.csv")
    if known.students and (root / "gradebook.db").exists():
        with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
            for student in gradebook.students:
                if one := known.students.get(student.id):
                    student.first_name, student.last_name, student.email = one.first, one.last, one.mail
            gradebook.db.commit()
    return known


def _places(head: list[str], path: Path) -> dict[str, int]:
    plain = [re.sub(r"[^a-z]", "", cell.lower()) for cell in head]
    canvas = "sisloginid" in plain  # Canvas's gradebook: "Student" is a name there
    places: dict[str, int] = {}
    for ours, theirs in COLUMNS.items():
        for name in theirs:
            if name in plain and ours not in places and not (canvas and name == "student"):
                places[ours] = plain.index(name)
    if canvas and "student" in plain:
        places["name"] = plain.index("student")
    if not {"student", "mail"} & set(places):
        raise ClassListError(
            f"{path}: a class list needs a column student (or login) or mail in its first line, got {head}; "
            "others that are read: name or first_name and last_name, sis_id, section, canvas, moodle, gradescope, "
            "brightspace"
        )
    return places


def _student(cells: dict[str, str]) -> Student:
    first, last = cells.get("first", ""), cells.get("last", "")
    if not first and not last:
        name = cells.get("name", "")
        last, comma, first = name.partition(",") if "," in name else ("", "", "")
        if not comma:
            first, _, last = name.rpartition(" ")
    mail = cells.get("mail", "")
    return Student(
        student_name(cells.get("student") or mail.partition("@")[0]) if cells.get("student") or mail else "",
        first.strip(), last.strip(), mail, cells.get("number", ""), cells.get("section", ""),
        {lms: cells[lms].removeprefix("Participant ") for lms in LMS if cells.get(lms)},
    )  # fmt: skip
