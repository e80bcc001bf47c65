"""Checks of lesson 05: where the time goes, bucketing, overlap, attribution."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.overlap import overlap, overlap_in_time
from hw_utils.errors import CheckFailed
from hw_utils.network import Network
from hw_utils.simulate import simulate
from hw_utils.trace import Trace

__all__ = ["overlap", "overlap_in_time"]


def _number(value: Any) -> float:
    """A plain number as a float; NaN for anything else, which no comparison lets pass."""
    if type(value) in (int, float):
        return float(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "if":
        return float(value.reshape(()))
    return math.nan


def _require(what: str, data: Any, expected: float, causes: dict[str, float], *, rel_tol: float = 1e-6) -> None:
    """Raises unless `data` is `expected`; a wrong value that stands in `causes` is named."""
    got = _number(data)
    if math.isclose(got, expected, rel_tol=rel_tol, abs_tol=1e-12):
        return
    named = [cause for cause, value in causes.items() if math.isclose(got, value, rel_tol=rel_tol, abs_tol=1e-12)]
    shown = f"{data!r}" if math.isnan(got) else f"{got:g}"
    raise CheckFailed(f"{what} gave {shown}, expected {expected:g}.", cause=named[0] if named else "")


def _free(worker, world_size: int, *args, network: Network | None = None):
    return simulate(worker, world_size, args, network=network or Network(), compute="free", echo=False)


# 5.1 expectation ---------------------------------------------------------------------------------------------


def _two_phases(rank: int, world_size: int, serial_s: float, parallel_s: float) -> None:
    if rank == 0:
        time.sleep(serial_s)
    dist.barrier()
    time.sleep(parallel_s / world_size)


_NO_COST = Network(latency_s=0.0, bandwidth_Bps=1e300)


def _judge_amdahl(data: Any, world_size: int, serial_fraction: float) -> None:
    phases = (serial_fraction, 1 - serial_fraction)
    alone, together = (_free(_two_phases, n, *phases, network=_NO_COST).seconds for n in (1, world_size))
    s, n = serial_fraction, world_size
    causes = {
        "that is the time, not how many times faster: one over it.": together,
        "the serial part does not shrink with N.": float(n),
        "the parallel part is 1 - serial_fraction, and only it is divided by N.": 1 / (s / n + 1 - s),
    }
    _require(f"amdahl_speedup({n}, {s})", data, alone / together, causes)


@check(
    "lesson_05.amdahl_speedup",
    judge=_judge_amdahl,
    cases=[{"world_size": n, "serial_fraction": s} for n, s in ((1, 0.25), (4, 0.0), (8, 0.05), (64, 0.5), (5, 1.0))],
    ok="the speedup is that of a run with a serial part, for 1 to 64 workers.",
    hint="hint 1 of exercise 5.1",
)
def amdahl_speedup(formula, /, world_size: int, serial_fraction: float):
    """The formula's value; the judge measures a run with a serial part."""
    return formula(world_size, serial_fraction)


def _server(rank: int, world_size: int, n_bytes: int) -> None:
    model = torch.zeros(n_bytes, dtype=torch.uint8)
    for other in range(1, world_size):
        if rank == 0:
            dist.recv(model, other)
        elif rank == other:
            dist.send(model, 0)
    for other in range(1, world_size):
        if rank == 0:
            dist.send(model, other)
        elif rank == other:
            dist.recv(model, 0)


def _judge_server_bytes(data: Any, world_size: int, n_bytes: int) -> None:
    trace = _free(_server, world_size, n_bytes).trace
    through = sum(e.n_bytes for e in trace.of_rank(0))
    causes = {
        "gradients come in and weights go out: count both ways.": through / 2,
        "the server is rank 0 itself: it sends nothing to itself.": 2.0 * world_size * n_bytes,
        "that is what one other rank moves; all of them meet at the server.": 2.0 * n_bytes,
    }
    _require(f"server_bytes({world_size}, {n_bytes})", data, through, causes)


@check(
    "lesson_05.server_bytes",
    judge=_judge_server_bytes,
    cases=[{"world_size": n, "n_bytes": m} for n, m in ((1, 100), (2, 100), (5, 1000), (16, 64))],
    ok="as many bytes pass the server as a run with one moved.",
    hint="hint 2 of exercise 5.1",
)
def server_bytes(formula, /, world_size: int, n_bytes: int):
    """The formula's value; the judge counts the bytes of a run with a parameter server."""
    return formula(world_size, n_bytes)


def _all_reduce_of(rank: int, world_size: int, n_bytes: int, n_calls: int = 1) -> None:
    for _ in range(n_calls):
        dist.all_reduce(torch.zeros(n_bytes, dtype=torch.uint8))


def _judge_ring_bytes(data: Any, world_size: int, n_bytes: int) -> None:
    sent = _free(_all_reduce_of, world_size, n_bytes).trace.bytes_sent(0)
    causes = {
        "that is one phase: chunks go around once to be added and once more to be handed out.": sent / 2,
        "that is what all ranks send together; the question is one rank.": float(sent * world_size),
        "a rank never sends the chunk that ends with it: N - 1 of N chunks a phase.": 2.0 * n_bytes,
    }
    _require(f"ring_bytes({world_size}, {n_bytes})", data, sent, causes)


@check(
    "lesson_05.ring_bytes",
    judge=_judge_ring_bytes,
    cases=[{"world_size": n, "n_bytes": m} for n, m in ((1, 100), (2, 100), (4, 1000), (16, 1600))],
    ok="a rank of the ring sends what the ledger of all_reduce says.",
    hint="hint 3 of exercise 5.1",
)
def ring_bytes(formula, /, world_size: int, n_bytes: int):
    """The formula's value; the judge reads the ledger of an all_reduce."""
    return formula(world_size, n_bytes)


# 5.2 measure -------------------------------------------------------------------------------------------------

PROFILE = ("comp_s", "comm_s", "iteration_s", "n_calls")


def _judge_profile(data: Any, world_size: int, n_iterations: int, batch_size: int, compute: str) -> None:
    what = f"profiled_training with {world_size} ranks, {n_iterations} iterations, compute {compute}"
    require_no_deadlock(data, what, cause="every rank makes the same calls, parameter by parameter.")
    trace = Trace.from_plain(data["trace"])
    for rank in range(world_size):
        profile = data["results"][rank]
        if not isinstance(profile, dict) or not set(PROFILE) <= set(profile):
            raise CheckFailed(f"{what}: rank {rank} returned {profile!r}; expected a dict with {', '.join(PROFILE)}.")
        _judge_rank_profile(what, {k: _number(profile[k]) for k in PROFILE}, trace.of_rank(rank), n_iterations, compute)


def _judge_rank_profile(what: str, profile: dict[str, float], mine: Trace, n_iterations: int, compute: str) -> None:
    calls = mine.of_op("all_reduce")
    expected_calls = 8 * n_iterations if mine.world_size > 1 else 0  # SimpleCNN has 8 parameters
    if len(calls) != expected_calls:
        raise CheckFailed(
            f"{what}: the ledger has {len(calls)} all_reduce calls a rank, expected {expected_calls}.",
            cause="one call a parameter and iteration; with one rank there is nothing to reduce.",
        )
    if profile["n_calls"] != expected_calls:
        raise CheckFailed(
            f"{what}: n_calls is {profile['n_calls']:g}, the ledger has {expected_calls}.",
            cause="n_calls counts every all_reduce of the run, not iterations or parameters.",
        )
    in_ledger = _under_way_s(calls) / n_iterations
    tolerance = 1e-6 if compute == "free" else 0.25
    got = profile["comm_s"]
    if not math.isclose(got, in_ledger, rel_tol=tolerance, abs_tol=1e-9 if compute == "free" else 2e-3):
        causes = {
            "comm_s is the mean of an iteration, not the whole run: divide by n_iterations.": in_ledger * n_iterations,
            "comm_s covers all 8 calls of an iteration, not one of them.": calls[-1].seconds if calls else math.nan,
            "the clock was read before the calls were done.": 0.0,
        }
        near = [c for c, v in causes.items() if math.isclose(got, v, rel_tol=tolerance, abs_tol=1e-9)]
        raise CheckFailed(
            f"{what}: comm_s is {got:g} s an iteration, the ledger says {in_ledger:g} s.", cause=near[0] if near else ""
        )
    _judge_compute(what, profile, compute)


def _under_way_s(calls: Trace) -> float:
    """Seconds in which at least one of the calls was under way: several may be at once, with async_op."""
    seconds, until_s = 0.0, -math.inf
    for event in sorted(calls, key=lambda e: e.start_s):
        seconds += max(0.0, event.end_s - max(event.start_s, until_s))
        until_s = max(until_s, event.end_s)
    return seconds


def _judge_compute(what: str, profile: dict[str, float], compute: str) -> None:
    comp_s, comm_s, iteration_s = (profile[k] for k in ("comp_s", "comm_s", "iteration_s"))
    if compute == "free":
        if not abs(comp_s) <= 1e-9:
            raise CheckFailed(
                f"{what}: compute is free on this cluster, but comp_s is {comp_s:g} s.",
                cause="communication was counted as compute: read the clock between the two.",
            )
    elif not comp_s > 0:
        raise CheckFailed(f"{what}: comp_s is {comp_s:g} s; forward, backward and step take longer than that.")
    if not math.isclose(comp_s + comm_s, iteration_s, rel_tol=0.1, abs_tol=1e-9):
        raise CheckFailed(
            f"{what}: comp_s + comm_s is {comp_s + comm_s:g} s, but iteration_s is {iteration_s:g} s.",
            cause="an iteration is its compute (forward, backward, step) and its communication, nothing else.",
        )


@check(
    "lesson_05.profiled_training",
    judge=_judge_profile,
    cases=[
        {"world_size": n, "n_iterations": k, "batch_size": 4, "compute": c}
        for n, k, c in ((1, 2, "measured"), (2, 3, "free"), (4, 2, "measured"))
    ],
    ok="compute and communication time and the number of calls agree with the ledger.",
    hint="hint 1 of exercise 5.2",
)
def profiled_training(worker, /, world_size: int, n_iterations: int, batch_size: int, compute: str):
    """A few iterations on a slow virtual network, beside the ledger."""
    network = Network(latency_s=1e-3, bandwidth_Bps=1e8)
    args = (n_iterations, batch_size)
    return observe(lambda: simulate(worker, world_size, args, network=network, compute=compute, echo=False))


def _judge_calls(data: Any, n_parameters: int, n_examples: int, batch_size: int, world_size: int) -> None:
    iterations = len(range(0, n_examples, batch_size * world_size))
    calls = n_parameters * iterations if world_size > 1 else 0
    causes = {
        "one rank has nobody to talk to: no call.": float(n_parameters * iterations) if world_size == 1 else math.nan,
        "each rank has its own batch: an iteration uses batch_size * world_size examples.": float(
            n_parameters * len(range(0, n_examples, batch_size))
        ),
        "the last, smaller batch is an iteration too.": float(n_parameters * (n_examples // (batch_size * world_size))),
        "one call a parameter, not one an iteration.": float(iterations),
    }
    what = f"calls_per_epoch({n_parameters}, {n_examples}, {batch_size}, {world_size})"
    _require(what, data, calls, causes)


@check(
    "lesson_05.calls_per_epoch",
    judge=_judge_calls,
    cases=[
        {"n_parameters": p, "n_examples": m, "batch_size": b, "world_size": n}
        for p, m, b, n in (
            (8, 1024, 128, 2),
            (8, 1025, 128, 2),
            (8, 50_000, 128, 4),
            (34, 1000, 128, 8),
            (8, 1000, 128, 1),
        )
    ],
    ok="the calls of an epoch were counted.",
    hint="hint 2 of exercise 5.2",
)
def calls_per_epoch(formula, /, n_parameters: int, n_examples: int, batch_size: int, world_size: int):
    """How often all_reduce is called in an epoch."""
    return formula(n_parameters, n_examples, batch_size, world_size)


def _judge_metrics(data: Any, profiles: list[list[float]]) -> None:
    if not isinstance(data, dict):
        raise CheckFailed(f"scaling_metrics returned {type(data).__name__}; expected a dict, world size to metrics.")
    alone_s = next(iteration_s for n, _, _, iteration_s in profiles if n == 1)
    for n, comp_s, comm_s, iteration_s in profiles:
        row = data.get(str(int(n)))
        if not isinstance(row, dict):
            raise CheckFailed(f"scaling_metrics has no row for {int(n)} ranks.")
        examples = n * (alone_s / iteration_s)  # how many batches in the time that one rank needs for one
        ratio = comp_s / comm_s if comm_s else math.inf
        what = f"scaling_metrics with {int(n)} ranks: "
        swapped = {"that is communication over compute.": comm_s / comp_s if comp_s else math.nan}
        if comm_s == 0:
            swapped = {"with no communication the ratio is infinite: math.inf.": 0.0}
        _require(f"{what}ratio", row.get("ratio"), ratio, swapped)
        causes = {
            "every rank has its own batch: N ranks do N batches in an iteration.": alone_s / iteration_s,
            "that is upside down.": iteration_s / alone_s * n,
            "N alone is the ideal.": float(n),
        }
        _require(f"{what}speedup", row.get("speedup"), examples, causes if n > 1 else {})
        causes = {
            "efficiency is the speedup divided by N, 1 at best.": examples,
            "in percent? 1 means 100 %.": 100 * examples / n,
        }
        _require(f"{what}efficiency", row.get("efficiency"), examples / n, causes)


@check(
    "lesson_05.scaling_metrics",
    judge=_judge_metrics,
    cases=[
        {"profiles": [[1, 0.2, 0.0, 0.2], [2, 0.2, 0.05, 0.25]]},
        {"profiles": [[1, 0.1, 0.0, 0.1], [4, 0.12, 0.08, 0.2], [8, 0.15, 0.25, 0.4]]},
    ],
    ok="ratio, speedup and efficiency are right, infinity included.",
    hint="hint 3 of exercise 5.2",
)
def scaling_metrics(function, /, profiles: list[list[float]]):
    """Metrics from profiles, world size to comp_s, comm_s, iteration_s."""
    keys = ("comp_s", "comm_s", "iteration_s")
    return function({int(n): dict(zip(keys, times)) for n, *times in profiles})


# 5.3 bucketing -----------------------------------------------------------------------------------------------

SHAPES = ((3, 4), (5,), (2, 2, 2))  # 25 elements


def _gradients_of(rank: int) -> list[torch.Tensor]:
    """Rank r holds 10**r * 1, 2, 3, ...: a wrong digit names the rank."""
    flat = 10.0**rank * torch.arange(1, 26, dtype=torch.float64)
    return [part.view(shape).clone() for part, shape in zip(flat.split([math.prod(s) for s in SHAPES]), SHAPES)]


def _judge_bucketed(data: Any, world_size: int, bucket_elements: int) -> None:
    what = f"bucketed_all_reduce with {world_size} ranks, 25 elements, {bucket_elements} a bucket"
    require_no_deadlock(data, what, cause="every rank must make the same number of calls.")
    mean = sum(10.0**r for r in range(world_size)) / world_size
    for rank in range(world_size):
        _require_mean(what, rank, data["results"][rank], mean, world_size)
    trace = Trace.from_plain(data["trace"])
    others = sorted(trace.ops - {"all_reduce"})
    if others:
        raise CheckFailed(f"{what}: called {', '.join(others)}; all_reduce is enough.")
    n_calls = len(range(0, 25, bucket_elements))
    for rank in range(world_size):
        sizes = [e.n_bytes // 8 for e in trace.of_rank(rank)]
        if sizes[:-1] != [bucket_elements] * (n_calls - 1) or len(sizes) != n_calls or sizes[-1] > bucket_elements:
            cause = "bucket_elements is how many elements a bucket holds: no bytes, and no number of buckets."
            borders = np.cumsum([math.prod(shape) for shape in SHAPES])
            if max(sizes, default=0) <= bucket_elements < 25 and set(borders) <= set(np.cumsum(sizes)):
                cause = "buckets are cut at parameter borders: lay all gradients out in one flat vector, then cut."
            if sorted(sizes) == sorted(math.prod(shape) for shape in SHAPES):
                cause = "that is one call a parameter, no bucket at all."
            elif len(sizes) == 1:
                cause = "everything went in one call: cut the flat vector into buckets."
            elif len(sizes) == n_calls:
                cause = "every bucket but the last holds exactly bucket_elements: split, do not cut into equal parts."
            raise CheckFailed(
                f"{what}: rank {rank} reduced {sizes} elements a call, expected {n_calls} calls.", cause=cause
            )


def _require_mean(what: str, rank: int, got: Any, mean: float, world_size: int) -> None:
    if not isinstance(got, list) or [getattr(g, "shape", None) for g in got] != list(SHAPES):
        raise CheckFailed(f"{what}: the gradients on rank {rank} changed their shapes; write the means back in place.")
    flat = np.concatenate([g.reshape(-1) for g in got])
    wrong = np.flatnonzero(~np.isclose(flat, mean * np.arange(1, 26), rtol=1e-12, atol=0))
    if not len(wrong):
        return
    k = int(wrong[0])
    scale = flat[k] / (k + 1)
    causes = {
        "that is the sum: divide by the number of ranks.": mean * world_size,
        "it was divided twice.": mean / world_size,
        "this element was never reduced: is the last, shorter bucket left out, or the result not written back?": 10.0
        ** rank,
        "its own value was divided, but not reduced.": 10.0**rank / world_size,
    }
    near = [c for c, v in causes.items() if math.isclose(scale, v, rel_tol=1e-9)]
    raise CheckFailed(
        f"{what}: element {k} on rank {rank} is {flat[k]:g}, expected {mean * (k + 1):g} (rank r brings 10**r).",
        cause=near[0] if near else "the elements are out of order: cut and write back in the same order.",
    )


@check(
    "lesson_05.bucketed_all_reduce",
    judge=_judge_bucketed,
    cases=[
        {"world_size": n, "bucket_elements": b}
        for n, b in ((1, 25), (2, 25), (2, 1), (3, 7), (4, 10), (4, 1000), (3, 24))
    ],
    ok="means are right in as few calls as the buckets allow, from 1 element to the whole model.",
    hint="hint 1 of exercise 5.3",
)
def bucketed_all_reduce(function, /, world_size: int, bucket_elements: int):
    """Three gradients of 25 elements in all, reduced in buckets."""

    def worker(rank: int, world_size: int) -> list[torch.Tensor]:
        gradients = _gradients_of(rank)
        function(list(gradients), bucket_elements)
        return gradients

    return observe(lambda: _free(worker, world_size))


def _judge_bucketed_s(data: Any, n_bytes: int, bucket_bytes: int, world_size: int, link: list[float]) -> None:
    n_calls, (latency_s, bandwidth_Bps) = n_bytes // bucket_bytes, link
    network = Network(latency_s, bandwidth_Bps)
    seconds = _free(_all_reduce_of, world_size, bucket_bytes, n_calls, network=network).seconds
    one = _free(_all_reduce_of, world_size, n_bytes, network=network).seconds
    causes = {
        "that is one bucket; there are n_bytes / bucket_bytes of them.": seconds / n_calls,
        "that is one all-reduce of everything: latency is paid once a bucket.": one,
        "half of it: a ring has two phases.": seconds / 2,
    }
    what = f"bucketed_s({n_bytes}, {bucket_bytes}, {world_size}, Network({latency_s:g}, {bandwidth_Bps:g}))"
    _require(what, data, seconds, causes)


@check(
    "lesson_05.bucketed_s",
    judge=_judge_bucketed_s,
    cases=[
        {"n_bytes": m, "bucket_bytes": b, "world_size": n, "link": [1e-3, 1e6]}
        for m, b, n in ((8000, 8000, 2), (8000, 1000, 2), (48_000, 4800, 4), (48_000, 48, 8))
    ],
    ok="predicted and virtual seconds agree for every bucket size.",
    hint="hint 2 of exercise 5.3",
)
def bucketed_s(formula, /, n_bytes: int, bucket_bytes: int, world_size: int, link: list[float]):
    """Predicted seconds; the judge runs the all-reduces on a virtual network."""
    return formula(n_bytes, bucket_bytes, world_size, Network(*link))


# 5.4 overlap: the hooks are checked in overlap.py --------------------------------------------------------------


def _pipeline(rank: int, world_size: int, compute_s: float, n_buckets: int, n_bytes: int) -> None:
    works = []
    for _ in range(n_buckets):
        time.sleep(compute_s / n_buckets)
        works.append(dist.all_reduce(torch.zeros(n_bytes, dtype=torch.uint8), async_op=True))
    for work in works:
        work.wait()


def _judge_overlapped_s(data: Any, compute_s: float, n_buckets: int, bucket_s: float) -> None:
    # two ranks, no latency: a ring of two moves the tensor in two halves, n_bytes / bandwidth in all
    network = Network(latency_s=0.0, bandwidth_Bps=1000 / bucket_s)
    seconds = _free(_pipeline, 2, compute_s, n_buckets, 1000, network=network).seconds
    causes = {
        "that is without overlap: compute, then all communication.": compute_s + n_buckets * bucket_s,
        "the first bucket cannot start before its part of backward is done.": n_buckets * bucket_s,
        "the last bucket is ready only when backward is done: its communication is still to come.": max(
            compute_s, n_buckets * bucket_s
        ),
    }
    _require(f"overlapped_s({compute_s}, {n_buckets}, {bucket_s})", data, seconds, causes)


@check(
    "lesson_05.overlapped_s",
    judge=_judge_overlapped_s,
    cases=[
        {"compute_s": c, "n_buckets": b, "bucket_s": t}
        for c, b, t in ((1.0, 1, 0.5), (1.0, 4, 0.1), (1.0, 4, 0.25), (1.0, 4, 0.5), (2.0, 16, 1.0))
    ],
    ok="the step takes as long as the virtual pipeline, whichever of the two is the slower.",
    hint="hint 1 of exercise 5.4",
)
def overlapped_s(formula, /, compute_s: float, n_buckets: int, bucket_s: float):
    """Predicted seconds of a step; the judge runs the pipeline."""
    return formula(compute_s, n_buckets, bucket_s)


# 5.5 attribution ---------------------------------------------------------------------------------------------


def _judge_step_under(data: Any, world_size: int, conditions: dict[str, float]) -> None:
    serial_s, slow = conditions.get("serial_s", 0.0), conditions.get("straggler", 1.0)
    cores, compute_s = conditions.get("cores", 0) or world_size, 1.0
    what = f"step_under with {world_size} ranks, {conditions or 'nothing switched on'}"
    require_no_deadlock(data, what)
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    reduce_s = _free(_all_reduce_of, world_size, 40_000, network=network).seconds
    each = compute_s * max(1.0, world_size / cores)
    expected = serial_s + each * slow + reduce_s
    causes = {
        "the serial part is rank 0's alone, and everybody waits for it: barrier after it.": max(serial_s, each * slow)
        + reduce_s,
        "every rank slowed down; a straggler is the last rank only, and that is enough.": math.nan,
        "ranks beyond the cores take turns: compute takes world_size / cores as long.": serial_s
        + compute_s * slow
        + reduce_s,
        "the all-reduce is missing.": serial_s + each * slow,
        "the straggler makes no difference yet.": serial_s + each + reduce_s,
    }
    _require(f"{what}: the step", data["seconds"], expected, causes, rel_tol=5e-3)
    mine = Trace.from_plain(data["trace"]).of_rank(world_size - 1)
    if serial_s and sum(e.wait_end_s - e.wait_start_s for e in mine) < 0.99 * serial_s:
        raise CheckFailed(
            f"{what}: rank {world_size - 1} does not wait for rank 0's serial part.",
            cause="only rank 0 is busy with it; the others stand in a barrier meanwhile.",
        )
    own = {
        r: sum(e.wait_end_s - e.wait_start_s for e in Trace.from_plain(data["trace"]).of_rank(r).of_op("all_reduce"))
        for r in range(world_size)
    }
    if slow > 1 and not own[0] > own[world_size - 1] + 0.5 * (slow - 1) * each:
        raise CheckFailed(
            f"{what}: rank 0 does not wait for rank {world_size - 1} in the all-reduce.",
            cause="every rank slowed down; a straggler is the last rank only, and that is enough.",
        )


@check(
    "lesson_05.step_under",
    judge=_judge_step_under,
    cases=[
        {"world_size": n, "conditions": c}
        for n, c in (
            (4, {}),
            (4, {"serial_s": 0.5}),
            (4, {"straggler": 1.5}),
            (8, {"cores": 2}),
            (4, {"serial_s": 0.25, "straggler": 2.0, "cores": 2}),
        )
    ],
    ok="each condition alone, and all together, cost what they should.",
    hint="hint 1 of exercise 5.5",
)
def step_under(worker, /, world_size: int, conditions: dict[str, float]):
    """One step of 1 s compute and 40 kB of gradients under the given conditions."""
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    return observe(lambda: _free(worker, world_size, dict(conditions), network=network))


def _judge_waterfall(data: Any, ideal_s: float, alone_s: dict[str, float], actual_s: float) -> None:
    what = f"waterfall({ideal_s}, {alone_s}, {actual_s})"
    if not isinstance(data, dict):
        raise CheckFailed(f"{what} returned {type(data).__name__}; expected a dict, cause to seconds.")
    expected_keys = ["ideal", *alone_s, "together"]
    if list(data) != expected_keys:
        raise CheckFailed(f"{what} has the parts {list(data)}, expected {expected_keys}.")
    _require(f"{what}: ideal", data["ideal"], ideal_s, {})
    for cause, seconds in alone_s.items():
        _require(
            f"{what}: {cause}",
            data[cause],
            seconds - ideal_s,
            {"that is the whole step; a part is what it adds to the ideal one.": seconds},
        )
    total = sum(_number(v) for v in data.values())
    if not math.isclose(total, actual_s, rel_tol=1e-9):
        raise CheckFailed(
            f"{what}: the parts add up to {total:g} s, the actual step takes {actual_s:g} s.",
            cause="`together` is what the causes cost beyond each alone; it closes the sum and may be negative.",
        )


@check(
    "lesson_05.waterfall",
    judge=_judge_waterfall,
    cases=[
        {"ideal_s": 1.0, "alone_s": {"serial": 1.5}, "actual_s": 1.5},
        {"ideal_s": 1.0, "alone_s": {"serial": 1.25, "straggler": 1.5, "cores": 2.0}, "actual_s": 3.5},
        {"ideal_s": 2.0, "alone_s": {"link": 2.5, "straggler": 3.0}, "actual_s": 3.25},
    ],
    ok="the parts add up, from the ideal step to the actual one.",
    hint="hint 2 of exercise 5.5",
)
def waterfall(function, /, ideal_s: float, alone_s: dict[str, float], actual_s: float):
    """Parts of a step's time, from the ideal to the actual one."""
    return function(ideal_s, dict(alone_s), actual_s)
