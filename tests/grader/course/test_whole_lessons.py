"""Every lesson's whole solution, handed in as a student would: graded apart from its checks, it has all points."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from hw_grader.course.grading import grade_bytes
from hw_grader.notebook.restore import restore
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted
from hw_grader.notebook.unused_cells.unused import unused
from hw_grader.sandbox.sandbox import SHARED
from tests.grader.in_sandbox import needs_sandbox

ROOT = Path(__file__).resolve().parents[3]
SOLUTIONS = sorted((ROOT / "solutions").glob("*/*.ipynb"))


def filled_in(solution: Path, unwritten: str = "") -> bytes:
    """The notebook that students get, with the solution's cells where theirs go; one exercise may stay as it is."""
    given = nbformat.read(ROOT / "notebooks" / solution.parent.name / solution.name, as_version=4)
    cells = (cell.metadata.get("nbgrader", {}) for cell in given.cells)
    marks = [(place, m["grade_id"]) for place, m in enumerate(cells) if m.get("solution") and not m.get("grade")]
    written = {c.metadata.nbgrader.grade_id: c.source for c in nbformat.read(solution, as_version=4).cells if
               "nbgrader" in c.metadata}  # fmt: skip
    for place, grade_id in marks:
        if grade_id == unwritten:
            continue
        given.cells[place].source = written[grade_id]
    return nbformat.writes(given).encode()


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.parent.name)
def test_an_exercise_that_is_not_written_makes_no_more_cells_run(solution):
    """Many hand in a part: their lesson's trainings and pictures would take a minute."""
    trusted = read_trusted(solution)

    def n_left_out(unwritten: str = "") -> int:
        return len(unused(restore(filled_in(solution, unwritten), trusted).cells, trusted))

    names = [cell.grade_id for cell in trusted.cells if cell.marks.get("solution") and not cell.is_check]
    assert names
    assert {name: n for name in names if (n := n_left_out(name)) < n_left_out()} == {}


@needs_sandbox
@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda path: path.parent.name)
def test_a_whole_solution_that_is_graded_apart_loses_no_point(solution):
    trusted = read_trusted(solution)
    record = grade_bytes(filled_in(solution), trusted, SHARED.get(), "ada", TimeLimits())
    lost = {v.grade_id: (v.state, v.reason) for v in record.verdicts if v.points < v.max_points}
    assert (lost, record.points) == ({}, trusted.max_points)
    assert trusted.max_points > 0
