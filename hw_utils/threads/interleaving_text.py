"""An interleaving told: which rank did what, line by line."""

from __future__ import annotations

import itertools
import re

from hw_utils.core.source.lines import locate

_WRITES = re.compile(r"\bdel\b|\.(pop|clear|append|remove|update|setdefault|insert)\(|[\]\w]\s*[-+*/]?=[^=]|\breturn\b")


def source_of(file: str, line: int) -> str:
    """The text of a line of the student's code."""
    return locate(file, line).source


def tell(
    lines: list[tuple[int, str, int]], *, upto_rank: int = -1, upto_text: str = "", n_lines: int = 12
) -> list[str]:
    """The last steps of an interleaving, one line a step: `rank 2, line 14: del self.buffers[group_id]`.

    With `upto_rank` the story ends with that rank's last step, or with its note `upto_text`.
    """
    end = len(lines)
    while end and upto_rank >= 0:
        rank, text, line = lines[end - 1]
        if rank == upto_rank and (line or upto_text) and (not upto_text or (text == upto_text and not line)):
            break
        end -= 1
    told: list[str] = []
    for _, steps in itertools.groupby(lines[:end], key=lambda step: step[0]):
        told += _told_turn(list(steps))
    left = len(told) - n_lines
    return ([f"({left} steps before)"] if left > 0 else []) + told[-n_lines:]


def _told_turn(steps: list[tuple[int, str, int]]) -> list[str]:
    """What one rank did until another had its turn: first and last line, writes, and all that it noted.

    Of equal lines the first since its last note, which says that a call is over: a write of the next call is told.
    """
    lines = [i for i, step in enumerate(steps) if step[2]]
    marked = (i for i, (_, text, line) in enumerate(steps) if not line or _WRITES.search(source_of(text, line)))
    shown = {*lines[:1], *lines[-1:], *marked}
    told: list[str] = []
    said: set[str] = set()
    for i in sorted(shown):
        rank, text, line = steps[i]
        at = str(locate(text, line)).split(", ")[-1] if line else ""
        words = f"rank {rank}, {at}: {source_of(text, line)}" if line else f"rank {rank} {text}"
        told += [words] if words not in said else []
        said = {*said, words} if line else set()
    return told
