"""Checks of lesson 08's numbers on paper: two bubbles."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.expected_numbers import require
from hw_utils.core.errors import CheckFailed
from hw_utils.material.by_hand.orders import play


def _idle_and_busy(n_stages: int, n_batches: int) -> tuple[float, float, float]:
    """Seconds of all ranks, forward 1 s and backward 2 s: idle, busy, and how long the step takes."""
    order = [(kind, k) for kind in "FB" for k in range(n_batches)]
    passes, _ = play([order] * n_stages, {"F": 1.0, "B": 2.0})
    whole_s, busy_s = max(one[5] for one in passes), sum(one[5] - one[4] for one in passes)
    return n_stages * whole_s - busy_s, busy_s, whole_s


DIVIDED_BY_ZERO = {"error": "ZeroDivisionError"}


def _judge_bubble(data: Any, n_stages: int, n_batches: int, of: str) -> None:
    if data == DIVIDED_BY_ZERO:
        raise CheckFailed(
            f"bubble_of_{of}({n_stages}, {n_batches}) divides by zero.",
            cause="p - 1 is 0 with one stage, where nothing is idle and the bubble is 0, and m - 1 with one "
            "micro-batch: divide by neither.",
        )
    idle_s, busy_s, whole_s = _idle_and_busy(n_stages, n_batches)
    total_s = n_stages * whole_s
    right, other = (idle_s / total_s, idle_s / busy_s) if of == "total" else (idle_s / busy_s, idle_s / total_s)
    base = {"total": "idle time over all time, the idle one included", "ideal": "idle time over busy time"}
    causes = {} if n_batches >= n_stages else {
        "it is right where m is at least p, and another formula for fewer micro-batches: one holds for all.": (
            (n_stages - 1) / (2 * n_stages - 1),
            (n_stages - 1) / n_stages,
        ),
    }  # fmt: skip
    causes |= {
        f"that is the share of the {'ideal' if of == 'total' else 'total'} time; here: {base[of]}.": other,
        "there are p - 1 idle slots a rank, not p.": (
            (n_stages / (n_stages - 1) * right) if n_stages > 1 else float("nan"),
            n_stages / n_batches,
            n_stages / (n_stages + n_batches),
            n_stages / (n_stages + n_batches - 1),
        ),
        "that is the busy share: the idle one is what is missing to 1.": busy_s / total_s,
        "the step has m + p - 1 slots, not m + p.": (n_stages - 1) / (n_stages + n_batches),
        "m micro-batches take m slots, not m - 1; the step has m + p - 1.": (
            (n_stages - 1) / (n_stages + n_batches - 2) if n_stages + n_batches > 2 else float("nan"),
            (n_stages - 1) / (n_batches - 1) if n_batches > 1 else float("nan"),
        ),
        "that is idle slots of a rank: divide by its slots.": n_stages - 1.0,
        "forward and backward have p - 1 idle slots each, and m each: the 2 cancels.": (
            2 * right,
            2 * (n_stages - 1) / (2 * n_batches + n_stages - 1),
            2 * (n_stages - 1) / (n_batches + 2 * (n_stages - 1)),
            (n_stages - 1) / (2 * n_batches),
        ),
        "stages and micro-batches are taken for each other.": (
            (n_batches - 1) / (n_stages + n_batches - 1),
            (n_batches - 1) / n_stages,
        ),
        "that is one rank's idle time over the time of all ranks: both of one rank, or both of all.": (
            right / n_stages,
            (n_stages - 1) / (n_stages * n_batches + n_stages - 1),
        ),
        "that is idle time of all ranks: divide it by all ranks' time, too.": (n_stages * right, idle_s),
        "that is the step's time over the ideal one: the bubble is what it is longer by.": total_s / busy_s,
    }
    if right > 1:
        causes["that is 1 at most, but of the ideal time the idle one may be more: it is no share."] = 1.0
    require(f"bubble_of_{of}({n_stages}, {n_batches})", data, right, causes, rel_tol=1e-9)


def _value(formula: Any, n_stages: int, n_batches: int) -> Any:
    try:
        return formula(n_stages, n_batches)
    except ZeroDivisionError:
        return DIVIDED_BY_ZERO


_PAIRS = [
    {"n_stages": p, "n_batches": m} for p, m in ((4, 10), (1, 4), (2, 1), (3, 12), (8, 3), (8, 32), (3, 39), (16, 1),
                                                   (40, 100), (2, 300))
]  # fmt: skip


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
    return _value(formula, n_stages, n_batches)


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
    return _value(formula, n_stages, n_batches)


def whole_numbers(values: Any) -> Any:
    """A list with its tensors and arrays of one whole number as numbers; all else as it is."""
    if not isinstance(values, list):
        return values
    return [int(v.item()) if isinstance(v, np.ndarray) and v.size == 1 and v.dtype.kind in "iu" else v for v in values]
