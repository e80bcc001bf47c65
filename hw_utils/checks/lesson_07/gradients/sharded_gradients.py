"""The checks of lesson 07's sharded gradients: what is left of them, when, and how soon it travels."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, require_no_deadlock
from hw_utils.checks.kept_bytes import (
    ELSEWHERE,
    bytes_beside,
    bytes_in_lists,
    floats_both,
    is_here,
    moment,
    observe_memory,
)
from hw_utils.checks.lesson_06.shards import DTYPES, n_ranks
from hw_utils.checks.lesson_07 import second_objects
from hw_utils.checks.lesson_07.gradients.calls_judge import ITEM, judge_calls
from hw_utils.checks.lesson_07.gradients.held_in_a_pass import MANY, drive_many, judge_many
from hw_utils.checks.lesson_07.gradients.shards_judge import judge_left, judge_shards
from hw_utils.checks.lesson_07.second_objects import batch, tower
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

STEPS = 2


def _worker(
    rank: int, world_size: int, make: Any, widths: list[int], bucket_bytes: int, unused: bool, order: list[int] | None
) -> dict[str, Any]:
    """Each backward pass runs twice: first without the answer, for what the model itself holds as gradients arrive."""
    model, alone = tower(widths), tower(widths)
    moments: list[float] = []
    plain_bytes, held, anywhere, came, shards, gradients = [], [], [], [], [], []

    def sample(k: int, own: torch.nn.Module, _: torch.Tensor) -> None:
        whole = sum(p.grad.numel() for p in own.parameters() if p.grad is not None) * ITEM
        if own is alone:
            plain_bytes.append(whole)
        else:
            came.append(k)
            whole += bytes_in_lists(gradients[0])
            for noted, floats in zip((held, anywhere), floats_both(gradients[0], own)):
                noted.append(whole + bytes_beside(floats, own))
        moments.append(moment())

    def listen(own: torch.nn.Module) -> None:
        for k, p in enumerate(own.parameters()):
            p.register_post_accumulate_grad_hook(partial(sample, k, own))

    def go_back(own: torch.nn.Module, step: int) -> None:
        _used(own, unused, order)(batch(rank, step, widths[0])).square().mean().backward()

    listen(alone)
    for step in range(STEPS):
        go_back(alone, step)
        alone.zero_grad()
    gradients.append(make(model, bucket_bytes))
    listen(model)
    for step in range(STEPS):
        go_back(model, step)
        shards.append(plain(gradients[0].wait()))
        left = [name for name, p in model.named_parameters() if p.grad is not None]
    return {
        "shards": shards, "held": held, "anywhere": anywhere, "came": came, "plain": plain_bytes, "left": left,
        "moments": moments, "is_here": is_here(gradients[0]),
    }  # fmt: skip


def _buckets(widths: list[int], bucket_bytes: int, item: int = ITEM) -> list[list[int]]:
    """Numbers of the parameters in each bucket, as the lesson's buckets_of fills them."""
    sizes = [p.numel() * item for p in tower(widths).parameters()]
    buckets: list[list[int]] = []
    room = 0
    for k in reversed(range(len(sizes))):
        if sizes[k] > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(k)
        room -= sizes[k]
    return buckets


def _used(model: torch.nn.Sequential, unused: bool, order: list[int] | None) -> torch.nn.Sequential:
    """The layers in the order in which a forward pass takes them; the last one is left out if it is unused."""
    return torch.nn.Sequential(*(model[k] for k in order)) if order else model[:-1] if unused else model


def _mean_shards(
    widths: list[int], bucket_bytes: int, unused: bool, order: list[int] | None, world_size: int, step: int
) -> list[np.ndarray]:
    """Of each bucket: (world_size, size), the mean gradient cut for the ranks and padded with zeros."""
    model = tower(widths)
    used = _used(model, unused, order)
    for rank in range(world_size):
        (used(batch(rank, step, widths[0])).square().mean() / world_size).backward()
    whole = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    found = []
    for bucket in _buckets(widths, bucket_bytes):
        flat = torch.cat([whole[k].flatten() for k in bucket])
        size = -(-len(flat) // world_size)
        found.append(torch.nn.functional.pad(flat, (0, size * world_size - len(flat))).view(world_size, size).numpy())
    return found


def _judge(
    data: Any,
    world_size: int,
    widths: list[int],
    bucket_bytes: int,
    unused: bool,
    order: list[int] | None = None,
    many: bool = False,
    second: bool = False,
    dtype: str = "float64",
) -> None:
    if second:
        buckets = _buckets(widths, bucket_bytes, DTYPES[dtype].itemsize)
        return second_objects.judge_gradients(data, world_size, buckets, dtype)
    sizes = [sum(_numels(widths)[k] for k in bucket) for bucket in _buckets(widths, bucket_bytes)]
    pieces = [-(-size // world_size) for size in sizes]
    if many:
        return judge_many(data, world_size, pieces, _mean_shards(widths, bucket_bytes, unused, order, world_size, 0))
    what = f"{n_ranks(world_size)}, buckets of {bucket_bytes} bytes" + (", the last layer unused" if unused else "")
    what += ", layers used in another order than they stand in the model" if order else ""
    require_no_deadlock(
        data, what, cause="all ranks start the same buckets in one order: those that are not full in wait()."
    )
    trace = Trace.from_plain(data["trace"])
    judge_calls(what, trace, pieces, world_size, STEPS)
    for rank, result in enumerate(data["results"]):
        judge_left(what, result["left"], rank, in_order=bool(order))
    for step in range(STEPS):
        right = _mean_shards(widths, bucket_bytes, unused, order, world_size, step)
        for rank, result in enumerate(data["results"]):
            judge_shards(f"{what}: step {step}, rank {rank}", result["shards"][step], right, rank, world_size)
    for rank, (result, bytes_at) in enumerate(zip(data["results"], data["held"])):
        if world_size > 1:
            _judge_starts(f"{what}: rank {rank}", result, trace.of_rank(rank), _buckets(widths, bucket_bytes))
        _judge_held(f"{what}: during backward rank {rank}", result, bytes_at, _buckets(widths, bucket_bytes), pieces,
                    _numels(widths), world_size)  # fmt: skip


def _n_startable(there: set[int], buckets: list[list[int]]) -> int:
    """How many buckets from the first on are full, with these gradients there."""
    return next((k for k, bucket in enumerate(buckets) if not there.issuperset(bucket)), len(buckets))


def _judge_starts(what: str, result: Any, trace: Trace, buckets: list[list[int]]) -> None:
    """After the hook of each gradient: what is full, and has only full ones before it, is under way."""
    n = len(result["held"]) // STEPS
    starts = [e.start_s for e in trace.of_op("reduce_scatter", "reduce_scatter_tensor")]
    for step in range(STEPS):
        there: set[int] = set()
        for j in range(step * n, (step + 1) * n):
            there.add(result["came"][j])
            at_s = result["moments"][STEPS * n + j]
            due, started = _n_startable(there, buckets), sum(s <= at_s for s in starts) - step * len(buckets)
            if started >= due:
                continue
            cause = "start a bucket in the hook that completes it, not in wait()."
            if started:
                cause = "a bucket that was full early waits for its turn: the hook starts all that can start."
            elif step:
                cause = "wait() starts over: what is counted in a backward pass is set back for the next one."
            raise CheckFailed(
                f"{what}: {due} buckets are full after gradient {j - step * n + 1} of step {step}, {started} of them "
                f"{'is' if started == 1 else 'are'} under way.",
                cause=cause,
            )


def _judge_held(
    what: str, result: Any, bytes_at: list[int] | None, buckets: list[list[int]], pieces: list[int], sizes: list[int],
    world_size: int,
) -> None:  # fmt: skip
    """After each gradient: the shards of what was started, and two buckets; or what waits for one that is not full."""
    n = len(result["held"]) // STEPS
    anywhere = result["anywhere"]
    if bytes_at:
        alone = [there - grads for there, grads in zip(bytes_at[: STEPS * n], result["plain"])]
        anywhere = [there - own for there, own in zip(bytes_at[STEPS * n :], alone)]
    for step in range(STEPS):
        there: set[int] = set()
        for j in range(step * n, (step + 1) * n):
            there.add(result["came"][j])
            started = _n_startable(there, buckets)
            waiting = sum(sizes[k] for k in there - {k for bucket in buckets[:started] for k in bucket})
            under_way = pieces[started - 1] * world_size if started else max(sizes)  # before: what was just computed
            two = max(2 * max(pieces) * world_size, under_way + waiting)
            limit = (sum(pieces[:started]) + two) * ITEM
            if max(result["held"][j], anywhere[j]) > limit:
                raise CheckFailed(
                    f"{what} holds {max(result['held'][j], anywhere[j])} bytes of gradients, {limit} are allowed: "
                    "its shards of the buckets that have started, and two buckets, one that fills and one under way.",
                    cause="flat vectors pile up, or p.grad stays: wait for the bucket before this one as this one "
                    "starts, then keep its shard alone (a copy, no view of the flat vector)."
                    if result["held"][j] > limit
                    else ELSEWHERE,
                )


def _numels(widths: list[int]) -> list[int]:
    return [p.numel() for p in tower(widths).parameters()]


_SECOND = {"world_size": 3, "widths": second_objects.WIDTHS, "bucket_bytes": second_objects.BUCKET_BYTES,
           "unused": False, "second": True}  # fmt: skip


@check(
    "lesson_07.sharded_gradients",
    judge=_judge,
    cases=[
        {"world_size": n, "widths": [3, 5, 4, 2], "bucket_bytes": b, "unused": u}
        for n, b, u in (
            (1, 64, False),
            (2, 1, False),
            (2, 100, False),
            (3, 150, False),
            (4, 1, False),
            (3, 100, True),
            (3, 150, True),
        )
    ]
    + [_SECOND, {**_SECOND, "dtype": "float32"}]
    + [{"world_size": 4, "widths": [3, 3, 3, 3, 3], "bucket_bytes": 96, "unused": False}]
    + [{"world_size": 2, "widths": [3] * 4, "bucket_bytes": 96, "unused": False, "order": [2, 1, 0, 3, 4]}]
    + [MANY],  # gradients that nobody overlooks, in whatever form they are kept
    ok="each rank keeps the mean of its own shards, and two buckets beside them.",
    hint="hint 1 of exercise 7.4",
    hints={
        "hint 3 of exercise 7.4": "not full|unused|without a gradient",
        "hint 2 of exercise 7.4": "pile up|still stands|holds|outlives",
        "hint 1 of exercise 7.4": "reduce_scatter|flat|shard|pad",
    },
    errors={
        "NoneType.* not subscriptable": "none is under way before the first bucket, so ask for that before you "
        "wait; and a bucket that never got full has to be sent in wait, with zeros for what is unused.",
        "NoneType.* no attribute": "a parameter that nobody used has no gradient: zeros where p.grad is None.",
    },
    look="print the bucket's number and p.grad of its parameters before and after each reduce_scatter.",
)
def sharded_gradients(
    make,
    /,
    world_size: int,
    widths: list[int],
    bucket_bytes: int,
    unused: bool,
    order: list[int] | None = None,
    many: bool = False,
    second: bool = False,
    dtype: str = "float64",
):
    """Two backward passes; what stands of the gradients is looked at whenever one arrives."""
    if second:
        return second_objects.drive(second_objects.gradients, make, world_size, dtype)
    if many:
        return drive_many(make, world_size, widths, bucket_bytes)
    args = (make, widths, bucket_bytes, unused, order)
    return observe_memory(make, partial(simulate, _worker, world_size, args, compute="free", echo=False))
