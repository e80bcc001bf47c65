"""The gradebook's writer: what a person gave stays given as long as the text is the same."""

from __future__ import annotations

import json
import subprocess

import nbgrader.api
import pytest
from nbgrader.api import Gradebook
from nbgrader.dbutil import _temp_alembic_ini

from hw_grader.course import grading_records
from hw_grader.course.gradebook import Writer, prepare_nbgrader
from hw_grader.course.grading import submission_key
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import Submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted
from tests.grader.notebook.test_pipeline import NAME, NOTEBOOK, answered, cell, tiny_course

BOOK = NOTEBOOK.removesuffix(".ipynb")


@pytest.fixture
def write(tmp_path):
    """Writes ada's notebook with the given text into a gradebook, as after grading it; gives the text's grade."""
    prepare_nbgrader()
    notebook = answered(tiny_course(tmp_path))
    trusted = read_trusted(tmp_path / "solutions" / NAME / NOTEBOOK)
    writer = Writer(tmp_path, TimeLimits())
    writer.prepare(NAME)

    def written(text: str, points: float | None = None) -> tuple[float | None, bool]:
        cell(notebook, "why_ranks").source = text
        restored = restore(json.dumps(notebook).encode(), trusted)
        verdicts = [Verdict(check.grade_id, "pass", check.points, check.points, "", "ok") for check in trusted.checks]
        key = submission_key(restored, trusted, TimeLimits())
        grading_records.save(tmp_path, Record(NAME, "ada", BOOK, key, verdicts))
        writer.write(Submission("ada", NAME, restored=json.dumps(restored).encode()), BOOK)
        with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as gradebook:
            grade = gradebook.find_grade("why_ranks", BOOK, NAME, "ada")
            found = grade.manual_score, bool(grade.needs_manual_grade)
            if points is not None:
                grade.manual_score, grade.needs_manual_grade = points, False
                gradebook.db.commit()
        return found

    return written


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_a_text_that_was_graded_by_hand_waits_again_only_where_it_is_another_one(write):
    assert write("Each has its share.", points=1.5) == (None, True)
    assert write("Each has its share.") == (1.5, False)
    assert write("Something else.") == (1.5, True)


def test_a_new_gradebook_has_the_version_that_nbgrader_would_ask_alembic_for(tmp_path):
    prepare_nbgrader()
    with _temp_alembic_ini(f"sqlite:///{tmp_path / 'gradebook.db'}") as settings:
        heads = subprocess.check_output(["alembic", "-c", settings, "heads"], text=True)
    assert heads.split()[0] == nbgrader.api.get_alembic_version()
