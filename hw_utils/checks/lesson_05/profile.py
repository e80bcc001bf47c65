"""The check of profiled_training: what the clocks of a training say, and what steps it makes."""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Any

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.common_mistakes import slip
from hw_utils.checks.lesson_05.expected_numbers import number_of
from hw_utils.checks.lesson_05.weights import PARTS, judge_weights, seconds_of, share, watched
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.trace import Trace
from hw_utils.material.models import SimpleCNN
from hw_utils.simulate import simulate

PROFILE = ("comp_s", "comm_s", "iteration_s", "n_calls")


def _judge_profile(data: Any, world_size: int, n_iterations: int, batch_size: int, compute: str) -> None:
    what = f"profiled_training with {world_size} rank{'s' * (world_size > 1)}"
    what += f", {n_iterations} iterations, compute {compute}"
    require_no_deadlock(data, what, cause="every rank makes the same calls, parameter by parameter.")
    trace = Trace.from_plain(data["trace"])
    for rank in range(world_size):
        profile = data["results"][rank]["returned"]
        if not isinstance(profile, dict) or not set(PROFILE) <= set(profile):
            missing = [k for k in PROFILE if not isinstance(profile, dict) or k not in profile]
            cause = f"return a dictionary; {', '.join(missing)} is missing."
            if profile is None and any(isinstance(other["returned"], dict) for other in data["results"]):
                cause = "every rank returns its own profile, not one of them alone."
            raise CheckFailed(
                f"{what}: rank {rank} returned {profile!r}; expected a dict with {', '.join(PROFILE)}.", cause=cause
            )
        _judge_n_calls(what, {k: number_of(profile[k]) for k in PROFILE}, trace.of_rank(rank), n_iterations)
    for rank, result in enumerate(data["results"]):
        if result["steps"]:
            _judge_batch(what, rank, len(result["steps"][0]["scores"]), batch_size)
    judge_weights(what, data["results"], n_iterations, waits_late=_waits_late(trace))
    for rank, result in enumerate(data["results"]):
        _require_own_sizes(what, rank, [size for size, _ in result["put_in"]], n_iterations)
    for rank, result in enumerate(data["results"]):
        profile = {k: number_of(result["returned"][k]) for k in PROFILE}
        steps_s = seconds_of("the step") * result["n_steps"] / n_iterations  # none, if the weights are moved by hand
        _judge_rank_profile(what, profile, trace.of_rank(rank), n_iterations, compute, steps_s)


def _judge_batch(what: str, rank: int, n_rows: int, batch_size: int) -> None:
    if n_rows != batch_size:
        raise CheckFailed(
            f"{what}: rank {rank} trains on {n_rows} examples an iteration, batch_size is {batch_size}.",
            cause="the batch's size is an argument: fresh_start(rank, batch_size), and all of what it gives.",
        )


def _judge_n_calls(what: str, profile: dict[str, float], mine: Trace, n_iterations: int) -> None:
    calls = mine.of_op("all_reduce")
    expected_calls = 8 * n_iterations if mine.world_size > 1 else 0  # SimpleCNN has 8 parameters
    if len(calls) != expected_calls:
        raise CheckFailed(
            f"{what}: the ledger has {len(calls)} all_reduce calls a rank, expected {expected_calls}.",
            cause=_why_n_calls(calls, n_iterations),
        )
    if profile["n_calls"] != expected_calls:
        raise CheckFailed(
            f"{what}: n_calls is {profile['n_calls']:g}, the ledger has {expected_calls}.",
            cause="one rank makes no call, and counts none: n_calls goes up where an all_reduce is called."
            if not expected_calls
            else "that is all ranks together: a rank counts its own calls."
            if profile["n_calls"] == mine.world_size * expected_calls
            else "n_calls counts every all_reduce of the run, not iterations or parameters.",
        )
    _require_numbers(what, profile)
    if any(e.waited is None for e in calls):
        raise CheckFailed(
            f"{what}: an all_reduce is never waited for.",
            cause="with async_op=True the call returns at once: wait() for each before you read the clock.",
        )


def _require_own_sizes(what: str, rank: int, sizes: list[int], n_iterations: int) -> None:
    """Raises CheckFailed unless each parameter's numbers go into a call of their own, in whatever order."""
    due = [p.numel() for p in SimpleCNN().parameters()]
    if sizes and sorted(sizes) != sorted(n_iterations * due):
        raise CheckFailed(
            f"{what}: rank {rank} puts {max(sizes)} numbers into one all_reduce and {min(sizes)} into another; the "
            f"parameters have {min(due)} to {max(due)}.",
            cause="one call a parameter, with its gradient: many gradients in one vector are the subject of 5.3.",
        )


def _why_n_calls(calls: Trace, n_iterations: int) -> str:
    rule = "one call a parameter and iteration; with one rank there is nothing to reduce."
    if calls.world_size == 1:
        return rule
    n_calls, sizes = len(calls), {e.n_bytes // 4 for e in calls}
    has_all = {p.numel() for p in SimpleCNN().parameters()} <= sizes
    if n_calls == n_iterations:
        return "one call an iteration: here every parameter has a call of its own."
    if n_calls and n_calls % 8 == 0 and has_all:
        return f"these are {n_calls // 8} iterations, not {n_iterations}: one call a parameter, n_iterations times."
    if n_calls and n_calls % n_iterations == 0:
        return f"these are {n_calls // n_iterations} calls an iteration; one call a parameter, and the model has 8."
    return rule


def _judge_rank_profile(
    what: str, profile: dict[str, float], mine: Trace, n_iterations: int, compute: str, steps_s: float
) -> None:
    calls = mine.of_op("all_reduce")
    in_ledger = _under_way_s(calls) / n_iterations
    tolerance = 1e-6 if compute == "free" else 0.25
    got = profile["comm_s"]
    if not math.isclose(got, in_ledger, rel_tol=tolerance, abs_tol=1e-9 if compute == "free" else 2e-3):
        causes = {
            "comm_s is the mean of an iteration, not the whole run: divide by n_iterations.": in_ledger * n_iterations,
            "comm_s covers all 8 calls of an iteration, not one of them.": calls[-1].seconds if calls else math.nan,
            "the clock was read before the calls were done, or is process_time, which stands still meanwhile.": 0.0,
            "an iteration is left out of the sum: all of them count.": in_ledger * (n_iterations - 1) / n_iterations,
            "comm_s is the mean of an iteration, not of a call: divide by n_iterations.": in_ledger / 8,
            "comm_s is what this rank spends: nothing is divided by the number of ranks.": (
                in_ledger / mine.world_size if mine.world_size != n_iterations else math.nan
            ),
            "one iteration's seconds are divided by n_iterations: add up (+=) over all of them, and divide once.": (
                in_ledger / n_iterations
            ),
            "comp_s and comm_s are swapped.": seconds_of("forward") + seconds_of("backward") + steps_s,
        }
        for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
            causes[f"seconds are asked, these are {unit}."] = factor * in_ledger
        if compute == "free":
            for names, seconds in _parts():
                causes[f"{names} is counted as communication: read the clock before and after the calls."] = (
                    in_ledger + seconds
                )
        near = [c for c, v in causes.items() if math.isclose(got, v, rel_tol=tolerance, abs_tol=1e-9)]
        if not near and got < in_ledger and _waits_late(calls):
            near = ["a call is under way from its start: read the clock before the first, and after the last wait()."]
        others = sorted(mine.ops - {"all_reduce"})
        if others and not near:
            near = [
                f"{', '.join(others)} is counted too: communication is the all_reduce calls, nothing else is needed."
            ]
        raise CheckFailed(
            f"{what}: comm_s is {got:g} s an iteration, the ledger says {in_ledger:g} s.",
            cause=near[0] if near else slip(got, in_ledger),
        )
    others = sorted(mine.ops - {"all_reduce"})
    _judge_compute(
        what, profile, n_iterations, compute, seconds_of("forward") + seconds_of("backward") + steps_s, others
    )
    _require_all_in_it(what, mine, calls)


def _require_all_in_it(what: str, mine: Trace, calls: Trace) -> None:
    """Raises CheckFailed if other calls between those of all_reduce take seconds, which are in no number then."""
    first, last = (min(e.order for e in calls), max(e.order for e in calls)) if len(calls) else (0, 0)
    between = [e for e in mine if e.op != "all_reduce" and first < e.order < last]
    seconds = sum(e.wait_end_s - e.wait_start_s for e in between)
    if seconds > 1e-6:
        raise CheckFailed(
            f"{what}: {', '.join(sorted({e.op for e in between}))} takes {seconds:g} s of the run, which are in none "
            "of the three times.",
            cause="an iteration needs the all_reduce calls alone, which wait for the slowest rank themselves.",
        )


def _require_numbers(what: str, profile: dict[str, float]) -> None:
    for name, value in profile.items():
        if not math.isfinite(value):
            raise CheckFailed(f"{what}: {name} is not a number.", cause="all four are plain numbers (float or int).")


def _waits_late(calls: Trace) -> bool:
    """Whether some call, made with async_op, is waited for only after another call."""
    return any(e.waited is not None and e.waited > e.order + 1 for e in calls)


def _parts() -> list[tuple[str, float]]:
    """("forward and backward", their seconds), for each choice of an iteration's compute."""
    sizes = range(1, len(PARTS) + 1)
    chosen = [names for size in sizes for names in itertools.combinations(PARTS, size)]
    return [(" and ".join(names), sum(seconds_of(name) for name in names)) for names in chosen]


def _under_way_s(calls: Trace) -> float:
    """Seconds in which at least one of the calls was under way: several may be at once, with async_op."""
    seconds, until_s = 0.0, -math.inf
    for event in sorted(calls, key=lambda e: e.start_s):
        seconds += max(0.0, event.end_s - max(event.start_s, until_s))
        until_s = max(until_s, event.end_s)
    return seconds


def _judge_compute(
    what: str, profile: dict[str, float], n_iterations: int, compute: str, due_s: float, others: list[str]
) -> None:
    """due_s: all that takes time on a cluster where compute is free; else more comes on top.

    others: the calls that are no all_reduce.
    """
    comp_s, comm_s, iteration_s = (profile[k] for k in ("comp_s", "comm_s", "iteration_s"))
    if compute == "free" and not math.isclose(comp_s, due_s, abs_tol=1e-6):
        raise CheckFailed(
            f"{what}: comp_s is {comp_s:g} s an iteration; forward, backward and step take {due_s:g} s.",
            cause=_why_compute(comp_s, comm_s, due_s, n_iterations)
            or (
                f"{', '.join(others)} is timed as well: an iteration needs the all_reduce calls alone."
                if others
                else ""
            ),
        )
    if compute != "free" and not comp_s >= due_s:
        raise CheckFailed(
            f"{what}: comp_s is {comp_s:g} s; forward, backward and step take {due_s:g} s and more.",
            cause="read the clock before the forward pass, and count the step as well.",
        )
    if not math.isclose(comp_s + comm_s, iteration_s, rel_tol=1e-6 if compute == "free" else 0.1, abs_tol=1e-9):
        whole = math.isclose(iteration_s, n_iterations * (comp_s + comm_s), rel_tol=0.1)
        raise CheckFailed(
            f"{what}: comp_s + comm_s is {comp_s + comm_s:g} s, but iteration_s is {iteration_s:g} s.",
            cause="iteration_s is the mean of an iteration, not the whole run: divide by n_iterations."
            if whole and n_iterations > 1
            else "an iteration is its compute (forward, backward, step) and its communication, nothing else.",
        )


def _why_compute(comp_s: float, comm_s: float, due_s: float, n_iterations: int) -> str:
    causes = {
        "comp_s is the mean of an iteration, not the whole run: divide by n_iterations.": due_s * n_iterations,
        "communication is in it: read the clock between the two.": due_s + comm_s,
    }
    passes_s, n = seconds_of("forward") + seconds_of("backward"), n_iterations
    step_s = due_s - passes_s
    one = {
        f"{which} iteration is counted alone: add up over all of them.": passes_s * share(k, n) + step_s
        for which, k in (("the first", 0), ("the last", n - 1))
    }
    if n > 2:
        middle = median(share(k, n) for k in range(n))
        one["that is the median: the mean is asked, in which the slow iterations count."] = passes_s * middle + step_s
    if n > 1:
        left_out = [("the first", 0), ("the last", n - 1)]
        for which, k in left_out:
            rest_s = n * due_s - passes_s * share(k, n) - step_s
            one |= dict.fromkeys([f"{which} iteration is left out: all of them count."], rest_s / (n - 1))
            one |= dict.fromkeys([f"{which} iteration is left out of the sum: all of them count."], rest_s / n)
        causes |= one | {
            "one iteration is counted, and divided by n_iterations: add up.": (passes_s * share(n - 1, n) + step_s) / n
        }
    for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
        causes[f"seconds are asked, these are {unit}."] = factor * due_s
    for names, seconds in _parts():
        causes[f"{names} is not in it: the clock runs from before the forward pass to after the step."] = (
            due_s - seconds
        )
        causes[f"communication is in it, and {names} is not."] = due_s + comm_s - seconds
        causes[f"{names} is in it twice."] = due_s + seconds
    near = [cause for cause, value in causes.items() if math.isclose(comp_s, value, rel_tol=1e-6, abs_tol=1e-9)]
    return near[0] if near else slip(comp_s, due_s)


@check(
    "lesson_05.profiled_training",
    follows_messages=True,
    judge=_judge_profile,
    cases=[
        {"world_size": n, "n_iterations": k, "batch_size": 4, "compute": c}
        for n, k, c in ((2, 3, "free"), (1, 2, "measured"), (3, 2, "free"))
    ],
    ok="times and calls agree with the ledger, and every rank steps with the mean gradient.",
    hint="hint 1 of exercise 5.2",
    look="print every reading of the clock of one iteration, and what lies between each two of them.",
)
def profiled_training(worker, /, world_size: int, n_iterations: int, batch_size: int, compute: str):
    """A few iterations of known seconds on a slow virtual network, and what they make of the weights."""
    network = Network(1e-3 * drawn_numbers.factor("latency"), 1e8 / drawn_numbers.factor("bandwidth"))
    args = (worker, n_iterations, batch_size)
    return observe(lambda: simulate(watched, world_size, args, network=network, compute=compute, echo=False))
