"""`make course`: grades a small sample class from release to report, in build/course.

It is graded as `make grade` grades a class: the same restored notebooks, drivers and judges, and nbgrader's gradebook.
The sample is our own code, so where there is no sandbox it is graded without its walls.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import nbformat

from hw_grader.course import grading_records
from hw_grader.course.gradebook import Writer, prepare_nbgrader
from hw_grader.course.grading import grade_bytes
from hw_grader.grade import submissions, trusted_notebooks
from hw_grader.notebook.submission import Submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook
from hw_grader.report import read_results, to_html, to_table
from hw_grader.sandbox.sandbox import Sandbox, SandboxError
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


def open_sandboxes(stack: ExitStack, n: int) -> list[Sandbox]:
    """One warm sandbox a core, without walls where there can be none; says so in one line."""
    with ThreadPoolExecutor(n) as pool:
        try:
            sandboxes = list(pool.map(lambda _: Sandbox(), range(n)))
        except SandboxError as error:
            print(f"Without the sandbox, as the sample is our own code: {str(error).splitlines()[0]}", flush=True)
            sandboxes = list(pool.map(lambda _: Sandbox(walls=False), range(n)))
    for sandbox in sandboxes:
        stack.callback(sandbox.close)
    return sandboxes


def grade(folder: Path, sandboxes: list[Sandbox]) -> None:
    """Grades everything that was handed in, several at a time, then fills nbgrader's gradebook."""
    free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
    for sandbox in sandboxes:
        free.put(sandbox)
    tasks = list(_tasks(folder))

    def run(task: tuple[TrustedNotebook, Submission]) -> None:
        trusted, submission = task
        sandbox = free.get()
        try:
            grading_records.save(
                folder, grade_bytes(submission.data, trusted, sandbox, submission.student, TimeLimits())
            )
        finally:
            free.put(sandbox)

    with ThreadPoolExecutor(len(sandboxes)) as pool:
        for _ in pool.map(run, tasks):
            print(".", end="", flush=True)
    print()
    writer = Writer(folder, TimeLimits())
    for trusted, submission in tasks:
        writer.prepare(trusted.assignment)
        writer.write(submission, trusted.notebook)


def _tasks(folder: Path) -> Iterator[tuple[TrustedNotebook, Submission]]:
    for trusted in trusted_notebooks(folder):
        yield from ((trusted, submission) for submission in submissions(folder, trusted))


def main() -> int:
    started = time.monotonic()
    prepare_nbgrader()
    shutil.rmtree(COURSE, ignore_errors=True)
    COURSE.mkdir(parents=True)
    lessons = [read_lesson(ROOT / "lessons" / f"{name}.py") for name in MISTAKES]
    n_submissions = sum(len(make_course(COURSE, lesson)) for lesson in lessons)
    print(f"Grading {n_submissions} submissions of {', '.join(MISTAKES)} in {os.path.relpath(COURSE)}", flush=True)
    with ExitStack() as stack:
        grade(COURSE, open_sandboxes(stack, min(os.cpu_count() or 1, n_submissions)))
    results = read_results(COURSE)
    report = COURSE / "report.html"
    report.write_text(to_html(results), encoding="utf-8")
    print("\n\n".join(["", *map(to_table, results)]))
    print(f"\nwrote {os.path.relpath(report)} after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
