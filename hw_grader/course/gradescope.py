"""Gradescope: an assignment's autograder as a zip, what runs in its container, and the results that it shows.

In the container, `python -m hw_grader.course.gradescope /autograder` reads submission/, writes results/results.json.
The container is thrown away after one student, and where it may not make namespaces the roles still run in processes of
their own, without walls between them and the container; the student's code then may not read the solution, the secret
or the grader's memory, and is over, with all that it has started, before the results are written.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import nbformat

from hw_grader.course.grading import grade
from hw_grader.course.grading_records import Record
from hw_grader.course.read_submissions import READER
from hw_grader.notebook.course_secret import FILE as SECRET
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.sandbox.bubblewrap import NOBODYS_UID, package_folder
from hw_grader.sandbox.sandbox import Sandbox, SandboxError, why_not


def main(folder: str) -> int:
    """Grades the one submission; 0 if there is a results.json."""
    root = Path(folder)
    about = json.loads((root / "source" / "assignment.json").read_text())
    solution = root / "source" / "solutions" / about["assignment"] / f"{about['notebook']}.ipynb"
    trusted = read_trusted(solution)
    for path in (root / "source" / "solutions", root / "source" / SECRET):
        path.chmod(0o700)
        if os.geteuid() == 0:  # who may read all the same
            os.chown(path, NOBODYS_UID, NOBODYS_UID)
    submission = READER.read(root / "submission", "student", trusted, solution, TimeLimits())
    with open_sandbox() as sandbox:
        notebook = nbformat.from_dict(json.loads(submission.restored))
        record = grade(notebook, trusted, sandbox, submission.student, TimeLimits())
    record.notes = [*submission.notes, *record.notes]
    results = root / "results"
    results.mkdir(exist_ok=True)
    (results / "results.json").write_text(json.dumps(as_gradescope(record), indent=1))
    return 0


def open_sandbox() -> Sandbox:
    """A walled sandbox if the container allows one, else one without walls."""
    if not why_not():
        try:
            return Sandbox()
        except SandboxError as error:
            print(f"no namespaces in this container: {error}", file=sys.stderr)
    return Sandbox(walls=False)


def as_gradescope(record: Record) -> dict[str, Any]:
    """A `results.json`: one test a check. Without a score and with a message when it could not be graded."""
    tests = [
        {
            "name": v.grade_id,
            "score": v.points,
            "max_score": v.max_points,
            "status": "passed" if v.state == "pass" else "failed",
            "output": v.shown if v.state in ("pass", "fail") else f"{v.state}: {v.shown}",
            "visibility": "visible",
        }
        for v in record.verdicts
    ]
    results: dict[str, Any] = {
        "output": "\n".join([record.shown, *record.notes]),
        "execution_time": round(record.cell_seconds),  # in the notebook: how long a hidden case took is not told
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    if not record.is_graded:
        return {**results, "score": 0.0, "output": f"Could not be graded, this is not your mark: {results['output']}"}
    return {**results, "score": record.points}


SETUP_SH = """#!/usr/bin/env bash
set -eu
apt-get update && apt-get install -y bubblewrap python3 python3-venv
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install -r /autograder/source/requirements.txt
/autograder/venv/bin/pip install --no-deps /autograder/source
"""
RUN_AUTOGRADER = """#!/usr/bin/env bash
cd /autograder/source && exec /autograder/venv/bin/python -m hw_grader.course.gradescope /autograder
"""


def autograder_zip(path: Path, trusted: TrustedNotebook, solution: Path, checkout: Path) -> None:
    """Writes Gradescope's autograder for one assignment: the same judges, the same sandbox where it may be made."""
    grader = Path(__file__).resolve().parent.parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", SETUP_SH), ("run_autograder", RUN_AUTOGRADER)):
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o755 << 16
            archive.writestr(info, text)
        for folder, inside in ((package_folder(), "hw_utils"), (grader, "hw_grader")):
            for file in sorted(f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts):
                archive.write(file, f"{inside}/{file.relative_to(folder)}")
        archive.write(checkout / "pyproject.toml", "pyproject.toml")
        archive.write(checkout / "requirements-cpu.txt", "requirements.txt")
        archive.writestr("README.md", "The autograder of one assignment.\n")
        archive.writestr("LICENSE", (checkout / "LICENSE").read_text() if (checkout / "LICENSE").exists() else "")
        archive.write(solution, f"solutions/{trusted.assignment}/{trusted.notebook}.ipynb")
        archive.writestr(SECRET, trusted.secret)
        archive.writestr(
            "assignment.json", json.dumps({"assignment": trusted.assignment, "notebook": trusted.notebook})
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
