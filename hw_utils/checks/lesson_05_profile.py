"""Checks of lesson 05: where the time of a training goes, and what that makes of more workers."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_05_costs import number_of, require
from hw_utils.checks.lesson_05_weights import judge_weights, watched
from hw_utils.errors import CheckFailed
from hw_utils.network import Network
from hw_utils.simulate import simulate
from hw_utils.trace import Trace

PROFILE = ("comp_s", "comm_s", "iteration_s", "n_calls")


def _judge_profile(data: Any, world_size: int, n_iterations: int, batch_size: int, compute: str) -> None:
    what = f"profiled_training with {world_size} ranks, {n_iterations} iterations, compute {compute}"
    require_no_deadlock(data, what, cause="every rank makes the same calls, parameter by parameter.")
    trace = Trace.from_plain(data["trace"])
    for rank in range(world_size):
        profile = data["results"][rank]["returned"]
        if not isinstance(profile, dict) or not set(PROFILE) <= set(profile):
            raise CheckFailed(f"{what}: rank {rank} returned {profile!r}; expected a dict with {', '.join(PROFILE)}.")
        _judge_rank_profile(
            what, {k: number_of(profile[k]) for k in PROFILE}, trace.of_rank(rank), n_iterations, compute
        )
    judge_weights(what, data["results"], n_iterations)


def _judge_rank_profile(what: str, profile: dict[str, float], mine: Trace, n_iterations: int, compute: str) -> None:
    calls = mine.of_op("all_reduce")
    expected_calls = 8 * n_iterations if mine.world_size > 1 else 0  # SimpleCNN has 8 parameters
    if len(calls) != expected_calls:
        raise CheckFailed(
            f"{what}: the ledger has {len(calls)} all_reduce calls a rank, expected {expected_calls}.",
            cause="one call a parameter and iteration; with one rank there is nothing to reduce.",
        )
    if profile["n_calls"] != expected_calls:
        raise CheckFailed(
            f"{what}: n_calls is {profile['n_calls']:g}, the ledger has {expected_calls}.",
            cause="n_calls counts every all_reduce of the run, not iterations or parameters.",
        )
    in_ledger = _under_way_s(calls) / n_iterations
    tolerance = 1e-6 if compute == "free" else 0.25
    got = profile["comm_s"]
    if not math.isclose(got, in_ledger, rel_tol=tolerance, abs_tol=1e-9 if compute == "free" else 2e-3):
        causes = {
            "comm_s is the mean of an iteration, not the whole run: divide by n_iterations.": in_ledger * n_iterations,
            "comm_s covers all 8 calls of an iteration, not one of them.": calls[-1].seconds if calls else math.nan,
            "the clock was read before the calls were done.": 0.0,
        }
        near = [c for c, v in causes.items() if math.isclose(got, v, rel_tol=tolerance, abs_tol=1e-9)]
        raise CheckFailed(
            f"{what}: comm_s is {got:g} s an iteration, the ledger says {in_ledger:g} s.", cause=near[0] if near else ""
        )
    _judge_compute(what, profile, compute)


def _under_way_s(calls: Trace) -> float:
    """Seconds in which at least one of the calls was under way: several may be at once, with async_op."""
    seconds, until_s = 0.0, -math.inf
    for event in sorted(calls, key=lambda e: e.start_s):
        seconds += max(0.0, event.end_s - max(event.start_s, until_s))
        until_s = max(until_s, event.end_s)
    return seconds


def _judge_compute(what: str, profile: dict[str, float], compute: str) -> None:
    comp_s, comm_s, iteration_s = (profile[k] for k in ("comp_s", "comm_s", "iteration_s"))
    if compute == "free":
        if not abs(comp_s) <= 1e-9:
            raise CheckFailed(
                f"{what}: compute is free on this cluster, but comp_s is {comp_s:g} s.",
                cause="communication was counted as compute: read the clock between the two.",
            )
    elif not comp_s > 0:
        raise CheckFailed(f"{what}: comp_s is {comp_s:g} s; forward, backward and step take longer than that.")
    if not math.isclose(comp_s + comm_s, iteration_s, rel_tol=0.1, abs_tol=1e-9):
        raise CheckFailed(
            f"{what}: comp_s + comm_s is {comp_s + comm_s:g} s, but iteration_s is {iteration_s:g} s.",
            cause="an iteration is its compute (forward, backward, step) and its communication, nothing else.",
        )


@check(
    "lesson_05.profiled_training",
    judge=_judge_profile,
    cases=[
        {"world_size": n, "n_iterations": k, "batch_size": 4, "compute": c}
        for n, k, c in ((1, 2, "measured"), (2, 3, "free"), (4, 2, "measured"))
    ],
    ok="times and calls agree with the ledger, and every rank steps with the mean gradient.",
    hint="hint 1 of exercise 5.2",
)
def profiled_training(worker, /, world_size: int, n_iterations: int, batch_size: int, compute: str):
    """A few iterations on a slow virtual network, beside the ledger; and what they make of the weights."""
    network = Network(latency_s=1e-3, bandwidth_Bps=1e8)
    args = (worker, n_iterations, batch_size)
    return observe(lambda: simulate(watched, world_size, args, network=network, compute=compute, echo=False))


def _judge_metrics(data: Any, profiles: list[list[float]]) -> None:
    if not isinstance(data, dict):
        raise CheckFailed(f"scaling_metrics returned {type(data).__name__}; expected a dict, world size to metrics.")
    alone_s = next(iteration_s for n, _, _, iteration_s in profiles if n == 1)
    for n, comp_s, comm_s, iteration_s in profiles:
        row = data.get(str(int(n)))
        if not isinstance(row, dict):
            raise CheckFailed(f"scaling_metrics has no row for {int(n)} ranks.")
        examples = n * (alone_s / iteration_s)  # how many batches in the time that one rank needs for one
        ratio = comp_s / comm_s if comm_s else math.inf
        what = f"scaling_metrics with {int(n)} ranks: "
        swapped = {"that is communication over compute.": comm_s / comp_s if comp_s else math.nan}
        if comm_s == 0:
            swapped = {"with no communication the ratio is infinite: math.inf.": 0.0}
        require(f"{what}ratio", row.get("ratio"), ratio, swapped)
        causes = {
            "every rank has its own batch: N ranks do N batches in an iteration.": alone_s / iteration_s,
            "that is upside down.": iteration_s / alone_s * n,
            "N alone is the ideal.": float(n),
        }
        require(f"{what}speedup", row.get("speedup"), examples, causes if n > 1 else {})
        causes = {
            "efficiency is the speedup divided by N, 1 at best.": examples,
            "in percent? 1 means 100 %.": 100 * examples / n,
        }
        require(f"{what}efficiency", row.get("efficiency"), examples / n, causes)


@check(
    "lesson_05.scaling_metrics",
    judge=_judge_metrics,
    cases=[
        {"profiles": [[1, 0.2, 0.0, 0.2], [2, 0.2, 0.05, 0.25]]},
        {"profiles": [[1, 0.1, 0.0, 0.1], [4, 0.12, 0.08, 0.2], [8, 0.15, 0.25, 0.4]]},
    ],
    ok="ratio, speedup and efficiency are right, infinity included.",
    hint="hint 3 of exercise 5.2",
)
def scaling_metrics(function, /, profiles: list[list[float]]):
    """Metrics from profiles, world size to comp_s, comm_s, iteration_s."""
    keys = ("comp_s", "comm_s", "iteration_s")
    return function({int(n): dict(zip(keys, times)) for n, *times in profiles})
