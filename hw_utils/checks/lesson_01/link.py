"""Checks of lesson 01: what a message costs, measured and fitted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import fmean, median
from typing import Any

import numpy as np

from hw_utils.checks.check import check, observe, require_no_deadlock, require_waits
from hw_utils.checks.common_mistakes import slip
from hw_utils.checks.lesson_01.messages import ledger_of, number
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.trace import POINT_TO_POINT, Trace
from hw_utils.simulate import simulate


@dataclass(frozen=True)
class _Uneven(Network):
    """Rank 1's messages take these seconds longer, one after the other, and again from the first."""

    later_s: tuple[float, ...] = ()
    sent: list[int] = field(default_factory=list, compare=False)

    def message_s(self, n_bytes: int, src: int = 0, dst: int = -1) -> float:
        """Seconds of the next message on the way that it takes."""
        if src == 1:
            self.sent.append(n_bytes)
        return super().message_s(n_bytes, src, dst) + (
            self.later_s[(len(self.sent) - 1) % len(self.later_s)] if src == 1 else 0
        )


def _judge_time_message(
    data: dict[str, Any],
    n_bytes: int,
    repeats: int,
    latency_s: float,
    bandwidth_Bps: float,
    later_s: Sequence[float] = (),
) -> None:
    what = f"time_message of {n_bytes} bytes, {repeats} times{', which differ' if later_s else ''}"
    require_no_deadlock(
        data,
        what,
        cause="rank 0 sends then receives; rank 1 receives then sends: as often, and with tensors of its own size.",
    )
    trace = ledger_of(data)
    sent = [[e.n_bytes for e in trace.of_rank(rank).of_op("send", "isend")] for rank in range(2)]
    if set(sent[0]) - {n_bytes}:
        raise CheckFailed(
            f"{what}: rank 0 sent messages of {sorted(set(sent[0]))} bytes.",
            cause="n_bytes counts bytes: a tensor of dtype uint8 has one byte an element.",
        )
    for rank in range(2):
        if len(sent[rank]) < repeats:
            raise CheckFailed(
                f"{what}: rank {rank} sent {len(sent[rank])} messages; {repeats} round trips are asked for.",
                cause="a round trip goes there and back, and there are `repeats` of them: one alone is noise.",
            )
    got, expected = _plain_number(data["results"][0]), Network(latency_s, bandwidth_Bps).message_s(n_bytes)
    if later_s and got is not None:
        _require_there_and_back(what, trace)
        _require_of_all(what, got, [expected + s / 2 for s in islice(cycle(later_s), len(sent[0]))], repeats)
    elif got is None or not math.isclose(got, expected, rel_tol=1e-6):
        raise CheckFailed(
            f"{what} on a link of {latency_s:g} s and {bandwidth_Bps:g} B/s: rank 0 returned {data['results'][0]!r} s, "
            f"expected {expected:g} s.",
            cause=_why_time(got, data["results"][1], expected, repeats, trace),
        )
    require_waits(trace, what)


def _require_there_and_back(what: str, trace: Trace) -> None:
    """Raises CheckFailed if both directions travel at once."""
    if trace.rounds < len(trace.of_op("send", "isend")):
        raise CheckFailed(
            f"{what}: {len(trace.of_op('send', 'isend'))} messages travel in {trace.rounds} rounds.",
            cause="both ranks send at once: in a round trip the message comes back once it has arrived. Rank 1 "
            "receives first, then it sends.",
        )


def _plain_number(value: Any) -> float | None:
    """A number as Python has it, else None: a tensor of one element is none."""
    return number(value) if type(value) in (int, float) else None


def _require_of_all(what: str, got: float, each_s: list[float], repeats: int) -> None:
    """Raises CheckFailed unless it is what `repeats` round trips give, one after the other: a mean, or what stands for
    many as well. each_s: a message of each trip."""
    windows = [each_s[k : k + repeats] for k in range(len(each_s) - repeats + 1)]
    if not any(math.isclose(got, of(w), rel_tol=1e-6) for w in windows for of in (fmean, median, min)):
        spans = [(k, k + n) for n in range(1, repeats) for k in range(len(each_s) - n + 1)]
        found = [span for span in spans if math.isclose(got, fmean(each_s[slice(*span)]), rel_tol=1e-6)]
        cause = "the clock runs from before the first of the `repeats` round trips to after the last."
        for first, end in found[:1]:
            which = f"trip {end} alone is" if end == first + 1 else f"trips {first + 1} to {end} alone are"
            cause = f"round {which} in it: the clock runs while all `repeats` of them are made."
        raise CheckFailed(f"{what}: rank 0 returned {got:g} s, the mean is {fmean(windows[0]):g} s.", cause=cause)


_BEGUN_S = 2.75  # what the clock says when time_message is called


def _why_time(got: float | None, of_rank_1: Any, expected: float, repeats: int, trace: Trace) -> str:
    def is_(value: float) -> bool:
        return math.isclose(got, value, rel_tol=1e-6)

    if got is None:
        return "rank 0 returns the seconds of one message as a float (of a tensor: its item())."
    n_trips = len(trace.of_rank(0).of_op("send", "isend"))
    if n_trips != repeats and is_(n_trips * expected / repeats):
        return f"{n_trips} round trips were timed: the loop goes round `repeats` times."
    if is_(2 * expected):
        return "that is there and back: a round trip is two messages."
    if is_(2 * repeats * expected) or is_(repeats * expected):
        return "that is all repeats together: divide by the number of messages."
    if is_(expected / repeats) or is_(2 * expected / repeats):
        return (
            "that is one round trip, divided as if it were all of them: the clock is read once before the loop and "
            "once after it, and what has passed is divided by `repeats` once."
        )
    if is_(expected / 2) or is_(expected / repeats / 2):
        return "divided once too often: by the number of messages that the clock has seen, there and back."
    for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")):
        if any(is_(factor * times * expected) for times in (1, 2, repeats, 2 * repeats)):
            return f"that is in {unit}: perf_counter gives seconds, and seconds are asked for."
    if abs(got) < 1e-9 and "isend" in trace.ops:
        return "an isend that nobody waits for takes no time: time the whole round trip."
    if got == 0:
        if number(of_rank_1):
            return "0 came from rank 0: its answer is the one that counts."
        return (
            "no time has passed between the readings: the first comes before the round trips, nothing is rounded, and "
            "process_time stands still while a rank waits: take perf_counter."
        )
    if got < 0:
        return "the end less the start, not the other way round."
    if any(is_((times * _BEGUN_S + 2 * n_trips * expected) / n) for times in (1, 2) for n in (repeats, 2 * repeats)):
        return "a reading of the clock alone says nothing: the end less the start is what has passed."
    others = sorted(trace.ops - POINT_TO_POINT)
    if others:
        return f"{', '.join(others)} is timed too: between the two readings there are only the round trips."
    sizes = {e.n_bytes for e in trace}
    if any(is_(expected / n) or is_(expected * n) for n in sizes - {1}):
        return "that is of one byte, or of as many messages as there are bytes: a message of n_bytes is one."
    if slip(got, expected):
        return slip(got, expected)
    return "start the clock just before the first send, stop it after the last receive, divide by the messages."


# The first and the last of five are no mean of them, nor the least; means of fewer differ from each other.
_LATER_S = [8.3, 2.1, 6.4, 3.7, 13.9, 10.6, 16.2]


@check(
    "lesson_01.time_message",
    judge=_judge_time_message,
    cases=[
        {"n_bytes": 1, "repeats": 3, "latency_s": 0.5, "bandwidth_Bps": 100.0},
        {"n_bytes": 1000, "repeats": 4, "latency_s": 1.234567e-3, "bandwidth_Bps": 1e6},
        {"n_bytes": 10, "repeats": 5, "latency_s": 1.0, "bandwidth_Bps": 100.0, "later_s": _LATER_S},
    ],
    ok="the time of one message is right on two virtual links, and where round trips differ.",
    hint="hint 1 of exercise 1.5",
    hints={"hint 1 of exercise 1.5": "clock|round trip|uint8|messages|there and back|perf_counter"},
    look="print start and end on rank 0, and how many messages travelled in between.",
)
def time_message(
    worker, /, n_bytes: int, repeats: int, latency_s: float, bandwidth_Bps: float, later_s: Sequence[float] = ()
):
    """Ping-pong on a virtual link whose cost is known; the clock does not stand at 0 when it begins."""
    network = Network(latency_s, bandwidth_Bps)
    if later_s:
        network = _Uneven(latency_s, bandwidth_Bps, 1, network, tuple(later_s))  # of two levels: each message is asked

    def begun_late(rank: int, world_size: int) -> Any:
        time.sleep(_BEGUN_S)
        return worker(rank, world_size, n_bytes, repeats)

    return observe(lambda: simulate(begun_late, 2, network=network, compute="free", echo=False))


def _link_times(latency_s: float, bandwidth_Bps: float, noise: float) -> tuple[list[int], list[float]]:
    """Sizes 1 B to 16 MB and their times, each off by up to `noise` of itself, the same every time."""
    sizes = [4**k for k in range(13)]
    signs = [1, -1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1, -1]
    link = Network(latency_s, bandwidth_Bps)
    return sizes, [link.message_s(size) * (1 + noise * sign) for size, sign in zip(sizes, signs)]


def _judge_fit(data: Any, latency_s: float, bandwidth_Bps: float, noise: float) -> None:
    what = f"fit_link of a link of {latency_s:g} s and {bandwidth_Bps:g} B/s" + (
        f", noise {noise:.0%}" if noise else ""
    )
    numbers = [_plain_number(v) for v in data] if isinstance(data, list) else []
    if len(numbers) != 2 or None in numbers:
        raise CheckFailed(
            f"{what}: returned {data!r}; return the pair (latency_s, bandwidth_Bps).",
            cause="two floats are asked for, latency first; a tensor's number is tensor.item().",
        )
    tolerance = 1e-6 + 0.6 * noise
    for name, got, expected in (("latency_s", numbers[0], latency_s), ("bandwidth_Bps", numbers[1], bandwidth_Bps)):
        if not math.isclose(got, expected, rel_tol=tolerance):
            raise CheckFailed(
                f"{what}: {name} is {got:g}, expected {expected:g} within {tolerance:.2g} of it.",
                cause=_why_fit(name, numbers, latency_s, bandwidth_Bps, noise),
            )


def _why_fit(name: str, numbers: list[float], latency_s: float, bandwidth_Bps: float, noise: float) -> str:
    got, expected = (numbers[0], latency_s) if name == "latency_s" else (numbers[1], bandwidth_Bps)

    def is_(value: float) -> bool:
        return math.isclose(got, value, rel_tol=0.2)

    if math.isclose(numbers[0], bandwidth_Bps, rel_tol=0.5) or math.isclose(numbers[0], 1 / bandwidth_Bps, rel_tol=0.5):
        return "the two are swapped: latency first."
    if name == "bandwidth_Bps" and is_(1 / expected):
        return "that is seconds per byte, the slope; bandwidth is one over it."
    if name == "bandwidth_Bps" and (is_(8 * expected) or is_(expected / 8)):
        return "bandwidth is given in bytes a second, not in bits."
    if math.isclose(numbers[0], 1, rel_tol=1e-6) and abs(numbers[1]) > 1e3 * bandwidth_Bps:
        return (
            "a latency of 1 and bytes that take no time solve every equation whose right side is 1: divided by its "
            "time, an equation has 1 / seconds beside the latency, too."
        )
    if is_(1e3 * expected) or is_(1e6 * expected) or is_(expected / 1e3) or is_(expected / 1e6):
        return "another unit: seconds and bytes a second are asked for, not milliseconds, not megabytes."
    if name == "latency_s" and got == 0:
        return "latency is the line's value at 0 bytes, not 0."
    sizes, seconds = _link_times(latency_s, bandwidth_Bps, noise)
    if not noise and name == "latency_s" and got in (seconds[0], min(seconds)):
        return "that is the time of one byte; latency is the line's value at 0 bytes."
    if not noise and any(got == round(expected, digits) for digits in range(15)):
        return "rounded: give the numbers as they come."
    if noise and name == "latency_s" and got in (seconds[0], min(seconds)):
        return "one measurement alone carries all its noise: use every size, each counting alike."
    off = [abs(numbers[0] + s / numbers[1] - t) / t for s, t in zip(sizes, seconds)]
    if noise and max(off) < 3 * noise:
        return "some sizes count for more than others, a first and a last one perhaps: use all, each counting alike."
    if noise and max(off[-4:]) < 3 * noise:
        return "one big message outweighs the small ones: divide each equation by its time, so that all count alike."
    if noise and max(off[:4]) < 3 * noise:
        return (
            "the line meets the small messages and misses the large ones, which hardly count: divide each equation by "
            "its time, not by its bytes, so that all count alike."
        )
    if noise:
        return ""
    single = _in_float32(sizes, seconds)
    if all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(numbers, (latency_s, bandwidth_Bps))):
        return (
            "right but for its last digits: a float32 has seven, and computing loses some of them. Make the tensors "
            "with dtype=torch.float64; the default is float32."
        )
    if max(abs(numbers[0]), abs(single[0])) < 1e-3 * latency_s:
        return (
            "that is what the same equations give in float32, where their two columns look alike: make the tensors "
            "with dtype=torch.float64; the default is float32."
        )
    return "time = latency + bytes / bandwidth is a line in the number of bytes."


def _in_float32(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """The fit with every number a float32: too few digits where the seconds differ little."""
    t = np.array(seconds, dtype=np.float32)
    columns = np.stack([1 / t, np.array(sizes, dtype=np.float32) / t], axis=1)
    alike = np.finfo(np.float32).eps * len(t)  # what torch, too, takes for one column only
    latency_s, seconds_per_byte = np.linalg.lstsq(columns, np.ones(len(t)), rcond=alike)[0].tolist()
    return latency_s, 1 / seconds_per_byte if seconds_per_byte else math.inf


@check(
    "lesson_01.fit_link",
    judge=_judge_fit,
    is_formula=True,
    cases=[
        {"latency_s": 1e-3, "bandwidth_Bps": 1e6, "noise": 0.0},
        {"latency_s": 7.6543215e-6, "bandwidth_Bps": 2345678.5, "noise": 0.0},
        {"latency_s": 1e-3, "bandwidth_Bps": 1e10, "noise": 0.0},  # no float32 tells its two numbers apart
        {"latency_s": 2e-5, "bandwidth_Bps": 3e9, "noise": 0.05},
    ],
    ok="latency and bandwidth were found, with and without noise.",
    hint="hint 2 of exercise 1.5",
    hints={"hint 2 of exercise 1.5": "counts?(ing)? alike|is a line in|divided by its time"},
    look="print for every size the time that your line gives beside the one that was measured.",
)
def fit_link(fit, /, latency_s: float, bandwidth_Bps: float, noise: float):
    """(latency_s, bandwidth_Bps) of a line through sizes and times."""
    found = fit(*_link_times(latency_s, bandwidth_Bps, noise))
    return list(found) if isinstance(found, Iterable) else found
