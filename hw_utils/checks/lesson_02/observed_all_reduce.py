"""An all-reduce as it was observed: every rank's values, and the ledger of how they came about.

Rank r holds 10**r times small numbers, so that a wrong digit names the rank whose share is missing or doubled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.core.trace import SENDS, Trace

UNTOUCHED = -7  # what lies around a tensor, and must lie there afterwards
# For so many ranks: times this, whole numbers have more digits than a float64, and an int64 has them all.
_DIGITS = 17  # of an int64: with more ranks some share one
LARGE = {4: 10**14 + 1, 6: 10**12 + 1}


def share(rank: int, shape: Sequence[int], seed: int = 0, times: int = 1) -> np.ndarray:
    """What `rank` holds before the all-reduce: 10**rank times 1, 2, 3, ...; other digits for another seed."""
    k = np.arange(math.prod(shape), dtype="i8")
    digits = k + 1 if seed == 0 else 1 + (3 * seed + 5 * rank * seed + k * (rank + seed)) % 8
    return (times * 10 ** (rank % _DIGITS) * (digits + drawn_numbers.digits(k.shape, rank, seed))).reshape(shape)


@dataclass(frozen=True)
class Reduced:
    """One observed all-reduce, read from a driver's data: `values[call][rank]`, `returned[rank]`, the ledger."""

    what: str  # "ring_all_reduce with 4 ranks of 8 elements"
    world_size: int
    shape: tuple[int, ...]
    dtypes: list[str]  # of each call, all of one size
    layout: str
    seed: int
    calls: int
    times: int
    values: list[list[np.ndarray]]
    returned: list[Any]
    moved: list[bool]  # whether a rank's tensor was given other memory
    around: list[bool]  # whether what lies around a rank's tensor is as it was
    trace: Trace

    @property
    def dtype(self) -> str:
        return self.dtypes[0]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    def shares(self, call: int) -> np.ndarray:
        """What the ranks put in, one row a rank."""
        return np.stack([share(r, self.shape, self.seed + call, self.times) for r in range(self.world_size)])

    def expected(self, call: int = 0) -> np.ndarray:
        return self.shares(call).sum(axis=0)

    def right(self, call: int, rank: int) -> bool:
        got = self.values[call][rank]
        return bool(got.shape == self.shape and np.array_equal(got, self.expected(call)))

    def sends(self) -> list[tuple[int, int, int]]:
        """(rank, peer, bytes) of every message, in order."""
        rows = self.trace.of_op(*SENDS).records
        return list(zip(rows["rank"].tolist(), rows["peer"].tolist(), rows["n_bytes"].tolist()))

    @property
    def n_messages(self) -> int:
        """Messages of one call, all ranks' together."""
        return len(self.sends()) // self.calls


def contributions(seen: Reduced, value: float, k: int) -> list[int] | None:
    """How often each rank's share is in an element; None if the value is no such sum (or with other seeds)."""
    if seen.seed or not math.isfinite(value) or value < 0 or value % (seen.times * (k + 1)):
        return None
    digits = [int(d) for d in reversed(str(int(value) // (seen.times * (k + 1))))]
    if len(digits) > seen.world_size:
        return None
    return digits + [0] * (seen.world_size - len(digits))


def nothing_added(seen: Reduced) -> bool:
    """Whether messages came, and every element still holds one rank's share alone."""
    flat = [v.ravel() for v in seen.values[0]]
    counts = [contributions(seen, v.item(), k) for row in flat for k, v in enumerate(row)]
    return seen.world_size > 2 and bool(counts) and all(c is not None and sum(c) == 1 for c in counts)


def tensors(seen: Reduced, n_bytes: float) -> str:
    """Bytes as a multiple of the tensor: `6.0 times the tensor`."""
    return f"{n_bytes / seen.n_bytes / seen.calls:.1f} times the tensor" if seen.n_bytes else f"{n_bytes} bytes"


def star(seen: Reduced) -> int | None:
    """The rank that takes part in every message, if there is one and it is not alone with one other."""
    ends = Counter(r for rank, peer, _ in seen.sends() for r in (rank, peer))
    for rank, n in ends.items():
        if n == len(seen.sends()) and len(ends) > 2:
            return rank
    return None
