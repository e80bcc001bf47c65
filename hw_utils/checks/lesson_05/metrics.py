"""The check of scaling_metrics: what the times of a training make of more workers."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_05.expected_numbers import number_of, require
from hw_utils.core.errors import CheckFailed

METRICS = ("ratio", "speedup", "efficiency")


def _judge_metrics(data: Any, profiles: list[list[float]]) -> None:
    if "divides_by_0" in data:
        sizes = ", ".join(str(int(row[0])) for row in profiles)
        raise CheckFailed(
            f"scaling_metrics of the profiles of {sizes} ranks divides by zero.",
            cause="where one rank is alone, or nothing is sent, comm_s is 0: the ratio is math.inf, not a quotient.",
        )
    if "rows" not in data:
        raise CheckFailed(
            f"scaling_metrics returned {data['kind']}; expected a dict, world size to metrics.",
            cause="collect a row a world size, and return them all at the end.",
        )
    data = {int(n): row for n, row in data["rows"] if isinstance(n, int) and not isinstance(n, bool)}
    alone = next(row for row in profiles if row[0] == 1)
    alone_s = alone[3]
    others = sorted(set(data) - {int(row[0]) for row in profiles})
    missing = sorted({int(row[0]) for row in profiles} - set(data))
    if others and missing:
        raise CheckFailed(
            f"scaling_metrics has a row for {others[0]} ranks and none for {missing[0]}; in `profiles` it is the "
            "other way round.",
            cause="a row has the world size of its profile, whatever it is: the keys of `profiles`, not counted ones.",
        )
    if others:
        raise CheckFailed(
            f"scaling_metrics has a row for {others[0]} ranks, and `profiles` has none.",
            cause="make the dictionary in the function: one made beside it keeps what an earlier call put in.",
        )
    for n, *_ in profiles:
        if not isinstance(data.get(int(n)), dict):
            raise CheckFailed(
                f"scaling_metrics has no row for {int(n)} ranks.",
                cause="every world size of `profiles` has one, 1 included, under an int; a row is a dictionary.",
            )
        if missing := [name for name in METRICS if name not in data[int(n)]]:
            raise CheckFailed(
                f"scaling_metrics: the row of {int(n)} {'rank' if n == 1 else 'ranks'} has no {', '.join(missing)}.",
                cause=f"every row has {', '.join(METRICS)}, under these names.",
            )
    for row in sorted(profiles, key=lambda row: row[2] == 0):  # without communication many mistakes give the same
        _judge_ratio(data[int(row[0])].get("ratio"), *row)
    for n, comp_s, _, iteration_s in profiles:
        row = data[int(n)]
        examples = n * (alone_s / iteration_s)  # how many batches in the time that one rank needs for one
        what = f"scaling_metrics with {int(n)} {'rank' if n == 1 else 'ranks'}: "
        causes = {
            "every rank has its own batch: N ranks do N batches in an iteration.": alone_s / iteration_s,
            "that is upside down.": iteration_s / alone_s * n,
            "the speedup is of whole iterations, communication included (iteration_s).": (
                n * alone[1] / comp_s,
                n * alone[1] / iteration_s,
                n * alone_s / comp_s,
            ),
            "N alone is the ideal.": float(n),
        }
        if profiles[0][0] != 1:  # a row that stands first is N times itself
            against_first = "the speedup compares with one rank: profiles[1], wherever it stands."
            causes = {against_first: n * profiles[0][3] / iteration_s, **causes}
        if n == 1:
            shortest_s = min(row[3] for row in profiles)
            against_shortest = "the speedup compares with one rank: profiles[1], not the shortest time."
            causes = {against_shortest: shortest_s / alone_s, **causes}
        require(f"{what}speedup", row.get("speedup"), examples, causes)
        causes = {
            "efficiency is the speedup divided by N, 1 at best.": examples,
            "in percent? 1 means 100 %.": 100 * examples / n,
            "the speedup counts N batches already: divide it by N once.": examples / n**2,
        }
        require(f"{what}efficiency", row.get("efficiency"), examples / n, causes)


def _judge_ratio(got: Any, n: float, comp_s: float, comm_s: float, iteration_s: float) -> None:
    causes: dict[str, float | tuple[float, ...]] = {
        "that is communication over compute.": comm_s / comp_s,
        "that is a share of the iteration: compute over communication is asked.": (
            comp_s / iteration_s,
            comm_s / iteration_s,
        ),
        "nothing is added to comm_s: where that is 0 the ratio is math.inf, and elsewhere it is as it is.": tuple(
            comp_s / (comm_s + 10.0**-digits) for digits in range(2, 13)
        ),
    }
    what = f"scaling_metrics with {int(n)} {'rank' if n == 1 else 'ranks'}: ratio"
    if n == 1 and number_of(got) == math.inf:
        return  # one rank calls nobody, even if its clock shows a few microseconds between two readings
    if comm_s and number_of(got) == math.inf:
        raise CheckFailed(
            f"{what} is infinite, expected {comp_s / comm_s:g}.",
            cause=f"comm_s is {comm_s:g} here, little and not nothing: the ratio is math.inf only where it is 0.",
        )
    if comm_s:
        require(what, got, comp_s / comm_s, causes)
    elif number_of(got) != math.inf:
        raise CheckFailed(
            f"{what} gave {came(got)}, expected inf.", cause="with no communication the ratio is infinite: math.inf."
        )


@check(
    "lesson_05.scaling_metrics",
    judge=_judge_metrics,
    is_formula=True,
    cases=[
        {"profiles": [[1, 0.2, 0.0, 0.2], [3, 0.22, 0.06, 0.28]]},
        {"profiles": [[8, 0.15, 0.25, 0.4], [4, 0.12, 0.08, 0.2], [1, 0.1, 0.0, 0.1]]},
        {"profiles": [[1, 0.4, 0.0, 0.4], [2, 0.25, 0.0, 0.25], [3, 0.2, 5e-7, 0.2000005]]},
        {"profiles": [[1, 0.2997, 0.0003, 0.3], [2, 0.16, 0.01, 0.17], [4, 0.09, 0.03, 0.12]]},
    ],
    ok="ratio, speedup and efficiency are right, infinity included.",
    hint="hint 3 of exercise 5.2",
    look="work the row of 2 ranks out by hand.",
)
def scaling_metrics(function, /, profiles: list[list[float]]):
    """Metrics from profiles, world size to comp_s, comm_s, iteration_s."""
    keys = ("comp_s", "comm_s", "iteration_s")
    try:
        metrics = function({int(n): dict(zip(keys, times)) for n, *times in profiles})
    except ZeroDivisionError:
        return {"divides_by_0": True}
    if not isinstance(metrics, dict):
        return {"kind": type(metrics).__name__}
    return {"rows": [[n, row] for n, row in metrics.items()]}
