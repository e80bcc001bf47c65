"""Judging an all-reduce: the values of every rank first, then what the ledger says about how they came about.

Rank r holds 10**r times small numbers, so that a wrong digit names the rank whose share is missing or doubled.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import require_no_deadlock
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.core.trace import POINT_TO_POINT, SENDS, Trace

UNTOUCHED = -7  # what lies around a tensor, and must lie there afterwards
# For so many ranks: times this, whole numbers have more digits than a float64, and an int64 has them all.
LARGE = {4: 10**14 + 1, 6: 10**12 + 1}
_ROUNDED = "right but for its last digits"
READ_TOO_SOON = "a receive buffer is read before the receive has finished: wait for what irecv returns, then add."


def share(rank: int, shape: Sequence[int], seed: int = 0, times: int = 1) -> np.ndarray:
    """What `rank` holds before the all-reduce: 10**rank times 1, 2, 3, ...; other digits for another seed."""
    k = np.arange(math.prod(shape), dtype="i8")
    digits = k + 1 if seed == 0 else 1 + (3 * seed + 5 * rank * seed + k * (rank + seed)) % 8
    return (times * 10**rank * (digits + drawn_numbers.digits(k.shape, rank, seed))).reshape(shape)


@dataclass(frozen=True)
class Reduced:
    """One observed all-reduce, read from a driver's data: `values[call][rank]`, `returned[rank]`, the ledger."""

    what: str  # "ring_all_reduce with 4 ranks of 8 elements"
    world_size: int
    shape: tuple[int, ...]
    dtype: str
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
    def n_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def shares(self, call: int) -> np.ndarray:
        """What the ranks put in, one row a rank."""
        seed = self.seed + call * (self.seed > 0)
        return np.stack([share(r, self.shape, seed, self.times) for r in range(self.world_size)])

    def expected(self, call: int = 0) -> np.ndarray:
        return self.shares(call).sum(axis=0)

    def right(self, call: int, rank: int) -> bool:
        got = self.values[call][rank]
        return bool(got.shape == self.shape and np.array_equal(got, self.expected(call)))

    def sends(self) -> list[tuple[int, int, int]]:
        """(rank, peer, bytes) of every message, in order."""
        rows = self.trace.of_op(*SENDS).records
        return list(zip(rows["rank"].tolist(), rows["peer"].tolist(), rows["n_bytes"].tolist()))


Explain = Callable[[Reduced], str]


def title(name: str, world_size: int, shape: Sequence[int], dtype: str, layout: str) -> str:
    """`ring_all_reduce with 4 ranks of 8 elements (int64, strided)`."""
    n = math.prod(shape)
    size = f"{n} element{'' if n == 1 else 's'}" if len(shape) == 1 else f"shape {tuple(shape)}"
    special = [text for text, usual in ((dtype, "float64"), (layout, "contiguous")) if text != usual]
    ranks = f"{world_size} rank{'' if world_size == 1 else 's'}"
    return f"{name} with {ranks} of {size}" + (f" ({', '.join(special)})" if special else "")


def read(data: Any, name: str, world_size: int, shape, dtype, layout, seed, calls, times=1) -> Reduced:
    """What a driver observed; raises CheckFailed for a run that did not finish, ValueError for data that is none."""
    what = title(name, world_size, shape, dtype, layout)
    try:
        if data.get("failed"):
            cause = _why_failed(str(data["failed"]), world_size, is_ring=name.startswith("ring"))
            raise CheckFailed(f"{what} fails: {data['failed']}", cause=cause)
        require_no_deadlock(data, what, cause=_why_hangs(data, world_size, name.startswith("tree")))
        results = list(data["results"])
        if len(results) != world_size:
            raise ValueError(f"{len(results)} results of {world_size} ranks")
        values = [[np.asarray(result["values"][call]) for result in results] for call in range(calls)]
        returned = [result["returned"] for result in results]
        moved = [result.get("moved") not in (None, False) for result in results]
        around = [result["around"] is True for result in results]
        trace = Trace.from_plain(data["trace"])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"this is not an observed all-reduce: {error!r}") from None
    if trace.world_size > world_size:
        raise ValueError(f"a ledger of {trace.world_size} ranks for a run of {world_size}")
    shape = tuple(shape)
    return Reduced(what, world_size, shape, dtype, layout, seed, calls, times, values, returned, moved, around, trace)


def _why_hangs(data: dict[str, Any], world_size: int, is_tree: bool) -> str:
    waiting = [str(op) for _, op, _ in data.get("waiting") or []]
    if 0 < len(waiting) < world_size:
        return (
            "some rank is done while another still waits: for every send to n there is a receive on n, in the same "
            "order."
        )
    if is_tree and waiting and len({op.endswith("send") for op in waiting}) == 1:
        call = "send" if waiting[0].endswith("send") else "recv"
        return f"every rank stands in {call}: in a tree the one of a pair sends while the other one receives."
    if waiting and all(op.endswith("send") for op in waiting):
        return (
            "every rank stands in send, and a send is over when its receiver has the data. "
            "Somebody must receive: start the send with isend, receive, then wait."
        )
    if waiting and all(op.endswith("recv") for op in waiting):
        return "every rank stands in recv and nobody has sent yet: start the send (isend) before the receive."
    return "some message has only one side: for every send to n there is a receive on n, in the same order."


_ENDS = re.compile(r"sends (\d+) (\w+) .*? receives (\d+) (\w+) ")


def _why_failed(text: str, world_size: int, *, is_ring: bool) -> str:
    if "has to be contiguous" in text:
        return (
            "a message needs elements that lie side by side in memory: send tensor.contiguous(), and copy the result "
            "back into the tensor at the end."
        )
    if "between isend and wait" in text:
        return (
            "the buffer of an isend is written before its wait: it still has to travel. "
            "Receive into another buffer, or wait first."
        )
    if world_size == 1:
        return "one rank has its sum already: a phase has N - 1 steps, which is none."
    ends = _ENDS.search(text)
    if ends and ends[2] != ends[4]:
        return f"{ends[2]} is sent and {ends[4]} received: the buffer has the tensor's dtype with torch.empty_like."
    if is_ring and "there is no rank" in text:
        return "neighbours are counted around the ring, modulo the world size."
    if is_ring and ends and ends[1] != ends[3] and abs(int(ends[1]) - int(ends[3])) == 1:
        return "chunks differ in length by one: the receive buffer is as long as the chunk that comes in."
    if world_size & (world_size - 1):
        return (
            f"{world_size} is not a power of two. Not every rank has a partner at every step, and not all pieces "
            "are equally long: leave out partners that do not exist, and receive as many elements as are sent."
        )
    if "there is no rank" in text:
        return "that partner does not exist: it comes from tree_partner, whose own check says more."
    return "the two ends of a message do not agree; both must name the same chunk."


def require_no_collective(seen: Reduced) -> None:
    """Raises CheckFailed if anything but point-to-point calls is in the ledger."""
    collectives = sorted(seen.trace.ops - POINT_TO_POINT)
    if collectives:
        raise CheckFailed(
            f"{seen.what} calls {', '.join(collectives)}.",
            cause="that is a collective. Here only send, recv, isend, irecv and batch_isend_irecv may be called.",
        )


def require_sum(seen: Reduced, why: Explain) -> None:
    """Raises CheckFailed unless every rank holds the sum, in place, and nothing else has changed."""
    require_no_collective(seen)
    for call in range(seen.calls):
        for rank in range(seen.world_size):
            _require_rank(seen, call, rank, why)
    for rank, moved in enumerate(seen.moved):
        if moved:
            raise CheckFailed(
                f"{seen.what}: on rank {rank} the tensor lies in other memory than before.",
                cause="tensor.data = ... gives it another memory; write into its own (copy_).",
            )
    for rank, untouched in enumerate(seen.around):
        if not untouched:
            raise CheckFailed(
                f"{seen.what}: rank {rank} wrote to memory beside its tensor.",
                cause="a view with too many elements: change only the tensor's own.",
            )


def _require_rank(seen: Reduced, call: int, rank: int, why: Explain) -> None:
    got, expected = seen.values[call][rank], seen.expected(call)
    again = " in its second call" if call else ""
    if got.dtype.name != seen.dtype or got.shape != seen.shape:
        raise CheckFailed(
            f"{seen.what}{again}: on rank {rank} the tensor became {got.dtype} of shape {got.shape}.",
            cause="resize nothing and convert nothing: write the sum into the tensor that came in.",
        )
    if seen.right(call, rank):
        return
    if call:
        cause = "something is kept from one call to the next: a buffer outside the function, or a message left over."
    else:
        cause = _common(seen) or why(seen)
    k = int(np.flatnonzero((got != expected).ravel())[0])
    place = f"element {k}" if len(seen.shape) < 2 else f"element {k} (row by row)"
    value, wanted = got.ravel()[k].item(), expected.ravel()[k].item()
    shares = "" if cause.startswith(_ROUNDED) else _digits(seen, value, k)
    shown = value if isinstance(value, int) else f"{value:.10g}"
    raise CheckFailed(
        f"{seen.what}{again}: on rank {rank}, {place} is {shown}, expected {wanted}{shares}.", cause=cause
    )


def _digits(seen: Reduced, value: float, k: int) -> str:
    """Which ranks' shares are in an element, in words; nothing if it is no sum of shares."""
    counts = contributions(seen, value, k)
    if counts is None:
        return ""
    missing = [r for r, n in enumerate(counts) if n == 0]
    doubled = [r for r, n in enumerate(counts) if n > 1]
    parts = [f"lacks the share of {ranks_text(missing)}"] if missing else []
    parts += [f"has the share of {ranks_text(doubled)} more than once"] if doubled else []
    return f": it {' and '.join(parts)}" if parts else ""


def contributions(seen: Reduced, value: float, k: int) -> list[int] | None:
    """How often each rank's share is in an element; None if the value is no such sum (or with other seeds)."""
    if seen.seed or not math.isfinite(value) or value < 0 or value % (seen.times * (k + 1)):
        return None
    digits = [int(d) for d in reversed(str(int(value) // (seen.times * (k + 1))))]
    if len(digits) > seen.world_size:
        return None
    return digits + [0] * (seen.world_size - len(digits))


def _common(seen: Reduced) -> str:
    """The mistakes that any all-reduce can make; empty if it is none of them."""
    everywhere = np.stack([v.astype("f8") for v in seen.values[0]]) if _alike(seen) else None
    if everywhere is None or everywhere.size == 0:
        return ""
    expected, own = seen.expected().astype("f8"), seen.shares(0)
    if any(e.waited is None for e in seen.trace.of_op("irecv")):
        return READ_TOO_SOON
    if np.array_equal(everywhere, own):
        return _why_unchanged(seen)
    if np.allclose(everywhere, expected / seen.world_size) or np.array_equal(everywhere, own // seen.world_size):
        return "it is divided by the number of ranks: that is the mean. An all-reduce gives the sum."
    if (everywhere == np.broadcast_to(np.floor(expected / seen.world_size), everywhere.shape)).all():
        return "it is divided by the number of ranks: that is the mean. An all-reduce gives the sum."
    if _unreceived(seen):
        return READ_TOO_SOON
    if np.array_equal(everywhere, np.broadcast_to(expected.astype("f4"), everywhere.shape)) and seen.dtype != "float32":
        return f"{_ROUNDED}: it is added up in float32. Keep the tensor's own dtype."
    if (np.abs(everywhere - expected) <= 2.0**-52 * seen.world_size * expected).all():
        return f"{_ROUNDED}: it is added up, or travels, in float64. Keep the tensor's own dtype."
    return _why_rounded(seen, everywhere, expected)


_MOST = 0.7
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}


def _why_rounded(seen: Reduced, everywhere: np.ndarray, expected: np.ndarray) -> str:
    """The cause, if what is wrong has the few digits of a smaller dtype, and is no sum of shares.

    Not each number need have so few: a rank may add its own share to what came.
    """
    if np.isinf(everywhere).any():
        return "inf: it is added up, or travels, in float16, which ends at 65,504. Keep the tensor's own dtype."
    off = np.abs(everywhere - expected)
    rows = everywhere.reshape(len(everywhere), -1)
    wrong = [(int(k), float(row[k])) for row in rows for k in np.flatnonzero(row != expected.ravel())]
    if seen.seed or all(contributions(seen, value, k) is not None for k, value in wrong):
        return ""
    for dtype, bits in _BITS.items():
        whole = np.ldexp(np.frexp([value for _, value in wrong])[0], bits)
        if (off <= seen.world_size * 2.0**-bits * expected).all() and (whole == whole.round()).mean() > _MOST:
            return f"{_ROUNDED}: it is added up, or travels, in {dtype}. Keep the tensor's own dtype."
    return ""


def _alike(seen: Reduced) -> bool:
    return all(v.shape == seen.shape and v.dtype.kind in "iuf" for v in seen.values[0])


def _why_unchanged(seen: Reduced) -> str:
    if any(_is_sum(r, seen) for r in seen.returned):
        return "the sum is returned, but the tensor that came in is as it was: write the result into it (copy_)."
    if not any(seen.trace.messages_sent(r) for r in range(seen.trace.world_size)):
        return "nothing is sent at all."
    if not any(n_bytes for _, _, n_bytes in seen.sends()):
        return "every message is empty: length // N is 0 for so short a tensor. tensor_split cuts any length."
    if seen.layout != "contiguous":
        return (
            "the elements do not lie side by side in memory, so flatten, reshape and contiguous give a copy. "
            "Copy the result back into the tensor."
        )
    return "the sum is made in another tensor: write it into the one that came in (+= or copy_)."


def _is_sum(returned: Any, seen: Reduced) -> bool:
    return isinstance(returned, np.ndarray) and returned.size > 0 and np.array_equal(returned, seen.expected())


def _unreceived(seen: Reduced) -> bool:
    """Whether some value is no sum of shares at all, although messages are received with irecv."""
    if not {"irecv"} & seen.trace.ops or seen.seed:
        return False
    flat = [v.ravel() for v in seen.values[0]]
    return any(contributions(seen, v.item(), k) is None for row in flat for k, v in enumerate(row))


def nothing_added(seen: Reduced) -> bool:
    """Whether messages came, and every element still holds one rank's share alone."""
    flat = [v.ravel() for v in seen.values[0]]
    counts = [contributions(seen, v.item(), k) for row in flat for k, v in enumerate(row)]
    return seen.world_size > 2 and bool(counts) and all(c is not None and sum(c) == 1 for c in counts)


def require_rounds(seen: Reduced, allowed: int, kind: str, why: Explain) -> None:
    """Raises CheckFailed if the longest chain of dependent messages is longer than `allowed` a call."""
    rounds = seen.trace.rounds
    if rounds > allowed * seen.calls:
        raise CheckFailed(
            f"{seen.what}: every value is right, but it takes {rounds} rounds; {kind} takes {allowed * seen.calls}.",
            cause=why(seen),
        )


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
