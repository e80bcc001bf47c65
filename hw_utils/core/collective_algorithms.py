"""The messages behind each collective, as data: who sends how many bytes to whom, step by step.

| operation | algorithm |
|---|---|
| all_reduce | ring: every member passes one piece of the tensor on, 2 (N - 1) times |
| reduce_scatter, all_gather | ring, N - 1 steps |
| broadcast, reduce | binomial tree |
| gather, scatter | linear at the root |
| all_to_all | pairwise, N - 1 steps |
| barrier | dissemination, empty messages |

Members are counted from 0 within their group. A member starts a step when it has finished the one before it.
`cost` counts the messages (the ledger of `launch` and of `simulate`); `schedule_replay.py` gives them times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

# The torch.distributed functions, by the algorithm that carries them.
ALGORITHM = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "broadcast_object_list": "broadcast",
    "gather": "gather",
    "gather_object": "gather",
    "scatter": "scatter",
    "scatter_object_list": "scatter",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_object": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}


@dataclass(frozen=True, eq=False)
class Step:
    """Messages that may travel at the same time: member `src[i]` sends `n_bytes[i]` to member `dst[i]`.

    `shift` is set if every member sends to the one `shift` places further: a replay then needs no indices.
    `times`: how often the step is made, one after another.
    """

    src: np.ndarray
    dst: np.ndarray
    n_bytes: np.ndarray
    shift: int = 0
    times: int = 1


@dataclass(frozen=True)
class Cost:
    """What each member puts on the wire, and the longest chain of dependent messages."""

    sent_bytes: tuple[int, ...]
    sent_messages: tuple[int, ...]
    rounds: int


def pieces(n_elements: int, n_pieces: int) -> np.ndarray:
    """Elements of each piece of a tensor that is cut as evenly as possible, the longer ones first."""
    quotient, rest = divmod(n_elements, n_pieces)
    return np.where(np.arange(n_pieces) < rest, quotient + 1, quotient).astype("i8")


def steps(op: str, n_bytes, n_members: int, root: int = 0, itemsize: int = 1) -> Iterator[Step]:
    """The steps of operation `op` (a name of torch.distributed) among `n_members`, in order.

    n_bytes: of the whole tensor for all_reduce, reduce, broadcast and reduce_scatter (its input); of one member's
        part for gather, scatter and all_gather; of all that one member sends for all_to_all. Where parts differ:
        an array, one a member (for all_to_all: one a pair, `n_bytes[src, dst]`).
    root: the root's place in the group. itemsize: bytes of one element; a piece holds whole elements.

    Raises:
        ValueError: an operation that has no schedule.
    """
    for step in blocks(op, n_bytes, n_members, root, itemsize):
        for _ in range(step.times):
            yield replace(step, times=1)


def blocks(op: str, n_bytes, n_members: int, root: int = 0, itemsize: int = 1) -> Iterator[Step]:
    """As `steps`, with equal steps in a row as one that is made several `times`."""
    if op not in ALGORITHM:
        raise ValueError(f"there is no schedule for {op!r}; known: {', '.join(sorted(ALGORITHM))}")
    if n_members > 1:
        yield from _STEPS[ALGORITHM[op]](n_bytes, n_members, root, itemsize)


def _ring(sizes: np.ndarray, n_steps: int) -> Iterator[Step]:
    """Every member passes on what it has just received, `n_steps` times."""
    n = len(sizes)
    members = np.arange(n)
    following = np.roll(members, -1)
    if (sizes == sizes[0]).all():
        yield Step(members, following, sizes, shift=1, times=n_steps)
        return
    twice = np.concatenate([sizes, sizes])  # a window of it is `sizes`, rolled
    for step in range(n_steps):
        start = n - step % n
        yield Step(members, following, twice[start : start + n], shift=1)


def _all_reduce(n_bytes, n, root, itemsize):
    return _ring(pieces(int(n_bytes) // itemsize, n) * itemsize, 2 * (n - 1))


def _reduce_scatter(n_bytes, n, root, itemsize):
    sizes = np.asarray(n_bytes) if np.ndim(n_bytes) else pieces(int(n_bytes) // itemsize, n) * itemsize
    return _ring(sizes, n - 1)


def _all_gather(n_bytes, n, root, itemsize):
    return _ring(np.broadcast_to(np.asarray(n_bytes, "i8"), n), n - 1)


def _broadcast(n_bytes, n, root, itemsize):
    informed = 1
    while informed < n:
        src = np.arange(min(informed, n - informed))
        yield Step((src + root) % n, (src + informed + root) % n, np.full(len(src), int(n_bytes)))
        informed *= 2


def _reduce(n_bytes, n, root, itemsize):
    for step in reversed(list(_broadcast(n_bytes, n, root, itemsize))):
        yield Step(step.dst, step.src, step.n_bytes)


def _gather(n_bytes, n, root, itemsize):
    others = np.delete(np.arange(n), root)
    sizes = np.broadcast_to(np.asarray(n_bytes, "i8"), n)[others]
    yield Step(others, np.full(n - 1, root), sizes)


def _scatter(n_bytes, n, root, itemsize):
    for step in _gather(n_bytes, n, root, itemsize):
        yield Step(step.dst, step.src, step.n_bytes)


def _all_to_all(n_bytes, n, root, itemsize):
    members = np.arange(n)
    equal = pieces(int(n_bytes) // itemsize, n) * itemsize if np.ndim(n_bytes) == 0 else None
    for shift in range(1, n):
        dst = np.roll(members, -shift)
        sizes = np.asarray(n_bytes)[members, dst] if equal is None else equal[dst]
        yield Step(members, dst, sizes, shift=shift)


def _barrier(n_bytes, n, root, itemsize):
    members, empty, shift = np.arange(n), np.zeros(n, "i8"), 1
    while shift < n:
        yield Step(members, np.roll(members, -shift), empty, shift=shift)
        shift *= 2


_STEPS = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}


def cost(op: str, n_bytes, members: int, root: int = 0, itemsize: int = 1) -> Cost:
    """Bytes and messages that each of `members` members sends, and the rounds; arguments as for `steps`.

    >>> cost("broadcast", 100, members=4)
    Cost(sent_bytes=(200, 100, 0, 0), sent_messages=(2, 1, 0, 0), rounds=2)
    """
    if np.ndim(n_bytes):
        return _cost(op, n_bytes, members, root, itemsize)
    return _cached_cost(op, int(n_bytes), members, root, itemsize)


def _cost(op: str, n_bytes, n_members: int, root: int, itemsize: int) -> Cost:
    sent_bytes, sent_messages, rounds = np.zeros(n_members, "i8"), np.zeros(n_members, "i8"), 0
    for step in blocks(op, n_bytes, n_members, root, itemsize):
        if step.shift:
            sent_bytes += step.n_bytes * step.times
            sent_messages += step.times
            rounds += step.times
        else:
            np.add.at(sent_bytes, step.src, step.n_bytes)
            np.add.at(sent_messages, step.src, 1)
            rounds += int(max(np.bincount(step.src).max(), np.bincount(step.dst).max()))
    return Cost(tuple(sent_bytes.tolist()), tuple(sent_messages.tolist()), rounds)


_cached_cost = lru_cache(maxsize=4096)(_cost)
