"""The checks of lesson 05's hooks: gradients in every situation, and the ledger that proves the overlap."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_05.hook_calls import judge_calls
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.material.timed_layers import Branches
from hw_utils.simulate import simulate

# situation -> for each backward pass, which layers take part; a callable picks by rank
ALL = ("first", "shared", "frozen", "last")
SITUATIONS: dict[str, list[Any]] = {
    "every layer used": [ALL],
    "three steps, the last layer used in the second": [ALL[:3], ALL, ALL[:3]],
    "last layer unused": [("first", "shared", "frozen")],
    "first layer unused": [("shared", "last")],
    "rank 0 leaves the last layer out": [lambda rank: ALL[:3] if rank == 0 else ALL],
    "rank 0 has no gradient at all": [lambda rank: () if rank == 0 else ALL],
    "rank 0 has its gradients in another order": [lambda rank: ("last", *ALL[:3]) if rank == 0 else ALL],
    "two batches accumulated": [ALL, ALL],
}


def _n_steps(situation: str) -> int:
    return len(SITUATIONS[situation]) if "steps" in situation else 1


def _uses(situation: str, rank: int) -> list[tuple[str, ...]]:
    return [use(rank) if callable(use) else use for use in SITUATIONS[situation]]


def _input_of(rank: int, k: int, model: Branches) -> torch.Tensor:
    drawn = torch.from_numpy(drawn_numbers.digits([5], rank, k))
    numbers = 10.0**rank * (k + 1) * (torch.arange(1, 6, dtype=torch.float64) + drawn)
    return numbers.to(model.first.weight.dtype)


def _loss(rank: int, k: int, model: Branches, use: tuple[str, ...]) -> torch.Tensor:
    """The loss of a backward pass; without any layer it is a constant of its own, and no parameter has a gradient."""
    return model(_input_of(rank, k, model), use) if use else torch.zeros((), requires_grad=True)


def _worker(
    rank: int, world_size: int, make: Any, bucket_bytes: int, situation: str, dtype: str
) -> list[list[torch.Tensor | None]]:
    """The gradients after each step."""
    model = Branches().to(getattr(torch, dtype))
    gradients = make(model, bucket_bytes)
    uses, left = _uses(situation, rank), []
    for k, use in enumerate(uses):
        if situation == "two batches accumulated" and k < len(uses) - 1:
            with gradients.no_sync():
                model(_input_of(rank, k, model), use).backward()
            continue
        model.zero_grad() if _n_steps(situation) > 1 else None
        _loss(rank, k, model, use).backward()
        gradients.wait()
        left.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    return left


def _own(rank: int, situation: str, step: int = 0) -> list[torch.Tensor | None]:
    """A rank's gradients by plain autograd in a step, before anything is reduced."""
    model = Branches()
    for k, use in enumerate(_uses(situation, rank)):
        if _n_steps(situation) > 1 and k != step:
            continue
        _loss(rank, k, model, use).backward()
    return [p.grad for p in model.parameters()]


def _expected(owns: list[list[torch.Tensor | None]]) -> list[np.ndarray | None]:
    """Mean gradients; a gradient that no rank has counts as zeros or None."""
    present = [[g for g in gradients if g is not None] for gradients in zip(*owns)]
    return [(sum(g) / len(owns)).numpy() if g else None for g in present]


_NAMES = ("first", "shared", "frozen", "last")


def _judge_overlap(data: Any, world_size: int, bucket_bytes: int, situation: str, dtype: str = "float64") -> None:
    what = f"{world_size} ranks, buckets of {bucket_bytes} bytes, {situation}" + f", {dtype}" * (dtype != "float64")
    require_no_deadlock(
        data,
        what,
        cause="a bucket with an unused parameter never fills, or ranks start buckets in different orders: "
        "start them in order, and start what is left in wait(), also on a rank that has no gradient at all.",
    )
    judge_calls(
        what,
        Trace.from_plain(data["trace"]),
        world_size,
        bucket_bytes,
        _n_steps(situation),
        situation == "two batches accumulated",
        dtype,
    )
    for rank, result in enumerate(data["results"]):
        steps = result if isinstance(result, list) else []
        if len(steps) != _n_steps(situation) or any(not isinstance(step, list) or len(step) != 4 for step in steps):
            cause = "backward and wait leave the gradients in p.grad, and replace no parameter."
            raise CheckFailed(f"{what}: rank {rank} has no list of gradients.", cause=cause)
    for step in range(_n_steps(situation)):
        after = f"{what}, after step {step + 1}" if _n_steps(situation) > 1 else what
        _judge_gradients(after, [result[step] for result in data["results"]], situation, step)


def _judge_gradients(what: str, results: list[list], situation: str, step: int) -> None:
    owns = [_own(rank, situation, step) for rank in range(len(results))]
    expected = _expected(owns)
    for rank, result in enumerate(results):
        if situation == "two batches accumulated":
            _require_both_batches(what, rank, result, len(results))
        _require_places(what, rank, result, expected)
        for k, (name, got, right, own) in enumerate(zip(_NAMES, result, expected, owns[rank])):
            if own is None and right is not None and _is_zero_here_alone(results, owns, right, k):
                raise CheckFailed(
                    f"{what}: gradient of `{name}` on rank {rank} is zero, expected {right}.",
                    cause="this rank has no gradient of its own there, and counts as zeros in the mean; the mean, "
                    "which is not zero, is its gradient, too, as it is on every other rank.",
                )
            if right is None and step and isinstance(got, np.ndarray) and got.any():
                raise CheckFailed(
                    f"{what}: gradient of `{name}` on rank {rank} is {came(got)}; no rank has one in this step.",
                    cause="something is kept from the step before: make each bucket's flat vector anew in each step, "
                    "with zeros where p.grad is None.",
                )
            _require_gradient(
                f"{what}: gradient of `{name}` on rank {rank}", name, got, right, own, [o[k] for o in owns]
            )


def _is_zero_here_alone(results: list[list], owns: list[list[torch.Tensor | None]], right: np.ndarray, k: int) -> bool:
    """Whether gradient k is the mean where a rank had one itself, and zeros where it had none."""
    return all(
        isinstance(result[k], np.ndarray)
        and result[k].shape == right.shape
        and np.allclose(result[k], 0 * right if own[k] is None else right)
        for result, own in zip(results, owns)
    )


def _require_both_batches(what: str, rank: int, result: list[Any], world_size: int) -> None:
    """Raises if what came is the mean of the first batch's gradients alone."""
    first = _expected([_own(other, "every layer used") for other in range(world_size)])
    both = zip(_NAMES, result, first)
    alone = [name for name, got, g in both if g is not None and isinstance(got, np.ndarray) and np.allclose(got, g)]
    whole = _expected([_own(other, "two batches accumulated") for other in range(world_size)])
    last = [
        name
        for name, got, g, w in zip(_NAMES, result, first, whole)
        if w is not None and isinstance(got, np.ndarray) and np.allclose(got, w - (0 if g is None else g))
    ]
    if last:
        raise CheckFailed(
            f"{what}: gradient of `{last[0]}` on rank {rank} is that of the last batch alone.",
            cause="what no_sync() has left in p.grad is a part of the sum: nothing clears it, and the next backward "
            "adds to it.",
        )
    if alone:
        raise CheckFailed(
            f"{what}: gradient of `{alone[0]}` on rank {rank} is that of the first batch alone, the one in no_sync().",
            cause="inside no_sync() nothing may be sent: neither counted nor started. Its gradients add up, and go off "
            "with the next batch.",
        )


def _require_places(what: str, rank: int, result: list[Any], expected: list[np.ndarray | None]) -> None:
    """Raises if all numbers of the means are there, and in other places."""
    due = [right for right in expected if right is not None]
    got = [g for g, right in zip(result, expected) if isinstance(g, np.ndarray) and right is not None]
    numbers, right = (np.concatenate([np.zeros(0), *(part.flatten() for part in parts)]) for parts in (got, due))
    if (
        numbers.shape == right.shape
        and not np.allclose(numbers, right)
        and np.allclose(*map(np.sort, (numbers, right)))
    ):
        raise CheckFailed(
            f"{what}: the gradients on rank {rank} hold the means' numbers, not each its own.",
            cause="cut the flat vector in the order in which the bucket filled it: for p in bucket, both times.",
        )


def _require_gradient(what: str, name: str, got: Any, right: Any, own: Any, owns: list[Any]) -> None:
    """own: the rank's gradient before the reduction; owns: all ranks'."""
    if right is None:
        if got is None or (isinstance(got, np.ndarray) and not got.any()):
            return
        cause = "a frozen parameter has no gradient." if name == "frozen" else "what no rank has counts as zeros."
        raise CheckFailed(f"{what} is {came(got)}; no rank has one.", cause=cause)
    if not isinstance(got, np.ndarray) or got.shape != right.shape:
        cause = "it was never reduced or written back."
        if got is None and own is None:
            cause = (
                "this rank has no gradient of its own there, others have: their mean is this rank's too (p.grad = ...)."
            )
        elif getattr(got, "size", 0) == right.size:
            cause = "a piece of the flat vector is flat: give it its parameter's shape, view_as(p)."
        raise CheckFailed(f"{what} is {came(got)}, expected {right}.", cause=cause)
    if not np.allclose(got, right, rtol=1e-12, atol=0):
        raise CheckFailed(f"{what} is {got}, expected {right}.", cause=_why_wrong(got, right, own, owns))


def _why_wrong(got: np.ndarray, right: np.ndarray, own: torch.Tensor | None, owns: list[Any]) -> str:
    """The mistake that leads to this gradient; `own` is what the rank had before the reduction, `owns` what all had."""
    world_size = len(owns)
    mine = np.zeros_like(right) if own is None else own.numpy()
    causes = {
        "that is the sum: divide by the number of ranks, once.": right * world_size,
        "divided twice: once by the number of ranks is enough.": right / world_size,
        "it is zero: its bucket went off before this gradient was there (then zeros travel), or its buffer was read "
        "before wait().": 0 * right,
        "that is the rank's own gradient: the mean was never written back into .grad.": mine,
        "the mean was added to the rank's own gradient: it takes its place (copy_).": mine + right,
        "that is the rank's own gradient, divided: wait for the all_reduce, then read its buffer.": mine / world_size,
    }
    near = [cause for cause, value in causes.items() if np.allclose(got, value, rtol=1e-9, atol=1e-12)]
    for divisor in range(2, 17):
        if np.allclose(got, right * world_size / divisor, rtol=1e-9, atol=1e-12):
            near.append(f"that is the sum divided by {divisor}: divide it by the number of ranks.")
    if not near and _lacks_some(got * world_size, owns):
        return "a bucket went off before all its gradients were there, or its buffer was written while under way."
    return near[0] if near else ""


def _lacks_some(total: np.ndarray, owns: list[Any]) -> bool:
    """Whether it is the sum of the ranks' gradients, some of which are missing or were divided before."""
    parts = [o.numpy() for o in owns if o is not None]
    shares = (0.0, *(float(len(owns)) ** -k for k in range(4)))
    return any(
        len(set(chosen)) > 1 and np.allclose(total, sum(share * part for share, part in zip(chosen, parts)))
        for chosen in itertools.product(shares, repeat=len(parts))
    )


@check(
    "lesson_05.overlap",
    judge=_judge_overlap,
    cases=[
        {"world_size": n, "bucket_bytes": b, "situation": s} | ({"dtype": dtypes[0]} if dtypes else {})
        for n, b, s, *dtypes in (
            (2, 1, "every layer used"),
            (2, 1000, "every layer used", "float32"),
            (3, 40, "last layer unused"),
            (2, 1, "first layer unused"),
            (3, 1, "rank 0 leaves the last layer out"),
            (3, 40, "rank 0 has no gradient at all"),
            (2, 1, "rank 0 has its gradients in another order"),
            (4, 40, "three steps, the last layer used in the second"),
            (2, 40, "two batches accumulated"),
            (1, 40, "every layer used"),
        )
    ],
    ok="gradients are the mean in every situation: unused, shared, frozen, accumulated.",
    hint="hint 3 of exercise 5.4b",
    hints={
        "hint 2 of exercise 5.4b": "order|off before|buckets go in",
        "hint 3 of exercise 5.4b": "hangs|never started|unused|zeros|None",
        "hint 1 of exercise 5.4b": "wait|handle|flat|bucket|mean|ranks",
    },
    look="print the bucket and the rank in start_next, and p.grad of every parameter after wait.",
)
def overlap(make, /, world_size: int, bucket_bytes: int, situation: str, dtype: str = "float64"):
    """Backward passes through a small model whose layers may be unused, shared or frozen."""
    args = (make, bucket_bytes, situation, dtype)
    return observe(lambda: simulate(_worker, world_size, args, compute="free", echo=False))
