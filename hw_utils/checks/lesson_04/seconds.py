"""Lesson 04's virtual seconds: what each part of a training iteration takes, and what a wrong clock makes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.core.errors import CheckFailed

# No two sums of them are alike, so a mean tells what is in it; a grader has each take its own while longer. Of every
# iteration, in which forwards differ; and outside of one, until its batch is there and for a report.
_PARTS = {"forward": 0.0, "backward": 0.13, "sync": 0.29, "the step": 0.067, "zero_grad": 0.019}
_OUTSIDE = {"batch": 0.41, "report": 0.53}


def of(part: str) -> float:
    """Seconds of a part of an iteration, a batch or a report."""
    return {**_PARTS, **_OUTSIDE}[part] * drawn_numbers.factor(part)


def forwards(n: int) -> list[float]:
    """Seconds of each forward: the first is slow, and so is what comes after the 40th."""
    each = [8.0] + [1.0 + 0.001 * i * i for i in range(1, min(n, 40))] + [3.0] * max(n - 40, 0)
    return [seconds * drawn_numbers.factor("forward") for seconds in each]


def judge_seconds(got_s: float, n: int, run_s: float, n_reports: int) -> None:
    """Raises CheckFailed unless it is the mean of iterations 2 to 40, from zero_grad to the end of the step.

    run_s: seconds of the whole run with that many reports; it shows whether the optimizer's zero_grad was called, for
    who clears gradients in another way needs no time for it.
    """
    expected_s = _mean(_whole(n)[1:40])
    rest_s = (
        sum(_whole(n)) + n * of("batch") + n_reports * of("report") - n * of("zero_grad")
    )  # of a run without zero_grad
    right = [expected_s] if run_s > rest_s + 1e-6 else [expected_s, expected_s - of("zero_grad")]
    if any(math.isclose(got_s, seconds, rel_tol=1e-6) for seconds in right):
        return
    cause = next((text for text, value in _mistakes(n) if math.isclose(got_s, value, rel_tol=1e-6, abs_tol=1e-9)), "")
    if not cause and math.isclose(got_s, run_s / n, rel_tol=1e-6):
        cause = "the clock runs around the whole loop: batches, reports and the first iteration are in it."
    from_2nd_s = sum(_whole(n)[1:]) + n_reports * of("report")  # from the first zero_grad, or batch, that counts
    if not cause and any(
        math.isclose(got_s, (from_2nd_s + (n - k) * of("batch")) / (n - 1), rel_tol=1e-6) for k in (1, 2)
    ):
        cause = (
            "the clock runs on from iteration 2 to the last: batches and reports are in it, and all after the 40th. "
            "Read it twice in each iteration."
        )
    if not cause and math.isclose(got_s, expected_s, abs_tol=6e-3):
        cause = "right to two digits, so rounded: return it as it is."
    raise CheckFailed(
        f"train: iteration_s of {n} iterations is {got_s:.4g} s, expected {expected_s:.4g} s,"
        f" the mean of iterations 2 to {min(n, 40)}.",
        cause=cause,
    )


def _whole(n: int) -> list[float]:
    return [forward_s + sum(map(of, _PARTS)) for forward_s in forwards(n)]


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _mistakes(n: int) -> Iterator[tuple[str, float]]:
    """(cause, the seconds that it leads to), single mistakes before two at once."""
    yield from _wrong_means(_whole(n))
    timed = _whole(n)[1:40]
    batch = "the time until a batch is there is in it: read the clock once x and y are."
    yield batch, _mean(timed) + of("batch")
    yield (
        "the reports are in it: read the clock before them.",
        _mean(timed) + of("report") * (min(n, 40) // 20) / len(timed),
    )
    for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
        yield f"seconds are wanted, these are {unit}.", factor * _mean(timed)
    for size in range(1, len(_PARTS) + 1):
        for left_out in itertools.combinations(_PARTS, size):
            rest = [name for name in _PARTS if name not in left_out]
            seconds = [sum(of(name) for name in rest) + ("forward" in rest) * f for f in forwards(n)]
            cause = (
                f"{' and '.join(left_out)} {'is' if size == 1 else 'are'} not in it: read the clock before"
                " optimizer.zero_grad() and after optimizer.step()."
            )
            yield cause, _mean(seconds[1:40])
            for text, value in _wrong_means(seconds):
                yield f"{cause} And {text}", value


def _wrong_means(all_s: list[float]) -> list[tuple[str, float]]:
    timed = all_s[1:40]
    return [
        ("every iteration is in the mean: the first one, which warms up, must not be.", _mean(all_s)),
        ("the first iteration, which warms up, must not be in the mean.", _mean(all_s[:40])),
        ("iterations after the 40th are in the mean.", _mean(all_s[1:])),
        ("this is a sum: divide by the number of iterations.", sum(timed)),
        ("the sum of the timed iterations is divided by 40: divide by how many there are.", sum(timed) / 40),
        ("the sum of the timed iterations is divided by 39: divide by how many there are.", sum(timed) / 39),
        ("the sum of the timed iterations is divided by the number of all.", sum(timed) / len(all_s)),
        ("iterations count from 1, lists from 0: this mean begins with the 3rd.", _mean(all_s[2:41] or [math.inf])),
        ("this mean ends with the 39th.", _mean(all_s[1:39])),
        ("this mean ends with the 41st.", _mean(all_s[1:41])),
        ("this is the middle one: the mean is wanted.", float(np.median(timed))),
        ("this is the middle one: the mean is wanted.", sorted(timed)[len(timed) // 2]),
        ("this is the fastest one: the mean is wanted.", min(timed)),
        ("this is the last iteration's: the mean is wanted.", all_s[-1]),
    ]
