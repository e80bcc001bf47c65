"""Two assistants' gradebooks: what one gave and the other did not comes over; what differs is said and stays."""

from __future__ import annotations

import shutil

import pytest
from nbgrader.api import Gradebook

from hw_grader.__main__ import main
from hw_grader.course.gradebook import prepare_nbgrader

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
