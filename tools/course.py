"""`make course`: grades a small sample class from release to report, in build/course.

Everything is what an instructor does: nbgrader makes the release and grades it, with nbgrader_config.py as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import time
import warnings
from pathlib import Path

import nbformat
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning
from traitlets.config import PyFileConfigLoader

import hw_grader.grade
from hw_grader.nbgrader_hook import UNSAFE
from hw_grader.report import read_results, to_html, to_table
from hw_grader.sandbox import why_not
from tools.lesson import ROOT, Lesson, read_lesson
from tools.sample_class import MISTAKES, write_class

COURSE = ROOT / "build" / "course"


def make_course(folder: Path, lesson: Lesson) -> list[str]:
    """A course of its own with the lesson and its sample class; the students' names."""
    for tree in ("solutions", "notebooks"):
        shutil.copytree(ROOT / tree / lesson.name, folder / tree / lesson.name, dirs_exist_ok=True)
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    release = nbformat.read(folder / "notebooks" / lesson.product, as_version=4)
    return write_class(lesson, release, folder)


def grade(folder: Path) -> None:
    """What `make grade` does, without its own table.

    Raises:
        RuntimeError: something of ours failed.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = hw_grader.grade.main(["--course", str(folder)])
    if status:
        raise RuntimeError(said.getvalue())


def grade_without_sandbox(folder: Path, lessons: list[Lesson]) -> None:
    """What `nbgrader generate_assignment` and `nbgrader autograde` do, in this process.

    Raises:
        RuntimeError: nbgrader failed; the message is its log.
    """
    os.environ[UNSAFE] = "1"
    warnings.simplefilter("ignore", SAWarning)  # nbgrader's queries on new rows; the rows are right
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.NbGraderAPI.log_level = "ERROR"
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for lesson in lessons:
        for done in (api.generate_assignment(lesson.name, force=True), api.autograde(lesson.name, "*", force=True)):
            if not done["success"]:
                raise RuntimeError(done.get("error", "") + done.get("log", ""))


def main() -> int:
    started = time.monotonic()
    reason = why_not()
    shutil.rmtree(COURSE, ignore_errors=True)
    COURSE.mkdir(parents=True)
    lessons = [read_lesson(ROOT / "lessons" / f"{name}.py") for name in MISTAKES]
    n_submissions = sum(len(make_course(COURSE, lesson)) for lesson in lessons)
    print(f"Grading {n_submissions} submissions of {', '.join(MISTAKES)} in {os.path.relpath(COURSE)}", flush=True)
    if reason:
        print(f"Without the sandbox, as they are our own code: {reason}.", flush=True)
        grade_without_sandbox(COURSE, lessons)
    else:
        grade(COURSE)
    results = read_results(COURSE)
    report = COURSE / "report.html"
    report.write_text(to_html(results), encoding="utf-8")
    print("\n\n".join(["", *map(to_table, results)]))
    print(f"\nwrote {os.path.relpath(report)} after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
