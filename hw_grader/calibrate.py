"""Which checks can be driven from afar: those that the instructor's own solution passes that way.

Decided once for each version of an assignment, by the solution alone, never by what a student handed in; and so is
whether cells that no answer uses may be left out. A solution that does not pass a check at all is a mistake of ours,
and is said before a class is graded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hw_grader.grading import Times, grade_bytes
from hw_grader.release import Release
from hw_grader.sandbox import SHARED
from hw_grader.verdict import Verdict

REFERENCE = "the reference solution"


class CalibrationError(Exception):
    """The reference solution itself does not pass; says which check and why."""


def calibrated(
    release: Release, solution: Path, root: Path, times: Times, measured: Callable[..., dict] | None = None
) -> Release:
    """The release with its `apart` and `runs_all`, from records/ if they are known.

    measured: `measure`, or what calls it on another machine.

    Raises:
        CalibrationError: the solution does not get all points.
    """
    kept = root / "records" / ".calibration" / f"{release.assignment}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    data = solution.read_bytes()
    digest = hashlib.sha256(release.digest.encode() + data).hexdigest()
    if known.get("digest") != digest:
        known = {"digest": digest, **(measured or measure)(release, data, times)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(known, indent=1) + "\n")
        part.replace(kept)
    return replace(release, apart=frozenset(known["apart"]), runs_all=known["runs_all"])


def measure(release: Release, data: bytes, times: Times) -> dict[str, Any]:
    """Grades the solution with every check apart, then with the failing ones beside, then with every cell run."""
    first = _verdicts(replace(release, apart=None), data, times)
    apart = [v.grade_id for v in first if v.state == "pass"]
    for runs_all in (False, True):
        found = {"apart": sorted(apart), "runs_all": runs_all}
        release = replace(release, apart=frozenset(apart), runs_all=runs_all)
        bad = [v for v in _verdicts(release, data, times) if v.state != "pass"] if len(apart) < len(first) else []
        if not bad:
            return found
    said = "; ".join(f"{v.grade_id}: {v.state}: {v.detail or v.reason}" for v in bad)
    raise CalibrationError(f"{release.assignment}: {REFERENCE} does not pass its own checks: {said}")


def _verdicts(release: Release, data: bytes, times: Times) -> list[Verdict]:
    return grade_bytes(data, release, SHARED.get(), REFERENCE, times).verdicts
