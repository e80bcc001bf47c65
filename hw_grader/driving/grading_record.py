"""What grading says about one check, and about one submission.

States. Points need `pass`; the others say why there are none:

    pass          the judge found every case right
    fail          wrong, not written, not there, or the student's own error
    limit         stopped: time, memory, or too much data
    crashed       the student's process died, or the submission cannot be read
    tampered      what came from the submission's process is nothing that our code there sends
    grader-fault  our own mistake: nobody's 0; grade again
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

STATES = ("pass", "fail", "limit", "crashed", "tampered", "grader-fault")
WORST_LAST = ("pass", "fail", "crashed", "limit", "tampered", "grader-fault")
UNGRADED = frozenset({"crashed", "limit", "tampered", "grader-fault"})  # a 0 that is not a plain wrong answer

# Controls that a terminal obeys and signs that turn the direction of a line; colours (ESC [ ... m) are kept on request.
_UNSEEN = re.compile("(\x1b\\[[0-9;]*m)|[\\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str, *, colours: bool = False) -> str:
    """The text with what would act on a terminal or hide in a page written out.

    >>> visible("a\x1b[2J\u202eb")
    'a\\\\x1b[2J\\\\u202eb'
    """
    return _UNSEEN.sub(lambda found: found[0] if found[1] and colours else ascii(found[0])[1:-1], text)


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
        kept = ("assignment", "student", "notebook", "key", "verdicts", "notes", "unreadable")
        return {name: value for name, value in asdict(self).items() if name in kept}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        data = json.loads(text)
        data["verdicts"] = [Verdict(**v) for v in data["verdicts"]]
        data["outputs"] = {int(place): outputs for place, outputs in data["outputs"].items()}
        return cls(**data)
