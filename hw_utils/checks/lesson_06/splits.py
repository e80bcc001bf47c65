"""The judge of lesson 06's `split_batch`, and the ways in which a cut goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw_utils.checks.lesson_06.shards import n_ranks, require_array
from hw_utils.core.errors import CheckFailed


def _balanced(size: int, rest: int, rank: int) -> tuple[int, int]:
    """(start, end) of a rank's part where the first `rest` ranks have one more."""
    return rank * size + min(rank, rest), (rank + 1) * size + min(rank + 1, rest)


# cause -> (start, end) of a rank's part: the small size, how many ranks have one more, rank, ranks
_MISTAKES = {
    "the remainder is dropped": lambda size, rest, r, n: (r * size, (r + 1) * size),
    "the first ranks have one example more, and the next ones start as if they had not: the remainder is in the size "
    "and not in the start": lambda size, rest, r, n: (r * size, (r + 1) * size + (r < rest)),
    "the size is taken for a fraction, n / N, and N times that is not quite n for a computer: compute the places with "
    "whole numbers, // and %": lambda size, rest, r, n: (
        int(r * ((size * n + rest) / n)),
        int((r + 1) * ((size * n + rest) / n)),
    ),
    "ranks start as if those before them had one example more, and none has it: the remainder is in the start and not "
    "in the size": lambda size, rest, r, n: (r * size + min(r, rest), (r + 1) * size + min(r, rest)),
    "every rank with one example more shifts its start by one only for itself, not for all ranks before it": (
        lambda size, rest, r, n: (r * size + (r < rest), (r + 1) * size + 2 * (r < rest))
    ),
    "one rank gets the whole remainder: hand it out one by one": (
        lambda size, rest, r, n: (r * size, (r + 1) * size + rest * (r == n - 1))
    ),
    "sizes are rounded up (as chunk does), so that the last ranks run short: hand the remainder out": (
        lambda size, rest, r, n: (r * (size + (rest > 0)), (r + 1) * (size + (rest > 0)))
    ),
    "the ranks count from the end: rank 0 has the first examples": (
        lambda size, rest, r, n: ((n - 1 - r) * size + min(n - 1 - r, rest), (n - r) * size + min(n - r, rest))
    ),
    "every rank has the same part: it depends on rank": lambda size, rest, r, n: (0, size + (rest > 0)),
    "the numbers in x are counted, not its examples: len(x) or x.shape[0], not x.numel()": (
        lambda size, rest, r, n: _balanced(*divmod(2 * (size * n + rest), n), r)
    ),
    "every rank has all examples: they are cut": lambda size, rest, r, n: (0, n * size + rest),
}


def judge_split(data: Any, *, n_examples: int, world_size: int, n_dims: int = 2) -> None:
    what = f"split_batch of {n_examples} examples over {n_ranks(world_size)}"
    parts = []
    for r, part in enumerate(data):
        n_rows = len(part) if isinstance(part, np.ndarray) and part.ndim else 0
        cause = "only the first dimension is cut; the others, if x has any, stay as they are"
        parts.append(require_array(part, (n_rows, 2)[:n_dims], f"{what}: the part of rank {r}", cause=cause))
        if parts[-1].dtype != np.float64:
            raise CheckFailed(f"{what}: the part of rank {r} is {parts[-1].dtype}, x is float64",
                              cause="examples are cut apart, not worked on")  # fmt: skip
    if len(parts) != world_size:
        raise ValueError(f"{len(parts)} parts for {world_size} ranks")
    runs = [(part if n_dims == 1 else part[:, 0]).astype(int).tolist() for part in parts]
    rows, sizes = [row for run in runs for row in run], [len(part) for part in parts]
    lost = sorted(set(range(n_examples)) - set(rows))
    cause = _why(runs, n_examples, world_size)
    if lost:
        text = f"loses {len(lost)} example{'s' if len(lost) > 1 else ''}, the first is number {lost[0]}"
        raise CheckFailed(f"{what} {text}", cause=cause or "a rank's end is not the next one's start")
    if len(rows) != n_examples:
        twice = next(row for row in rows if rows.count(row) > 1)
        where = [r for r, run in enumerate(runs) if twice in run]
        text = f"{what} gives {len(rows)} examples in all: number {twice} is on ranks {where}"
        raise CheckFailed(text, cause=cause or "the parts overlap: a rank starts where the one before it ends")
    if max(sizes) - min(sizes) > 1:
        even = "nothing is left over here: every rank has len(x) // world_size examples"
        remainder = "the remainder is handed out one by one, to different ranks"
        cause = cause or (remainder if n_examples % world_size else even)
        raise CheckFailed(f"{what} gives parts of {sizes}: sizes may differ by 1 at most", cause=cause)
    if rows != list(range(n_examples)):
        raise CheckFailed(
            f"{what}: the parts in rank order are not x again; rank 0 has examples {runs[0][:4]}",
            cause=cause or "every rank takes one run of neighbours, rank 0 the first",
        )
    whole = np.arange(n_examples)[:, None] * np.array([1.0, -1.0])
    if n_dims == 2 and not np.array_equal(np.concatenate(parts), whole):
        raise CheckFailed(f"{what}: the numbers in a row are changed", cause="examples are cut apart, not worked on")


def _why(runs: list[list[int]], n_examples: int, world_size: int) -> str:
    size, rest = divmod(n_examples, world_size)
    for cause, cut in _MISTAKES.items():
        if all(run == list(range(n_examples)[slice(*cut(size, rest, r, world_size))]) for r, run in enumerate(runs)):
            return cause
    return ""
