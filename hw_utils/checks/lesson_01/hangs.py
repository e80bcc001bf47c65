"""Checks of lesson 01: a hang is read, and two ways out of it."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_01.messages import (
    HIDDEN,
    free,
    ledger_of,
    number,
    require_messages,
    require_no_collective,
)
from hw_utils.core.errors import CheckFailed, Deadlock
from hw_utils.core.trace import Trace
from hw_utils.material import programs
from hw_utils.simulate import simulate


def _judge_hang(table: Any, rank: int) -> None:
    answer = table.get(rank, table.get(str(rank))) if isinstance(table, dict) else None
    if answer is None or not isinstance(answer, list) or len(answer) != 2 or answer[1] is None:
        raise CheckFailed(
            f'waits[{rank}] must be a pair: (the call it stands in, the rank it waits for), as ("recv", 3).',
            cause=f"row {rank} of the table was not filled in, or is no pair of a text and a number.",
        )
    try:
        simulate(programs.everybody_sends, 4, compute="free", echo=False)
    except Deadlock as error:
        row = next(w for w in error.rows if w.rank == rank)
    if type(answer[0]) is int and isinstance(answer[1], str):
        raise CheckFailed(
            f"waits[{rank}] is the pair ({answer[0]}, {answer[1]!r}).",
            cause="the other way round: first the call, then the rank that it waits for.",
        )
    if answer[0] != row.op:
        raise CheckFailed(
            f"waits[{rank}]: rank {rank} does not stand in {answer[0]!r}.",
            cause="the call is written as in the table, in the column `waits in`: a word alone, no dist. before it."
            if "." in str(answer[0]) or "(" in str(answer[0])
            else "look at the column `waits in`, and at the line it names.",
        )
    if type(answer[1]) is not int or (answer[1],) != tuple(row.peers):
        raise CheckFailed(
            f"waits[{rank}]: rank {rank} does not wait for rank {answer[1]!r}.",
            cause="the rank is a number here, no text."
            if str(answer[1]) == str(row.peers[0])
            else f"there is no rank {answer[1]}, the last is 3: whom does it send to, in a circle?"
            if type(answer[1]) is int and not 0 <= answer[1] < 4
            else "a send waits for the rank that it sends to, until that one receives.",
        )


@check(
    "lesson_01.read_a_hang",
    judge=_judge_hang,
    cases=[{"rank": r} for r in range(4)],
    ok="the table was read rightly for all four ranks.",
    hint="hint 1 of exercise 1.4a",
)
def read_a_hang(waits, /, rank: int):
    """What each rank of `everybody_sends` waits for; the judge runs it."""
    return waits


def _judge_shift(data: dict[str, Any], world_size: int, way: str) -> None:
    what = f"{way} with {world_size} ranks"
    require_no_deadlock(data, what, cause=_why_shift_hangs(way, world_size, data.get("waiting") or []))
    for rank in range(world_size):
        expected = _value(rank - 1, world_size)
        got = number(data["results"][rank]) if type(data["results"][rank]) in (int, float) else None
        if got != expected:
            left = (rank - 1) % world_size
            cause = f"rank {rank} must return what rank {left}, its left neighbour, sent."
            if any(e.waited is None for e in ledger_of(data).of_op("irecv")):
                cause = "the buffer is read before the irecv is done: wait() for what it returns, then read."
            elif got == _value(left, world_size, "others"):
                cause = "values[left] was read: a rank has its own number alone, its neighbour's comes in a message."
            elif got is None:
                cause = "nothing comes back, or no number: return the tensor's item()."
            elif all(number(r) == int(_value(k - 1, world_size)) for k, r in enumerate(data["results"])):
                cause = "the fraction is gone: the number goes as it came, a float."
            elif not (own := [e for e in ledger_of(data).of_op("recv", "irecv") if e.rank == rank]):
                cause = (
                    f"rank {rank} receives nothing: the ranks stand in a circle, and its left neighbour is rank "
                    f"{left}, (rank - 1) % world_size."
                )
            elif (
                any(e.op == "irecv" and e.peer == left for e in own)
                and not abs(got - expected) < 0.01
                and got not in [_value(r, world_size) for r in range(world_size)]
            ):
                cause = (
                    f"the number of rank {left} did come, but nobody's number is returned: was the buffer read before "
                    "the irecv was waited for? wait(), then read."
                )
            elif world_size > 2 and got == _value(rank - 2, world_size):
                cause = (
                    f"that is what rank {left} has received: it passes that on. Receive into a tensor of its own, and "
                    "send the one with the rank's number."
                )
            elif got == _value(rank + 1, world_size):
                cause = "the number went to the left; send to (rank + 1) % world_size."
            elif got == _value(rank, world_size):
                cause = "the rank returned its own number: was it received into another tensor?"
            elif got is not None and abs(got - expected) < 0.01:
                cause = "rounded: return what item() gives, as it is."
                if n_bytes := [e.n_bytes for e in ledger_of(data) if e.n_bytes < 4]:
                    cause = (
                        f"rounded: a message has {n_bytes[0]} bytes; one number has 4, or 8 in float64: "
                        "torch.tensor([values[rank]]) is a float32."
                    )
            raise CheckFailed(
                f"{what}: rank {rank} returned {came(data['results'][rank])}, expected {expected!r}.", cause=cause
            )
    trace = ledger_of(data)
    require_no_collective(trace, what)
    asynchronous = sorted(trace.ops & {"isend", "irecv"})
    if way == "shift_by_parity" and asynchronous:
        raise CheckFailed(
            f"{what}: called {', '.join(asynchronous)}; this repair needs send and recv only.",
            cause="this is the other repair: here the order of the calls depends on the rank's parity.",
        )
    require_messages(trace, what, {(r, (r + 1) % world_size): 1 for r in range(world_size)})
    if way == "shift_at_once" and not asynchronous:
        raise CheckFailed(
            f"{what}: only blocking calls; this repair starts with isend or irecv.",
            cause="this is the other repair: here every rank starts one call and does the other before it waits.",
        )
    sizes = sorted({e.n_bytes for e in trace if e.n_bytes > 8})
    if sizes:
        raise CheckFailed(
            f"{what}: every value is right, but a message has {sizes[-1]} bytes; one number has 4, or 8 in float64.",
            cause="values[rank] alone goes to the right, not the whole list: torch.tensor([values[rank]]).",
        )
    _require_shift_rounds(trace, what, way, world_size)


def _value(rank: int, world_size: int, whose: str = "own") -> float:
    """What a rank sends: its number and a third, as a float32 has it, so that rounding shows; or the others' list."""
    rank = rank % world_size
    value = torch.tensor(rank + drawn_numbers.digits([1], rank, whose).item() + 1 / 3).item()
    return value if whose == "own" else value * HIDDEN


def _why_shift_hangs(way: str, world_size: int, waiting: list[list[Any]]) -> str:
    if len(waiting) < world_size:
        return (
            "some ranks have returned already: every rank sends once, to the right, and receives once, from the left."
        )
    if way == "shift_at_once":
        return (
            "a call is waited for before the other half is posted, or a message has no other half: start one isend, "
            "receive once, and only then wait."
        )
    if len({op for _, op, _ in waiting}) == 1:
        return "all ranks call in the same order: let even ranks send first and odd ranks receive first."
    if world_size % 2:
        return "with an odd number of ranks two neighbours have the same parity; one of them must still receive first."
    return "a message has one side only: rank n sends to n + 1 and receives from n - 1, modulo the world size."


def _require_shift_rounds(trace: Trace, what: str, way: str, world_size: int) -> None:
    most = 1 if way == "shift_at_once" else 2 + world_size % 2
    if trace.rounds > most:
        raise CheckFailed(
            f"{what}: every value is right, but it takes {trace.rounds} rounds of messages; {most} are enough.",
            cause="the ranks go one after another: a rank stands in its first call until a neighbour is done with its "
            "own first call, and that one waits for the next."
            if way == "shift_by_parity"
            else "post the send before you wait for anything, so that all messages travel at the same time.",
        )


def _shift_check(way: str, ok: str, hints: dict[str, str]):
    @check(
        f"lesson_01.{way}",
        judge=_judge_shift,
        cases=[{"world_size": n, "way": way} for n in (4, 2, 3, 5, 8)],
        ok=ok,
        hint="the hints of exercise 1.4b",
        hints=hints,
        look="draw the ranks in a circle, and beside each the numbers that it sends and returns.",
        follows_messages=True,
    )
    def shift(worker, /, world_size: int, way: str):
        """Every rank sends its number to the right and returns what came from the left."""

        def with_its_own(rank: int, size: int):
            return worker(rank, size, [_value(r, size, "own" if r == rank else "others") for r in range(size)])

        return observe(free(with_its_own, world_size))

    return shift


shift_by_parity = _shift_check(
    "shift_by_parity",
    "no hang with 2 to 8 ranks, send and recv only, in as few rounds as there can be.",
    {"hint 1 of exercise 1.4b": "the same parity|even ranks|parity.$|one after another|one side only|there is no rank"},
)
shift_at_once = _shift_check(
    "shift_at_once",
    "no hang with 2 to 8 ranks, and all messages travel in one round.",
    {"hint 2 of exercise 1.4b": "before the other half is posted|starts? one call|before you wait|never waits"},
)
