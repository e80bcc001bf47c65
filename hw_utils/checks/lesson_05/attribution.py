"""Checks of lesson 05: which causes make a step slow, and what each adds."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_04.collective_contents import note_inputs
from hw_utils.checks.lesson_05.expected_numbers import all_reduce_of, known, number_of, require
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

_STEP_LIMIT_S = 15.0  # real ones, for a step that takes milliseconds of them


def _judge_step_under(data: Any, world_size: int, conditions: dict[str, float]) -> None:
    serial_s, slow = conditions.get("serial_s", 0.0), conditions.get("straggler", 1.0)
    cores, compute_s = conditions.get("cores", 0) or world_size, 1.0
    what = f"step_under with {world_size} ranks, {conditions or 'nothing switched on'}"
    require_no_deadlock(data, what)
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)
    reduce_s = known(all_reduce_of, world_size, 40_000, network=network).seconds
    each = compute_s * max(1.0, world_size / cores)
    expected = serial_s + each * slow + reduce_s
    without_cores = tuple(
        serial_s + world_size / number * slow + reduce_s for number in range(1, world_size) if "cores" not in conditions
    )
    causes = {
        "no number of cores is given here: a condition that is missing is switched off, and no other number, neither "
        "this machine's nor one that is written down, stands in for it.": without_cores,
        "the serial part is rank 0's alone, and everybody waits for it: barrier after it.": max(serial_s, each * slow)
        + reduce_s,
        "ranks beyond the cores take turns: compute takes world_size / cores as long.": serial_s
        + compute_s * slow
        + reduce_s,
        "cores are shared evenly: world_size / cores times as long, a fraction too, without // or rounding.": tuple(
            serial_s + turns * slow + reduce_s
            for turns in {math.ceil(world_size / cores), max(1, world_size // cores)} - {each}
        ),
        "more cores than ranks make no rank faster.": serial_s + world_size / cores * slow + reduce_s,
        "a straggler takes that many times as long: what makes compute longer is multiplied.": (
            (serial_s + each + slow - 1 + reduce_s, serial_s + each + slow + reduce_s) if slow > 1 else ()
        ),
        "the serial part is spent twice.": (2 * serial_s + each * slow + reduce_s) if each != 2 else (),
        f"the serial part takes {each:g} times as long as it is: it is spent once, and sharing cores makes the compute "
        "longer, nothing else.": (each * serial_s + each * slow + reduce_s) if each > 1 else (),
        "the straggler's serial part is no longer: only its compute is.": serial_s * slow + each * slow + reduce_s,
        "an all_reduce of 10,000 float32 is 40,000 bytes: float32, and that many.": tuple(
            serial_s + each * slow + known(all_reduce_of, world_size, n, network=network).seconds
            for n in (80_000, 20_000, 10_000, 4_000, 400_000, 160_000)
        ),
        "one all_reduce a step: there are two.": expected + reduce_s,
        "the other way round: with fewer cores than ranks compute takes longer, world_size / cores times.": (
            serial_s + cores / world_size * slow + reduce_s if cores < world_size else ()
        ),
        f"compute takes world_size / cores times as long, here {each:g} times and not {world_size - cores:g} times.": (
            serial_s + (world_size - cores) * slow + reduce_s if 1 < world_size - cores != each else ()
        ),
        _why_no_reduce(Trace.from_plain(data["trace"]), each): serial_s + each * slow,
        "the compute of the step is missing: nothing but communication takes time.": serial_s + reduce_s,
        "the serial part is rank 0's, and as long as it is: nothing of it is shared out.": (
            serial_s / world_size + each * slow + reduce_s
        ),
        "the straggler makes no difference yet.": serial_s + each + reduce_s,
    }
    carried = [e.n_bytes for e in Trace.from_plain(data["trace"]).of_rank(0).of_op("all_reduce") if e.n_bytes != 40_000]
    if carried:
        more_s = sum(known(all_reduce_of, world_size, n_bytes, network=network).seconds for n_bytes in carried)
        causes["a step has one all_reduce, this one has more: what lets ranks wait for rank 0 is a barrier."] = (
            expected + more_s
        )
    instead = sorted(Trace.from_plain(data["trace"]).ops - {"barrier"})
    if instead and "all_reduce" not in instead:
        raise CheckFailed(
            f"{what}: the ledger has {', '.join(instead)}, and no all_reduce.",
            cause="a step ends with one dist.all_reduce of 10,000 float32: its seconds are part of the target.",
        )
    require(f"{what}: the step", data["seconds"], expected, causes, rel_tol=5e-3)
    trace = Trace.from_plain(data["trace"])
    others = sorted(trace.ops - {"all_reduce", "barrier", "broadcast"})
    reduced = [e.n_bytes for e in trace.of_rank(0).of_op("all_reduce")]
    if others or 40_000 not in reduced or sum(reduced) > 40_000 + 64:
        came = ", ".join([*others, *(f"all_reduce of {n:,} bytes" for n in reduced)]) or "no call"
        raise CheckFailed(
            f"{what}: the ledger of rank 0 has {came}; a step ends with one all_reduce of 40,000 bytes.",
            cause="10,000 float32 in one dist.all_reduce; what lets ranks wait for rank 0 is a barrier.",
        )
    mine = trace.of_rank(world_size - 1)
    if serial_s and sum(e.wait_end_s - e.wait_start_s for e in mine) < 0.99 * serial_s:
        raise CheckFailed(
            f"{what}: rank {world_size - 1} does not wait for rank 0's serial part.",
            cause="only rank 0 is busy with it; the others stand in a barrier meanwhile.",
        )
    if serial_s and min((e.start_s for e in mine.of_op("barrier")), default=0.0) > 0.9 * each:
        raise CheckFailed(
            f"{what}: rank {world_size - 1} waits for rank 0's serial part after its compute.",
            cause="the serial part comes first: rank 0 sleeps, all meet in the barrier, then everybody computes.",
        )
    own = {
        r: sum(e.wait_end_s - e.wait_start_s for e in Trace.from_plain(data["trace"]).of_rank(r).of_op("all_reduce"))
        for r in range(world_size)
    }
    if slow > 1 and not own[0] > own[world_size - 1] + 0.5 * (slow - 1) * each:
        raise CheckFailed(
            f"{what}: rank 0 does not wait for rank {world_size - 1} in the all-reduce.",
            cause="the all_reduce comes before the compute: a step ends with it, when its gradients are there."
            if min(e.start_s for e in trace.of_rank(0).of_op("all_reduce")) < 0.9 * each
            else _who_is_slow(
                own,
                has_barrier=not serial_s
                and sum(e.wait_end_s - e.wait_start_s for e in trace.of_rank(0).of_op("barrier")) > 0.5 * (slow - 1),
            ),
        )
    due_s = [each * (slow if rank == world_size - 1 else 1.0) for rank in range(world_size)]
    _require_own_compute(what, Trace.from_plain(data["trace"]), [due_s[0] + serial_s, *due_s[1:]])
    dtypes = {dtype for result in data["results"] for dtype in result}
    if dtypes != {"float32"}:
        raise CheckFailed(
            f"{what}: the all_reduce takes as long as it should, and is of {', '.join(sorted(dtypes - {'float32'}))}.",
            cause="the vector has 10,000 float32: 40,000 bytes of another dtype are another vector.",
        )


def _why_no_reduce(trace: Trace, each: float) -> str:
    """Why a step takes no longer than its compute."""
    calls = trace.of_rank(0).of_op("all_reduce")
    if not len(calls):
        return "the all-reduce is missing."
    if calls[0].start_s > 0.9 * each and calls[0].waited is None:
        return "the all-reduce is never waited for: without async_op the call returns when it is done."
    return "the all-reduce is under way while the rank computes: here it comes after."


def _require_own_compute(what: str, trace: Trace, due_s: list[float]) -> None:
    """Raises CheckFailed unless each rank was busy for so long before its all_reduce."""
    busy_s = [_busy_s(trace.of_rank(rank)) for rank in range(len(due_s))]
    short = [busy < 0.995 * due for busy, due in zip(busy_s, due_s)]
    for rank, (busy, due) in enumerate(zip(busy_s, due_s)):
        if short[rank] or busy > 1.005 * due:
            raise CheckFailed(
                f"{what}: the step takes as long as it should, but rank {rank} is busy for {busy:g} s before the "
                f"all_reduce, expected {due:g} s.",
                cause="the all_reduce comes before the compute: a step ends with it, when its gradients are there."
                if all(short)
                else "every rank computes: none just waits for the slowest one in the all_reduce."
                if short[rank]
                else "the serial part is rank 0's alone, and a straggler's time the last rank's.",
            )


def _busy_s(mine: Trace) -> float:
    """Seconds that a rank did not wait in calls until it came to its all_reduce."""
    start_s = next(e.start_s for e in mine.of_op("all_reduce") if e.n_bytes == 40_000)
    return start_s - sum(e.wait_end_s - e.wait_start_s for e in mine if e.end_s <= start_s)


def _who_is_slow(waits_s: dict[int, float], *, has_barrier: bool) -> str:
    """The rank for which all others wait waits least itself."""
    slowest = sorted(waits_s, key=lambda rank: waits_s[rank])
    if waits_s[slowest[1]] > waits_s[slowest[0]] + 1e-3:
        return f"all wait for rank {slowest[0]}: the straggler is the last one, rank world_size - 1."
    if has_barrier:
        return (
            "they wait for the last rank in a barrier: the all_reduce waits for it anyway, and the barrier is for the "
            "serial part alone."
        )
    return "every rank slowed down; a straggler is the last rank only, and that is enough."


@check(
    "lesson_05.step_under",
    judge=_judge_step_under,
    cases=[
        {"world_size": n, "conditions": c}
        for n, c in (
            (4, {}),
            (4, {"serial_s": 0.5}),
            (9, {"straggler": 4.0}),
            (8, {"cores": 2}),
            (5, {"cores": 2}),
            (3, {"cores": 8}),
            (4, {"serial_s": 0.25, "straggler": 1.5, "cores": 2}),
        )
    ],
    ok="each condition alone, and all together, cost what they should.",
    errors={
        "still busy": "a loop whose end never comes. If it waits for a time to pass: compute is free here, so the "
        "virtual clock stands still while a rank is busy; time.sleep(seconds) is compute on it.",
    },
    hint="hint 1 of exercise 5.5",
    look="print time.perf_counter() on every rank after each line of the step.",
)
def step_under(worker, /, world_size: int, conditions: dict[str, float]):
    """One step of 1 s compute and 40 kB of gradients under the given conditions, and of which dtypes they are."""
    network = Network(latency_s=1e-3, bandwidth_Bps=1e6)

    def noted(rank: int, world_size: int) -> list[str]:
        carried = note_inputs()
        worker(rank, world_size, dict(conditions))
        reduced = [t for kind, inputs in carried if kind == "all_reduce" for t in inputs if t.nbytes == 40_000]
        return [str(t.dtype).removeprefix("torch.") for t in reduced]

    return observe(
        lambda: simulate(noted, world_size, network=network, compute="free", echo=False, timeout_s=_STEP_LIMIT_S)
    )


def _judge_waterfall(data: Any, ideal_s: float, alone_s: dict[str, float], actual_s: float) -> None:
    what = f"waterfall({ideal_s}, {alone_s}, {actual_s})"
    if not isinstance(data, dict):
        raise CheckFailed(
            f"{what} returned {type(data).__name__}; expected a dict, cause to seconds.",
            cause="nothing comes back: is there a return?"
            if data is None
            else "return the parts as a dictionary, each under its name.",
        )
    expected_keys = ["ideal", *alone_s, "together"]
    if list(data) != expected_keys:
        cause = 'the parts stand in the order in which they are drawn: "ideal", the causes as given, "together".'
        if set(expected_keys) - set(data):
            cause = f"there is no part {', '.join(sorted(set(expected_keys) - set(data)))}."
        elif set(data) - set(expected_keys):
            cause = (
                f"a part too many: {', '.join(sorted(set(data) - set(expected_keys)))}. All parts add up to actual_s."
            )
        raise CheckFailed(f"{what} has the parts {list(data)}, expected {expected_keys}.", cause=cause)
    shares = {"these are shares of the actual step: seconds are asked.": ideal_s / actual_s}
    require(f"{what}: ideal", data["ideal"], ideal_s, shares)
    _require_no_running_sum(what, [number_of(data[cause]) for cause in alone_s], ideal_s, list(alone_s.values()))
    for before_s, (cause, seconds) in zip([ideal_s, *alone_s.values()], alone_s.items()):
        require(
            f"{what}: {cause}",
            data[cause],
            seconds - ideal_s,
            {
                "every cause is compared with the ideal step, not with the cause before it.": seconds - before_s,
                "that is the whole step; a part is what it adds to the ideal one.": seconds,
                "that is the ideal step: a part is what its cause adds to it.": ideal_s,
                "the other way round: the step with the cause, minus the ideal one.": ideal_s - seconds,
                "that is how many times as long: a part is in seconds.": seconds / ideal_s,
                "that is a share of the ideal step: a part is in seconds.": (seconds - ideal_s) / ideal_s,
                "a cause may make the step shorter: then its part is negative.": (0.0, abs(seconds - ideal_s)),
            },
        )
    total = sum(number_of(v) for v in data.values())
    if not math.isclose(total, actual_s, rel_tol=1e-9):
        together = number_of(data["together"])
        rest = actual_s - total + together
        causes = {
            "Nothing is rounded, in no part.": tuple(round(rest, digits) for digits in range(2, 7)),
            "it may be negative: causes together can cost less than one after the other.": (0.0, -rest),
            "that is the whole step: it is what is left of it after all other parts.": (actual_s,),
            "the ideal step is a part of the sum too.": (rest + ideal_s,),
        }
        named = [
            cause
            for cause, values in causes.items()
            if any(math.isclose(together, value, rel_tol=1e-9, abs_tol=1e-12) for value in values)
        ]
        raise CheckFailed(
            f"{what}: the parts add up to {total:g} s, the actual step takes {actual_s:g} s.",
            cause="`together` is what the causes cost beyond each alone; it closes the sum."
            + (f" {named[0][0].upper()}{named[0][1:]}" if named else ""),
        )


def _require_no_running_sum(what: str, parts: list[float], ideal_s: float, alone_s: list[float]) -> None:
    heights = [ideal_s + sum(s - ideal_s for s in alone_s[: k + 1]) for k in range(len(alone_s))]
    if len(parts) > 1 and all(math.isclose(a, b) for a, b in zip(parts, heights)):
        raise CheckFailed(
            f"{what}: the parts are {parts}, one on top of the other.",
            cause="a part is what one cause adds by itself: the picture puts them on top of each other.",
        )


@check(
    "lesson_05.waterfall",
    judge=_judge_waterfall,
    is_formula=True,
    cases=[
        {"ideal_s": 1.5, "alone_s": {"link": 2.5, "straggler": 3.0}, "actual_s": 3.75},
        {"ideal_s": 1.015625, "alone_s": {"serial": 1.5234375}, "actual_s": 1.5234375},
        {"ideal_s": 1.0, "alone_s": {"serial": 1.25, "cache": 0.75, "cores": 2.0}, "actual_s": 3.46875},
        {"ideal_s": 2.0, "alone_s": {"link": 2.0, "cores": 2.5}, "actual_s": 2.75},
    ],
    ok="the parts add up, from the ideal step to the actual one.",
    hint="hint 2 of exercise 5.5",
    look="write the parts of this case down by hand; they add up to actual_s.",
)
def waterfall(function, /, ideal_s: float, alone_s: dict[str, float], actual_s: float):
    """Parts of a step's time, from the ideal to the actual one."""
    return function(ideal_s, dict(alone_s), actual_s)
