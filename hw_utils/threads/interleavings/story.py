"""An interleaving told: which rank did what, line by line."""

from __future__ import annotations

import itertools
import re

from hw_utils.core.source.lines import locate

_WRITES = re.compile(r"\bdel\b|\.(pop|clear|append|remove|update|setdefault|insert)\(|[\]\w]\s*[-+*/]?=[^=]|\breturn\b")

_STORES = re.compile(r"\bdel\b|\.(pop|clear|append|remove|update|setdefault|insert)\(|(\]|\.\w+)\s*[-+*/]?=[^=]")


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
    told: list[str | None] = []
    last: dict[int, str] = {}  # what each rank was said to do last
    again: dict[int, int] = {}  # where it stands that a rank goes on with that
    for rank, steps in itertools.groupby(lines[:end], key=lambda step: step[0]):
        turn = _told_turn(list(steps))
        goes_on = turn[0] == last.get(rank)  # it is still in the line in which it was interrupted
        last[rank] = turn[-1]
        before = again.pop(rank, None)
        if goes_on and before is not None:
            told[before] = None
        if goes_on and not _STORES.search(turn[0].partition(": ")[2]):
            del turn[0]
        elif goes_on and len(turn) == 1:
            again[rank] = len(told)  # when it stored is known only when it goes on to the next line
        told += turn
    steps_told = [words for words in told if words is not None]
    left = len(steps_told) - n_lines
    return ([f"({left} steps before)"] if left > 0 else []) + steps_told[-n_lines:]


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
