"""Checks of lesson 08's numbers on paper: two bubbles, and layers for stages."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.costs import require
from hw_utils.core.errors import CheckFailed
from hw_utils.material.by_hand.orders import play


def _idle_and_busy(n_stages: int, n_batches: int) -> tuple[float, float, float]:
    """Seconds of all ranks, forward 1 s and backward 2 s: idle, busy, and how long the step takes."""
    order = [(kind, k) for kind in "FB" for k in range(n_batches)]
    passes, _ = play([order] * n_stages, {"F": 1.0, "B": 2.0})
    whole_s, busy_s = max(one[5] for one in passes), sum(one[5] - one[4] for one in passes)
    return n_stages * whole_s - busy_s, busy_s, whole_s


def _judge_bubble(data: Any, n_stages: int, n_batches: int, of: str) -> None:
    idle_s, busy_s, whole_s = _idle_and_busy(n_stages, n_batches)
    total_s = n_stages * whole_s
    right, other = (idle_s / total_s, idle_s / busy_s) if of == "total" else (idle_s / busy_s, idle_s / total_s)
    base = {"total": "idle time over all time, the idle one included", "ideal": "idle time over busy time"}
    causes = {
        f"that is the share of the {'ideal' if of == 'total' else 'total'} time; here: {base[of]}.": other,
        "there are p - 1 idle slots a rank, not p.": (
            (n_stages / (n_stages - 1) * right) if n_stages > 1 else float("nan"),
            n_stages / n_batches,
            n_stages / (n_stages + n_batches),
            n_stages / (n_stages + n_batches - 1),
        ),
        "that is the busy share: the idle one is what is missing to 1.": busy_s / total_s,
        "the step has m + p - 1 slots, not m + p.": (n_stages - 1) / (n_stages + n_batches),
        "that is idle slots of a rank: divide by its slots.": n_stages - 1.0,
        "forward and backward have p - 1 idle slots each, and m each: the 2 cancels.": (
            2 * right,
            2 * (n_stages - 1) / (2 * n_batches + n_stages - 1),
            (n_stages - 1) / (2 * n_batches),
        ),
        "stages and micro-batches are taken for each other.": (
            (n_batches - 1) / (n_stages + n_batches - 1),
            (n_batches - 1) / n_stages,
        ),
        "that is idle time of all ranks: divide it by all ranks' time, too.": (n_stages * right, idle_s),
        "that is the step's time over the ideal one: the bubble is what it is longer by.": total_s / busy_s,
    }
    require(f"bubble_of_{of}({n_stages}, {n_batches})", data, right, causes)


_PAIRS = [{"n_stages": p, "n_batches": m} for p, m in ((3, 8), (1, 4), (2, 1), (4, 8), (8, 3), (8, 32), (3, 39))]


def _judge_total(data: Any, n_stages: int, n_batches: int) -> None:
    _judge_bubble(data, n_stages, n_batches, "total")


def _judge_ideal(data: Any, n_stages: int, n_batches: int) -> None:
    _judge_bubble(data, n_stages, n_batches, "ideal")


@check(
    "lesson_08.bubble_of_total",
    judge=_judge_total,
    cases=_PAIRS,
    ok="the idle share of all time is that of the replayed pipeline.",
    hint="hint 1 of exercise 8.1",
    look="draw the pipeline of 2 stages and 1 micro-batch on paper and count idle and busy slots.",
)
def bubble_of_total(formula, /, n_stages: int, n_batches: int):
    """The formula's value; the judge plays the pipeline."""
    return formula(n_stages, n_batches)


@check(
    "lesson_08.bubble_of_ideal",
    judge=_judge_ideal,
    cases=_PAIRS,
    ok="idle over busy time is that of the replayed pipeline.",
    hint="hint 1 of exercise 8.1",
    look="draw the pipeline of 2 stages and 1 micro-batch on paper and count idle and busy slots.",
)
def bubble_of_ideal(formula, /, n_stages: int, n_batches: int):
    """The formula's value; the judge plays the pipeline."""
    return formula(n_stages, n_batches)


def _judge_balance(data: Any, layer_s: list[float], n_stages: int, slowest_s: float) -> None:
    shown = ", ".join(f"{s:g}" for s in layer_s)
    what = f"balance([{shown}], {n_stages})"
    counts = data.tolist() if isinstance(data, np.ndarray) else whole_numbers(data)
    if not isinstance(counts, list) or not all(type(n) is int for n in counts):
        nested = isinstance(counts, list) and any(isinstance(n, list) for n in counts)
        raise CheckFailed(
            f"{what} gave {_short(data)}.",
            cause="return how many layers each stage gets, a list of whole numbers"
            + (", not the layers themselves." if nested else "."),
        )
    if len(counts) != n_stages or sum(counts) != len(layer_s) or min(counts) < 1:
        cause = "every stage has a layer at least, and every layer a stage."
        if len(counts) == n_stages - 1 or (counts and counts[-1] == len(layer_s) and counts == sorted(counts)):
            cause = "these look like the places of the cuts: how many layers each stage gets is asked."
        elif len(counts) == len(layer_s) != n_stages:
            cause = "that is a stage for each layer: how many layers each stage gets is asked."
        raise CheckFailed(
            f"{what} gave {counts}: {len(counts)} stages with {sum(counts)} layers, the least has "
            f"{min(counts, default=0)}; {n_stages} stages share {len(layer_s)} layers.",
            cause=cause,
        )
    ends = np.cumsum(counts)
    stage_s = [sum(layer_s[end - n : end]) for n, end in zip(counts, ends)]
    if max(stage_s) > slowest_s + 1e-9:
        raise CheckFailed(
            f"{what} gave {counts}: the slowest stage takes {max(stage_s):g} s, another cut has {slowest_s:g} s.",
            cause=_why_slow(counts, stage_s, layer_s, n_stages),
        )


def whole_numbers(values: Any) -> Any:
    """A list with its tensors and arrays of one whole number as numbers; all else as it is."""
    if not isinstance(values, list):
        return values
    return [int(v.item()) if isinstance(v, np.ndarray) and v.size == 1 and v.dtype.kind in "iu" else v for v in values]


def _why_slow(counts: list[int], stage_s: list[float], layer_s: list[float], n_stages: int) -> str:
    if max(counts) - min(counts) <= 1 and counts in (sorted(counts), sorted(counts, reverse=True)):
        return "every stage has as many layers, but layers take different times: seconds count."
    mean = sum(layer_s) / n_stages
    if max(stage_s) == stage_s[-1] and all(s <= mean + 1e-9 for s in stage_s[:-1]):
        return "each stage is filled up to the mean, and the last one has to take the rest: try other limits."
    if max(stage_s[:-1]) > mean and stage_s[-1] < mean:
        return "each stage is filled until it passes the mean, and the last one has little left."
    if n_stages > 2:
        return "cutting in the middle first, or one cut after another, fixes a cut that the next one would move."
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."


@check(
    "lesson_08.balance",
    judge=_judge_balance,
    cases=[
        {"layer_s": layer_s, "n_stages": p, "slowest_s": slowest_s}
        for layer_s, p, slowest_s in (
            ([3.0], 1, 3.0),
            ([1.0, 2.0, 3.0, 4.0], 1, 10.0),
            ([1.0, 2.0, 3.0], 3, 3.0),
            ([1.0, 1.0, 1.0, 5.0], 2, 5.0),
            ([5.0, 1.0, 1.0, 1.0], 3, 5.0),
            ([2.0, 3.0, 4.0, 5.0, 6.0], 3, 9.0),
            ([9.0, 1.0, 7.0, 2.0, 8.0, 3.0], 3, 11.0),
            ([1.0, 4.0, 1.0, 1.0, 4.0, 1.0], 4, 5.0),
            ([0.5] + 12 * [1.0] + [2.5], 4, 4.0),
            ([0.25] + 24 * [1.0] + [3.5], 5, 6.0),
        )
    ],
    ok="no cut of these layers has a faster slowest stage.",
    hint="hint 1 of exercise 8.5",
    hints={"hint 2 of exercise 8.5": "mean|one cut|fixes"},
    look="write down all cuts of these layers and their slowest stages.",
)
def balance(answer, /, layer_s: list[float], n_stages: int, slowest_s: float):
    """The numbers of layers; slowest_s is what the best of all cuts has."""
    found = answer(list(layer_s), n_stages)
    return list(found) if isinstance(found, tuple | range) or hasattr(found, "__next__") else found
