"""Checks of lesson 01: what a message costs, measured and fitted."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.messages import ledger_of, number
from hw_utils.errors import CheckFailed
from hw_utils.network import Network
from hw_utils.simulate import simulate


def _judge_time_message(
    data: dict[str, Any], n_bytes: int, repeats: int, latency_s: float, bandwidth_Bps: float
) -> None:
    what = f"time_message of {n_bytes} bytes, {repeats} times"
    require_no_deadlock(data, what, cause="rank 0 sends then receives; rank 1 receives then sends.")
    trace = ledger_of(data)
    sizes = {e.n_bytes for e in trace.of_rank(0).of_op("send", "isend")}
    if sizes != {n_bytes}:
        raise CheckFailed(
            f"{what}: rank 0 sent messages of {sorted(sizes)} bytes.",
            cause="n_bytes counts bytes: a tensor of dtype uint8 has one byte an element.",
        )
    got, expected = number(data["results"][0]), Network(latency_s, bandwidth_Bps).message_s(n_bytes)
    if got is not None and math.isclose(got, expected, rel_tol=1e-6):
        return
    raise CheckFailed(
        f"{what} on a link of {latency_s:g} s and {bandwidth_Bps:g} B/s: rank 0 returned {data['results'][0]!r} s, "
        f"expected {expected:g} s.",
        cause=_why_time(got, expected, repeats),
    )


def _why_time(got: float | None, expected: float, repeats: int) -> str:
    if got is None:
        return "rank 0 returns the seconds of one message as a float."
    if math.isclose(got, 2 * expected, rel_tol=1e-6):
        return "that is there and back: a round trip is two messages."
    if math.isclose(got, 2 * repeats * expected, rel_tol=1e-6) or math.isclose(got, repeats * expected, rel_tol=1e-6):
        return "that is all repeats together: divide by the number of messages."
    if got < 1e-9:
        return "an isend that nobody waits for takes no time: time the whole round trip."
    return "start the clock just before the first send, stop it after the last receive, divide by the messages."


@check(
    "lesson_01.time_message",
    judge=_judge_time_message,
    cases=[
        {"n_bytes": 1, "repeats": 1, "latency_s": 0.5, "bandwidth_Bps": 100.0},
        {"n_bytes": 1000, "repeats": 4, "latency_s": 1e-3, "bandwidth_Bps": 1e6},
    ],
    ok="the time of one message is right on two virtual links.",
    hint="hint 1 of exercise 1.5",
)
def time_message(worker, /, n_bytes: int, repeats: int, latency_s: float, bandwidth_Bps: float):
    """Ping-pong on a virtual link whose cost is known."""
    network = Network(latency_s, bandwidth_Bps)
    return observe(lambda: simulate(worker, 2, (n_bytes, repeats), network=network, compute="free", echo=False))


def _link_times(latency_s: float, bandwidth_Bps: float, noise: float) -> tuple[list[int], list[float]]:
    """Sizes 1 B to 16 MB and their times, each off by up to `noise` of itself, the same every time."""
    sizes = [4**k for k in range(13)]
    signs = [1, -1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 0]
    link = Network(latency_s, bandwidth_Bps)
    return sizes, [link.message_s(size) * (1 + noise * sign) for size, sign in zip(sizes, signs)]


def _judge_fit(data: Any, latency_s: float, bandwidth_Bps: float, noise: float) -> None:
    what = f"fit_link of a link of {latency_s:g} s and {bandwidth_Bps:g} B/s" + (
        f", noise {noise:.0%}" if noise else ""
    )
    numbers = [number(v) for v in data] if isinstance(data, list) else []
    if len(numbers) != 2 or None in numbers:
        raise CheckFailed(f"{what}: returned {data!r}; return the pair (latency_s, bandwidth_Bps).")
    for name, got, expected in (("latency_s", numbers[0], latency_s), ("bandwidth_Bps", numbers[1], bandwidth_Bps)):
        if not math.isclose(got, expected, rel_tol=1e-6 + 2 * noise):
            raise CheckFailed(
                f"{what}: {name} is {got:g}, expected {expected:g} within {1e-6 + 2 * noise:.2g}.",
                cause=_why_fit(name, got, expected, noise, numbers, bandwidth_Bps),
            )


def _why_fit(name: str, got: float, expected: float, noise: float, numbers: list[Any], bandwidth_Bps: float) -> str:
    if math.isclose(numbers[0], bandwidth_Bps, rel_tol=0.5):
        return "the two are swapped: latency first."
    if name == "bandwidth_Bps" and math.isclose(got * expected, 1, rel_tol=0.5):
        return "that is seconds per byte, the slope; bandwidth is one over it."
    if name == "latency_s" and got == 0:
        return "latency is the line's value at 0 bytes, not 0."
    if noise:
        return "one big message outweighs the small ones: divide each equation by its time, so that all count alike."
    return "time = latency + bytes / bandwidth is a line in the number of bytes."


@check(
    "lesson_01.fit_link",
    judge=_judge_fit,
    cases=[
        {"latency_s": 1e-3, "bandwidth_Bps": 1e6, "noise": 0.0},
        {"latency_s": 2e-5, "bandwidth_Bps": 3e9, "noise": 0.05},
    ],
    ok="latency and bandwidth were found, with and without noise.",
    hint="hint 2 of exercise 1.5",
)
def fit_link(fit, /, latency_s: float, bandwidth_Bps: float, noise: float):
    """(latency_s, bandwidth_Bps) of a line through sizes and times."""
    return list(fit(*_link_times(latency_s, bandwidth_Bps, noise)))
