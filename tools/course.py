"""`make course`: grades a small sample class from release to report, in build/course.

Everything is what an instructor does: nbgrader makes the release and grades it, with nbgrader_config.py as it is.
"""

from __future__ import annotations

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
from traitlets.config import Config, PyFileConfigLoader

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


def grade(folder: Path, lesson: Lesson) -> None:
    """What `nbgrader generate_assignment` and `nbgrader autograde` do, in this process.

    Raises:
        RuntimeError: nbgrader failed; the message is its log.
    """
    config = configuration(folder)
    course = CourseDirectory(config=config)
    api = NbGraderAPI(course, config=config)
    steps = [
        lambda: api.generate_assignment(lesson.name, force=True),
        lambda: api.autograde(lesson.name, "*", force=True),
    ]
    for step in steps:
        done = step()
        if not done["success"]:
            raise RuntimeError(done.get("error", "") + done.get("log", ""))


def configuration(folder: Path) -> Config:
    """nbgrader_config.py as nbgrader reads it in that folder."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.NbGraderAPI.log_level = "ERROR"
    return config


def main() -> int:
    started = time.monotonic()
    warnings.simplefilter("ignore", SAWarning)  # nbgrader's queries on new rows; the rows are right
    if reason := why_not():
        os.environ[UNSAFE] = "1"
        print(f"Grading the bundled sample, our own code, without the sandbox: {reason}.")
    shutil.rmtree(COURSE, ignore_errors=True)
    COURSE.mkdir(parents=True)
    for name in MISTAKES:
        lesson = read_lesson(ROOT / "lessons" / f"{name}.py")
        students = make_course(COURSE, lesson)
        print(f"Grading {len(students)} submissions of {name} ...", flush=True)
        grade(COURSE, lesson)
    results = read_results(COURSE)
    report = COURSE / "report.html"
    report.write_text(to_html(results), encoding="utf-8")
    print("\n\n".join(["", *map(to_table, results)]))
    print(f"\nwrote {os.path.relpath(report)} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
