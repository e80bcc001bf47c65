"""Giving back: a feedback page a student, and one zip for each LMS that the submissions came from.

A page in a zip has the name under which the LMS let its student's submission be downloaded; that is how Canvas, Moodle
and Brightspace find whom it is for. Pages of all others are in a zip by user name.
"""

from __future__ import annotations

import logging
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from tqdm import tqdm
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from hw_grader.term.class_list import bring_names
from hw_grader.term.collect import ATTEMPTS
from hw_grader.term.late import apply_rules
from hw_grader.term.lms_csv import said_of_waiting, without_points
from hw_grader.term.lms_file_names import known_names

TAKES_PAGES = ("canvas", "moodle", "brightspace")
BY_NAME = "by_name"


@dataclass
class GivenBack:
    """What was written for one lesson: zips, and how many pages are in each; who has none; what waits for a person."""

    lesson: str
    zips: dict[Path, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # student -> why there is no page
    waiting: list[str] = field(default_factory=list)  # students with a text that nobody has graded

    def __str__(self) -> str:
        lines = [f"{path}: {n} page{'s' if n > 1 else ''}" for path, n in self.zips.items()]
        if self.waiting:
            lines.append(said_of_waiting(self.lesson, self.waiting, "which the page says", "make feedback"))
        lines += [f"{self.lesson}: no page for {student}: {why}" for student, why in self.failed.items()]
        return "\n".join(lines)


def give_back(root: Path, lesson: str) -> GivenBack:
    """Writes feedback/STUDENT/LESSON/NOTEBOOK.html, where nbgrader's release_feedback takes it from, and the zips.

    Raises:
        ClassListError, LateError: class.csv or late.csv cannot be used.
        FileNotFoundError: nobody's submission of this lesson is in the gradebook.
    """
    bring_names(root)
    apply_rules(root)
    done = GivenBack(lesson, waiting=without_points(root, lesson))
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        known = {a.name for a in gradebook.assignments}
        submissions = gradebook.assignment_submissions(lesson) if lesson in known else []
        students = sorted(submission.student.id for submission in submissions)
    if not students:
        raise FileNotFoundError(f"there are no marks of {lesson}: run make grade first")
    pages = _write_pages(root, lesson, students, done)
    names = known_names(root / ATTEMPTS)
    in_zips: dict[str, dict[str, Path]] = {}
    for student, page in pages.items():
        lms, path = names.get((lesson, student), ("", ""))
        if lms in TAKES_PAGES:
            in_zips.setdefault(lms, {})[str(PurePosixPath(path).with_suffix(".html"))] = page
        else:
            in_zips.setdefault(BY_NAME, {})[f"{student}.html"] = page
    folder = root / "build" / "feedback"
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (*TAKES_PAGES, BY_NAME):
        path = folder / f"{lesson}_{kind}.zip"
        path.unlink(missing_ok=True)
        if kind in in_zips:
            done.zips[path] = len(in_zips[kind])
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, page in sorted(in_zips[kind].items()):
                    archive.write(page, name)
    return done


def _write_pages(root: Path, lesson: str, students: list[str], done: GivenBack) -> dict[str, Path]:
    """nbgrader's generate_feedback for each student; the page of each, and into `done` who has none."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    config.merge(Config({"NbGrader": {"log_level": logging.WARNING}}))
    course = CourseDirectory(config=config)
    api = NbGraderAPI(course, config=config)
    pages = {}
    for student in tqdm(students, desc=f"feedback {lesson}", unit="page", disable=None):
        result = api.generate_feedback(lesson, student, force=True)
        found = sorted((root / course.feedback_directory / student / lesson).glob("*.html"))
        if result["success"] and found:
            pages[student] = found[0]
        else:
            said = (result.get("error") or result.get("log") or "nbgrader wrote none").strip()
            done.failed[student] = said.splitlines()[-1]
    return pages
