"""Checks of lesson 05: which causes make a step slow, and what each adds."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_05_costs import all_reduce_of, free, number_of, require
from hw_utils.errors import CheckFailed
from hw_utils.network import Network
from hw_utils.trace import Trace


def _judge_step_under(data: Any, world_size: int, conditions: dict[str, float]) -> None:
    serial_s, slow = conditions.get("serial_s", 0.0), conditions.get("straggler", 1.0)
    cores, compute_s = conditions.get("cores", 0) or world_size, 1.0
    what = f"step_under with {world_size} ranks, {conditions or 'nothing switched on'}"
    require_no_deadlock(data, what)
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    reduce_s = free(all_reduce_of, world_size, 40_000, network=network).seconds
    each = compute_s * max(1.0, world_size / cores)
    expected = serial_s + each * slow + reduce_s
    causes = {
        "the serial part is rank 0's alone, and everybody waits for it: barrier after it.": max(serial_s, each * slow)
        + reduce_s,
        "every rank slowed down; a straggler is the last rank only, and that is enough.": math.nan,
        "ranks beyond the cores take turns: compute takes world_size / cores as long.": serial_s
        + compute_s * slow
        + reduce_s,
        "the all-reduce is missing.": serial_s + each * slow,
        "the compute of the step is missing: nothing but communication takes time.": serial_s + reduce_s,
        "the straggler makes no difference yet.": serial_s + each + reduce_s,
    }
    require(f"{what}: the step", data["seconds"], expected, causes, rel_tol=5e-3)
    mine = Trace.from_plain(data["trace"]).of_rank(world_size - 1)
    if serial_s and sum(e.wait_end_s - e.wait_start_s for e in mine) < 0.99 * serial_s:
        raise CheckFailed(
            f"{what}: rank {world_size - 1} does not wait for rank 0's serial part.",
            cause="only rank 0 is busy with it; the others stand in a barrier meanwhile.",
        )
    own = {
        r: sum(e.wait_end_s - e.wait_start_s for e in Trace.from_plain(data["trace"]).of_rank(r).of_op("all_reduce"))
        for r in range(world_size)
    }
    if slow > 1 and not own[0] > own[world_size - 1] + 0.5 * (slow - 1) * each:
        raise CheckFailed(
            f"{what}: rank 0 does not wait for rank {world_size - 1} in the all-reduce.",
            cause="every rank slowed down; a straggler is the last rank only, and that is enough.",
        )


@check(
    "lesson_05.step_under",
    judge=_judge_step_under,
    cases=[
        {"world_size": n, "conditions": c}
        for n, c in (
            (4, {}),
            (4, {"serial_s": 0.5}),
            (4, {"straggler": 1.5}),
            (8, {"cores": 2}),
            (4, {"serial_s": 0.25, "straggler": 2.0, "cores": 2}),
        )
    ],
    ok="each condition alone, and all together, cost what they should.",
    hint="hint 1 of exercise 5.5",
)
def step_under(worker, /, world_size: int, conditions: dict[str, float]):
    """One step of 1 s compute and 40 kB of gradients under the given conditions."""
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    return observe(lambda: free(worker, world_size, dict(conditions), network=network))


def _judge_waterfall(data: Any, ideal_s: float, alone_s: dict[str, float], actual_s: float) -> None:
    what = f"waterfall({ideal_s}, {alone_s}, {actual_s})"
    if not isinstance(data, dict):
        raise CheckFailed(f"{what} returned {type(data).__name__}; expected a dict, cause to seconds.")
    expected_keys = ["ideal", *alone_s, "together"]
    if list(data) != expected_keys:
        raise CheckFailed(f"{what} has the parts {list(data)}, expected {expected_keys}.")
    require(f"{what}: ideal", data["ideal"], ideal_s, {})
    for cause, seconds in alone_s.items():
        require(
            f"{what}: {cause}",
            data[cause],
            seconds - ideal_s,
            {"that is the whole step; a part is what it adds to the ideal one.": seconds},
        )
    total = sum(number_of(v) for v in data.values())
    if not math.isclose(total, actual_s, rel_tol=1e-9):
        raise CheckFailed(
            f"{what}: the parts add up to {total:g} s, the actual step takes {actual_s:g} s.",
            cause="`together` is what the causes cost beyond each alone; it closes the sum and may be negative.",
        )


@check(
    "lesson_05.waterfall",
    judge=_judge_waterfall,
    cases=[
        {"ideal_s": 1.0, "alone_s": {"serial": 1.5}, "actual_s": 1.5},
        {"ideal_s": 1.0, "alone_s": {"serial": 1.25, "straggler": 1.5, "cores": 2.0}, "actual_s": 3.5},
        {"ideal_s": 2.0, "alone_s": {"link": 2.5, "straggler": 3.0}, "actual_s": 3.25},
    ],
    ok="the parts add up, from the ideal step to the actual one.",
    hint="hint 2 of exercise 5.5",
)
def waterfall(function, /, ideal_s: float, alone_s: dict[str, float], actual_s: float):
    """Parts of a step's time, from the ideal to the actual one."""
    return function(ideal_s, dict(alone_s), actual_s)
