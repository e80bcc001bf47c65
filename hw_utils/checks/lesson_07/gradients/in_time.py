"""The check of lesson 07's sharded gradients in time: buckets that travel while backward goes on."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_04.collective_contents import note_inputs, require_in_time
from hw_utils.checks.lesson_05.drawn_chains import chain, gradients_of, input_of
from hw_utils.checks.lesson_05.hooks_in_time import NOT_GRADIENTS
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07.gradients.sharded_gradients import ITEM
from hw_utils.checks.lesson_07.gradients.shards_judge import judge_shards
from hw_utils.checks.lesson_07.watched_layers import SCATTERS, cut
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Event, Trace
from hw_utils.simulate import simulate


def n_elements(world_size: int) -> int:
    """Of a layer: parts of 24 for every rank."""
    return 24 * world_size


def _worker(
    rank: int, world_size: int, make: Any, n_layers: int, backward_s: float, is_second: bool
) -> tuple[float, list, Any]:
    """When the pass began that is timed, what went into collectives, and the shards."""
    carried, n = note_inputs(), n_elements(world_size)
    model = chain(n_layers, n, backward_s)
    gradients = make(model, ITEM * n)
    if is_second:
        model(input_of(rank, n)).backward()
        gradients.wait()
    began_s = time.perf_counter()
    model(input_of(rank, n)).backward()
    return began_s, carried, plain(gradients.wait())


def _judge(
    data: Any, world_size: int, n_layers: int, backward_s: float, bucket_s: float, is_second: bool = False
) -> None:
    what = f"{n_ranks(world_size)}, {n_layers} layers of {backward_s:g} s backward, {bucket_s:g} s a bucket"
    what += ", the second step" * is_second
    require_no_deadlock(data, what)
    began_s, *_ = data["results"][0]
    trace = Trace.from_plain(data["trace"])
    events = _timed_events(trace, 0, n_layers * is_second)
    if len(events) != n_layers:
        raise CheckFailed(
            f"{what}: {len(events)} calls of reduce_scatter on rank 0, expected {n_layers}.",
            cause="nothing is sent: what the hooks count starts over in wait."
            if is_second and not events
            else "no gradient goes by reduce_scatter: that gives each rank the sum of its own shard alone."
            if not events
            else "one a bucket, and a bucket holds one layer here.",
        )
    whole = sum(event.n_bytes >= ITEM * n_elements(world_size) for event in events)
    if whole != n_layers:
        raise CheckFailed(
            f"{what}: {whole} of {n_layers} calls of reduce_scatter carry a layer's whole gradient.",
            cause="what travels has half the bytes: keep the dtype that the gradients have."
            if all(2 * event.n_bytes == ITEM * n_elements(world_size) for event in events)
            else "each rank brings its whole bucket, cut into a part for every rank.",
        )
    whole_s, first_s = n_layers * backward_s, events[0].start_s - began_s
    if first_s > 1.1 * backward_s:
        raise CheckFailed(
            f"{what}: the first reduce_scatter starts at {first_s:g} s, its gradients are there at {backward_s:g} s.",
            cause="nothing is sent before the second backward ends: what the hooks count starts over in wait."
            if is_second and first_s >= 0.99 * whole_s
            else "nothing is sent before backward ends: start a bucket in the hook that completes it."
            if first_s >= 0.99 * whole_s
            else "the first bucket waits for a layer that comes later.",
        )
    due_s = whole_s + bucket_s if bucket_s <= backward_s else backward_s + n_layers * bucket_s
    seconds = data["seconds"] - began_s
    if seconds > 1.1 * due_s:
        raise CheckFailed(
            f"{what}: the step takes {seconds:g} s, with overlap {due_s:g} s are enough.",
            cause="each bucket is waited for where it is started: keep its handle, and wait when the next one starts."
            if math.isclose(seconds, whole_s + n_layers * bucket_s, rel_tol=0.02)
            else "some buckets start later than their last gradient.",
        )
    own = gradients_of(world_size, n_layers, n_elements(world_size))[::-1]  # the last layer's is there first
    there_s = [(k + 1) * backward_s for k in range(n_layers)]
    for rank, (began_s, carried, _) in enumerate(data["results"]):
        calls = [call for call in carried if call[0] in SCATTERS][n_layers * is_second :]
        starts_s = [e.start_s - began_s for e in _timed_events(trace, rank, n_layers * is_second)]
        buckets = [[[of_layer[rank]]] for of_layer in own]
        require_in_time(f"{what}: rank {rank}", calls, starts_s, buckets, there_s, NOT_GRADIENTS)
    right = [cut(np.mean(of_layer, axis=0), world_size) for of_layer in own]
    for rank, (*_, shards) in enumerate(data["results"]):
        judge_shards(f"{what}: rank {rank}", shards, right, rank, world_size)


def _timed_events(trace: Trace, rank: int, n_before: int) -> list[Event]:
    """The calls of reduce_scatter in their order, but for those of the step before."""
    return sorted(trace.of_rank(rank).of_op(*SCATTERS), key=lambda e: (e.start_s, e.order))[n_before:]


@check(
    "lesson_07.sharded_gradients_in_time",
    judge=_judge,
    cases=[
        {"world_size": n, "n_layers": k, "backward_s": t, "bucket_s": b}
        for n, k, t, b in ((2, 4, 1.0, 0.5), (2, 4, 0.5, 1.0), (4, 6, 1.0, 1.0))
    ]
    + [{"world_size": 2, "n_layers": 5, "backward_s": 1.0, "bucket_s": 0.5, "is_second": True}],
    ok="buckets travel while backward goes on; the step is within 10 % of the best.",
    hint="hint 2 of exercise 7.4",
    look="draw the timeline of your own run with 4 layers.",
)
def sharded_gradients_in_time(
    make, /, world_size: int, n_layers: int, backward_s: float, bucket_s: float, is_second: bool = False
):
    """One backward pass, or the second of two, of layers that take a known time; a bucket's link time is known."""
    network = Network(0.0, (world_size - 1) / world_size * ITEM * n_elements(world_size) / bucket_s)
    args = (make, n_layers, backward_s, is_second)
    return observe(lambda: simulate(_worker, world_size, args, network=network, compute="free", echo=False))
