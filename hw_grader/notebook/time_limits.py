"""How long students' code may run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeLimits:
    """Of one submission, in seconds: a cell, a case of a check (with its repetition: a case more), all of it."""

    cell_s: float = 60
    case_s: float = 75  # more than the 60 s after which launch and simulate stop by themselves
    total_s: float = 600
