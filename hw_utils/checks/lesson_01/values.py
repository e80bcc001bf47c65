"""Checks of lesson 01: values that travel from rank to rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_01.messages import (
    HIDDEN,
    free,
    ledger_of,
    noting_sends,
    number,
    require_messages,
    require_no_collective,
    why_not_there,
)
from hw_utils.core.errors import CheckFailed


def _judge_ping_pong(data: dict[str, Any], world_size: int, n_rounds: int) -> None:
    what = f"ping_pong with {world_size} ranks and {n_rounds} rounds"
    require_no_deadlock(data, what, cause=_why_game_hangs(data.get("waiting") or []))
    balls, trace = data["balls"], ledger_of(data)
    for rank in range(world_size):
        expected = 2.0 * n_rounds if rank < 2 else 0.0
        got = number(data["results"][rank]) if type(data["results"][rank]) in (int, float) else None
        if got != expected:
            raise CheckFailed(
                f"{what}: rank {rank} returned {came(data['results'][rank])}, expected {expected:g}.",
                cause=why_not_there(trace) or _why_ping_pong(rank, got, data["results"][rank], n_rounds, balls),
            )
    require_no_collective(trace, what)
    require_messages(trace, what, {(0, 1): n_rounds, (1, 0): n_rounds} if n_rounds else {})
    sizes = sorted({e.n_bytes for e in trace} - {4})
    if sizes:
        raise CheckFailed(
            f"{what}: every value is right, but a message has {sizes[0]} bytes; a ball of one float32 has 4.",
            cause=_why_size(sizes[0]),
        )
    for rank, sent in enumerate(balls[:2]):
        for k, ball in enumerate(sent):
            if any(type(value) is int for value in ball):
                raise CheckFailed(
                    f"{what}: the last value is right, but rank {rank} sends whole numbers; the ball is a float32.",
                    cause="torch.tensor([0]) is an integer, torch.zeros(1) is a float32.",
                )
            if ball != [2 * k + 1 + rank]:
                raise CheckFailed(
                    f"{what}: the last value is right, but ball {k} of rank {rank} was {ball}.",
                    cause="each player adds 1 to the ball that came, just before it sends it: not one of them 2.",
                )


def _why_game_hangs(waiting: list[list[Any]]) -> str:
    if any(rank > 1 for rank, _, _ in waiting):
        return "ranks 2 and up play too: else: means every other rank, elif rank == 1: only one."
    if len(waiting) == 1:
        return "one of the two has stopped: both play n_rounds rounds, a send and a receive each."
    return "rank 0 must send first and rank 1 must receive first, in every round."


def _why_size(n_bytes: int) -> str:
    if n_bytes == 8:
        return "one int64 or float64 has 8 bytes: torch.tensor(0) is an integer, torch.zeros(1) is a float32."
    return "the ball has one element: torch.zeros(1)."


def _why_ping_pong(rank: int, got: float | None, result: Any, n_rounds: int, balls: list[list[list[float]]]) -> str:
    if rank > 1:
        return "only ranks 0 and 1 play; the others return 0.0."
    if got is None and result is None:
        return "nothing is returned: return the ball's value as a float, ball.item()."
    if got is None:
        return "return the ball's value as a float: ball.item()."
    last = [sent[-1][0] if sent and len(sent[-1]) else None for sent in balls[:2]]
    if got == 2 * n_rounds - 1 and rank == 0 and last[1] == 2 * n_rounds:
        return "rank 0 returns what it sent, not what came back: receive before you return."
    if balls[0] and balls[0][0] == [2.0]:
        return "the ball starts at 0 on rank 0, which adds 1 to it: a 1 is what it sends first."
    if n_rounds == 0 and not any(balls):
        return "in 0 rounds nobody adds anything: the ball is still what it was made as, and it starts at 0."
    if got == 2 * n_rounds + 1:
        return "a rank adds 1 again after the last receive: add only before a send."
    if n_rounds > 1 and got == 2 and len(balls[0]) == n_rounds:
        return "the ball starts again at 0 in every round: make it once, before the loop."
    if rank == 1 and got == 0 and len(balls[0]) == n_rounds == len(balls[1]):
        return "both players return the last value that they held, not rank 0 alone."
    if rank == 1 and balls[0] and list(balls[0][0]) == [0.0]:
        return "rank 0 adds after it has sent: add 1 just before each send."
    if rank == 1 and last[1] == 2 * n_rounds == got + 1:
        return "rank 1 sends one more than it returns: ball + 1 is another tensor, ball += 1 changes the ball."
    if got == n_rounds and len(balls[0]) == n_rounds == len(balls[1]):
        return "only one of the two ranks adds 1."
    if rank == 1 and not balls[1] and any(balls[2:]):
        return "another rank plays with rank 0: the second player is rank 1, however many ranks there are."
    if n_rounds and len(balls[0]) + len(balls[1]) == n_rounds:
        return "a round is there and back: rank 0 sends and then receives, rank 1 receives and then sends."
    if len(balls[0]) != n_rounds:
        return (
            f"{len(balls[0])} balls left rank 0 in {n_rounds} rounds: the loop goes round n_rounds times, and return "
            "stands behind it."
        )
    return "the ball starts at 0 on rank 0, and a rank adds 1 each time before it sends."


@check(
    "lesson_01.ping_pong",
    judge=_judge_ping_pong,
    cases=[{"world_size": n, "n_rounds": k} for n, k in ((2, 1), (2, 5), (2, 0), (4, 3))],
    ok="the ball came back with the right count, in two messages a round.",
    hint="hint 1 of exercise 1.3a",
    hints={
        "hint 2 of exercise 1.3a": "no rank can go on",
        "hint 1 of exercise 1.3a": "only ranks 0 and 1|in 0 rounds|before the loop|n_rounds|before a send|adds? 1"
        "|you you return|there and back",
    },
    look="print rank and ball just before every send and just after every receive.",
    follows_messages=True,
)
def ping_pong(worker, /, world_size: int, n_rounds: int):
    """A ball goes to rank 1 and back; each player adds 1 before it sends. What each rank sent comes too."""

    def watched(rank: int, size: int, n_rounds: int):
        sent = noting_sends()
        return worker(rank, size, n_rounds), sent

    data = observe(free(watched, world_size, n_rounds))
    if data["deadlock"] is None:
        data["balls"] = [pair[1] for pair in data["results"]]
        data["results"] = [pair[0] for pair in data["results"]]
    return data


def _numbers(world_size: int, shape: Sequence[int], whose: str = "own") -> list[torch.Tensor]:
    """Rank r holds 10**r * [1 .. n], in that shape: a wrong digit names the rank. Others' are drawn by themselves."""
    n_elements = math.prod(shape)
    drawn = [torch.from_numpy(drawn_numbers.digits([n_elements], r, whose)) for r in range(world_size)]
    flat = [10**r * (torch.arange(1, n_elements + 1, dtype=torch.float64) + drawn[r]) for r in range(world_size)]
    return [(numbers if whose == "own" else HIDDEN * numbers).reshape(tuple(shape)) for numbers in flat]


def _judge_relay(
    data: dict[str, Any],
    world_size: int,
    closed: bool,
    n_elements: int = 0,
    shape: Sequence[int] | None = None,
    others: str = "float64",
) -> None:
    size = f"{n_elements} elements" if shape is None else f"shape {tuple(shape)}"
    what = f"{'closed ' if closed else ''}relay with {world_size} ranks of {size}"
    shape = [n_elements] if shape is None else shape
    require_no_deadlock(data, what, cause=_why_relay_hangs(data.get("waiting") or [], closed, world_size))
    numbers, trace = _numbers(world_size, shape), ledger_of(data)
    last = 0 if closed else world_size - 1
    _require_own_kept(data["owns_after"], numbers, _numbers(world_size, shape, "others"), what)
    _require_sum(data["results"][last], sum(numbers), what, last, world_size, data["results"], why_not_there(trace))
    for rank, result in enumerate(data["results"]):
        if rank != last and result is not None:
            raise CheckFailed(
                f"{what}: rank {rank} returned {came(result)}, expected None.",
                cause=f"the relay ends on rank {last}: only that rank has the sum, the others return None.",
            )
    require_no_collective(trace, what)
    path = {(r, r + 1): 1 for r in range(world_size - 1)}
    if closed and world_size > 1:
        path[world_size - 1, 0] = 1
    require_messages(trace, what, path)
    for event in trace.of_op("send", "isend"):
        if event.n_bytes != 8 * math.prod(shape):
            raise CheckFailed(
                f"{what}: every value is right, but rank {event.rank} sent {event.n_bytes} bytes; the sum so far has "
                f"{8 * math.prod(shape)}.",
                cause="one tensor travels, and every rank adds its own to it: no list of tensors, no other dtype.",
            )


def _require_own_kept(
    owns_after: list[list[Any]], numbers: list[torch.Tensor], others: list[torch.Tensor], what: str
) -> None:
    for rank, owns in enumerate(owns_after):
        for other, after in enumerate(owns):
            before = numbers[other] if other == rank else others[other].to(torch.from_numpy(after).dtype)
            if not torch.equal(torch.from_numpy(after), before):
                raise CheckFailed(
                    f"{what}: numbers[{other}] was changed, on rank {rank}.",
                    cause="the input belongs to the caller: a += b and recv(a) change a. Receive and add in a copy.",
                )


def _why_relay_hangs(waiting: list[list[Any]], closed: bool, world_size: int) -> str:
    if closed and len(waiting) == 1 and waiting[0][0] == world_size - 1 and "send" in str(waiting[0][1]):
        return "the last rank sends to rank 0, which has returned: if the ring is closed, rank 0 receives at the end."
    if closed and len(waiting) == 1 and waiting[0][0] == 0:
        return "rank 0 waits for the sum, which the last rank never sends: only if close_ring is true, to rank 0."
    if world_size == 1:
        return "with one rank there is nobody to send to or to receive from."
    return "rank 0 has nobody to wait for: it sends first; every other rank receives, adds, then sends."


def _require_sum(
    got: Any, expected: torch.Tensor, what: str, rank: int, world_size: int, results: list[Any], not_there: str
) -> None:
    if not hasattr(got, "shape"):
        elsewhere = [r for r, result in enumerate(results) if hasattr(result, "shape")]
        raise CheckFailed(
            f"{what}: rank {rank} returned {came(got)}, expected a tensor of {tuple(expected.shape)}.",
            cause=f"rank {elsewhere[0]} returns a tensor: here the relay ends on rank {rank}."
            if got is None and elsewhere
            else "the rank at which the relay ends returns the tensor; the others return None.",
        )
    if got.shape != tuple(expected.shape):
        raise CheckFailed(
            f"{what}: rank {rank} returned shape {got.shape}, expected {tuple(expected.shape)}.",
            cause="as many elements, in another shape: what travels, and is returned, has the shape of the numbers."
            if math.prod(got.shape) == expected.numel()
            else "tensors are added element by element: no concatenation, no stack, no sum over the elements.",
        )
    if got.dtype != expected.numpy().dtype:
        raise CheckFailed(
            f"{what}: rank {rank} returned {got.dtype}, the numbers are {expected.numpy().dtype}.",
            cause="the dtype was changed on the way: torch.empty_like keeps it.",
        )
    if (got == expected.numpy()).all():
        return
    k = int((got != expected.numpy()).reshape(-1).argmax())
    value = got.reshape(-1)[k]
    if rank == 0 and value == k + 1:
        why = "rank 0 returns its own number: what comes back goes into the tensor that it returns."
    else:
        why = _why_sum(value / (k + 1), world_size) or "only some elements are right: the whole tensor travels."
    raise CheckFailed(
        f"{what}: element {k} on rank {rank} is {value:g}, expected {expected.view(-1)[k].item():g} (rank r brings "
        f"10**r times {k + 1}).",
        cause=not_there or why,
    )


_OTHERS = "numbers of other ranks were read: numbers[rank] alone is this rank's own, the others' come by message."


def _why_sum(first: float, world_size: int) -> str:
    if first in {
        sum(10**r * (1 if r in own else HIDDEN) for r in range(upto))
        for upto in range(2, world_size + 1)
        for own in ([r] for r in range(world_size))
    }:
        return _OTHERS
    whole = sum(10**r for r in range(world_size))
    if (
        math.isfinite(first)
        and first != int(first)
        and any(math.isclose(first * k, whole, rel_tol=1e-9) for k in (2, world_size - 1, world_size, world_size + 1))
    ):
        return "it is divided: the sum is asked, no mean."
    if abs(first) < 10**world_size and (first < 0 or first != int(first)) and 16 * first == int(16 * first):
        return "a number is taken away: every rank adds its own (+=)." if first == int(first) else _OTHERS
    if not math.isfinite(first) or first < 0 or first != int(first):
        return "a buffer was read before anything was received into it: nothing was received yet."
    digits = [int(d) for d in reversed(str(int(first)).zfill(world_size))]
    missing = [r for r in range(world_size) if digits[r] == 0]
    twice = [r for r, d in enumerate(digits) if d > 1]
    if world_size > 2 and len(missing) == world_size - 1 and max(digits) == 1:
        return f"the number of rank {digits.index(max(digits))} is there alone: nothing was added on the way."
    if missing:
        return f"the number of rank {missing[0]} is missing: did it add its own before it sent?"
    if twice:
        return f"the number of rank {twice[0]} was added {digits[twice[0]]} times."
    return ""


_RELAY_CASES = [(1, 3), (2, 1), (3, [2, 2]), (4, []), (7, 2)]


@check(
    "lesson_01.relay",
    judge=_judge_relay,
    cases=[
        {"world_size": n, "shape" if isinstance(k, list) else "n_elements": k, "closed": False} for n, k in _RELAY_CASES
    ]
    + [{"world_size": 3, "n_elements": 2, "closed": False, "others": "float32"}],
    ok="the sum arrives where it should, in as few messages as there are steps.",
    hint="hint 1 of exercise 1.3b",
    hints={
        "hint 2 of exercise 1.3b": "changes? a|nothing was received|empty_like|element by element|another shape",
        "hint 1 of exercise 1.3b": "nobody|relay ends|from one rank to the next|path is|the last rank",
    },
    errors={
        r"must have the same (?:number of bytes|dtype)": "receive into a tensor of the sender's shape and dtype, "
        "torch.empty_like(numbers[rank]): this rank's own tensor has them, another rank's need not.",
        "must match the size of tensor|0-d|output with shape": "numbers may have any shape, several dimensions or "
        "none: torch.empty_like(numbers[rank]) has it, and + adds all elements at once.",
    },
    look="print on every rank what it received and what it sends.",
    follows_messages=True,
)
def relay(
    worker,
    /,
    world_size: int,
    closed: bool,
    n_elements: int = 0,
    shape: Sequence[int] | None = None,
    others: str = "float64",
):
    """A tensor travels along the ranks, each adds its own; `closed` brings it back to rank 0.

    others: the dtype of what stands in the list for other ranks.
    """

    def worker_and_numbers(rank: int, size: int):
        own, hidden = (_numbers(size, [n_elements] if shape is None else shape, whose) for whose in ("own", "others"))
        numbers = [own[r] if r == rank else hidden[r].to(getattr(torch, others)) for r in range(size)]
        return worker(rank, size, numbers, closed), numbers

    data = observe(free(worker_and_numbers, world_size))
    if data["deadlock"] is None:
        data["owns_after"] = [pair[1] for pair in data["results"]]
        data["results"] = [pair[0] for pair in data["results"]]
    return data
