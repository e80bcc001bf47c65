"""Checks of lesson 01: values that travel from rank to rank."""

from __future__ import annotations

import math
from typing import Any

import torch

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.messages import free, ledger_of, number, require_messages, require_no_collective
from hw_utils.errors import CheckFailed


def _judge_ping_pong(data: dict[str, Any], world_size: int, n_rounds: int) -> None:
    what = f"ping_pong with {world_size} ranks and {n_rounds} rounds"
    require_no_deadlock(data, what, cause="rank 0 must send first and rank 1 must receive first, in every round.")
    for rank in range(world_size):
        expected = 2.0 * n_rounds if rank < 2 else 0.0
        got = number(data["results"][rank])
        if got != expected:
            raise CheckFailed(
                f"{what}: rank {rank} returned {data['results'][rank]!r}, expected {expected:g}.",
                cause=_why_ping_pong(rank, got, n_rounds),
            )
    trace = ledger_of(data)
    require_no_collective(trace, what)
    require_messages(trace, what, {(0, 1): n_rounds, (1, 0): n_rounds} if n_rounds else {})
    sizes = sorted({e.n_bytes for e in trace} - {4})
    if sizes:
        raise CheckFailed(
            f"{what}: every value is right, but a message has {sizes[0]} bytes; a ball of one float32 has 4.",
            cause=_why_size(sizes[0]),
        )


def _why_size(n_bytes: int) -> str:
    if n_bytes == 8:
        return "one int64 or float64 has 8 bytes: torch.tensor(0) is an integer, torch.zeros(1) is a float32."
    return "the ball has one element: torch.zeros(1)."


def _why_ping_pong(rank: int, got: float | None, n_rounds: int) -> str:
    if got is None:
        return "return the ball's value as a float: ball.item()."
    if rank > 1:
        return "only ranks 0 and 1 play; the others return 0.0."
    if got == n_rounds:
        return "only one of the two ranks adds 1."
    if got == 2 * n_rounds + 1:
        return "a rank adds 1 again after the last receive: add only before a send."
    if got == 2 * n_rounds - 1 and rank == 0:
        return "rank 0 returns what it sent, not what came back: receive before you return."
    if got == 2:
        return "the ball starts again at 0 in every round: make it once, before the loop."
    return "the ball starts at 0 on rank 0, and a rank adds 1 each time before it sends."


@check(
    "lesson_01.ping_pong",
    judge=_judge_ping_pong,
    cases=[{"world_size": n, "n_rounds": k} for n, k in ((2, 1), (2, 5), (4, 3), (2, 0))],
    ok="the ball came back with the right count, in two messages a round.",
    hint="hint 1 of exercise 1.3",
)
def ping_pong(worker, /, world_size: int, n_rounds: int):
    """A ball goes to rank 1 and back; each player adds 1 before it sends."""
    return observe(free(worker, world_size, n_rounds))


def _numbers(world_size: int, n_elements: int) -> list[torch.Tensor]:
    """Rank r holds 10**r * [1 .. n]: a wrong digit names the rank."""
    return [10**r * torch.arange(1, n_elements + 1, dtype=torch.float64) for r in range(world_size)]


def _judge_relay(data: dict[str, Any], world_size: int, n_elements: int, closed: bool) -> None:
    what = f"{'closed ' if closed else ''}relay with {world_size} ranks of {n_elements} elements"
    require_no_deadlock(
        data, what, cause="rank 0 has nobody to wait for: it sends first; every other rank receives, adds, then sends."
    )
    numbers = _numbers(world_size, n_elements)
    last = 0 if closed else world_size - 1
    _require_sum(data["results"][last], sum(numbers), what, last, world_size)
    for rank, result in enumerate(data["results"]):
        if rank != last and result is not None:
            raise CheckFailed(
                f"{what}: rank {rank} returned a {type(result).__name__}, expected None.",
                cause=f"the relay ends on rank {last}: only that rank has the sum, the others return None.",
            )
    for rank, after in enumerate(data["owns_after"][last] or []):
        if not torch.equal(torch.from_numpy(after), numbers[rank]):
            raise CheckFailed(f"{what}: numbers[{rank}] was changed; add into a copy of it.")
    trace = ledger_of(data)
    require_no_collective(trace, what)
    path = {(r, r + 1): 1 for r in range(world_size - 1)}
    if closed and world_size > 1:
        path[world_size - 1, 0] = 1
    require_messages(trace, what, path)


def _require_sum(got: Any, expected: torch.Tensor, what: str, rank: int, world_size: int) -> None:
    if not hasattr(got, "shape"):
        raise CheckFailed(
            f"{what}: rank {rank} returned {got!r}, expected a tensor of {tuple(expected.shape)}.",
            cause="the rank at which the relay ends returns the tensor; the others return None.",
        )
    if got.shape != tuple(expected.shape):
        raise CheckFailed(f"{what}: rank {rank} returned shape {got.shape}, expected {tuple(expected.shape)}.")
    if (got == expected.numpy()).all():
        return
    digits = f"{got.reshape(-1)[0]:g}"
    raise CheckFailed(
        f"{what}: the first element on rank {rank} is {digits}, expected {expected[0].item():g} (rank r brings 10**r).",
        cause=_why_sum(got.reshape(-1)[0], world_size),
    )


def _why_sum(first: float, world_size: int) -> str:
    if not math.isfinite(first) or first < 0 or first != int(first):
        return "a buffer was read before anything was received into it."
    digits = [int(d) for d in reversed(str(int(first)).zfill(world_size))]
    missing = [r for r in range(world_size) if digits[r] == 0]
    twice = [r for r, d in enumerate(digits) if d > 1]
    if missing:
        return f"the number of rank {missing[0]} is missing: did it add its own before it sent?"
    if twice:
        return f"the number of rank {twice[0]} was added {digits[twice[0]]} times."
    return ""


_RELAY_CASES = [(1, 3), (2, 1), (3, 4), (4, 5), (7, 2)]


@check(
    "lesson_01.relay",
    judge=_judge_relay,
    cases=[{"world_size": n, "n_elements": k, "closed": False} for n, k in _RELAY_CASES],
    ok="the sum arrives where it should, in as few messages as there are steps.",
    hint="hint 2 of exercise 1.3",
)
def relay(worker, /, world_size: int, n_elements: int, closed: bool):
    """A tensor travels along the ranks, each adds its own; `closed` brings it back to rank 0."""

    def worker_and_numbers(rank: int, size: int, numbers: list[torch.Tensor]):
        return worker(rank, size, numbers, closed), numbers

    data = observe(free(worker_and_numbers, world_size, _numbers(world_size, n_elements)))
    if data["deadlock"] is None:
        data["owns_after"] = [pair[1] for pair in data["results"]]
        data["results"] = [pair[0] for pair in data["results"]]
    return data
