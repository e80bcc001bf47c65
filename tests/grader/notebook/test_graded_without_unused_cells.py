"""A submission whose unused cells are left out gets what it would get with them, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import nbformat
import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.course.grading_records import Record
from hw_grader.course.reference_solution import measure
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.unused_cells.unused import NOTE
from hw_grader.sandbox.sandbox import SHARED
from tests.grader.in_sandbox import needs_sandbox
from tests.grader.notebook.test_unused_cells import PICTURE_01, ROOT, with_picture
from tests.grader.small_course import EXERCISES, MAX_POINTS, WRONG, as_bytes, hand_in, submission

pytestmark = [needs_sandbox, pytest.mark.slow]


def needing_one() -> nbformat.NotebookNode:
    """A right submission, with a helper of its own that reads a name of a released cell."""
    helper = "def helper(n):\n    return n * one"
    ping_pong = EXERCISES["ping_pong"][0] + EXERCISES["ping_pong"][1].replace("n_rounds)", "helper(n_rounds))")
    return submission({"ping_pong": ping_pong}, before=f"one = 1\n# %%\n{helper}")


def leave_out(monkeypatch, text: str) -> None:
    """As if the analysis were wrong about cells with this text."""
    find = lambda cells, _: frozenset(n for n, cell in enumerate(cells) if cell.source.strip() == text)  # noqa: E731
    monkeypatch.setattr("hw_grader.course.grading.unused", find)


def test_the_verdict_is_the_same_and_the_student_is_told(tmp_path):
    trusted = with_picture(tmp_path, PICTURE_01)
    for answers, points in (({}, MAX_POINTS), (WRONG, 0)):
        data = as_bytes(submission(answers, extra=PICTURE_01))
        quick, full = (grade_bytes(data, r, SHARED.get(), "ada") for r in (trusted, replace(trusted, runs_all=True)))
        assert quick.points == full.points == points
        assert quick.verdict_part() == full.verdict_part()
        said = [o for outputs in quick.outputs.values() for o in outputs]
        assert said == [{"output_type": "stream", "name": "stdout", "text": NOTE + "\n"}]
        assert any(o["output_type"] == "display_data" for outputs in full.outputs.values() for o in outputs)


def test_a_name_that_is_missing_after_all_has_every_cell_run(tmp_path, monkeypatch):
    trusted = with_picture(tmp_path, "one = 1")
    leave_out(monkeypatch, "one = 1")
    record = grade_bytes(as_bytes(needing_one()), trusted, SHARED.get(), "ada")
    assert record.points == MAX_POINTS, record.reason
    assert record.outputs[1] == []


def test_a_lesson_whose_solution_needs_such_a_cell_has_all_of_them_run(tmp_path, monkeypatch):
    trusted = with_picture(tmp_path, "one = 1")
    leave_out(monkeypatch, "one = 1")
    assert not measure(trusted, as_bytes(submission(before="one = 1")), TimeLimits())["runs_all"]
    monkeypatch.setattr(Record, "lacks_a_name", False)
    assert measure(trusted, as_bytes(needing_one()), TimeLimits())["runs_all"]


def test_nbgrader_gives_the_same_marks_and_shows_the_note(tmp_path):
    with_picture(tmp_path, PICTURE_01)
    hand_in(tmp_path, "ada", as_bytes(submission(extra=PICTURE_01)))
    for step in ("generate_assignment", "autograde", "generate_feedback"):
        command = [sys.executable, "-m", "nbgrader", step, "01_small"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
    graded = nbformat.read(tmp_path / "autograded" / "ada" / "01_small" / "small.ipynb", 4)
    (picture,) = (cell for cell in graded.cells if cell.source == PICTURE_01)
    assert [o["text"] for o in picture.outputs] == [NOTE + "\n"]
    html = (tmp_path / "feedback" / "ada" / "01_small" / "small.html").read_text()
    assert NOTE in html
    assert f"{MAX_POINTS} of {MAX_POINTS} points" in html
