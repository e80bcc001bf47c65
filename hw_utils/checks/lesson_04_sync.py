"""Judges of lesson 04, gradients and costs: what `sync` leaves behind, sends, and takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hw_utils import schedules
from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.lesson_04_judges import close, number, result, short
from hw_utils.errors import CheckFailed
from hw_utils.trace import Trace

# name -> (shape, kind); kinds: "all" ranks use it, "none", only "rank 0", or it is "frozen".
PARAMETERS = {
    "weight": ((5, 3), "all"),
    "bias": ((7,), "all"),
    "scalar": ((), "all"),
    "frozen": ((4,), "frozen"),
    "unused": ((6,), "none"),
    "branch": ((3,), "rank 0"),
}


def gradient(name: str, rank: int) -> np.ndarray | None:
    """The gradient that `rank` starts with: 10**rank * [1, 2, ...], so that a wrong digit names the rank."""
    shape, kind = PARAMETERS[name]
    if kind in ("frozen", "none") or (kind == "rank 0" and rank != 0):
        return None
    return (10.0**rank * np.arange(1, math.prod(shape) + 1)).reshape(shape)


def judge_gradients(what: str):
    """A judge of the gradients that `what` leaves on every rank."""

    def judge(data: Any, world_size: int, names: Sequence[str]) -> None:
        who = f"{what} with {world_size} ranks"
        cause = ""
        if {"unused", "branch"} & set(names):
            cause = "a rank that has no gradient (None) for a parameter must still take part: it counts as zeros."
        require_no_deadlock(data, who, cause=cause)
        each = [result(data, rank) for rank in range(world_size)]
        for name in names:
            _judge_gradient(who, [got["gradients"].get(name) for got in each], name)
            for rank, got in enumerate(each):
                if not close(got["values"][name], rank + 1.0):
                    raise CheckFailed(
                        f"{who}: the values of {name!r} on rank {rank} have changed.",
                        cause="the gradients (p.grad) are synchronised, not the parameters.",
                    )

    return judge


def _judge_gradient(who: str, got: list[Any], name: str) -> None:
    """got: what each rank ends with."""
    n = len(got)
    each = [gradient(name, rank) for rank in range(n)]
    if all(g is None for g in each):
        for rank, value in enumerate(got):
            if value is not None and np.any(np.asarray(value) != 0):
                what = f"{name!r} has no gradient anywhere, but rank {rank} ends with {short(_list(value))}"
                raise CheckFailed(f"{who}: {what}.")
        return
    filled = [np.zeros(PARAMETERS[name][0]) if g is None else g for g in each]
    expected = sum(filled) / n
    wrong = {rank: value for rank, value in enumerate(got) if not _same(value, expected)}
    if wrong:
        rank = min(wrong)
        raise CheckFailed(
            f"{who}: the gradient of {name!r} on rank {rank} is {short(_list(wrong[rank]))}, expected"
            f" {short(expected.tolist())}.",
            cause=_why_gradient(wrong, filled),
        )


def _same(value: Any, expected: np.ndarray) -> bool:
    fits = isinstance(value, np.ndarray) and value.shape == expected.shape
    return fits and bool(np.allclose(value, expected, rtol=1e-5, atol=1e-6))


def _list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _why_gradient(wrong: dict[int, Any], each: list[np.ndarray]) -> str:
    """The first explanation that fits every rank that is wrong."""
    n, mean = len(each), sum(each) / len(each)
    causes = [
        (lambda r: mean * n, "this is the sum: divide by the world size."),
        (lambda r: mean / n, "it is divided by the world size twice."),
        (lambda r: mean * n / max(n - 1, 1), "rank 0's own gradient counts too: N ranks, so divide by N."),
        (lambda r: np.full_like(mean, mean.mean()), "the mean is taken over the ranks, not over the elements."),
        (lambda r: (sum(each) - each[0]) / n, "rank 0's own gradient is missing from the mean."),
        (lambda r: each[r], "this rank still has its own gradient: what it received must be written to p.grad."),
        (lambda r: each[0], "this is rank 0's own gradient: what is scattered must be the mean."),
        (lambda r: each[-1], "this is the last rank's gradient, not the mean."),
        (lambda r: each[r] / n, "each rank divides its own gradient; nothing was added up."),
        (
            lambda r: np.zeros_like(mean),
            "it is still empty: wait for every async operation before you read it.",
        ),
    ]
    for value, cause in causes:
        if all(_same(got, value(rank)) for rank, got in wrong.items()):
            return cause
    if any(got is None for got in wrong.values()):
        return "p.grad is None on this rank: give it the mean as well."
    if all(np.size(got) == 1 or np.ptp(np.asarray(got, "f8")) == 0 for got in wrong.values()) and mean.size > 1:
        return "the mean is taken over the ranks, not over the elements."
    return ""


def judge_traffic(what: str, allowed: frozenset[str], other: str):
    """A judge of what `what` sends: only `allowed` operations, and rank 0's bytes as they would be."""

    def judge(data: Any, world_size: int, names: Sequence[str]) -> None:
        who = f"{what} with {world_size} ranks"
        require_no_deadlock(data, who)
        trace = Trace.from_plain(data["trace"])
        used = frozenset(op for op in trace.ops if op != "barrier")
        if used != allowed:
            extra, missing = used - allowed, allowed - used
            wrong = f"calls {', '.join(sorted(extra))}" if extra else f"never calls {' and '.join(sorted(missing))}"
            raise CheckFailed(
                f"{who}: it {wrong}; this exercise is about {' and '.join(sorted(allowed))}.", cause=other
            )
        sizes = [4 * math.prod(PARAMETERS[n][0]) for n in names if PARAMETERS[n][1] != "frozen"]
        expected = sum(schedules.cost(op, n, world_size, itemsize=4).sent_bytes[0] for op in allowed for n in sizes)
        got = trace.bytes_sent(0)
        whole = schedules.cost("all_reduce", sum(sizes), world_size, itemsize=4).sent_bytes[0]
        if got == expected or ("all_reduce" in allowed and got == whole):
            return
        cause = "frozen parameters need no messages." if got > expected else "some parameter is left out."
        cause = "something travels more than once." if got >= 2 * expected else cause
        raise CheckFailed(f"{who}: rank 0 sends {got:,} bytes, expected {expected:,}.", cause=cause)

    return judge


# 4.4 and 4.5 -------------------------------------------------------------------------------------------------


def judge_calls(data: Any, measured: Mapping[str, int]) -> None:
    for method, expected in measured.items():
        said = data.get(method) if isinstance(data, dict) else None
        if said is None:
            raise CheckFailed(f"calls[{method!r}] is not filled in.")
        if number(said, f"calls[{method!r}]") != expected:
            causes = {
                "all_reduce": "count the tensors in model.parameters(), biases and batch norm included.",
                "ddp": "look at a later iteration: DistributedDataParallel arranges its buckets after the first one.",
            }
            raise CheckFailed(
                f"calls[{method!r}]: VGG-11 needs another number of all-reduces an iteration than {said}.",
                cause=causes[method],
            )


def judge_bytes(data: Any, method: str, world_size: int) -> None:
    require_no_deadlock(data, method)
    trace = Trace.from_plain(data["trace"])
    for rank, said in enumerate(data["said"]):
        got, sent = number(said, f"bytes_sent({method!r}, {rank}, ...)"), trace.bytes_sent(rank)
        if math.isclose(got, sent, rel_tol=1e-9, abs_tol=0.5):
            continue
        causes = (
            (trace.bytes_sent(0), "this is rank 0's; the other ranks send something else."),
            (trace.bytes_sent(world_size - 1), "this is what the others send; rank 0 is the root."),
            (2 * sent, "twice too many: sending and receiving are counted separately."),
            (4 * sent, "n_bytes counts bytes already, not elements."),
            (sent * world_size / max(world_size - 1, 1), "a rank sends nothing to itself."),
        )
        raise CheckFailed(
            f"bytes_sent({method!r}, rank={rank}, world_size={world_size}, ...) is {got:,.0f};"
            f" the ledger says {sent:,}.",
            cause=next((text for value, text in causes if math.isclose(got, value, rel_tol=1e-9)), ""),
        )


def judge_predicted_s(data: Any, method: str, world_size: int, n_tensors: int) -> None:
    require_no_deadlock(data["run"], method)
    got, measured = number(data["said"], "predicted_s"), number(data["run"]["seconds"], "the measured time")
    if math.isclose(got, measured, rel_tol=1e-6):
        return
    compute_s, latency_s = data["one_node_s"] / world_size, data["latency_s"]
    causes = (
        (measured + data["one_node_s"] - compute_s, "the compute is shared: every rank has 1/N of the batch."),
        (measured - compute_s, "the compute is missing."),
        ((measured + compute_s) / 2, "a gather and a scatter, one after the other: the way there and the way back."),
    )
    cause = next((text for value, text in causes if math.isclose(got, value, rel_tol=1e-6)), "")
    off = (measured - got) / latency_s if latency_s else 0.0
    if not cause and abs(off - round(off)) < 1e-3 and round(off) % 2 == 0 and n_tensors > 1 and abs(off) < 1e4:
        cause = "the bytes are right, the latencies are not: every tensor is a collective of its own."
    raise CheckFailed(
        f"predicted_s({method!r}, world_size={world_size}, ...) is {got:.6g} s; your own code takes {measured:.6g} s.",
        cause=cause,
    )
