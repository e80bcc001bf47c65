"""Judging an all-reduce: the values of every rank first, then what the ledger says about how they came about."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.lesson_02.observed_all_reduce import Reduced, contributions
from hw_utils.checks.lesson_02.value_causes import ROUNDED, common_cause, why_failed, why_hangs
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.core.trace import POINT_TO_POINT, Trace

Explain = Callable[[Reduced], str]


def title(name: str, world_size: int, shape: Sequence[int], dtype: str, layout: str) -> str:
    """`ring_all_reduce with 4 ranks of 8 elements (int64, strided)`."""
    n = math.prod(shape)
    size = f"{n} element{'' if n == 1 else 's'}" if len(shape) == 1 else f"shape {tuple(shape)}"
    special = [text for text, usual in ((dtype, "float64"), (layout, "contiguous")) if text != usual]
    ranks = f"{world_size} rank{'' if world_size == 1 else 's'}"
    return f"{name} with {ranks} of {size}" + (f" ({', '.join(special)})" if special else "")


_KEPT = "something is kept from one call to the next: a buffer outside the function, or a message left over."


def read(data: Any, name: str, world_size: int, shape, dtype, layout, seed, calls, times=1, then="") -> Reduced:
    """What a driver observed; raises CheckFailed for a run that did not finish, ValueError for data that is none."""
    what = title(name, world_size, shape, dtype, layout)
    try:
        if data.get("failed"):
            if then and "must have the same dtype" in str(data["failed"]):
                raise CheckFailed(f"{what}, then {then}, fails: {data['failed']}", cause=_KEPT)
            cause = why_failed(str(data["failed"]), world_size, is_ring=name.startswith("ring"))
            raise CheckFailed(f"{what} fails: {data['failed']}", cause=cause)
        require_no_deadlock(data, what, cause=why_hangs(data, world_size, name.startswith("tree")))
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
    dtypes = [dtype] + (calls - 1) * [then or dtype]
    return Reduced(what, world_size, shape, dtypes, layout, seed, calls, times, values, returned, moved, around, trace)


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


_AS_DATA = {"bfloat16": "float32"}  # numpy has none: such numbers come as these


def _require_rank(seen: Reduced, call: int, rank: int, why: Explain) -> None:
    got, expected = seen.values[call][rank], seen.expected(call)
    again = " in its second call" if call else ""
    again += f", with {seen.dtypes[call]}," if call and seen.dtypes[call] != seen.dtype else ""
    if got.dtype.name != _AS_DATA.get(seen.dtypes[call], seen.dtypes[call]) or got.shape != seen.shape:
        raise CheckFailed(
            f"{seen.what}{again}: on rank {rank} the tensor became {got.dtype} of shape {got.shape}.",
            cause="resize nothing and convert nothing: write the sum into the tensor that came in.",
        )
    if seen.right(call, rank):
        return
    cause = _KEPT if call else common_cause(seen) or why(seen)
    k = int(np.flatnonzero((got != expected).ravel())[0])
    place = f"element {k}" if len(seen.shape) < 2 else f"element {k} (row by row)"
    value, wanted = got.ravel()[k].item(), expected.ravel()[k].item()
    shares = "" if call or cause.startswith(ROUNDED) else _digits(seen, value, k)
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


def require_rounds(seen: Reduced, allowed: int, kind: str, why: Explain) -> None:
    """Raises CheckFailed if the longest chain of dependent messages is longer than `allowed` a call."""
    rounds = seen.trace.rounds
    if rounds > allowed * seen.calls:
        raise CheckFailed(
            f"{seen.what}: every value is right, but it takes {rounds} rounds; {kind} takes {allowed * seen.calls}.",
            cause=why(seen),
        )
