"""Two assistants' gradebooks: what one gave and the other did not comes over; what differs is said and stays."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest
from nbgrader.api import Gradebook

from hw_grader.__main__ import main
from hw_grader.course.gradebook import prepare_nbgrader
from hw_grader.term import merge_marks

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own, of adding a submission
WHO = ("small", "01_small")


@pytest.fixture
def course(tmp_path):
    """A class of three with a text each, and anna's copy of its gradebook."""
    prepare_nbgrader()
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as gradebook:
        gradebook.add_assignment("01_small")
        gradebook.add_notebook("small", "01_small")
        gradebook.add_grade_cell("why", "small", "01_small", max_score=4, cell_type="markdown")
        gradebook.add_solution_cell("why", "small", "01_small")
        for student in ("ada", "bob", "cy"):
            gradebook.add_student(student)
            gradebook.add_submission("01_small", student)
            gradebook.find_grade("why", *WHO, student).needs_manual_grade = True
        gradebook.db.commit()
    shutil.copy(tmp_path / "gradebook.db", tmp_path / "anna.db")
    return tmp_path


def give(path, student: str, points: float, comment: str = "") -> None:
    with Gradebook(f"sqlite:///{path}") as gradebook:
        grade = gradebook.find_grade("why", *WHO, student)
        grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.find_comment("why", *WHO, student).manual_comment = comment or None
        gradebook.db.commit()


def given(path) -> dict[str, tuple]:
    with Gradebook(f"sqlite:///{path}") as gradebook:
        return {
            s.student.id: (s.score, gradebook.find_comment("why", *WHO, s.student.id).comment, s.needs_manual_grade)
            for s in gradebook.assignment_submissions("01_small")
        }


def test_what_only_one_gave_comes_over_and_again_changes_nothing(course, capsys):
    give(course / "gradebook.db", "ada", 3, "good")
    give(course / "anna.db", "bob", 2, "which rank?")
    for taken in ("1 marks and 1 comments", "0 marks and 0 comments"):
        assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 0
        assert f"{taken} were taken" in capsys.readouterr().out
        assert given(course / "gradebook.db") == {
            "ada": (3, "good", False), "bob": (2, "which rank?", False), "cy": (0, None, True)
        }  # fmt: skip


def test_what_differs_is_listed_and_stays_as_it_is_here(course, capsys):
    give(course / "gradebook.db", "ada", 3, "good")
    give(course / "anna.db", "ada", 1, "not the reason")
    with Gradebook(f"sqlite:///{course / 'anna.db'}") as gradebook:
        gradebook.add_student("eve")
        gradebook.add_submission("01_small", "eve")
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 1
    said = capsys.readouterr().out
    assert "ada, 01_small, why: 3 points here, 1 in anna.db" in said
    assert "ada, 01_small, why: another comment in anna.db: not the reason" in said
    assert "eve, 01_small: only in anna.db" in said
    assert given(course / "gradebook.db")["ada"] == (3, "good", False)


def test_what_is_no_other_gradebook_is_refused(course, capsys):
    (course / "notes.txt").write_text("no gradebook")
    for name, says in (("notes.txt", "is no gradebook"), ("none.db", "is no gradebook"), ("gradebook.db", "own")):
        assert main(["--course", str(course), "merge", str(course / name)]) == 2
        assert says in capsys.readouterr().err


def change(path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()


@pytest.mark.parametrize(
    "points", ["9e999", "-1", "4.5", "1, extra_credit = 9e999", "1, extra_credit = 40", "'many'", "x'00ff'"]
)
def test_points_that_the_cell_does_not_have_are_named_and_not_taken(course, capsys, points):
    change(course / "anna.db", f"UPDATE grade SET needs_manual_grade = 0, manual_score = {points}")
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 1
    said = capsys.readouterr().out
    assert "0 marks and 0 comments were taken" in said
    assert "not taken, 3; give them in the formgrader if they are meant:" in said
    assert "bob, 01_small, why: " in said
    assert " in anna.db, of 4" in said
    assert {score for score, _, _ in given(course / "gradebook.db").values()} == {0}


def test_a_mark_that_a_check_gave_is_not_replaced_unseen(course, capsys):
    for name in ("gradebook.db", "anna.db"):
        change(course / name, "UPDATE grade SET auto_score = 3, needs_manual_grade = 0")
    change(course / "anna.db", "UPDATE grade SET manual_score = 0")
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 1
    assert "ada, 01_small, why: 3 points by its check, 0 by hand in anna.db" in capsys.readouterr().out
    assert {score for score, _, _ in given(course / "gradebook.db").values()} == {3}


def test_what_comes_from_another_file_cannot_write_to_the_terminal(course, capsys):
    escape = "char(27) || '[2J' || char(7) || "
    change(
        course / "anna.db",
        f"UPDATE submitted_assignment SET student_id = {escape} student_id",
        f"UPDATE student SET id = {escape} id",
    )
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 1
    said = capsys.readouterr().out
    assert "?[2J?ada, 01_small: only in anna.db" in said
    assert "\x1b" not in said
    assert "\x07" not in said


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (
            (
                "ALTER TABLE assignment RENAME TO other",
                "CREATE VIEW assignment AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                "SELECT other.* FROM other, n WHERE n.i < 0",
            ),
            "it has no table assignment",
        ),
        (("DROP TABLE grade",), "it has no table grade"),
        (("ALTER TABLE grade DROP COLUMN extra_credit",), "cannot be read as a gradebook"),
    ],
    ids=["a view without an end", "a table less", "a column less"],
)
def test_a_file_of_another_form_is_refused_and_nothing_is_taken(course, capsys, statements, says):
    give(course / "anna.db", "bob", 2)
    change(course / "anna.db", *statements)
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 2
    assert says in capsys.readouterr().err
    assert given(course / "gradebook.db")["bob"] == (0, None, True)


def test_a_file_that_takes_for_ever_to_read_is_refused(course, capsys, monkeypatch):
    monkeypatch.setattr(merge_marks, "_READ_S", -1.0)
    monkeypatch.setattr(merge_marks, "_STEPS", 1)
    assert main(["--course", str(course), "merge", str(course / "anna.db")]) == 2
    assert "cannot be read as a gradebook (interrupted)" in capsys.readouterr().err
