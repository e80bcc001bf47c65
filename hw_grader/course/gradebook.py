"""The one writer of nbgrader's gradebook: puts finished records into gradebook.db and autograded/.

It runs nbgrader's own autograde step in this process, for one submission at a time; the verdict is already there, so
nothing of the student's runs. Staged copies hold the notebook under its right name and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import warnings
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import nbgrader.api
import nbgrader.nbgraderformat.common
from alembic.script import ScriptDirectory
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.dbutil import ALEMBIC_DIR
from sqlalchemy import create_engine
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from hw_grader.course.grading_records import STAGING
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import Submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import read_trusted


class GradebookError(Exception):
    """nbgrader could not take a record; says what it logged."""


def prepare_nbgrader() -> None:
    """nbgrader finds this environment's `alembic`, which it starts by name, and needs none for a new gradebook.

    The version that it asks that process for, after 1 to 2 s of imports, is in the names of its own files. Its
    statements for one gradebook are compiled once, not at every connection; its schema is checked once, not a cell.
    """
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ.get("PATH", "")
    nbgrader.api.get_alembic_version = lambda: ScriptDirectory(ALEMBIC_DIR).get_current_head()
    nbgrader.api.create_engine = _engine
    nbgrader.nbgraderformat.common.jsonschema = SimpleNamespace(validate=_validate)


_engine = lru_cache(create_engine)


@lru_cache
def _validator(schema: str) -> Any:
    kind = validator_for(json.loads(schema))
    kind.check_schema(json.loads(schema))
    return kind(json.loads(schema))


def _validate(instance: Any, schema: dict[str, Any]) -> None:
    """As `jsonschema.validate`."""
    error = best_match(_validator(json.dumps(schema)).iter_errors(instance))
    if error is not None:
        raise error


class Writer:
    """Writes records of one course, one after the other.

    times: the limits that the records were made under; with others they would be made once more.
    """

    def __init__(self, root: Path, times: TimeLimits) -> None:
        self.root = root
        self.config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
        self.config.merge(Config({"NbGrader": {"log_level": logging.WARNING}, "GradeInSandbox": asdict(times)}))
        self.course = CourseDirectory(config=self.config)
        self.course.submitted_directory = STAGING
        self.api = NbGraderAPI(self.course, config=self.config)

    def prepare(self, assignment: str) -> None:
        """Makes sure that the gradebook knows the assignment as it is now: nbgrader's generate step.

        The release folder is not touched: it may hold the instructor's own trials.
        """
        with Gradebook(self.course.db_url, self.course.course_id) as gradebook:
            try:
                notebooks = gradebook.find_assignment(assignment).notebooks
            except MissingEntry:
                notebooks = []
        if notebooks:
            return
        release, self.course.release_directory = self.course.release_directory, f"{STAGING}/release"
        try:
            self._require(self.api.generate_assignment(assignment, force=True), f"generate {assignment}")
        finally:
            self.course.release_directory = release
            shutil.rmtree(self.root / STAGING / "release", ignore_errors=True)

    def write(self, submission: Submission, notebook: str) -> None:
        """Takes one graded submission into the gradebook; a text with points keeps them as long as it is the same text.

        Raises:
            GradebookError: nbgrader failed.
        """
        given = self._given(submission, notebook)
        folder = self.root / STAGING / submission.student / submission.assignment
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / f"{notebook}.ipynb").write_bytes(submission.restored or self._in_order(submission, notebook))
            if submission.timestamp:
                (folder / "timestamp.txt").write_text(submission.timestamp)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # nbgrader's own, of SQLAlchemy
                result = self.api.autograde(submission.assignment, submission.student, force=True)
            self._require(result, f"{submission.student}, {submission.assignment}")
        finally:
            shutil.rmtree(self.root / STAGING / submission.student, ignore_errors=True)
        self._confirm(given, submission, notebook)

    def _given(self, submission: Submission, notebook: str) -> dict[str, str]:
        """The texts that a person has given points for: grade id -> text."""
        with Gradebook(self.course.db_url, self.course.course_id) as gradebook:
            try:
                found = gradebook.find_submission_notebook(notebook, submission.assignment, submission.student)
            except MissingEntry:
                return {}
            given = {g.name for g in found.grades if g.manual_score is not None and not g.needs_manual_grade}
        return {name: text for name, text in self._texts(submission, notebook).items() if name in given}

    def _confirm(self, given: dict[str, str], submission: Submission, notebook: str) -> None:
        """nbgrader keeps points given by hand, but asks for a second look even where the text is the same."""
        if not given:
            return
        same = given.items() & self._texts(submission, notebook).items()
        with Gradebook(self.course.db_url, self.course.course_id) as gradebook:
            for name, _ in same:
                gradebook.find_grade(
                    name, notebook, submission.assignment, submission.student
                ).needs_manual_grade = False
            gradebook.db.commit()

    def _texts(self, submission: Submission, notebook: str) -> dict[str, str]:
        """The graded answers of the autograded notebook, by grade id."""
        folder = self.root / self.course.autograded_directory / submission.student / submission.assignment
        if not (folder / f"{notebook}.ipynb").exists():
            return {}
        cells = nbformat.read(folder / f"{notebook}.ipynb", as_version=4).cells
        marked = [(cell.metadata.get("nbgrader", {}), cell.source) for cell in cells]
        return {marks["grade_id"]: text for marks, text in marked if marks.get("grade") and marks.get("solution")}

    def _in_order(self, submission: Submission, notebook: str) -> bytes:
        path = self.root / self.course.source_directory / submission.assignment / f"{notebook}.ipynb"
        return json.dumps(restore(submission.data, read_trusted(path))).encode()

    def _require(self, result: dict, what: str) -> None:
        if not result["success"]:
            said = "\n".join((result.get("error") or "", result.get("log") or ""))[-2000:]
            raise GradebookError(f"nbgrader failed for {what}: {said.strip()}")
