"""Marks that go back: each LMS's own columns, and nothing where nothing was graded."""

from __future__ import annotations

import csv
import io

import pytest

from hw_grader.__main__ import main
from hw_grader.course import grading_records
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.grade import table
from hw_grader.report import ClassResult, Mark, Row, to_html, to_table
from hw_grader.term.class_list import read_class
from hw_grader.term.lms_csv import as_lms
from tests.grader.small_course import ASSIGNMENT

CLASS = "student,first name,last name,email,canvas,sis_id,section\nada,Ada,Lovelace,ada@x.edu,4711,S1,A\n" + "".join(
    f"{name},{name.title()},Example,{name}@x.edu,,,\n" for name in ("bob", "cy", "eve")
)
POINT_COLUMNS = {"canvas": ASSIGNMENT, "moodle": ASSIGNMENT, "brightspace": f"{ASSIGNMENT} Points Grade"}
WHO = {"canvas": "SIS Login ID", "moodle": "Username", "brightspace": "Username"}


def record(student: str, *states: str, unreadable: str = "") -> Record:
    verdicts = [Verdict(f"check-{n}", s, 5.0 * (s == "pass"), 5.0, f"why {s}", f"shown {s}") for n, s in
                enumerate(states)]  # fmt: skip
    return Record(ASSIGNMENT, student, "small", "key", verdicts, unreadable=unreadable)


@pytest.fixture
def course(tmp_path):
    (tmp_path / "class.csv").write_text(CLASS)
    grading_records.save(tmp_path, record("ada", "pass", "fail"))
    grading_records.save(tmp_path, record("bob", "grader-fault", "pass"))
    grading_records.save(tmp_path, record("eve", "crashed", "crashed", unreadable="the file is empty"))
    return tmp_path  # cy handed in nothing


@pytest.mark.parametrize("lms", POINT_COLUMNS)
def test_each_system_gets_its_columns_and_everybody_has_a_row(course, lms):
    text = as_lms(lms, course, ASSIGNMENT, read_class(course / "class.csv"))
    rows = {row[WHO[lms]]: row for row in csv.DictReader(io.StringIO(text))}
    points = {name: row[POINT_COLUMNS[lms]] for name, row in rows.items() if name}
    assert points == {"ada": "5", "bob": "", "cy": "", "eve": ""}
    number = {"canvas": "SIS User ID", "moodle": "ID number", "brightspace": "OrgDefinedId"}[lms]
    assert rows["ada"][number] == "S1"
    if lms == "canvas":
        assert (rows["ada"]["ID"], rows["ada"]["Student"], rows["ada"]["Section"]) == ("4711", "Lovelace, Ada", "A")
        assert text.splitlines()[1].endswith(",10")
    if lms == "brightspace":
        assert {row["End-of-Line Indicator"] for row in rows.values()} == {"#"}


@pytest.mark.parametrize("lms", POINT_COLUMNS)
def test_what_a_student_writes_moves_no_column(course, lms):
    named = Record(ASSIGNMENT, "eve", "small", "key", [Verdict("check", "fail", 0.0, 5.0, "", 'x;=1,"\t=2\r\n=3\r=4')])
    grading_records.save(course, named)
    text = as_lms(lms, course, ASSIGNMENT, read_class(course / "class.csv"))
    (eve,) = [row for row in csv.DictReader(io.StringIO(text), strict=True) if row[WHO[lms]] == "eve"]
    assert eve[POINT_COLUMNS[lms]] == "0"
    assert None not in eve
    assert list(eve.values())[-1] == {"canvas": "0", "moodle": "check: x;'=1,\"\t'=2", "brightspace": "#"}[lms]


def test_the_command_writes_a_file_a_lesson_or_says_that_there_are_no_marks(course, capsys):
    assert main(["--course", str(course), "export", "moodle"]) == 0
    assert (course / "build" / "export" / f"moodle_{ASSIGNMENT}.csv").exists()
    assert main(["--course", str(course), "export", "moodle", "09_x"]) == 2
    assert "make grade" in capsys.readouterr().err


def test_the_graders_table_has_no_number_without_a_mark(course):
    lines = {line.split()[0]: line for line in table(grading_records.all_of(course, ASSIGNMENT)).splitlines()}
    assert lines["ada"].split()[1:3] == ["5", "10"]
    assert lines["eve"].split()[1:3] == ["10", "crashed"]
    assert lines["bob"].split()[1:3] == ["10", "grader-fault"]


def test_the_mean_is_of_those_who_handed_in_what_could_be_graded():
    right, wrong = Mark("check-a", 5, 5), Mark("check-a", 0, 5, reason="no")
    fault = Mark("check-a", 0, 5, reason="grader-fault: no sandbox")
    result = ClassResult(
        "01",
        [Row("ada", (right,)), Row("bob", (wrong,)), Row("cy", (fault,)), Row("dan"),
         Row("eve", (wrong,), unreadable=True)],
    )  # fmt: skip
    assert (result.mean, result.n_handed_in, result.n_graded) == (2.5, 4, 2)
    assert "4 of 5 handed in, mean of 2 2.5" in to_table(result)
    assert "mean of 2: 2.5" in to_html([result])
    lines = {line.split()[0]: line.split()[1:] for line in to_table(result).splitlines()[2:] if line[0] != " "}
    assert lines["bob"] == ["0", "/", "5"]
    assert lines["eve"] == lines["cy"] == ["/", "5"]
    assert lines["dan"] == ["not", "handed", "in"]
