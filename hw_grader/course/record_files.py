"""Where records lie: records/ASSIGNMENT/STUDENT.json in the course folder, one a submission, written whole or not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from hw_grader.driving.grading_record import Record

STAGING = "build/grading"  # where what is graded lies for nbgrader to take


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
    """Every record of an assignment, by student."""
    files = sorted((root / "records" / assignment).glob("*.json"))
    found = [load(root, assignment, file.stem) for file in files]
    return [record for record in found if record is not None]
