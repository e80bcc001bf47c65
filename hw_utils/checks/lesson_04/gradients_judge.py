"""Judges of lesson 04, gradients and costs: what `sync` leaves behind, sends, and takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_04.collective_contents import require_gradients, why_two_dtypes
from hw_utils.checks.lesson_04.loop_judge import close, result
from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

# name -> (shape, kind); kinds: "all" ranks use it, "none", only "rank 0", or it is "frozen"; "frozen later" has a
# gradient from before, which stays.
PARAMETERS = {
    "weight": ((5, 3), "all"),
    "bias": ((7,), "all"),
    "scalar": ((), "all"),
    "frozen": ((4,), "frozen"),
    "frozen_later": ((5,), "frozen later"),
    "unused": ((6,), "none"),
    "branch": ((3,), "rank 0"),
    "twig": ((3,), "rank 0"),
    "still": ((2,), "zeros"),
}
_FIRST = {"twig": 11}  # so that it is not branch's, where no number is drawn


def gradient(name: str, rank: int) -> np.ndarray | None:
    """What `rank` starts with: 10**rank * [1, 2, ...] + 1/3: a digit names the rank, the fraction shows rounding."""
    shape, kind = PARAMETERS[name]
    if kind in ("frozen", "none") or (kind == "rank 0" and rank != 0):
        return None
    if kind == "zeros":
        return np.zeros(shape)
    first = np.arange(math.prod(shape)) + _FIRST.get(name, 1)
    return (10.0**rank * (first + drawn_numbers.digits(first.shape, rank, name)) + 1 / 3).reshape(shape)


def judge_gradients(what: str, *, adds_itself: bool = False):
    """A judge of the gradients that `what` leaves on every rank. adds_itself: no call may add them up for it."""

    def judge(data: Any, world_size: int, names: Sequence[str], dtype: str = "float32", again: bool = False) -> None:
        who = _with(what, world_size) + f" and gradients in {dtype}" * (dtype != "float32")
        who += ", the second call on one model" * again
        cause = "every rank must make the same calls, in the same order, for the same parameters."
        if {"unused", "branch", "twig"} & set(names):
            cause = "a rank that has no gradient (None) for a parameter must still take part: it counts as zeros."
        cause = why_two_dtypes(data.get("deadlock") or "") or cause
        require_no_deadlock(data, who, cause=cause)
        trace = Trace.from_plain(data["trace"])
        _require_waited(who, trace)
        each = [result(data, rank) for rank in range(world_size)]
        if adds_itself:
            _require_own_sums(who, [got["carried"] for got in each])
        for name in names:
            shape = PARAMETERS[name][0]
            alike = {
                other: [got["gradients"].get(other) for got in each]
                for other in names
                if other != name and PARAMETERS[other][0] == shape
            }
            ends = [got["gradients"].get(name) for got in each]
            _judge_gradient(who, ends, name, alike, "gather" in trace.ops, _ANEW if again else "")
            for rank, got in enumerate(each):
                if not close(got["values"][name], rank + 1.0):
                    raise CheckFailed(
                        f"{who}: the values of {name!r} on rank {rank} have changed.",
                        cause="the gradients (p.grad) are synchronised, not the parameters.",
                    )

    return judge


_ANEW = "a call begins anew: p.grad is another tensor after each backward, so nothing is kept from the call before."
_ONE_FOR_ALL = (
    "{0!r} ends with the same numbers: parameters without a gradient share one tensor of zeros; each needs its own."
)
_ADDS = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"})


def _require_own_sums(who: str, carried: list[Any]) -> None:
    """Raises CheckFailed if a call has added gradients up, which have several values; a buffer here has one."""
    calls = ((kind, np.asarray(t)) for of_rank in carried for kind, inputs in of_rank for t in inputs)
    adding = sorted({kind for kind, t in calls if kind in _ADDS and len(np.unique(t)) > 1})
    if adding:
        raise CheckFailed(
            f"{who}: the gradients are added up by {', '.join(adding)}, not by rank 0.",
            cause="here the root has all gradients, and makes their mean itself: one gather, one scatter.",
        )


def _require_waited(who: str, trace: Trace) -> None:
    left = [e for e in trace if e.op != "barrier" and e.waited is None]
    if left:
        raise CheckFailed(
            f"{who}: rank {left[0].rank} never waits for its {left[0].op}.",
            cause="with async_op=True the call returns at once: keep what it gives back, and wait() before you read.",
        )


def _judge_gradient(
    who: str, got: list[Any], name: str, alike: dict[str, list[Any]], is_gathered: bool, cause: str
) -> None:
    """got: what each rank ends with. alike: the same for the other parameters of this shape. is_gathered: whether a
    root had all of them in a list. cause: the one that is known before."""
    n = len(got)
    each = [gradient(name, rank) for rank in range(n)]
    if PARAMETERS[name][1] == "frozen later":
        changed = [rank for rank, value in enumerate(got) if not _same(value, each[rank])]
        if changed:
            raise CheckFailed(
                f"{who}: {name!r} is frozen, and its gradient on rank {changed[0]} has become "
                f"{came(_list(got[changed[0]]))}, it was {came(each[changed[0]].tolist())}.",
                cause="a frozen parameter takes no part, also if it has a gradient from before: leave out those whose "
                "requires_grad is False.",
            )
        return
    if all(g is None for g in each):
        for rank, value in enumerate(got):
            if value is not None and (PARAMETERS[name][1] == "frozen" or np.any(np.asarray(value) != 0)):
                what = f"{name!r} has no gradient anywhere, but rank {rank} ends with {came(_list(value))}"
                cause = "a frozen parameter takes no part: leave out those whose requires_grad is False."
                if PARAMETERS[name][1] != "frozen":
                    cause = "None counts as zeros, and the mean of zeros is zero: torch.zeros_like(p)."
                raise CheckFailed(f"{who}: {what}.", cause=cause)
        return
    filled = [np.zeros(PARAMETERS[name][0]) if g is None else g for g in each]
    expected = sum(filled) / n
    wrong = {rank: value for rank, value in enumerate(got) if not _same(value, expected)}
    if wrong:
        rank = min(wrong)
        same = [
            other
            for other, theirs in alike.items()
            if all(isinstance(theirs[r], np.ndarray) and _same(g, theirs[r]) for r, g in wrong.items())
        ]
        raise CheckFailed(
            f"{who}: the gradient of {name!r} on rank {rank} is {came(_list(wrong[rank]))}, expected"
            f" {came(expected.tolist())}.",
            cause=cause or (_ONE_FOR_ALL.format(*same) if same else _why_gradient(wrong, filled, name, is_gathered)),
        )


def _same(value: Any, expected: np.ndarray) -> bool:
    fits = isinstance(value, np.ndarray) and value.shape == expected.shape
    return fits and bool(np.allclose(value, expected, rtol=1e-5, atol=1e-6))


def _list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _why_gradient(wrong: dict[int, Any], each: list[np.ndarray], name: str, is_gathered: bool) -> str:
    """The first explanation that fits every rank that is wrong."""
    n, mean = len(each), sum(each) / len(each)
    if n == 1 and any(np.isinf(np.asarray(got, "f8")).any() for got in wrong.values() if got is not None):
        return "there is a division by zero: N ranks, so divide by N, not by N - 1."
    if n == 1 and all(got is not None and not np.asarray(got, "f8").any() for got in wrong.values()):
        return (
            "it is zero: rank 0's own gradient is missing from the mean, or zeros took its place, as if it were None."
        )
    some = n - sum(not np.any(g) for g in each)
    right = [rank for rank in range(n) if rank not in wrong]
    had_one = ", which was the one that had a gradient" if PARAMETERS[name][1] == "rank 0" else ""
    causes = [
        (
            lambda r: mean * n if right else mean * math.nan,
            f"the sum is divided on rank {right[0] if right else 0} alone{had_one}: every rank divides its own p.grad.",
        ),
        (
            lambda r: mean * n / some if PARAMETERS[name][1] == "rank 0" and n > 1 else mean * math.nan,
            "only the ranks that have a gradient are counted, if any are: None counts as zeros, so the sum is divided "
            "by the world size.",
        ),
        (
            lambda r: mean * n,
            "this is the sum: divide by the world size, in place (p.grad /= N, p.grad.div_(N)); `g = g / N` makes a"
            " new tensor, which p.grad never sees.",
        ),
        (
            lambda r: mean * n / max(mean.size, 1) if mean.size != n else mean * math.nan,
            "it is divided by the number of elements: the mean is over the ranks.",
        ),
        *(
            (
                lambda r, k=k: mean * n / k,
                f"it is divided by {k}, however many ranks there are: divide by the world size.",
            )
            for k in (range(2, 9) if n == 1 else ())
        ),
        (lambda r: mean / n, "it is divided by the world size twice."),
        (
            lambda r: (sum(each[:-1]) / n + each[-1]) / (n if r == n - 1 else 1) if n > 1 else mean * math.nan,
            "it was divided while it was under way: after async_op=True a tensor is not yours until wait().",
        ),
        (lambda r: mean * n / max(n - 1, 1), "rank 0's own gradient counts too: N ranks, so divide by N."),
        (lambda r: (sum(each) - each[0]) / max(n - 1, 1), "rank 0's own gradient is missing from the mean."),
        *(
            (
                lambda r, k=k: (sum(each) + each[0]) / k,
                "rank 0's own gradient counts twice: what is gathered has it already.",
            )
            for k in (n + 1, n)
        ),
        (lambda r: np.floor(mean), "these are whole numbers: divide with /, not with //."),
        (lambda r: each[-1] / n, "this is the largest one over N: all_reduce sums if it is told nothing."),
        (lambda r: np.prod(each, axis=0) / n, "this is a product over N: all_reduce sums if it is told nothing."),
        (lambda r: np.full_like(mean, mean.mean()), "the mean is taken over the ranks, not over the elements."),
        (lambda r: (sum(each) - each[0]) / n, "rank 0's own gradient is missing from the mean."),
        (
            lambda r: each[r],
            f"this rank still has its own gradient: {name!r} was left out, or what came of the call never went into"
            f" p.grad{', or what was gathered is scattered as it is and not the mean' if is_gathered else ''}.",
        ),
        (lambda r: each[0], "this is rank 0's own gradient: what is scattered must be the mean."),
        (
            lambda r: each[-1],
            "this is the last rank's gradient: [t] * N is one tensor in N places, and the last to come stays in it; the"
            " list to gather into holds N tensors."
            if is_gathered
            else "this is the last rank's gradient, and the largest, not the mean: all_reduce sums if it is told"
            " nothing.",
        ),
        (
            lambda r: each[r] / n,
            "each rank divides its own gradient; nothing was added up in p.grad: a call on a copy, or one with"
            " async_op=True whose wait() is missing.",
        ),
        (lambda r: np.median(each, axis=0), "this is the middle one of the ranks, not their mean."),
        (lambda r: np.ones_like(mean) * (r + 1), "these are the weights: the gradients (p.grad) travel."),
        (lambda r: np.ones_like(mean) * (n + 1) / 2, "this is the mean of the weights: the gradients (p.grad) travel."),
        (
            lambda r: np.zeros_like(mean),
            "it is still empty: wait for every async operation before you read it.",
        ),
    ]
    for value, cause in causes:
        if all(_same(got, value(rank)) for rank, got in wrong.items()):
            return cause
    if all(np.shape(got) == mean.shape and np.allclose(got, mean, rtol=1e-2) for got in wrong.values()):
        return "right to two digits or three: gradients travel in the dtype that they have."
    if any(got is None for got in wrong.values()):
        return "p.grad is None on this rank: give it the mean as well."
    if all(np.size(got) == 1 or np.ptp(np.asarray(got, "f8")) == 0 for got in wrong.values()) and mean.size > 1:
        return "the mean is taken over the ranks, not over the elements."
    return ""


def judge_traffic(what: str, allowed: frozenset[str], other: str):
    """A judge of what `what` sends: only `allowed` operations, and rank 0's bytes as they would be."""

    def judge(data: Any, world_size: int, names: Sequence[str]) -> None:
        who = _with(what, world_size)
        require_no_deadlock(data, who, cause="every rank must make the same calls, in the same order.")
        trace = Trace.from_plain(data["trace"])
        used = frozenset(trace.ops)
        if used != allowed:
            extra, missing = used - allowed, allowed - used
            if extra == {"barrier"} and not missing:
                raise CheckFailed(f"{who}: it calls barrier.", cause=_BARRIER)
            wrong = f"calls {', '.join(sorted(extra))}" if extra else f"never calls {' and '.join(sorted(missing))}"
            raise CheckFailed(
                f"{who}: it {wrong}; this exercise is about {' and '.join(sorted(allowed))}.", cause=other
            )
        sizes = [4 * math.prod(PARAMETERS[n][0]) for n in names if PARAMETERS[n][1] != "frozen"]
        expected = sum(algorithms.cost(op, n, world_size, itemsize=4).sent_bytes[0] for op in allowed for n in sizes)
        got = trace.bytes_sent(0)
        if got != expected:
            cause = "a parameter has one such call, and nothing else is sent." if got > expected else ""
            if "frozen" in names and any(n > len(sizes) for n in _n_calls(trace.of_rank(0), allowed)):
                cause = "frozen parameters need no messages."
            if _is_all_there(data, allowed, sum(sizes) // 4):
                cause = "all numbers travel, in fewer bytes each: gradients travel in the dtype that they have."
            cause = cause or "some parameter is left out."
            cause = "something travels more than once." if got >= 2 * expected else cause
            last = trace.bytes_sent(world_size - 1)
            if world_size > 1 and last == expected:
                cause = f"rank {world_size - 1} is the root: rank 0 is to be, as gather and scatter have it by default."
            if any(0 < n < len(sizes) for n in _n_calls(trace.of_rank(0), allowed)) and got > expected:
                cause = _FLAT
            raise CheckFailed(f"{who}: rank 0 sends {got:,} bytes, expected {expected:,}.", cause=cause)
        if not _one_a_parameter(trace, allowed, len(sizes), world_size):
            calls = ", ".join(f"{len(trace.of_rank(0).of_op(op))} {op}" for op in sorted(allowed))
            raise CheckFailed(
                f"{who}: {calls} on rank 0 for {len(sizes)} trainable {'tensor' if len(sizes) == 1 else 'tensors'};"
                f" the target is one {' and one '.join(sorted(allowed))} a parameter.",
                cause=_FLAT,
            )
        carried = [result(data, rank)["carried"] for rank in range(world_size)] if world_size > 1 else []
        _require_own_sizes(who, carried, [math.prod(PARAMETERS[n][0]) for n in names if PARAMETERS[n][1] != "frozen"])
        of_all = {name: [gradient(name, rank) for rank in range(world_size)] for name in names}
        known = {name: each for name, each in of_all.items() if not any(g is None for g in each)}
        require_gradients(who, carried, known)

    return judge


_BARRIER = (
    "a rank that has its mean may go on: the calls themselves wait for what they need. A barrier takes time, which 4.5"
    " would have to predict."
)
_FLAT = (
    "several gradients travel as one vector. That is clever, and lesson 5's subject; here every parameter has its own"
    " call, which is what 4.4 counts and 4.5 predicts."
)


def _is_all_there(data: Any, ops: frozenset[str], n_numbers: int) -> bool:
    """Whether rank 0 puts as many numbers into its calls as the model has."""
    carried = [(kind, inputs) for kind, inputs in result(data, 0)["carried"] if inputs]
    return all(sum(int(np.size(inputs[0])) for kind, inputs in carried if kind == op) == n_numbers for op in ops)


def _n_calls(mine: Trace, ops: frozenset[str]) -> list[int]:
    return [len(mine.of_op(op)) for op in ops]


def _one_a_parameter(trace: Trace, ops: frozenset[str], n_parameters: int, world_size: int) -> bool:
    ranks = [trace.of_rank(rank) for rank in range(world_size)]
    return world_size == 1 or all(n == n_parameters for mine in ranks for n in _n_calls(mine, ops))


def _require_own_sizes(who: str, carried: list[Any], sizes: Sequence[int]) -> None:
    """Raises CheckFailed unless each parameter's numbers go into a call of their own, in whatever order.

    sizes: numbers of each parameter. A call into which nothing goes is none, but that of a rank that only receives.
    """
    for rank, calls in enumerate(carried):
        for kind in dict.fromkeys(kind for kind, _ in calls):
            sent = [int(np.size(inputs[0])) for other, inputs in calls if other == kind and inputs]
            if sent and sorted(sent) != sorted(sizes):
                raise CheckFailed(
                    f"{who}: rank {rank} puts {sent} numbers into its calls of {kind}; the parameters have"
                    f" {list(sizes)}.",
                    cause=_FLAT if max(sent) > max(sizes) else "a call carries one parameter's gradient, all of it.",
                )


def _with(what: str, world_size: int) -> str:
    return f"{what} with {world_size} rank{'' if world_size == 1 else 's'}"
