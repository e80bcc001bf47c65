"""Checks of lesson 05: what is to be expected, against runs on the virtual network."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.expected_numbers import all_reduce_of, known, number_of, require
from hw_utils.core.hardware import Network


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
        "the whole of s + (1 - s) / N stands below the 1: brackets around it.": (1 / s if s else math.nan)
        + (1 - s) / n,
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
        for n, s in ((8, 0.2), (1, 0.25), (3, 0.3), (4, 0.0), (8, 0.05), (64, 0.5), (5, 1.0), (200, 0.01), (1000, 0.05))
    ],
    ok="the speedup is that of a run with a serial part, for 1 to 1,000 workers.",
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
        "that is one step a phase: a phase has N - 1.": 2.0 * n_bytes / world_size,
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
    cases=[{"world_size": n, "n_bytes": m} for n, m in ((7, 1400), (1, 100), (2, 100), (3, 100), (16, 1600))],
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
            (8, 768, 128, 2),
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
