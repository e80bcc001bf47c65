"""Checks of lesson 05's formulas for buckets: how long they take, one after another and beside the computation."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.expected_numbers import all_reduce_of, known, number_of, require
from hw_utils.core.hardware import Network


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
    if world_size == 1:
        causes = {"one rank has nobody to send to, nor waits for anybody: no step, no seconds.": number_of(data)}
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
        "once backward is done the last bucket's bucket_s is still to come, and no further part of backward.": (
            compute_s + compute_s / n_buckets,
            max(compute_s, n_buckets * bucket_s) + compute_s / n_buckets,
            compute_s / n_buckets + n_buckets * max(compute_s / n_buckets, bucket_s),
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
        for c, b, t in (
            (1.1, 1, 0.375),
            (1.0, 4, 0.1),
            (1.0, 4, 0.25),
            (7.0, 4, 3.0),
            (2.0, 16, 1.0),
            (1.0, 4, 0.25001),
            (1.0, 4, 0.24999),
        )
    ],
    ok="the step takes as long as the virtual pipeline, whichever of the two is the slower.",
    hint="hint 1 of exercise 5.4a",
    look="draw two lines, compute and link, for 4 buckets, and read off where the second one ends.",
)
def overlapped_s(formula, /, compute_s: float, n_buckets: int, bucket_s: float):
    """Predicted seconds of a step; the judge runs the pipeline."""
    return formula(compute_s, n_buckets, bucket_s)
