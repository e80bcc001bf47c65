"""The checks of orders as data: interleaved chunks and a backward pass in two halves. The judge plays what comes."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import came, no_list
from hw_utils.checks.lesson_06.shards import n_ranks as ranks_text
from hw_utils.checks.lesson_08.bubbles import whole_numbers
from hw_utils.checks.lesson_08.schedules_judge import SAME_S, most
from hw_utils.core.errors import CheckFailed
from hw_utils.material.by_hand.orders import in_flight, play

Order = list[tuple]
F_S, B_S, MESSAGE_S = 1.0, 2.0, 0.25
ALL_FIRST = (
    "all micro-batches go through chunk 0 before chunk 1 begins: after p of them, the first is back from the last "
    "rank, and its next chunk comes first."
)


def _collected(order: Any, n_steps: int) -> Any:
    """A rank's order with its steps as plain lists, where they are sequences; of one that never ends the beginning."""
    try:
        return [list(step) if not isinstance(step, str) else step for step in islice(order, 2 * n_steps)]
    except TypeError:
        return order


def _require_orders(what: str, data: Any, kinds: str, n_chunks: int | None, n_batches: int) -> list[Order]:
    """The orders with their steps as tuples: every pass of every rank is there once.

    n_chunks: None where a step has no chunk.
    """
    form = "(kind, micro-batch)" if n_chunks is None else "(kind, chunk, micro-batch)"
    chunks = range(n_chunks or 1)
    data = [[whole_numbers(step) for step in order] if isinstance(order, list) else order for order in data]
    for rank, order in enumerate(data):
        if not isinstance(order, list):
            raise CheckFailed(
                f"{what}: rank {rank} gave {came(order)}.",
                cause=no_list(order, f"the rank's order, a list of {form}"),
            )
        for step in order:
            if not _is_step(step, kinds, n_chunks):
                raise CheckFailed(f"{what}: rank {rank} has the step {step!r}"[:200] + ".",
                                  cause=f"a step is {form}, kinds are {', '.join(kinds)}, numbers from 0.")  # fmt: skip
        steps = [tuple(step) for step in order]
        wanted = [
            (kind, k) if n_chunks is None else (kind, chunk, k)
            for kind in kinds
            for chunk in chunks
            for k in range(n_batches)
        ]
        counts, due = Counter(steps), set(wanted)
        missing, foreign = [s for s in wanted if s not in counts], [s for s in steps if s not in due]
        twice = [s for s, n in counts.items() if n > 1]
        if missing or foreign or twice:
            named = next(
                (f"{word} {s[0]}" for word, s in (("has no", missing), ("has", foreign), ("has twice", twice)) if s)
            )
            n_came = len({step[-1] for step in steps})
            raise CheckFailed(f"{what}: rank {rank} {named}, in {len(order)} steps; {len(wanted)} are needed.",
                              cause=_why_incomplete(missing, foreign, twice, n_came, n_batches, n_chunks))  # fmt: skip
    return [[tuple(step) for step in order] for order in data]


def _is_step(step: Any, kinds: str, n_chunks: int | None) -> bool:
    length = 2 if n_chunks is None else 3
    is_long = isinstance(step, list) and len(step) == length and isinstance(step[0], str)
    return is_long and step[0] in tuple(kinds) and all(type(n) is int for n in step[1:])


def _why_incomplete(
    missing: list, foreign: list, twice: list, n_came: int, n_batches: int, n_chunks: int | None
) -> str:
    """n_came: how many micro-batches there are at all."""
    if not n_came:
        return "the list is empty: whatever the sizes, each pass of each micro-batch is made once on its rank."
    if foreign and n_chunks is not None and any(not 0 <= step[1] < n_chunks for step in foreign):
        return "chunks are counted on their rank, from 0 to v - 1."
    if foreign and any(not 0 <= step[-1] < n_batches for step in foreign):
        return "there are m micro-batches, 0 to m - 1: stop where they end."
    again = [step for step in twice if n_chunks is None and missing and step[0] == missing[0][0]]
    if again and not foreign:
        return f"{again[0]} stands there twice: is it the newest that is made, where the oldest waits?"
    if missing and all(step[0] in "BW" for step in missing):
        return (
            "what is still in flight after the last forward pass has to go back: drain it."
            if all(step[0] == "B" for step in missing)
            else "what is still in flight after the last forward pass has to go back, and each W has to be made: drain "
            "it."
        )
    if missing and not foreign and {step[-1] for step in missing} == set(range(n_came, n_batches)):
        return (
            f"only {n_came} of the {n_batches} micro-batches come, again and again: each further group of p has "
            "numbers of its own, p higher."
        )
    return "each pass of each chunk and micro-batch is made once on its rank."


def _require_played(what: str, orders: list[Order], seconds: dict[str, float], why: Any, hint: str) -> list[tuple]:
    passes, waits = play(orders, seconds)
    if waits:
        shown = "\n    ".join(waits[:8])
        raise CheckFailed(
            f"{what} comes to a halt after {len(passes)} passes:\n    {shown}", cause=why(orders), hint=hint
        )
    return passes


def _judge_interleaved(
    data: Any, n_ranks: int, n_batches: int, n_chunks: int, seconds: float, late_s: float, held: list[int]
) -> None:
    what = f"{ranks_text(n_ranks)}, {n_batches} micro-batches, {n_chunks} chunks"
    orders = _require_orders(what, data, "FB", n_chunks, n_batches)
    each = {"F": F_S / n_chunks, "B": B_S / n_chunks}
    _require_places(what, orders, each, seconds, n_batches == n_chunks)
    passes = _require_played(
        what, orders, each, lambda found: _why_halt(found, n_ranks, n_batches, n_chunks), "hint 2 of exercise 8.6"
    )
    took_s = max(one[5] for one in passes)
    peaks = [most(marks) for marks in in_flight(passes).values()]
    if took_s > seconds + SAME_S:
        raise CheckFailed(
            f"{what}, forward {F_S:g} and backward {B_S:g} s a rank: the step takes {took_s:g} s, "
            f"{seconds:g} s are enough.",
            cause=_why_slow(orders, n_ranks, n_batches),
        )
    if any(peak > limit for peak, limit in zip(peaks, held)):
        rank = next(r for r, (peak, limit) in enumerate(zip(peaks, held)) if peak > limit)
        raise CheckFailed(
            f"{what}: {took_s:g} s, but rank {rank} holds {peaks[rank]} chunks' activations, {held[rank]} are enough.",
            cause=ALL_FIRST
            if _takes_all_first(orders, n_ranks, n_batches)
            else "all forward passes come before the first backward pass."
            if n_batches > n_chunks and all(_warm_up(order) == n_batches * n_chunks for order in orders)
            else "the warm-up is too long: after it one forward and one backward pass follow each other to the end.",
        )
    passes, _ = play(orders, each, MESSAGE_S)
    took_s = max(one[5] for one in passes)
    if took_s > late_s + SAME_S:
        raise CheckFailed(
            f"{what}: {seconds:g} s on a free network, but {took_s:g} s where a message takes {MESSAGE_S:g} s; "
            f"{late_s:g} s are enough.",
            cause="the warm-up is too short on the first ranks: with one more a rank each message is waited for; each "
            "rank nearer to the front needs two more, so that a message is under way while something is computed.",
        )


def _require_places(what: str, orders: list[Order], each: dict[str, float], seconds: float, may_be: bool) -> None:
    """Raises if the steps fit only with chunk and micro-batch exchanged, which shows in nothing else if m is v."""
    if not may_be or play(orders, each)[1] == []:
        return
    passes, waits = play([[(kind, chunk, k) for kind, k, chunk in order] for order in orders], each)
    if not waits and max(one[5] for one in passes) <= seconds + SAME_S:
        raise CheckFailed(f"{what}: the orders fit together if their numbers change places.",
                          cause="a step is (kind, chunk, micro-batch), in this order.")  # fmt: skip


def _warm_up(order: Order) -> int:
    return next((n for n, step in enumerate(order) if step[0] == "B"), len(order))


def _why_halt(orders: list[Order], n_ranks: int, n_batches: int, n_chunks: int) -> str:
    if _takes_all_first(orders, n_ranks, n_batches):
        return ALL_FIRST
    first_back = [next((step for step in order if step[0] == "B"), None) for order in orders]
    if any(step is not None and step[1] != n_chunks - 1 for step in first_back):
        return "backward begins where forward ends: the last chunk goes back first, chunk 0 last."
    forward = [[step[1:] for step in order if step[0] == "F"] for order in orders]
    if any(steps != forward[0] for steps in forward):
        return "all ranks take chunks and micro-batches forward in the same order, only their warm-ups differ."
    if any(_warm_up(order) < n_ranks * (n_chunks - 1) + 1 for order in orders):
        return (
            "a backward pass comes before the forward pass that it goes back through: even the last rank needs the "
            "first p micro-batches in all chunks but the last before anything can come back."
        )
    return "some rank waits for a pass that comes later in another rank's order than one that waits for this rank."


def _takes_all_first(orders: list[Order], n_ranks: int, n_batches: int) -> bool:
    forward = [step[1:] for step in orders[0] if step[0] == "F"]
    return n_batches > n_ranks and forward[: n_ranks + 1] == [(0, k) for k in range(n_ranks + 1)]


def _why_slow(orders: list[Order], n_ranks: int, n_batches: int) -> str:
    if _takes_all_first(orders, n_ranks, n_batches):
        return ALL_FIRST
    if [step[1:] for step in orders[0] if step[0] == "F"][:2] == [(0, 0), (1, 0)] and n_ranks > 1:
        return "a micro-batch's next chunk waits until it has been on all ranks: p micro-batches go first."
    warm = [_warm_up(order) for order in orders]
    if any(a - b < 1 for a, b in pairwise(warm)) and warm[0] < len(orders[0]) / 2:
        return (
            "the warm-up is too short on the first ranks: each rank nearer to the front needs more than the next one."
        )
    return (
        "a rank has nothing to do while the first gradient is on its way: its warm-up is too short, or two backward "
        "passes come in a row while there is a forward pass left."
    )


@check(
    "lesson_08.interleaved_order",
    judge=_judge_interleaved,
    cases=[
        {"n_ranks": p, "n_batches": m, "n_chunks": v, "seconds": s, "late_s": late_s, "held": held}
        for p, m, v, s, late_s, held in (
            (1, 2, 2, 6.0, 6.0, [2]),
            (2, 2, 2, 7.5, 9.0, [4, 3]),
            (2, 4, 2, 13.5, 15.0, [5, 3]),
            (3, 6, 2, 21.0, 23.5, [8, 6, 4]),
            (4, 8, 2, 28.5, 32.0, [11, 9, 7, 5]),
            (2, 6, 3, 19.0, 21.5, [7, 5]),
            (3, 3, 1, 15.0, 16.0, [3, 3, 1]),
            (3, 6, 1, 24.0, 25.0, [5, 3, 1]),
            (10, 40, 4, 126.75, 146.25, [49, 47, 45, 43, 41, 39, 37, 35, 33, 31]),  # larger than what is drawn
        )
    ],
    ok="the orders fit together, the bubble is v times smaller, and no rank holds more than it must.",
    hint="hint 1 of exercise 8.6",
    hints={
        "hint 2 of exercise 8.6": "has to go back",
        "hint 3 of exercise 8.6": "warm-up|holds",
        "hint 1 of exercise 8.6": "chunk|step|order",
    },
    look="play the orders of 2 ranks, 2 micro-batches and 2 chunks, and draw them.",
)
def interleaved_order(answer, /, n_ranks: int, n_batches: int, n_chunks: int, seconds: float, **_):
    """Each rank's order; the judge plays them."""
    n_steps = 2 * n_batches * n_chunks
    return [_collected(answer(n_ranks, n_batches, n_chunks, rank), n_steps) for rank in range(n_ranks)]


def _judge_zero(data: Any, n_ranks: int, n_batches: int, seconds: float) -> None:
    what = f"{ranks_text(n_ranks)}, {n_batches} micro-batch{'' if n_batches == 1 else 'es'}"
    orders = _require_orders(what, data, "FBW", None, n_batches)
    for rank, order in enumerate(orders):
        for k in range(n_batches):
            if order.index(("W", k)) < order.index(("B", k)):
                raise CheckFailed(
                    f"{what}: rank {rank} makes W of micro-batch {k} before its B.",
                    cause="the weight's gradient needs the gradient of the output, which B brings: W comes later.",
                )
    passes = _require_played(what, orders, dict.fromkeys("FBW", 1.0), _why_zero_halt, "hint 1 of exercise 8.7")
    took_s = max(one[5] for one in passes)
    peaks = [most(marks) for marks in in_flight(passes).values()]
    if took_s > seconds + SAME_S:
        raise CheckFailed(
            f"{what}: F, B and W of 1 s each take {took_s:g} s, {seconds:g} s are enough.",
            cause=_why_zero_slow(orders, passes, n_ranks),
        )
    allowed = min(n_ranks, n_batches)
    if max(peaks) > allowed:
        rank = peaks.index(max(peaks))
        raise CheckFailed(
            f"{what}: {took_s:g} s, but rank {rank} holds {peaks[rank]} activations until their W; "
            f"{allowed} are enough.",
            cause=_why_zero_held(orders[rank], min(n_ranks - rank, n_batches)),
        )


def _why_zero_held(order: Order, warm_up: int) -> str:
    late = "an activation stays until its W, so none must wait longer than it fills the bubble"
    n_batches = len(order) // 3
    if n_batches > 2 and all(kind == "W" for kind, _ in order[-n_batches:]):
        return f"all W come at the end: {late}."
    if _warm_up(order) > warm_up:
        return "forward passes run ahead: as many as in 1F1B come before the first B."
    return f"{late}: where as many are held as may be, a W comes before the next forward pass."


def _why_zero_halt(orders: list[Order]) -> str:
    if any(order.index(("B", k)) < order.index(("F", k)) for order in orders for k in range(len(order) // 3)):
        return "a backward pass comes before its own forward pass."
    return "the ranks' backward passes must come in one order, first in, first out."


def _why_zero_slow(orders: list[Order], passes: list[tuple], n_ranks: int) -> str:
    if n_ranks > 1 and all(
        order[n + 1 : n + 2] == [("W", k)] for order in orders for n, (kind, k) in enumerate(order) if kind == "B"
    ):
        return (
            f"on these {n_ranks} ranks each W comes right after its B, as in 1F1B: the rank before waits for B's "
            "gradient alone, so W can wait, on rank r as many as there are ranks before it."
        )
    n_batches = len(orders[0]) // 3
    for rank, order in enumerate(orders):
        if _warm_up(order) < min(n_ranks - rank, n_batches):
            return (
                f"rank {rank} has too few forward passes before its first B, {_warm_up(order)} where 1F1B has "
                f"{min(n_ranks - rank, n_batches)}: it has none left to make while the first gradient comes back."
            )
    if orders[-1][1][0] != "B":
        return "the last rank goes back with micro-batch 0 right after its forward pass: everybody waits for that."
    if n_batches > 1 and any(kind == "W" for kind, _ in orders[-1][: 2 * min(n_ranks, n_batches)][1:]) and n_ranks > 1:
        return (
            "the last rank makes a W while other ranks wait for its B: it lets its first W wait, as many as there are "
            "ranks before it."
        )
    return "some rank is idle while it has a W to make, or makes a W where a B would have been awaited."


@check(
    "lesson_08.zero_bubble_order",
    judge=_judge_zero,
    cases=[
        {"n_ranks": p, "n_batches": m, "seconds": s}
        for p, m, s in (
            (1, 2, 6.0),
            (2, 1, 5.0),
            (2, 3, 10.0),
            (3, 3, 11.0),
            (4, 2, 11.0),
            (4, 8, 27.0),
            (12, 40, 131.0),
        )
    ],
    ok="W fills the bubble: nobody is faster, and no rank holds more than p micro-batches.",
    hint="hint 1 of exercise 8.7",
    hints={
        "hint 2 of exercise 8.7": "last rank|awaited|holds|at the end|ahead|stays until",
        "hint 1 of exercise 8.7": "W",
    },
    look="play the orders of 2 ranks and 3 micro-batches, and draw them.",
)
def zero_bubble_order(answer, /, n_ranks: int, n_batches: int, seconds: float):
    """Each rank's order; the judge plays them."""
    return [_collected(answer(n_ranks, n_batches, rank), 3 * n_batches) for rank in range(n_ranks)]
