"""Checks of lesson 05: what is to be expected, against runs on the virtual network."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.expected import all_reduce_of, known, number_of, require
from hw_utils.core.network import Network


def _two_phases(rank: int, world_size: int, serial_s: float, parallel_s: float) -> None:
    if rank == 0:
        time.sleep(serial_s)
    dist.barrier()
    time.sleep(parallel_s / world_size)


_NO_COST = Network(latency_s=0.0, bandwidth_Bps=1e300)


def _judge_amdahl(data: Any, world_size: int, serial_fraction: float) -> None:
    phases = (serial_fraction, 1 - serial_fraction)
    alone, together = (known(_two_phases, n, *phases, network=_NO_COST).seconds for n in (1, world_size))
    s, n = serial_fraction, world_size
    causes = {
        "that is the time, not how many times faster: one over it.": together,
        "the serial part does not shrink with N.": float(n),
        "the parallel part is 1 - serial_fraction, and only it is divided by N.": 1 / (s / n + 1 - s),
        "that is the efficiency: the speedup itself is asked.": alone / together / n,
        "that is the bound for ever more ranks, not for N of them.": min(n, 1 / s) if s else float(n),
        "the serial part takes its time beside the parallel one: what is asked is one time over another.": n * (1 - s),
        "that is Gustafson's, for work that grows with N; here the work stays.": s + (1 - s) * n,
        "that is in percent.": 100 * alone / together,
        "serial_fraction is a fraction, 0.2 and not 20: nothing is divided by 100.": 1 / (s / 100 + (1 - s / 100) / n),
        "a speedup may be a fraction: nothing is rounded.": (float(round(alone / together)), alone // together),
        "only 1 - serial_fraction is shared out, not the whole work.": 1 / (s + 1 / n),
        "that is how much of N times the work is done: one over it, for N ranks' times over one's.": n
        * (s + (1 - s) / n),
        "all N ranks share the parallel part, rank 0 too: divide by N.": 1 / (s + (1 - s) / max(n - 1, 1)),
    }
    require(f"amdahl_speedup({n}, {s})", data, alone / together, causes)


@check(
    "lesson_05.amdahl_speedup",
    judge=_judge_amdahl,
    cases=[
        {"world_size": n, "serial_fraction": s}
        for n, s in ((8, 0.2), (1, 0.25), (3, 0.3), (4, 0.0), (8, 0.05), (64, 0.5), (5, 1.0), (200, 0.01))
    ],
    ok="the speedup is that of a run with a serial part, for 1 to 200 workers.",
    hint="hint 1 of exercise 5.1",
    look="say one rank needs 1 s, and write down what N ranks need.",
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
    trace = known(_server, world_size, n_bytes).trace
    through = sum(e.n_bytes for e in trace.of_rank(0))
    causes = {
        "gradients come in and weights go out: count both ways.": through / 2,
        "the server is rank 0 itself: it sends nothing to itself.": 2.0 * world_size * n_bytes,
        "that is what one other rank moves; all of them meet at the server.": 2.0 * n_bytes,
        "every other rank, both ways: N - 1 gradients come in, and the weights go out N - 1 times.": (
            float(world_size * n_bytes),
            through + n_bytes,
            through - n_bytes,
        ),
        "these are bits: bytes are asked.": 8.0 * through,
        "these are elements: bytes are asked.": through / 4,
        "nothing is divided by N: rank 0 is the one in whose port all of it meets.": through / world_size,
        "n_bytes are bytes already: nothing is multiplied by 4.": 4.0 * through,
        "every other rank gets whole weights back, N - 1 times n_bytes.": through / 2 + n_bytes / world_size,
    }
    require(f"server_bytes({world_size}, {n_bytes})", data, through, causes)


@check(
    "lesson_05.server_bytes",
    judge=_judge_server_bytes,
    cases=[{"world_size": n, "n_bytes": m} for n, m in ((6, 1000), (1, 100), (2, 100), (5, 1000), (16, 64))],
    ok="as many bytes pass the server as a run with one moved.",
    hint="hint 2 of exercise 5.1",
    look="list the messages of one step with 3 ranks, and add up those that rank 0 sends or receives.",
)
def server_bytes(formula, /, world_size: int, n_bytes: int):
    """The formula's value; the judge counts the bytes of a run with a parameter server."""
    return formula(world_size, n_bytes)


def _judge_ring_bytes(data: Any, world_size: int, n_bytes: int) -> None:
    trace = known(all_reduce_of, world_size, n_bytes).trace
    sent = sum(trace.bytes_sent(rank) for rank in range(world_size)) / world_size  # chunks of whole bytes differ by one
    causes = {
        "that is one phase: chunks go around once to be added and once more to be handed out.": sent / 2,
        "that is sent and received together: what a rank sends is asked.": 2 * sent,
        "these are bits: bytes are asked.": 8 * sent,
        "these are elements: bytes are asked.": sent / 4,
        "that is one chunk, one step: there are N - 1 steps in each of two phases.": n_bytes / world_size,
        "chunks may be fractions on paper: / and not //, and nothing rounded.": (
            2.0 * (world_size - 1) * (n_bytes // world_size),
            2.0 * ((world_size - 1) * n_bytes // world_size),
            2.0 * (world_size - 1) // world_size * n_bytes,
        ),
        "chunks may be fractions on paper: nothing is rounded.": float(round(sent)),
        "that is what all ranks send together; the question is one rank.": float(sent * world_size),
        "a rank never sends the chunk that ends with it: N - 1 of N chunks a phase.": 2.0 * n_bytes,
        "upside down: N - 1 of N chunks travel in a phase.": 2.0 * world_size / max(world_size - 1, 1) * n_bytes,
        "a phase has N - 1 steps: one more than this.": 2.0 * (world_size - 2) / world_size * n_bytes,
        "n_bytes are bytes already: nothing is multiplied by 4.": 4.0 * sent,
        "divided by N twice: a chunk is 1/N of n_bytes, and all of its steps count whole.": sent / world_size,
    }
    if world_size == 1:
        causes = {"one rank has nobody to send to: the formula itself gives 0.": number_of(data)}
    causes |= {
        "chunks may be fractions on paper: nothing is rounded, neither up nor down.": 2.0
        * (world_size - 1)
        * math.ceil(n_bytes / world_size),
    }
    require(f"ring_bytes({world_size}, {n_bytes})", data, sent, causes)


@check(
    "lesson_05.ring_bytes",
    judge=_judge_ring_bytes,
    cases=[{"world_size": n, "n_bytes": m} for n, m in ((5, 1000), (1, 100), (2, 100), (3, 100), (16, 1600))],
    ok="a rank of the ring sends what the ledger of all_reduce says.",
    hint="hint 3 of exercise 5.1",
    look="list what one rank of 3 sends, step by step, and add up.",
)
def ring_bytes(formula, /, world_size: int, n_bytes: int):
    """The formula's value; the judge reads the ledger of an all_reduce."""
    return formula(world_size, n_bytes)


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
        "that is one iteration: an epoch has as many as it takes.": float(n_parameters),
        "that is all ranks together: the calls of one rank are asked.": float(world_size * calls),
        "an iteration is whole: round the iterations up first, then multiply by the parameters.": (
            n_parameters * n_examples / (batch_size * world_size),
            float(math.ceil(n_parameters * n_examples / (batch_size * world_size))),
            float(n_parameters * n_examples // (batch_size * world_size)),
        ),
        "examples that fill their batches exactly leave no iteration over: round up, do not add one.": float(
            n_parameters * (n_examples // (batch_size * world_size) + 1)
        ),
        "a call is one, however many messages its ring sends.": (
            2.0 * (world_size - 1) * calls,
            2.0 * (world_size - 1) * world_size * calls,
        ),
    }
    if world_size == 1:
        causes = {"one rank has nobody to talk to: no call.": number_of(data)}
    what = f"calls_per_epoch({n_parameters}, {n_examples}, {batch_size}, {world_size})"
    require(what, data, calls, causes)


@check(
    "lesson_05.calls_per_epoch",
    judge=_judge_calls,
    cases=[
        {"n_parameters": p, "n_examples": m, "batch_size": b, "world_size": n}
        for p, m, b, n in (
            (8, 1000, 100, 3),
            (8, 1024, 128, 2),
            (8, 1025, 128, 2),
            (8, 50_000, 128, 4),
            (34, 1000, 128, 8),
            (8, 1000, 128, 1),
        )
    ],
    ok="the calls of an epoch were counted.",
    hint="hint 2 of exercise 5.2",
    look="count the iterations of an epoch first, for 10 examples, 2 ranks and batches of 2.",
)
def calls_per_epoch(formula, /, n_parameters: int, n_examples: int, batch_size: int, world_size: int):
    """How often all_reduce is called in an epoch."""
    return formula(n_parameters, n_examples, batch_size, world_size)


def _judge_bucketed_s(data: Any, n_bytes: int, bucket_bytes: int, world_size: int, link: list[float]) -> None:
    n_calls, (latency_s, bandwidth_Bps) = n_bytes // bucket_bytes, link
    network = Network(latency_s, bandwidth_Bps)
    # N times the bytes over N times the bandwidth take as long, and N divides them
    wide, wide_bytes = Network(latency_s, bandwidth_Bps * world_size), bucket_bytes * world_size
    seconds = known(all_reduce_of, world_size, wide_bytes, n_calls, network=wide).seconds
    one = known(all_reduce_of, world_size, n_bytes, network=network).seconds
    no_latency = Network(0.0, bandwidth_Bps * world_size)
    bytes_s = known(all_reduce_of, world_size, wide_bytes, n_calls, network=no_latency).seconds
    latencies_s, step_s = seconds - bytes_s, latency_s + bucket_bytes / world_size / bandwidth_Bps
    whole_s = [
        known(all_reduce_of, world_size, chunk * world_size, n_calls, network=network).seconds
        for chunk in (bucket_bytes // world_size, -(-bucket_bytes // world_size))
    ]
    causes = {
        "that is one bucket; there are n_bytes / bucket_bytes of them.": seconds / n_calls,
        "that is one all-reduce of everything: latency is paid once a bucket.": one,
        "half of it: a ring has two phases.": seconds / 2,
        "that is one step a phase: a ring of N ranks takes N - 1.": seconds / max(world_size - 1, 1),
        "seconds are asked, these are milliseconds.": 1e3 * seconds,
        "these are bits: bandwidth_Bps is in bytes a second.": 8 * bytes_s + latencies_s,
        "the latency is missing: every step of the ring pays it.": bytes_s,
        "the bytes are missing.": latencies_s,
        "the latency is paid in every step of the ring, not once a bucket or a phase.": (
            bytes_s + n_calls * latency_s,
            bytes_s + 2 * n_calls * latency_s,
        ),
        "the latency is paid in every step of every bucket, not once.": bytes_s + latency_s,
        "latency and bytes are both paid by every bucket.": (
            bytes_s + latencies_s / n_calls,
            bytes_s / n_calls + latencies_s,
        ),
        "a step of the ring moves one chunk, 1/N of the bucket.": (
            world_size * bytes_s + latencies_s,
            world_size / max(world_size - 1, 1) * bytes_s + latencies_s,
        ),
        "a chunk is a part of the bucket: bucket_bytes / N, not n_bytes / N.": n_calls * bytes_s + latencies_s,
        "a ring of N ranks takes N - 1 steps a phase, not N.": seconds * world_size / max(world_size - 1, 1),
        "chunks may be fractions of a byte on paper: / and not //, for a chunk.": whole_s[0],
        "chunks may be fractions of a byte on paper: a chunk is not rounded up.": whole_s[1],
        "n_bytes and bucket_bytes are bytes already: nothing is multiplied by 4.": 4 * bytes_s + latencies_s,
        "the buckets go one after another: each waits until the last one is there.": (
            (2 * (world_size - 1) + n_calls - 1) * step_s
        ),
        "bytes are divided by bytes a second.": latencies_s + bytes_s * bandwidth_Bps**2,
        "there are n_bytes / bucket_bytes buckets, and each is paid: not one fewer.": seconds * (n_calls - 1) / n_calls,
        "there are n_bytes / bucket_bytes buckets: not one more.": seconds * (n_calls + 1) / n_calls,
    }
    what = f"bucketed_s({n_bytes}, {bucket_bytes}, {world_size}, Network({latency_s:g}, {bandwidth_Bps:g}))"
    require(what, data, seconds, causes)


@check(
    "lesson_05.bucketed_s",
    judge=_judge_bucketed_s,
    cases=[
        {"n_bytes": m, "bucket_bytes": b, "world_size": n, "link": [1e-3, 1e6]}
        for m, b, n in ((48_000, 4800, 5), (8000, 8000, 2), (7000, 1000, 3), (48_000, 480, 8), (9000, 9000, 1))
    ],
    ok="predicted and virtual seconds agree for every bucket size.",
    hint="hint 2 of exercise 5.3",
    look="work out one bucket first: its steps, and what one step takes.",
)
def bucketed_s(formula, /, n_bytes: int, bucket_bytes: int, world_size: int, link: list[float]):
    """Predicted seconds; the judge runs the all-reduces on a virtual network."""
    return formula(n_bytes, bucket_bytes, world_size, Network(*link))


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
    seconds = known(_pipeline, 2, compute_s, n_buckets, 1000, network=network).seconds
    causes = {
        "that is without overlap: compute, then all communication.": compute_s + n_buckets * bucket_s,
        "the first bucket cannot start before its part of backward is done.": n_buckets * bucket_s,
        "the last bucket is ready only when backward is done: its communication is still to come.": max(
            compute_s, n_buckets * bucket_s
        ),
        "bucket_s is for one bucket already: nothing of it is divided.": compute_s + bucket_s / n_buckets,
        "compare bucket_s with one part's time: if a bucket takes longer, the link never rests after the first part.": (
            compute_s + bucket_s
        ),
        "compare bucket_s with one part's time: if a bucket takes less, only the last one sticks out.": (
            compute_s / n_buckets + n_buckets * bucket_s
        ),
        "all n_buckets travel one after another once the first part is done, the last one too.": (
            compute_s / n_buckets + (n_buckets - 1) * bucket_s
        ),
        "between the first part and the last bucket there are n_buckets - 1 of the slower one.": (
            compute_s / n_buckets + n_buckets * max(compute_s / n_buckets, bucket_s) + bucket_s
        ),
        "before the first bucket comes the first part of backward, compute_s / n_buckets, and no other bucket.": (
            2 * bucket_s + (n_buckets - 1) * max(compute_s / n_buckets, bucket_s)
        ),
        "compute_s is all of backward: one part is compute_s / n_buckets.": (
            compute_s + (n_buckets - 1) * max(compute_s, bucket_s) + bucket_s
        ),
        "a part of backward may be a fraction of a second: / and not //.": compute_s // n_buckets
        + n_buckets * bucket_s,
    }
    require(f"overlapped_s({compute_s}, {n_buckets}, {bucket_s})", data, seconds, causes)


@check(
    "lesson_05.overlapped_s",
    judge=_judge_overlapped_s,
    cases=[
        {"compute_s": c, "n_buckets": b, "bucket_s": t}
        for c, b, t in ((1.0, 1, 0.375), (1.0, 4, 0.1), (1.0, 4, 0.25), (7.0, 4, 3.0), (2.0, 16, 1.0))
    ],
    ok="the step takes as long as the virtual pipeline, whichever of the two is the slower.",
    hint="hint 1 of exercise 5.4a",
    look="draw two lines, compute and link, for 4 buckets, and read off where the second one ends.",
)
def overlapped_s(formula, /, compute_s: float, n_buckets: int, bucket_s: float):
    """Predicted seconds of a step; the judge runs the pipeline."""
    return formula(compute_s, n_buckets, bucket_s)
