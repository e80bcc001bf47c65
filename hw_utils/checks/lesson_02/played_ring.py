"""A ring played with other chunk numbers: which of them give the values that were observed?"""

from __future__ import annotations

from itertools import product

import numpy as np

from hw_utils.checks.lesson_02.observed_all_reduce import Reduced


def why_chunk_numbers(seen: Reduced) -> str:
    """The cause, if the values are those of a ring to the left whose numbers are off; else empty."""
    n = seen.world_size
    if n < 3 or any(peer != (rank - 1) % n for rank, peer, _ in seen.sends()):
        return ""
    observed = np.stack([values.ravel() for values in seen.values[0]])
    for change, first, further in product((1, -1), range(n), (1, 0, -1)):
        if (change, further) == (1, 1) or not np.array_equal(_played(seen, change, first, further), observed):
            continue
        goes = "up" if change == 1 else "down"
        place = {1: "the next one up", 0: "that very one", -1: "the next one down"}[further]
        return (
            f"the chunk index is off: the numbers go {goes} from step to step, and what comes in goes to {place} from "
            "the chunk that this rank sends. It belongs to the chunk of the number that the right neighbour sent."
        )
    return ""


def _played(seen: Reduced, change: int, first: int, further: int) -> np.ndarray:
    """What every rank holds that sends chunk rank + change * step + first, and takes in the one `further` on."""
    n = seen.world_size
    chunks = [np.array_split(row, n) for row in seen.shares(0).reshape(n, -1)]
    for step in range(1, 2 * n - 1):
        numbers = [(rank + change * step + first) % n for rank in range(n)]
        sent = [chunks[rank][k].copy() for rank, k in enumerate(numbers)]
        for rank, k in enumerate(numbers):
            mine, came = chunks[rank][(k + further) % n], sent[(rank + 1) % n]
            if mine.shape != came.shape:
                return np.empty(0)
            mine[:] = mine + came if step < n else came
    return np.stack([np.concatenate(row) for row in chunks])
