"""Late submissions: nbgrader's own plugin takes the points off, here and in every export."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from hw_grader.course import grading_records, scores
from hw_grader.course.gradebook import Writer
from hw_grader.course.grading import submission_key
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.grade import submissions, trusted_notebooks
from hw_grader.notebook.restore import restore
from hw_grader.notebook.time_limits import TimeLimits
from tests.grader.small_course import ASSIGNMENT, EXERCISES, MAX_POINTS, as_bytes, hand_in, make_course, submission

DUE = "2026-03-01 12:00:00"
HANDED_IN = {  # student -> (when, exercises that are right)
    "ada": ("2026-03-01 11:59:59 UTC", list(EXERCISES)),
    "bob": ("2026-03-03 13:00:00 UTC", list(EXERCISES)),  # two days and an hour late
    "cy": ("2026-03-03 13:00:00 UTC", ["predictions"]),  # as late, with fewer points than that costs
    "dan": ("", list(EXERCISES)),  # no timestamp: not late
}
A_DAY = """
from nbgrader.plugins import BasePlugin


class PointsADay(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        return 2.0 * -(-total_seconds_late // 86_400)


c.AssignLatePenalties.plugin_class = PointsADay
"""


def graded_course(root: Path, config: str) -> Path:
    """A course whose records are there, as if graded, taken into the gradebook by its one writer."""
    make_course(root)
    with (root / "nbgrader_config.py").open("a") as file:
        file.write(config)
    for student, (when, _) in HANDED_IN.items():
        folder = hand_in(root, student, as_bytes(submission()))
        if when:
            (folder / "timestamp.txt").write_text(when + "\n")
    (trusted,) = trusted_notebooks(root)
    writer = Writer(root, TimeLimits())
    writer.prepare(trusted.assignment)
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        gradebook.update_or_create_assignment(ASSIGNMENT, duedate=DUE)
    for handed_in in submissions(root, trusted):
        right = {f"check-{name}" for name in HANDED_IN[handed_in.student][1]}
        verdicts = [
            Verdict(c.grade_id, "pass", c.points, c.points, "right", "ok")
            if c.grade_id in right
            else Verdict(c.grade_id, "fail", 0.0, c.points, "wrong", "wrong")
            for c in trusted.checks
        ]
        key = submission_key(restore(handed_in.data, trusted), trusted, TimeLimits())
        grading_records.save(root, Record(ASSIGNMENT, handed_in.student, trusted.notebook, key, verdicts))
        writer.write(handed_in, trusted.notebook)
    return root


def marks(root: Path) -> dict[str, tuple[float, float]]:
    """(points, penalty) of everybody, as the CSV says."""
    rows = csv.DictReader(io.StringIO(scores.as_csv(scores.scores(root, ASSIGNMENT))))
    return {row["student"]: (float(row["points"]), float(row["late_penalty"])) for row in rows}


def penalties(root: Path) -> dict[str, float]:
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        return {s.student.id: s.late_submission_penalty for s in gradebook.assignment_submissions(ASSIGNMENT)}


@pytest.mark.slow
def test_without_a_plugin_of_ones_own_nobody_loses_a_point(tmp_path):
    root = graded_course(tmp_path, "")
    assert {student: points for student, (points, _) in marks(root).items()} == {
        "ada": MAX_POINTS, "bob": MAX_POINTS, "cy": 1, "dan": MAX_POINTS}  # fmt: skip


@pytest.mark.slow
def test_the_zero_method_takes_all_points_of_what_is_late(tmp_path):
    root = graded_course(tmp_path, '\nc.LateSubmissionPlugin.penalty_method = "zero"\n')
    assert marks(root) == {"ada": (MAX_POINTS, 0), "bob": (0, MAX_POINTS), "cy": (0, 1), "dan": (MAX_POINTS, 0)}


@pytest.mark.slow
def test_a_plugin_of_the_courses_own_takes_points_for_each_day_and_no_mark_is_negative(tmp_path):
    root = graded_course(tmp_path, A_DAY)
    assert penalties(root) == {"ada": 0, "bob": 6, "cy": 1, "dan": 0}  # never more than the points
    assert marks(root) == {"ada": (MAX_POINTS, 0), "bob": (MAX_POINTS - 6, 6), "cy": (0, 1), "dan": (MAX_POINTS, 0)}
    said = scores.as_csv(scores.scores(root, ASSIGNMENT))
    assert "all right" in said  # what was said about the answers is not changed
