"""The reference solution is graded first, as a student's: a check that it fails is a mistake of ours, not of a class.

And if it passes only with every cell run, no cell that no answer uses is left out in that lesson. Decided once for each
version of an assignment, by the solution alone, never by what a student handed in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hw_grader.course.grading import grade_bytes
from hw_grader.course.grading_records import Verdict
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook
from hw_grader.sandbox.sandbox import SHARED

REFERENCE = "the reference solution"


class CalibrationError(Exception):
    """The reference solution itself does not pass; says which check and why."""


def calibrated(
    trusted: TrustedNotebook, solution: Path, root: Path, times: TimeLimits, measured: Callable[..., dict] | None = None
) -> TrustedNotebook:
    """The trusted notebook with its `runs_all`, from records/ if they are known.

    measured: `measure`, or what calls it on another machine.

    Raises:
        CalibrationError: the solution does not get all points.
    """
    kept = root / "records" / ".calibration" / f"{trusted.assignment}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    data = solution.read_bytes()
    digest = hashlib.sha256(trusted.digest.encode() + data).hexdigest()
    if known.get("digest") != digest:
        known = {"digest": digest, **(measured or measure)(trusted, data, times)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n")
        part.replace(kept)
    return replace(trusted, runs_all=known["runs_all"])


def measure(trusted: TrustedNotebook, data: bytes, times: TimeLimits) -> dict[str, Any]:
    """Grades the solution with the cells that an answer uses, then with every cell run."""
    for runs_all in (False, True):
        bad = [v for v in _verdicts(replace(trusted, runs_all=runs_all), data, times) if v.state != "pass"]
        if not bad:
            return {"runs_all": runs_all}
    said = "; ".join(f"{v.grade_id}: {v.state}: {v.detail or v.reason}" for v in bad)
    raise CalibrationError(f"{trusted.assignment}: {REFERENCE} does not pass its own checks: {said}")


def _verdicts(trusted: TrustedNotebook, data: bytes, times: TimeLimits) -> list[Verdict]:
    return grade_bytes(data, trusted, SHARED.get(), REFERENCE, times).verdicts
