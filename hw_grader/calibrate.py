"""Which checks can be driven from afar: those that the instructor's own solution passes that way.

Decided once for each version of an assignment, by the solution alone, never by what a student handed in. A solution
that does not pass a check at all is a mistake of ours, and is said before a class is graded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hw_grader.grading import Times, grade_bytes
from hw_grader.release import Release
from hw_grader.sandbox import SHARED

REFERENCE = "the reference solution"


class CalibrationError(Exception):
    """The reference solution itself does not pass; says which check and why."""


def calibrated(
    release: Release, solution: Path, root: Path, times: Times, measured: Callable[..., list[str]] | None = None
) -> Release:
    """The release with its `apart`, from records/ if it is known.

    measured: `measure`, or what calls it on another machine.

    Raises:
        CalibrationError: the solution does not get all points.
    """
    kept = root / "records" / ".calibration" / f"{release.assignment}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    data = solution.read_bytes()
    digest = hashlib.sha256(release.digest.encode() + data).hexdigest()
    if known.get("digest") != digest:
        known = {"digest": digest, "apart": (measured or measure)(release, data, times)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n")
        part.replace(kept)
    return replace(release, apart=frozenset(known["apart"]))


def measure(release: Release, data: bytes, times: Times) -> list[str]:
    """Grades the solution with every check apart, then with the failing ones beside."""
    sandbox = SHARED.get()
    first = grade_bytes(data, replace(release, apart=None), sandbox, REFERENCE, times)
    apart = frozenset(v.grade_id for v in first.verdicts if v.state == "pass")
    if len(apart) < len(first.verdicts):
        second = grade_bytes(data, replace(release, apart=apart), sandbox, REFERENCE, times)
        bad = [f"{v.grade_id}: {v.state}: {v.detail or v.reason}" for v in second.verdicts if v.state != "pass"]
        if bad:
            raise CalibrationError(f"{release.assignment}: {REFERENCE} does not pass its own checks: " + "; ".join(bad))
    return sorted(apart)
