"""Grades a class: `python -m hw_grader.grade [ASSIGNMENT] [--check NAME] [--course FOLDER] [--scheduler tls://...]`.

Reads submitted/STUDENT/ASSIGNMENT, grades over all cores or a Dask cluster, and writes records/, autograded/ and
gradebook.db. Stop it whenever you like: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from hw_grader.course import grading_records
from hw_grader.course.batch import ClusterError, cluster, grade_all, measure_on, start_sandboxes
from hw_grader.course.grading import is_same_work, submission_key
from hw_grader.course.grading_records import Record
from hw_grader.course.read_submissions import READER
from hw_grader.course.reference_solution import CalibrationError, calibrated
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import Submission, student_name
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.sandbox.sandbox import why_not


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 all graded, 1 something of ours failed, 2 refused."""
    options = _options(arguments)
    root = options.course.resolve()
    reason = why_not()
    if options.unsafe:
        return _without_sandbox(root, options.assignment)
    if reason and not options.scheduler:
        print(f"{reason}.\nThe class is not graded without a sandbox; --unsafe goes on anyway.", file=sys.stderr)
        return 2
    times = TimeLimits(options.cell_s, options.case_s, options.total_s)
    status, found = 0, list(trusted_notebooks(root, options.assignment))
    if not found:
        handed_in = ", ".join(sorted({assignment for _, assignment in _folders(root)})) or "nothing: make collect first"
        print(f"nobody has handed in {options.assignment or 'a lesson'}; submitted/ has {handed_in}", file=sys.stderr)
        return 2
    for trusted in found:
        names = [cell.grade_id.removeprefix("check-") for cell in trusted.checks]
        if options.check and (not options.assignment or options.check.removeprefix("check-") not in names):
            print(f"one check is graded anew with its lesson's name and one of {', '.join(names)}; got lesson "
                  f"{options.assignment!r}, check {options.check!r}", file=sys.stderr)  # fmt: skip
            return 2
        status |= grade_assignment(root, trusted, times, options)
    return status


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hw_grader.grade", description=__doc__.splitlines()[0])
    parser.add_argument("assignment", nargs="?", default="", help="as 01_hello_ranks; all of them without")
    parser.add_argument("--course", type=Path, default=Path("."), help="folder of nbgrader_config.py")
    parser.add_argument(
        "--scheduler", default=os.environ.get("SCHEDULER", ""), help="tls://host:port of a Dask cluster"
    )
    parser.add_argument("--insecure", action="store_true", help="take a tcp:// scheduler on another machine")
    parser.add_argument("--workers", type=int, default=0, help="local processes; one a core without")
    parser.add_argument("--again", action="store_true", help="grade anew what has a record")
    parser.add_argument("--check", default="", help="grade one check anew, after a correction")
    parser.add_argument("--unsafe", action="store_true", default=os.environ.get("UNSAFE") == "1", help="no sandbox")
    for name in ("cell_s", "case_s", "total_s"):
        parser.add_argument(
            "--" + name.replace("_", "-"), type=float, default=getattr(TimeLimits, name), help="seconds"
        )
    return parser.parse_args(arguments)


def _without_sandbox(root: Path, assignment: str) -> int:
    print("Grading without a sandbox: students' code runs with your rights.", file=sys.stderr)
    found = [trusted.assignment for trusted in trusted_notebooks(root, assignment)]
    command = [sys.executable, "-m", "nbgrader", "autograde", "--force"]
    environment = {**os.environ, "HW_GRADER_UNSAFE": "1"}
    return max((subprocess.call([*command, name], cwd=root, env=environment) for name in found), default=0)


def trusted_notebooks(root: Path, assignment: str = "") -> Iterator[TrustedNotebook]:
    """The trusted notebooks of the assignments that somebody has handed in."""
    handed_in = {assignment for _, assignment in _folders(root)}
    for path in sorted((root / "solutions").glob("*/*.ipynb")):
        if path.parent.name in handed_in and assignment in ("", path.parent.name):
            yield read_trusted(path)


def _folders(root: Path) -> list[tuple[str, str]]:
    """(student's folder, assignment) of everything that was handed in."""
    found = []
    for student in _names(root / "submitted"):
        found += [(student, assignment) for assignment in _names(root / "submitted" / student)]
    return found


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # a file, nothing, or not ours to read
        return []


def submissions(root: Path, trusted: TrustedNotebook, times: TimeLimits | None = None) -> Iterator[Submission]:
    """Everybody's folder for one assignment, in order of the students' names; each read in a process with limits."""
    solution = root / "solutions" / trusted.assignment / f"{trusted.notebook}.ipynb"
    for name, assignment in _folders(root):
        if assignment == trusted.assignment:
            student = student_name(name)
            folder = root / "submitted" / name / assignment
            found = READER.read(folder, student, trusted, solution, times or TimeLimits())
            found.notes += [f"handed in as {name!a}"] if name != student else []
            yield found


def grade_assignment(root: Path, trusted: TrustedNotebook, times: TimeLimits, options: argparse.Namespace) -> int:
    """Grades what has no record yet, or one check of what has; prints the table and whose points are others now."""
    problems, changed = [], []
    n_handed_in = sum(assignment == trusted.assignment for _, assignment in _folders(root))
    bar = tqdm(total=n_handed_in, desc=trusted.assignment, unit="notebook", dynamic_ncols=True)
    if options.check:
        waiting = _graded_before(root, trusted, times, bar, problems)
    else:
        waiting = _not_done(root, trusted, times, options.again, bar)
    first = next(waiting, None)  # no cluster is needed if there is none
    if first is None:
        bar.close()
        print(table(grading_records.all_of(root, trusted.assignment)))
        return 0
    waiting = itertools.chain([first], waiting)
    try:
        with bar, cluster(options.scheduler, options.workers, options.insecure) as client:
            _starting = start_sandboxes(client, n_handed_in)
            from hw_grader.course.gradebook import Writer  # takes 1 s: meanwhile

            writer = Writer(root, times)
            writer.prepare(trusted.assignment)
            solution = root / "solutions" / trusted.assignment / f"{trusted.notebook}.ipynb"
            trusted = calibrated(trusted, solution, root, times, measure_on(client))
            if options.check:
                trusted = replace(trusted, only=frozenset({f"check-{options.check.removeprefix('check-')}"}))
            for submission, record in grade_all(client, waiting, trusted, times):
                old = grading_records.load(root, trusted.assignment, record.student)
                record = grading_records.merged(old, record) if trusted.only else record
                if old is not None and old.is_graded and record.is_graded and is_same_work(old.key, record.key):
                    changed.append(grading_records.changes(old, record))
                try:
                    grading_records.save(root, record)
                    writer.write(submission, trusted.notebook)
                    grading_records.note_gradebook(root, record, submission.timestamp)
                except Exception as error:  # the class goes on: this one is named at the end, and tried again
                    problems.append(f"{submission.student}: {error}")
                bar.update()
    except (CalibrationError, ClusterError) as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, CalibrationError) else 2
    except KeyboardInterrupt:
        print("\nStopped; what is graded is kept. The same command goes on from here.", file=sys.stderr)
        return 130
    print(table(grading_records.all_of(root, trusted.assignment)))
    if changed := [line for line in changed if line]:
        print("\n".join([f"other points for the same work, {len(changed)}:", *(f"  {line}" for line in changed)]))
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return int(
        bool(problems) or any(r.state == "grader-fault" for r in grading_records.all_of(root, trusted.assignment))
    )


def _not_done(root: Path, trusted: TrustedNotebook, times: TimeLimits, again: bool, bar: tqdm) -> Iterator[Submission]:
    for submission in submissions(root, trusted, times):
        if again or not is_done(root, submission, trusted, times):
            yield submission
        else:
            bar.update()


def _graded_before(
    root: Path, trusted: TrustedNotebook, times: TimeLimits, bar: tqdm, problems: list[str]
) -> Iterator[Submission]:
    """Those whose other verdicts can stay: graded, and nothing new was handed in since."""
    for submission in submissions(root, trusted, times):
        key = submission.key or submission_key(restore(submission.data, trusted), trusted, times)
        old = grading_records.load(root, trusted.assignment, submission.student)
        if old is not None and old.is_graded and is_same_work(old.key, key):
            yield submission
        else:
            problems.append(f"{submission.student}: has no marks for what is handed in now: run make grade")
            bar.update()


def is_done(root: Path, submission: Submission, trusted: TrustedNotebook, times: TimeLimits) -> bool:
    """Whether this very submission has been graded and is in the gradebook, with when it was handed in."""
    key = submission.key or submission_key(restore(submission.data, trusted), trusted, times)
    record = grading_records.load(root, trusted.assignment, submission.student, key)
    return (
        record is not None
        and record.state != "grader-fault"
        and grading_records.is_in_gradebook(root, record, submission.timestamp)
    )


def table(found: list[Record]) -> str:
    """The class as text: one row a student, with the reason for what is missing."""
    rows = [("student", "points", "of", "state", "why")]
    rows += [(r.student, f"{r.points:g}" if r.is_graded else "", f"{r.max_points:g}", r.state, r.reason[:100]) for r in
             found]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[4]]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
