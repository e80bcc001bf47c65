"""Checks of lesson 05: gradients reduced in buckets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_04.collective_contents import is_made_of, note_inputs
from hw_utils.checks.lesson_05.expected_numbers import free
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

SHAPES = ((3, 4), (5,), (1, 7), ())  # 25 elements
_OTHER_TIMES = 3.0  # what an earlier call's gradients are of the last one's


def _gradients_of(rank: int, dtype: str) -> list[torch.Tensor]:
    """Rank r holds 10**r * 1, 2, 3, ...: a wrong digit names the rank."""
    flat = torch.from_numpy(_flat(rank)).to(getattr(torch, dtype))
    return [part.view(shape).clone() for part, shape in zip(flat.split([math.prod(s) for s in SHAPES]), SHAPES)]


def _flat(rank: int) -> np.ndarray:
    return 10.0**rank * (np.arange(1, 26) + drawn_numbers.digits([25], rank))


def _judge_bucketed(data: Any, world_size: int, bucket_elements: int, dtype: str = "float64", calls: int = 1) -> None:
    what = f"bucketed_all_reduce with {world_size} rank{'s' * (world_size > 1)}"
    what += f", 25 elements of {dtype}, {bucket_elements} a bucket"
    itemsize = getattr(torch, dtype).itemsize
    require_no_deadlock(data, what, cause="every rank must make the same number of calls.")
    mean = sum(10.0**r for r in range(world_size)) / world_size
    trace = Trace.from_plain(data["trace"])
    left = [e for e in trace if e.waited is None]
    if left:
        raise CheckFailed(
            f"{what}: rank {left[0].rank} never waits for an {left[0].op}.",
            cause="with async_op=True the call returns at once: keep what it gives back, and wait() before you read.",
        )
    for rank in range(world_size):
        n_reduced = sum(e.n_bytes for e in trace.of_rank(rank).of_op("all_reduce")) // itemsize
        result = data["results"][rank]
        _require_mean(what, rank, result["gradients"], mean, world_size, bucket_elements, calls, n_reduced)
        _require_in_place(what, rank, result["gradients"], result["views"])
        if result["n_left"] != len(SHAPES):
            raise CheckFailed(
                f"{what}: every mean is right, but the list of {len(SHAPES)} gradients on rank {rank} has "
                f"{result['n_left']} entries after the call.",
                cause="the list is the caller's: go through it, and take nothing out.",
            )
    others = sorted(trace.ops - {"all_reduce"})
    if others:
        cause = "one all_reduce a bucket does it: no other collective, and no barrier, is needed."
        raise CheckFailed(f"{what}: called {', '.join(others)}; all_reduce is enough.", cause=cause)
    n_calls = calls * len(range(0, 25, bucket_elements))
    for rank in range(world_size):
        sizes = [e.n_bytes // itemsize for e in trace.of_rank(rank)]
        due = calls * [min(bucket_elements, 25 - at) for at in range(0, 25, bucket_elements)]
        if sorted(sizes) != sorted(due):  # in whatever order
            cause = "bucket_elements is how many elements a bucket holds: no bytes, and no number of buckets."
            if not sizes:
                cause = "each bucket has its call, with one rank as with many."
            borders = np.cumsum([math.prod(shape) for shape in SHAPES])
            if 1 < max(sizes, default=0) <= bucket_elements < 25 and set(borders) <= set(np.cumsum(sizes)):
                cause = "buckets are cut at parameter borders: lay all gradients out in one flat vector, then cut."
            of_one = sizes[: len(sizes) // calls]
            is_whole = 1 < len(of_one) <= len(borders) and set(np.cumsum(of_one)) <= set(borders)
            counts = np.diff(borders, prepend=0)
            if not all(sizes):
                cause = (
                    "a call carries nothing: where the elements end with a full bucket, no other bucket follows; "
                    "range(0, n, bucket_elements) has as many places as there are buckets."
                )
            elif is_whole and len(of_one) == len(counts) and min(counts[1:] + counts[:-1]) <= bucket_elements:
                cause = "that is one call a parameter, no bucket at all."
            elif is_whole:
                cause = (
                    "whole gradients travel: lay all gradients out in one flat vector, and cut it where a bucket is "
                    "full, within a gradient, too."
                )
            elif len(sizes) == 1:
                cause = "everything went in one call: cut the flat vector into buckets."
            elif len(sizes) == n_calls:
                cause = "every bucket but the last holds exactly bucket_elements: split, do not cut into equal parts."
            if sum(sizes) > 25 and sizes[:-1] == due[:-1]:
                cause = "the last bucket is filled up: it holds what is left, and no more."
            elif 2 * due == sorted(sizes, reverse=True) or sum(sizes) == 50:
                cause = "everything travels twice: one call a bucket."
            for n_bytes, other in ((8, "float64"), (4, "float32"), (2, "float16 or bfloat16")):
                if [e.n_bytes for e in trace.of_rank(rank)] == [n_bytes * n for n in due]:
                    cause = (
                        f"{n_bytes} bytes a number travel, as {other}: the flat vector has the gradients' own dtype "
                    )
                    cause += f"(here {dtype})."
            raise CheckFailed(f"{what}: rank {rank} reduced {sizes} elements a call, expected {due}.", cause=cause)
        if sizes != due and not is_made_of(np.asarray(data["results"][rank]["shortest"]), [_flat(rank)[-due[-1] :]]):
            raise CheckFailed(
                f"{what}: rank {rank} reduced {sizes} elements a call, expected {due}.",
                cause="the last bucket is the short one: cut from the front, it holds what is left at the end.",
            )


def _require_mean(
    what: str, rank: int, got: Any, mean: float, world_size: int, bucket_elements: int, calls: int, n_reduced: int
) -> None:
    if not isinstance(got, list) or [getattr(g, "shape", None) for g in got] != list(SHAPES):
        raise CheckFailed(
            f"{what}: the gradients on rank {rank} changed their shapes; write the means back in place.",
            cause="copy_ writes into a gradient of its own shape: cut the flat vector, view_as, copy_.",
        )
    flat = np.concatenate([g.reshape(-1) for g in got])
    right = sum(_flat(r) for r in range(world_size)) / world_size
    wrong = np.flatnonzero(~np.isclose(flat, right, rtol=1e-12, atol=0))
    if not len(wrong):
        return
    k = int(wrong[0])
    scale = flat[k] / (k + 1)
    causes = {
        "that is the mean of an earlier call's gradients: make the flat vector anew in each call.": (
            (_OTHER_TIMES * mean,) if calls > 1 else ()
        ),
        "that is the sum: divide by the number of ranks.": mean * world_size,
        "it was divided twice.": mean / world_size,
        "it was divided while it was under way: after async_op=True a tensor is not yours until wait().": tuple(
            (sum(10.0**r for r in range(world_size - 1)) / world_size + 10.0 ** (world_size - 1)) / divisor
            for divisor in ((1, world_size) if world_size > 1 else ())
        ),
        "it was divided by bucket_elements: the divisor is the number of ranks.": mean * world_size / bucket_elements,
        "the mean was added to the rank's own gradient: it takes its place (copy_).": mean + 10.0**rank,
        _why_own(k, n_reduced < 25 * calls): 10.0**rank,
        _why_own(k, True) + " (It was divided, though.)": 10.0**rank / world_size,
        "it is zero: was it read before the all_reduce was done?": 0.0,
        "the divisor is the number of ranks, not of ranks - 1.": mean * world_size / max(world_size - 1, 1),
        "the divisor is the number of ranks, whatever it is.": (mean * world_size / 2, mean * world_size / 4),
        "the largest is taken: all_reduce sums if it is told nothing.": (
            10.0 ** (world_size - 1),
            10.0 ** (world_size - 1) / world_size,
        ),
    }
    if np.allclose(flat, mean * np.arange(1, 26), rtol=1e-5, atol=0):
        causes["the numbers are rounded: the flat vector has the gradients' own dtype (here float64)."] = scale
    if np.allclose(flat, np.floor(right), rtol=1e-12, atol=0):
        causes = {"these are whole numbers: divide with /, not with //.": scale}
    near = [
        c for c, values in causes.items()
        for v in (values if isinstance(values, tuple) else (values,)) if math.isclose(scale, v, rel_tol=1e-9)
    ]  # fmt: skip
    raise CheckFailed(
        f"{what}: element {k} on rank {rank} is {_apart(flat[k], right[k])} (rank r brings 10**r).",
        cause=near[0] if near else _why_other(flat, right, world_size),
    )


def _apart(got: float, right: float) -> str:
    """Both, in as many digits as show that they differ."""
    digits = next((n for n in range(6, 17) if f"{got:.{n}g}" != f"{right:.{n}g}"), 17)
    return f"{got:.{digits}g}, expected {right:.{digits}g}"


def _require_in_place(what: str, rank: int, gradients: list[np.ndarray], views: list[np.ndarray]) -> None:
    """Raises CheckFailed unless views of the gradients, made before the call, have the means, too."""
    for k, (gradient, view) in enumerate(zip(gradients, views)):
        if not np.array_equal(gradient, view):
            raise CheckFailed(
                f"{what}: every mean is right, but gradient {k} on rank {rank} lies in other memory than before.",
                cause="in place is into the memory that is there: copy_ writes into it, `g.data = ...` brings its own "
                "(vector_to_parameters does that, too), and who holds a view of the old one, as "
                "DistributedDataParallel does, sees nothing of the mean.",
            )


def _why_own(k: int, lacks_calls: bool) -> str:
    """Why an element still has its rank's own value; k: the first of them."""
    if k and lacks_calls:
        return f"elements from {k} on were never reduced: every bucket has its call, the last, shorter one, too."
    if k:
        return f"elements from {k} on were reduced, but not written back: each gradient gets its means, the last, too."
    return (
        "nothing of the mean arrives: all_reduce has to work on pieces of the flat vector itself, no copies of them, "
        "and the means go into the gradients with copy_; a new list, or g = mean, changes nothing."
    )


def _why_other(flat: np.ndarray, right: np.ndarray, world_size: int) -> str:
    sizes = [math.prod(shape) for shape in SHAPES]
    begins = [sum(sizes[:k]) for k in range(len(sizes))]
    found = [_place_of(flat[begin : begin + size], right) for begin, size in zip(begins, sizes)]
    if found == [0] * len(sizes):
        return "every gradient gets the first piece of the flat vector: move on by g.numel(), gradient after gradient."
    if None not in found and found != begins:
        k = next(k for k, place in enumerate(found) if place != begins[k])
        return (
            f"gradient {k} holds the means from place {found[k]} of the flat vector on, not from {begins[k]} on: it "
            "begins where all gradients before it end (place += g.numel())."
        )
    if np.allclose(np.sort(flat), np.sort(right), rtol=1e-9, atol=0):
        return "the elements are out of order: cut and write back in the same order."
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.log(right / flat) / np.log(max(world_size, 2))
    if np.isfinite(times).all() and (times > -1e-6).all() and np.allclose(times, np.round(times), atol=1e-6):
        return "some elements are divided by the number of ranks more than once: divide each once, after the loop."
    return ""


def _place_of(piece: np.ndarray, right: np.ndarray) -> int | None:
    """Where the piece stands in the vector."""
    places = range(len(right) - len(piece) + 1)
    return next((k for k in places if np.allclose(piece, right[k : k + len(piece)], rtol=1e-9, atol=0)), None)


@check(
    "lesson_05.bucketed_all_reduce",
    judge=_judge_bucketed,
    cases=[
        {"world_size": n, "bucket_elements": b}
        for n, b in ((1, 25), (2, 25), (2, 1), (3, 7), (4, 10), (4, 1000), (3, 24))
    ]
    + [{"world_size": 2, "bucket_elements": 10, "dtype": "float32"}]
    + [{"world_size": 3, "bucket_elements": 10, "calls": 2}],
    ok="means are right in as few calls as the buckets allow, from 1 element to the whole model.",
    hint="hint 1 of exercise 5.3",
    look="print the flat vector before and after the calls, on every rank.",
)
def bucketed_all_reduce(function, /, world_size: int, bucket_elements: int, dtype: str = "float64", calls: int = 1):
    """Three gradients of 25 elements in all, reduced in buckets; calls: the last one is looked at."""

    def worker(rank: int, world_size: int) -> dict[str, Any]:
        for _ in range(calls - 1):
            function([_OTHER_TIMES * g for g in _gradients_of(rank, dtype)], bucket_elements)
        gradients, carried = _gradients_of(rank, dtype), note_inputs()
        views = [g.view_as(g) for g in gradients]
        given = list(gradients)
        function(given, bucket_elements)
        sent = [t for _, inputs in carried for t in inputs]
        shortest = min(sent, key=lambda t: t.numel(), default=None)
        return {"gradients": gradients, "views": views, "shortest": shortest, "n_left": len(given)}

    return observe(lambda: free(worker, world_size))
