"""The trusted verdict inside nbgrader: `nbgrader autograde`, the formgrader's button and `make grade` all come here.

nbgrader_config.py puts `GradeInSandbox` where nbgrader would run the notebook; it runs nothing itself: it takes the
record of this very submission, or grades it in a sandbox, and writes each check's verdict into its cell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nbformat import NotebookNode, from_dict
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float

from hw_grader.course import grading, grading_records
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.course.reference_solution import CalibrationError, calibrated
from hw_grader.notebook.sanitize import safe_text
from hw_grader.notebook.submission import remove_links
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.sandbox.sandbox import SHARED, SandboxError, why_not

UNSAFE = "HW_GRADER_UNSAFE"  # set to 1: grade without a sandbox


def is_sandboxed() -> bool:
    """Whether to use `GradeInSandbox`; where there is no sandbox it refuses, unless told to go on without."""
    return os.environ.get(UNSAFE) != "1"


class GradeInSandbox(NbGraderPreprocessor):
    """Fills in the outputs of a restored submission: what its cells print, and each check's verdict."""

    cell_s = Float(TimeLimits.cell_s, help="seconds that one cell may take").tag(config=True)
    case_s = Float(TimeLimits.case_s, help="seconds that one case of a check may take").tag(config=True)
    total_s = Float(TimeLimits.total_s, help="seconds that one submission may take").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        about, course = resources["nbgrader"], self.parent.parent.coursedir
        folder = Path(course.format_path(course.source_directory, ".", about["assignment"]))
        solution = folder / f"{about['notebook']}.ipynb"
        trusted = read_trusted(solution)
        record = self.record(nb, trusted, solution, about["student"], Path(course.root))
        write_verdicts(nb, record, trusted)
        for line in [*record.for_staff, f"{record.points:g} of {record.max_points:g}, {record.state}: {record.reason}"]:
            self.log.info("%s: %s", about["student"], line)
        return nb, resources

    def record(self, nb: NotebookNode, trusted: TrustedNotebook, solution: Path, student: str, root: Path) -> Record:
        """The record of this submission: kept, or made now."""
        times = TimeLimits(self.cell_s, self.case_s, self.total_s)
        kept = grading_records.load(root, trusted.assignment, student, grading.submission_key(nb, trusted, times))
        if kept is not None and kept.state != "grader-fault":
            return kept
        reason = why_not()
        if reason:
            raise NbGraderException(f"{reason}. To grade without a sandbox: {UNSAFE}=1, or make grade UNSAFE=1")
        try:
            trusted = calibrated(trusted, solution, root, times)
            made = grading.grade(nb, trusted, SHARED.get(), student, times)
        except (SandboxError, CalibrationError) as error:
            raise NbGraderException(str(error)) from error
        grading_records.save(root, made)
        return made


def write_verdicts(nb: NotebookNode, record: Record, trusted: TrustedNotebook) -> None:
    """Puts a record into the notebook; check cells get the text that the student knows, without hidden tests."""
    verdicts, sources = {v.grade_id: v for v in record.verdicts}, trusted.marked
    for place, cell in enumerate(nb.cells):
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        cell.metadata.pop("hw_grader", None)  # nobody but a verdict says what is in it
        if cell.cell_type != "code":
            continue
        if grade_id in verdicts:
            cell.source = sources[grade_id].source
            cell.outputs = [from_dict(output) for output in verdict_outputs(verdicts[grade_id])]
            if cause := verdicts[grade_id].cause:
                cell.metadata["hw_grader"] = {"cause": cause}
        else:
            cell.outputs = [from_dict(output) for output in record.outputs.get(place, [])]


def refuse_links(assignment: str, student: str, notebooks: list[str]) -> None:
    """nbgrader's pre-convert hook: links go before anything is copied, or a student could be sent any file."""
    for folder in {Path(notebook).parent for notebook in notebooks}:
        remove_links(folder)


def verdict_outputs(verdict: Verdict) -> list[dict[str, Any]]:
    """A check cell's outputs, from which nbgrader takes the points: text is all of them, an error none."""
    if verdict.state == "pass":
        return [{"output_type": "stream", "name": "stdout", "text": verdict.shown.rstrip("\n") + "\n"}]
    name = "CheckFailed" if verdict.state == "fail" else verdict.state
    lines = safe_text(verdict.shown or "no points").splitlines()
    return [
        {"output_type": "error", "ename": name, "evalue": lines[0], "traceback": [f"{name}: {lines[0]}", *lines[1:]]}
    ]
