"""The check of lesson 07's sharded weights in time: the next layer is gathered while this one computes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_04.collective_contents import is_made_of, require_in_time, require_sources
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07.watched_layers import GATHERS, SCATTERS
from hw_utils.checks.lesson_07.weights.calls_judge import ITEM, judge_passes, least_gathers
from hw_utils.checks.lesson_07.weights.fully_sharded import ERRORS, judge_numbers, train_steps
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.trace import Event, Trace
from hw_utils.simulate import simulate

WIDTH = 2  # elements of a shard
NOT_SHARDS = "a rank brings layer.shard to a gather, and the slot is filled with what came of it."
NOT_OWN = "the gradient that a layer's backward gave goes into reduce_scatter, flat and padded."


def _judge(data: Any, world_size: int, n_layers: int, forward_s: float, backward_s: float, gather_s: float) -> None:
    what = f"{n_ranks(world_size)}, {n_layers} layers, {forward_s:g} s forward, {backward_s:g} s backward"
    what += f", {gather_s:g} s a gather"
    require_no_deadlock(data, what)
    trace = Trace.from_plain(data["trace"])
    for rank, each in enumerate(data["results"]):
        judge_passes(f"{what}: rank {rank}", each["log"], n_layers, n_steps=1)
    result = data["results"][0]
    start_s, middle_s, end_s = result["times"]
    forward = middle_s - start_s, gather_s + (n_layers - 1) * max(forward_s, gather_s) + forward_s
    turn_s = max(backward_s, 2 * gather_s)
    backward = end_s - middle_s, gather_s + (n_layers - 1) * turn_s + backward_s + gather_s
    for name, (took_s, due_s), pass_s in (("forward", forward, forward_s), ("backward", backward, backward_s)):
        if took_s <= 1.05 * due_s:
            continue
        raise CheckFailed(
            f"{what}: {name} takes {took_s:g} s, with the next layer gathered meanwhile {due_s:g} s are enough.",
            cause=_why_slow(name, trace.of_rank(0), result["log"], n_layers, pass_s),
        )
    for rank in range(world_size):
        _judge_enough(f"{what}: rank {rank}", trace.of_rank(rank), n_layers)
    for rank, each in enumerate(data["results"]):
        who, scatters = f"{what}: rank {rank}", [call for call in each["carried"] if call[0] in SCATTERS]
        require_sources(who, each["carried"], GATHERS, [[one] for one in each["at_first"]], NOT_SHARDS)
        _judge_each_gathered(who, each["carried"], each["at_first"])
        starts_s = [e.start_s for e in sorted(trace.of_rank(rank).of_op(*SCATTERS), key=lambda e: (e.start_s, e.order))]
        there_s = {k: start_s + backward_s for name, k, start_s in each["log"] if name == "backward"}
        owns = [[[one]] for one in each["owns"]]
        require_in_time(who, scatters, starts_s, owns, [there_s[k] for k in range(n_layers)], NOT_OWN, "layer")
    judge_numbers(what, data, trace, [world_size] * n_layers, WIDTH, n_steps=1)


def _judge_each_gathered(who: str, carried: list, shards: list[np.ndarray]) -> None:
    """For forward and for backward, but for the last two, which a rank may keep where it turns around."""
    brought = [np.concatenate(inputs) for kind, inputs in carried if kind in GATHERS]
    for k, shard in enumerate(shards):
        n_times, least = sum(is_made_of(one, [shard]) for one in brought), 2 if k < len(shards) - 2 else 1
        if n_times < least:
            raise CheckFailed(
                f"{who} takes the seconds that are due, but layer {k} is gathered {n_times} times, {least} times are "
                "the least.",
                cause=NOT_SHARDS,
            )


def _judge_enough(what: str, trace: Trace, n_layers: int) -> None:
    """Seconds count only of a step in which each layer's shards travel, as large as they are."""
    for name, ops, least in (("gathered", GATHERS, least_gathers(n_layers, 1)), ("reduced", SCATTERS, n_layers)):
        whole = sum(event.n_bytes >= WIDTH * ITEM for event in trace.of_op(*ops))
        if whole < least:
            raise CheckFailed(
                f"{what}: {whole} times a layer's shards are {name}, {least} times are the least.",
                cause="each layer is gathered for forward and for backward, and its gradient is reduced.",
            )


def _why_slow(name: str, trace: Trace, log: list, n_layers: int, pass_s: float) -> str:
    starts = [s for what, _, s in log if what == name]
    gathers = list(trace.of_op(*GATHERS))
    if others := sorted(trace.ops - {*GATHERS, *SCATTERS}):
        return f"{others[0]} is not needed: all_gather for weights and reduce_scatter for gradients are all."
    if len(gathers) > 2 * n_layers:
        return (
            f"{len(gathers)} gathers, where each of {n_layers} layers needs two: from the last layer to the first the "
            "next one is k - 1."
        )
    if any(b.start_s > a.start_s for a, b in pairwise(gathers)) and not _overlapping(gathers, starts, pass_s):
        return (
            "a layer is gathered when it is used: start the next one's gather before this one computes, and wait later."
        )
    scatters = list(trace.of_op(*SCATTERS))
    if name == "backward" and scatters and min(e.start_s for e in scatters) >= max(starts) + 0.99 * pass_s:
        return "all reduce_scatters start after the last pass: start each as soon as its layer's gradient is there."
    if name == "backward" and any(_waits(e) for e in scatters):
        return "each reduce_scatter is waited for where it starts: keep its handle, and wait at the end of backward."
    begun = max((e.order for e in scatters), default=0)
    if name == "backward" and any(e.waited is not None and e.waited < begun for e in scatters):
        return "a reduce_scatter is waited for before backward goes on: keep its handle, and wait for all at the end."
    return "the network rests while a layer computes: what comes next is under way before the pass begins."


def _overlapping(gathers: list[Event], starts: list[float], pass_s: float) -> bool:
    return any(e.start_s <= s + 1e-9 and e.end_s > s + 1e-9 for e in gathers for s in starts)


def _waits(event: Event) -> bool:
    """Whether nothing else was called between the start of a call and its wait."""
    return event.waited is not None and event.waited - event.order <= 1


@check(
    "lesson_07.fully_sharded_in_time",
    judge=_judge,
    cases=[
        {"world_size": n, "n_layers": k, "forward_s": f, "backward_s": b, "gather_s": g}
        for n, k, f, b, g in (
            (2, 4, 1.0, 2.0, 0.5), (2, 4, 0.5, 1.0, 1.0), (3, 6, 1.0, 2.0, 1.0), (4, 6, 1.0, 4.0, 0.25)
        )
    ],
    ok="the gathering hides behind the computing, or the other way round, to 5 %.",
    hint="hint 3 of exercise 7.5",
    errors=ERRORS,
    look="draw the timeline of your own run with 4 layers.",
)  # fmt: skip
def fully_sharded_in_time(
    make, /, world_size: int, n_layers: int, forward_s: float, backward_s: float, gather_s: float
):
    """One step through layers of one size that take a known time, over links on which a gather does."""
    hidden = [world_size] * n_layers  # a shard of WIDTH elements
    network = Network(0.0, (world_size - 1) * WIDTH * ITEM / gather_s)
    args = (make, hidden, WIDTH, forward_s, backward_s, 1)
    return observe(lambda: simulate(train_steps, world_size, args, network=network, compute="free", echo=False))
