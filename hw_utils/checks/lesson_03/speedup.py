"""3.2c: k* and the speedup over several seeds."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.lesson_03 import curve_causes
from hw_utils.core.errors import CheckFailed


def _judge_first(data: Any, curve: list, target: float, expected: float) -> None:
    if type(data) in (int, float) and data == expected:
        return
    text = "math.inf, because it is never reached" if expected == math.inf else str(expected)
    got = repr(data) if type(data) in (int, float, str, bool, type(None)) else f"a {type(data).__name__}"
    raise CheckFailed(
        f"k_star of {curve} at {target}: got {got}, expected {text}.", cause=curve_causes.first(data, curve, target)
    )


_RISING = [[5, 0.90], [10, 0.968], [15, 0.98], [20, 0.99]]
_DIPPING = [[4, 0.95], [8, 0.965], [12, 0.95], [16, 0.965], [20, 0.98]]
_EXACT = [[2, 0.9], [4, 0.97], [6, 0.98]]
_JUST_BELOW = [[3, 0.9], [6, 0.969999], [9, 0.97]]


@check(
    "lesson_03.k_star",
    judge=_judge_first,
    is_formula=True,
    cases=[
        {"curve": _RISING, "target": 0.97, "expected": 15},
        {"curve": _EXACT, "target": 0.97, "expected": 4},
        {"curve": _JUST_BELOW, "target": 0.97, "expected": 9},
        {"curve": _DIPPING, "target": 0.96, "expected": 8},
        {"curve": [[3, 0.8], [6, 0.9]], "target": 0.7, "expected": 3},
        {"curve": [[5, 0.5]], "target": 0.9, "expected": math.inf},
        {"curve": [], "target": 0.9, "expected": math.inf},
    ],
    ok="the first iteration that reaches the target, and infinity if none does.",
    hint="the hints of exercise 3.2c",
    hints={"hint 1 of exercise 3.2c": "first|infinity|math.inf|place in the list|enough"},
    errors={
        r"empty|StopIteration|IndexError": "a run that never gets there is an outcome, not an error: math.inf, as in "
        "min(..., default=math.inf) or next(..., math.inf)."
    },
)
def k_star(k_star, /, curve: list, target: float, expected: float):
    """The answer itself; the expected one is the judge's."""
    return k_star([tuple(pair) for pair in curve], target)


def _judge_speedup(data: Any, k_star: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    what = f"speedup of {k_star}"
    if not isinstance(data, dict) or data.keys() != k_star.keys():
        lacks = sorted(set(k_star) - set(data)) if isinstance(data, dict) else []
        raise CheckFailed(
            f"{what}: expected a dictionary with an entry for each of N = {', '.join(k_star)}.",
            cause=f"N = {lacks[0]} is missing: every N of k_star has its three numbers, 1 too."
            if lacks
            else "the answer is a dictionary, N -> (lowest, median, highest), with the keys of k_star and no others.",
        )
    for n, right in expected.items():
        got = data[n]
        if not isinstance(got, list) or len(got) != 3 or any(type(v) not in (int, float) for v in got):
            raise CheckFailed(
                f"{what}: N = {n} needs three numbers, (lowest, median, highest).",
                cause="three speedups an N, as a tuple: over the largest, the median and the smallest k*(N).",
            )
        if all(math.isclose(g, r, rel_tol=1e-3) for g, r in zip(got, right)):
            continue
        shown = [f"({', '.join(f'{v:.4g}' for v in three)})" for three in (got, right)]
        raise CheckFailed(
            f"{what}: N = {n} gives {shown[0]}, expected {shown[1]}.", cause=curve_causes.speedup(got, right, k_star, n)
        )


@check(
    "lesson_03.speedup",
    judge=_judge_speedup,
    is_formula=True,
    cases=[
        {  # first, middle, smallest, largest and median are five different ones
            "k_star": {"1": [500, 300, 350, 900, 400], "4": [160, 100, 110, 120, 800]},
            "expected": {"1": [0.44444, 1, 1.33333], "4": [0.5, 3.33333, 4]},
        },
        {
            "k_star": {"1": [100, 120, 110], "2": [50, 40, 60]},
            "expected": {"1": [0.91667, 1, 1.1], "2": [1.83333, 2.2, 2.75]},
        },
        {
            "k_star": {"1": [400, 420, 440], "8": [100, 210, math.inf]},
            "expected": {"1": [0.95455, 1, 1.05], "8": [0, 2, 4.2]},
        },
        {
            "k_star": {"1": [300, 180, 120, 240], "2": [100, 140]},
            "expected": {"1": [0.7, 1, 1.75], "2": [1.5, 1.75, 2.1]},
        },
    ],
    ok="median and spread of k*(1)/k*(N), a run that never arrives included.",
    hint="the hints of exercise 3.2c",
    look="work the row of the largest N out by hand.",
    hints={"hint 2 of exercise 3.2c": "swapped"},
)
def speedup(speedup, /, k_star: dict[str, list[float]], expected: dict[str, list[float]]):
    """N -> (lowest, median, highest); the case writes N as text, and what is expected is the judge's."""
    return speedup({int(n): list(values) for n, values in k_star.items()})
