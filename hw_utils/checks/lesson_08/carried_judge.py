"""What crosses the cuts of a pipeline: each pass takes what a pass of its neighbour gave."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.checks.lesson_06.shards import distance
from hw_utils.checks.lesson_08.schedules_judge import drawn_rows
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import RECEIVES, SENDS, Trace

_ROUNDED = 1e-2  # of the largest number: half precision and bfloat16 keep more


def require_carried(what: str, data: Any, n_batches: int, times: int = 1) -> None:
    """Raises CheckFailed unless each pass takes what a pass of its neighbour gave, each once, but for a factor.

    The first rank takes the batch: from zeros everywhere, or from numbers that all ranks draw, nothing has to be sent.
    Which micro-batch it belongs to and how exactly it came is a matter of the numbers.
    """
    batch = [np.asarray(x) for x in drawn_rows(1, n_batches, times)]
    given = [batch if times == 1 else [drawn_numbers.weighted_sum(x, data["seed"]) for x in batch]]
    passes = {kind: [[r["crossed"][f"{kind}{k}"] for k in range(n_batches)] for r in data["results"]] for kind in "FB"}
    given += [[y for _, y in of_rank] for of_rank in passes["F"][:-1]]
    for rank, gave in enumerate(given):
        who = f"stage {rank - 1} to {rank}" if rank else "the batch to stage 0"
        _require_taken(f"{what}: the order of passes is right, but {{}} goes from {who}", gave, passes["F"][rank])
    for rank, (gave, took) in enumerate(pairwise(reversed(passes["B"]))):
        first = len(passes["B"]) - 1 - rank
        what_came = f"{what}: the order of passes is right, but {{}} goes from stage {first} to {first - 1}"
        _require_taken(what_came, [back for _, back in gave], took)


def require_neighbours(what: str, trace: Trace) -> None:
    """Raises CheckFailed if a stage calls anything else than sends and receives: what is there is kept, too."""
    if others := sorted(trace.ops - {*SENDS, *RECEIVES}):
        raise CheckFailed(
            f"{what}: called {', '.join(others)}.",
            cause="what crosses a cut is sent by one rank and received by the next one: nothing else is called.",
        )


def _require_taken(what: str, gave: list[Any], took: list[list[Any]]) -> None:
    left = {k: _to_one(one) for k, one in enumerate(gave) if np.any(one)}
    for k, (taken, _) in enumerate(took):
        found = [j for j in (k, *left) if j in left and distance(_to_one(taken), left[j]) < _ROUNDED]
        if not found:
            raise CheckFailed(
                f"{what.format(f'micro-batch {k}')} with other numbers.",
                cause="a stage goes on with what its neighbour has sent: the message's buffer, once full.",
            )
        del left[found[0]]


def _to_one(numbers: np.ndarray) -> np.ndarray:
    """Divided by that of them which is largest."""
    numbers = np.asarray(numbers)
    flat = numbers.ravel()
    return numbers / (flat[np.abs(flat).argmax()] or 1.0)
