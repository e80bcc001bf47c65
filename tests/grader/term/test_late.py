"""late.csv: due dates, what a day costs, and whose date is another one; in the gradebook, the report and exports."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from nbgrader.api import Gradebook

from hw_grader.course import scores
from hw_grader.course.gradebook import prepare_nbgrader
from hw_grader.report import read_results, to_table
from hw_grader.term.late import LateError, apply_rules, read_rules, terms
from tests.grader.small_course import ASSIGNMENT

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own, of adding a submission
LATE = f"""lesson,student,due,percent_a_day,most_percent
*,,,10,50
{ASSIGNMENT},,2026-03-01 12:00 UTC,,
{ASSIGNMENT},cy,2026-03-03 13:00 +0100,,
"""
HANDED_IN = {"ada": (1, 11), "bob": (3, 13), "cy": (3, 13), "dan": (30, 0), "eve": None}  # day and hour of March, UTC


@pytest.fixture
def course(tmp_path):
    """Everybody has 10 points; nothing of nbgrader's is replaced."""
    prepare_nbgrader()
    (tmp_path / "late.csv").write_text(LATE)
    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as gradebook:
        gradebook.add_assignment(ASSIGNMENT)
        gradebook.add_notebook("small", ASSIGNMENT)
        gradebook.add_grade_cell("check-a", "small", ASSIGNMENT, max_score=10, cell_type="code")
        for student, when in HANDED_IN.items():
            gradebook.add_student(student)
            gradebook.add_submission(ASSIGNMENT, student, timestamp=when and datetime(2026, 3, *when))
            gradebook.find_grade("check-a", "small", ASSIGNMENT, student).auto_score = 10
        gradebook.db.commit()
    return tmp_path


def test_each_started_day_costs_up_to_the_most_and_an_extension_is_the_students_own(course):
    said = apply_rules(course)[ASSIGNMENT]
    points = {score.student: (score.points, score.late_penalty) for score in scores.scores(course, ASSIGNMENT)}
    assert points == {"ada": (10, 0), "bob": (7, 3), "cy": (9, 1), "dan": (5, 5), "eve": (10, 0)}
    assert said["bob"] == "late by 3 days, 3 points off"
    assert said["cy"] == "late by 1 day, 1 points off, extended to 2026-03-03 13:00 +0100"
    assert set(said) == {"bob", "cy", "dan"}


def test_the_report_takes_the_points_off_says_why_and_may_be_made_again(course):
    for _ in range(2):
        (result,) = read_results(course)
        assert {row.student: row.points for row in result.rows} == {"ada": 10, "bob": 7, "cy": 9, "dan": 5, "eve": 10}
        assert "late by 3 days, 3 points off" in to_table(result)
    (course / "late.csv").write_text(LATE.replace(",10,50", ",0,0"))
    assert {row.points for row in read_results(course)[0].rows} == {10}


def test_the_gradebook_knows_due_date_and_extension(course):
    apply_rules(course)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_assignment(ASSIGNMENT).duedate == datetime(2026, 3, 1, 12)
        assert gradebook.find_submission(ASSIGNMENT, "cy").duedate == datetime(2026, 3, 3, 12)


def test_a_citys_time_is_said_again_as_it_was_written_and_has_its_summer_time(course):
    late = LATE.replace("03-01 12:00 UTC", "03-01 13:00 Europe/Berlin")
    (course / "late.csv").write_text(late.replace("03-03 13:00 +0100", "03-29 23:00 Europe/Berlin"))
    said = apply_rules(course)[ASSIGNMENT]
    assert said["cy"] == "extended to 2026-03-29 23:00 Europe/Berlin"
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert gradebook.find_assignment(ASSIGNMENT).duedate == datetime(2026, 3, 1, 12)
        assert gradebook.find_submission(ASSIGNMENT, "cy").duedate == datetime(2026, 3, 29, 21)


def test_the_nearer_row_counts(course):
    rules = read_rules(course)
    assert terms(rules, "09_other", "cy").due is None
    assert terms(rules, ASSIGNMENT, "cy").due == datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
    assert terms(rules, ASSIGNMENT, "cy").percent_a_day == 10


@pytest.mark.parametrize(
    ("row", "says"),
    [("x,,no date,,", "line 2: due is a date"), ("x,,2026-03-01 12:00 XYZT,,", "line 2: due is a date"),
     ("x,,2026-03-01 12:00 Europe/Atlantis,,", "line 2: due is a date"), ("x,,,200,", "from 0 to 100"),
     ("x,,,nan,", "from 0 to 100"),
     (",,,,", "needs a lesson")],
)  # fmt: skip
def test_a_wrong_row_is_refused_with_its_line(tmp_path, row, says):
    (tmp_path / "late.csv").write_text(LATE.splitlines()[0] + f"\n{row}\n")
    with pytest.raises(LateError, match=says):
        read_rules(tmp_path)


def test_wrong_columns_are_refused_and_no_file_changes_nothing(tmp_path):
    assert apply_rules(tmp_path) == {}
    (tmp_path / "late.csv").write_text("who,when\n")
    with pytest.raises(LateError, match="has the columns"):
        read_rules(tmp_path)
