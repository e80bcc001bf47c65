"""The check of lesson 05's hooks in time: how long a step takes whose buckets travel during the backward pass."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_04.collective_contents import note_inputs, require_in_time
from hw_utils.checks.lesson_05.drawn_chains import chain, gradients_of, input_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.trace import Event, Trace
from hw_utils.simulate import simulate

_N_BYTES = 8 * 120  # of a bucket


def _timed_worker(
    rank: int, world_size: int, make: Any, n_layers: int, n_elements: int, backward_s: float, order: list[int],
    in_no_sync: bool, is_second: bool,
) -> tuple[float, list, list]:  # fmt: skip
    """When the step began that is timed, what went into collectives, and the gradients that are left."""
    carried = note_inputs()
    a_bucket = _layers_a_bucket(order)
    model = chain(a_bucket * n_layers, n_elements // a_bucket, backward_s / a_bucket)
    parameters, x = list(model.parameters()), input_of(rank, n_elements // a_bucket)
    gradients = make(model, 8 * n_elements)
    if order:
        model.layers = torch.nn.ModuleList(model.layers[n_layers - 1 - bucket] for bucket in reversed(order))
    if in_no_sync:
        with gradients.no_sync():
            model(x).backward()
    if is_second:
        model(x).backward()
        gradients.wait()
    began_s = time.perf_counter()
    model(x).backward()
    gradients.wait()
    return began_s, carried, [p.grad for p in parameters]


def _layers_a_bucket(order: list[int] | None) -> int:
    """Two half layers, or a layer where they come in another order."""
    return 1 if order else 2


def _judge_in_time(
    data: Any, world_size: int, n_layers: int, backward_s: float, bucket_s: float, order: list[int] | None = None,
    in_no_sync: bool = False, is_second: bool = False,
) -> None:  # fmt: skip
    what = f"{world_size} ranks, {n_layers} layers of {backward_s:g} s backward, {bucket_s:g} s a bucket"
    if order:
        what += f", whose gradients come in the order of buckets {', '.join(map(str, order))}"
    if in_no_sync:
        what += ", after a backward in no_sync"
    if is_second:
        what += ", the second step"
    require_no_deadlock(data, what)
    trace = Trace.from_plain(data["trace"])
    began_s, *_ = data["results"][0]
    events = _timed_events(trace, 0, n_layers * is_second)
    if len(events) != n_layers:
        raise CheckFailed(
            f"{what}: {len(events)} all_reduce calls on rank 0, expected {n_layers}.",
            cause="inside no_sync() nothing may be sent, neither in a hook nor where it ends: every bucket goes off "
            "once, with the next backward."
            if in_no_sync and len(events) == 2 * n_layers and {e.n_bytes for e in events} == {_N_BYTES}
            else "one all_reduce a bucket: both of its gradients in one flat vector."
            if len(events) == 2 * n_layers
            else "after no_sync() not every bucket goes off: a gradient that came in it is not counted, and what it "
            "switches off is on again behind it."
            if in_no_sync and len(events) < n_layers
            else "nothing is sent in the second step: at the end of wait() everything starts over (start_over)."
            if is_second and not events
            else "every bucket is started once: in the hook when it is complete, or in wait().",
        )
    if any(e.waited is None for e in events):
        raise CheckFailed(
            f"{what}: not every all_reduce was waited for.", cause="keep every handle, and wait() for each in wait."
        )
    backward_end_s = n_layers * backward_s
    first = events[0].start_s - began_s
    ready_s = _ready_s(n_layers, backward_s, order)
    if first > ready_s[0] + 0.1 * backward_s:
        raise CheckFailed(
            f"{what}: the first all_reduce starts at {first:g} s, the gradients of the first bucket are there at "
            f"{ready_s[0]:g} s.",
            cause="nothing is sent before backward ends: a gradient that came in no_sync is not to be counted."
            if in_no_sync and first >= backward_end_s * 0.99
            else "nothing is sent before the second backward ends: wait starts over with all that was counted."
            if is_second and first >= backward_end_s * 0.99
            else "nothing is sent before backward ends."
            if first >= backward_end_s * 0.99
            else "the first bucket waits for a layer that comes later: fill buckets from the last layer to the first.",
        )
    predicted_s = _predicted_s(ready_s, bucket_s)
    seconds = data["seconds"] - began_s
    if not seconds <= 1.1 * predicted_s:
        serial_s = backward_end_s + n_layers * bucket_s
        raise CheckFailed(
            f"{what}: the step takes {seconds:g} s; with overlap {predicted_s:g} s are enough.",
            cause="a barrier takes time too: each handle is waited for, and nothing else."
            if "barrier" in trace.ops
            else "each all_reduce is waited for inside the hook: keep its handle, and wait in wait()."
            if math.isclose(seconds, serial_s, rel_tol=0.02)
            else "a bucket is waited for before a later one starts, and backward stands still meanwhile: keep "
            "each handle, and wait in wait() only."
            if any(e.wait_end_s > e.wait_start_s and e.wait_start_s < events[-1].start_s for e in events)
            else "buckets that were complete before their turn start later than they could: once one has gone off, "
            "look at the next one at once, and the one after it."
            if order
            else "some buckets start later than their last gradient.",
        )
    why = NOT_GRADIENTS + (" What came in no_sync is not to be counted." if in_no_sync else "")
    of_layers = gradients_of(world_size, _layers_a_bucket(order) * n_layers, _N_BYTES // 8 // _layers_a_bucket(order))
    buckets = _buckets_of(of_layers, n_layers)  # after a step a gradient may have all ranks' mean in it
    for rank, (began_s, carried, _) in enumerate(data["results"]):
        calls = [call for call in carried if call[0] == "all_reduce"][n_layers * is_second :]
        starts_s = [e.start_s - began_s for e in _timed_events(trace, rank, n_layers * is_second)]
        cause = _TOO_EARLY if any(not np.any(t) for _, inputs in calls for t in inputs) else why
        require_in_time(f"{what}: rank {rank}", calls, starts_s, buckets, _there_s(n_layers, backward_s, order), cause)
    for rank, (*_, left) in enumerate(data["results"]):
        _require_means(f"{what}: after wait() rank {rank}", left, of_layers, 1 + in_no_sync + is_second)


def _timed_events(trace: Trace, rank: int, n_before: int) -> list[Event]:
    """The calls of all_reduce in their order, but for those of the step before."""
    return sorted(trace.of_rank(rank).of_op("all_reduce"), key=lambda e: (e.start_s, e.order))[n_before:]


def _buckets_of(of_layers: list[list[np.ndarray]], n_layers: int) -> list[list[list[np.ndarray]]]:
    """Of each bucket what may travel for it: its layers' gradients in either order, a vector for each rank."""
    a_bucket, last_first = len(of_layers) // n_layers, of_layers[::-1]
    cut = [last_first[k : k + a_bucket] for k in range(0, len(last_first), a_bucket)]
    return [[[np.concatenate(own) for own in zip(*turned)] for turned in (one, one[::-1])] for one in cut]


def _require_means(who: str, left: list[Any], of_layers: list[list[np.ndarray]], n_passes: int) -> None:
    """n_passes: whose gradients have added up."""
    for k, (got, own) in enumerate(zip(left, of_layers)):
        right = n_passes * np.mean(own, axis=0)
        if not isinstance(got, np.ndarray) or got.shape != right.shape or not np.allclose(got, right, 1e-4, 1e-5):
            raise CheckFailed(
                f"{who} has another gradient of layer {k} than the mean over the ranks.",
                cause="what its bucket has brought goes back into p.grad, divided by the number of ranks once.",
            )


_TOO_EARLY = (
    "a bucket went off before its own gradients were there, with zeros in it: what starts it is that it is full itself "
    "and all before it are under way, not that some other bucket is full."
)
NOT_GRADIENTS = "a bucket carries the gradients that are there by then: the flat vector is made of the p.grad in it."


def _there_s(n_layers: int, backward_s: float, order: list[int] | None) -> list[float]:
    """When each bucket's gradients are there."""
    there_s = {bucket: (k + 1) * backward_s for k, bucket in enumerate(order or range(n_layers))}
    return [there_s[k] for k in range(n_layers)]


def _ready_s(n_layers: int, backward_s: float, order: list[int] | None) -> list[float]:
    """When each bucket may start: its gradients are there, and those of all buckets before it."""
    return list(itertools.accumulate(_there_s(n_layers, backward_s, order), max))


def _predicted_s(ready_s: list[float], bucket_s: float) -> float:
    """When the last bucket has arrived, bucket after bucket: ready and link free, then its own time."""
    free_s = 0.0
    for at_s in ready_s:
        free_s = max(free_s, at_s) + bucket_s
    return free_s


@check(
    "lesson_05.overlap_in_time",
    judge=_judge_in_time,
    cases=[
        {"world_size": n, "n_layers": k, "backward_s": t, "bucket_s": b}
        for n, k, t, b in ((2, 4, 1.0, 0.5), (2, 4, 0.5, 1.0), (4, 6, 1.0, 1.0))
    ]
    + [{"world_size": 2, "n_layers": 4, "backward_s": 1.0, "bucket_s": 0.4, "order": [1, 2, 0, 3]}]
    + [{"world_size": 2, "n_layers": 4, "backward_s": 1.0, "bucket_s": 0.5, "in_no_sync": True}]
    + [{"world_size": 2, "n_layers": 4, "backward_s": 1.0, "bucket_s": 0.5, "is_second": True}],
    ok="communication runs during backward, and the step takes what the pipeline predicts.",
    hint="hint 1 of exercise 5.4b",
    hints={
        "hint 1 of exercise 5.4b": "before backward ends|inside the hook|waited|handle|flat",
        "hint 2 of exercise 5.4b": "comes later|later than|before their turn",
        "hint 3 of exercise 5.4b": "hangs|is started once",
    },
    look="print time.perf_counter() and the bucket in start_next.",
)
def overlap_in_time(
    make, /, world_size: int, n_layers: int, backward_s: float, bucket_s: float, order: list[int] | None = None,
    in_no_sync: bool = False, is_second: bool = False,
):  # fmt: skip
    """One backward pass of known times, layer by layer; the ledger says when each bucket left."""
    n_elements = _N_BYTES // 8
    steps = 2 * (world_size - 1)
    # all latency, no bytes: each of the ring's steps takes its share of bucket_s
    network = Network(latency_s=bucket_s / steps, bandwidth_Bps=1e15)
    args = (make, n_layers, n_elements, backward_s, order or [], in_no_sync, is_second)
    return observe(lambda: simulate(_timed_worker, world_size, args, network=network, compute="free", echo=False))
