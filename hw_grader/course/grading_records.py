"""What grading says about one check and about one submission, and where that lies.

States. Points need `pass`; the others say why there are none:

    pass          the judge found every case right
    fail          wrong, not written, not there, or the student's own error
    limit         stopped: time, memory, or too much data
    crashed       the student's process died, or the submission cannot be read
    tampered      what came from the submission's process is nothing that our code there sends
    grader-fault  our own mistake: nobody's 0; grade again

A submission's record is records/ASSIGNMENT/STUDENT.json in the course folder, written whole or not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

STAGING = "build/grading"  # where what is graded lies for nbgrader to take
STATES = ("pass", "fail", "limit", "crashed", "tampered", "grader-fault")
WORST_LAST = ("pass", "fail", "crashed", "limit", "tampered", "grader-fault")
UNGRADED = frozenset({"crashed", "limit", "tampered", "grader-fault"})  # a 0 that is not a plain wrong answer


@dataclass(frozen=True)
class Verdict:
    """The verdict on one check cell."""

    grade_id: str
    state: str
    points: float
    max_points: float
    reason: str  # one line for the instructor's table
    shown: str = ""  # for the student, in every export and page: never says anything about a hidden case
    detail: str = ""  # for the instructor
    hidden: bool = False  # it was a hidden case that failed
    cause: str = ""  # what it comes from, in the check's own words: never the student's; may be shown

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, got {self.state!r}")
        if self.points and self.state != "pass":
            raise ValueError(f"{self.grade_id}: only a pass has points")

    @property
    def lacks_a_name(self) -> bool:
        """Whether it tells of a name that nobody had given."""
        return any("NameError" in text or "is not defined" in text for text in (self.reason, self.detail))


@dataclass
class Record:
    """Everything about one graded submission, as kept on disk."""

    assignment: str
    student: str
    notebook: str
    key: str  # of the submission and of all that grades it
    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)  # repairs: "duplicate id", "renamed", ...
    noticed: list[str] = field(default_factory=list)  # what a person should look at; no student is told of it
    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # place -> outputs of that cell
    seconds: float = 0.0
    cell_seconds: float = 0.0  # of it, in the student's own code
    peak_bytes: int = 0
    unreadable: str = ""  # why the file could not be read at all

    @property
    def is_graded(self) -> bool:
        """Whether the points mean anything: False is not a 0, somebody has to look."""
        return bool(self.verdicts) and not self.unreadable and self.state != "grader-fault"

    @property
    def lacks_a_name(self) -> bool:
        """Whether something, anywhere, asked for a name that nobody had given."""
        said = [str(o.get("ename")) for outputs in self.outputs.values() for o in outputs]
        return any("NameError" in text for text in said) or any(v.lacks_a_name for v in self.verdicts)

    @property
    def for_staff(self) -> list[str]:
        """All that was noted."""
        return [*self.notes, *self.noticed]

    @property
    def points(self) -> float:
        return sum(v.points for v in self.verdicts)

    @property
    def max_points(self) -> float:
        return sum(v.max_points for v in self.verdicts)

    @property
    def state(self) -> str:
        """The gravest of its verdicts."""
        return max((v.state for v in self.verdicts), key=WORST_LAST.index, default="grader-fault")

    @property
    def reason(self) -> str:
        """One line for the instructor: why points are missing, or `all right`. May tell of a hidden case."""
        return self._why(lambda verdict: verdict.reason)

    @property
    def shown(self) -> str:
        """One line that a student may read: as `reason`, without anything about a hidden case."""
        return self._why(lambda verdict: (verdict.shown or verdict.state).splitlines()[0])

    def _why(self, text: Callable[[Verdict], str]) -> str:
        bad = [v for v in self.verdicts if v.state != "pass"]
        if not bad:
            return "all right" if self.verdicts else "there was nothing to grade"
        gravest = max(bad, key=lambda v: WORST_LAST.index(v.state))
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return f"{gravest.grade_id}: {text(gravest)}{more}"

    def verdict_part(self) -> dict[str, Any]:
        """What must be the same however often a submission is graded: all but the measurements."""
        kept = ("assignment", "student", "notebook", "key", "verdicts", "notes", "noticed", "unreadable")
        return {name: value for name, value in asdict(self).items() if name in kept}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        data = json.loads(text)
        data["verdicts"] = [Verdict(**v) for v in data["verdicts"]]
        data["outputs"] = {int(place): outputs for place, outputs in data["outputs"].items()}
        return cls(**data)


def path_of(root: Path, assignment: str, student: str) -> Path:
    """The file of one submission's record."""
    return root / "records" / assignment / f"{student}.json"


def load(root: Path, assignment: str, student: str, key: str | None = None) -> Record | None:
    """The record, if there is one (with the given key)."""
    try:
        record = Record.from_json(path_of(root, assignment, student).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return record if key in (None, record.key) else None


def save(root: Path, record: Record) -> None:
    """Writes the record; a reader sees the old one or the new one."""
    path = path_of(root, record.assignment, record.student)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(record.to_json(), encoding="utf-8")
    part.replace(path)


def note_gradebook(root: Path, record: Record, timestamp: str) -> None:
    """Remembers that the gradebook has this record, for what was handed in at that time."""
    _in_gradebook(root, record).write_text(f"{record.key} {timestamp}")


def is_in_gradebook(root: Path, record: Record, timestamp: str) -> bool:
    """Whether the gradebook has this very record, with when it was handed in."""
    mark = _in_gradebook(root, record)
    return mark.exists() and mark.read_text() == f"{record.key} {timestamp}"


def _in_gradebook(root: Path, record: Record) -> Path:
    return path_of(root, record.assignment, record.student).with_suffix(".written")


def changes(old: Record, new: Record) -> str:
    """`ada: 45 -> 50 (ring 0 -> 5)` where the same work has other points than before; empty if it has not."""
    before, after = ({v.grade_id: v.points for v in record.verdicts} for record in (old, new))
    moved = [f"{name.removeprefix('check-')} {before.get(name, 0):g} -> {points:g}" for name, points in after.items()
             if before.get(name, 0) != points]  # fmt: skip
    return f"{new.student}: {old.points:g} -> {new.points:g} ({', '.join(moved)})" if moved else ""


def merged(old: Record, new: Record) -> Record:
    """`new`, which has the verdicts of some checks only, with the old verdicts of all others."""
    again = {v.grade_id: v for v in new.verdicts}
    return replace(new, verdicts=[again.get(v.grade_id, v) for v in old.verdicts])


def all_of(root: Path, assignment: str) -> list[Record]:
    """Every record of an assignment, by student; without what cells have shown, which can be very much."""
    files = sorted((root / "records" / assignment).glob("*.json"))
    found = (load(root, assignment, file.stem) for file in files)
    return [replace(record, outputs={}) for record in found if record is not None]
