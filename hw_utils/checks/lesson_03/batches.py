"""Lesson 03: who takes which examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import something
from hw_utils.checks.lesson_03.small_trainings import ranks_of
from hw_utils.core.errors import CheckFailed
from hw_utils.material.recipe import Recipe


def _order(n_examples: int) -> torch.Tensor:
    """Shuffled, and from 100 up, so that a place in the order cannot be taken for what stands there."""
    return 100 + Recipe(seed=n_examples).order(0, n_examples)


def _judge_batches(data: Any, n_examples: int, world_size: int, batch_size: int) -> None:
    what = f"batches of {n_examples} examples for {ranks_of(world_size)} of {batch_size}"
    if not isinstance(data, list) or len(data) != world_size or not all(isinstance(d, list) for d in data):
        raise CheckFailed(f"{what}: expected the batches of {ranks_of(world_size)}.")
    places, totals = _read_batches([mine for mine, _, _ in data], what)
    order = _order(n_examples).tolist()
    again, _ = _read_batches([data[0][2]], what)
    if again[0] != places[0]:
        raise CheckFailed(
            f"{what}: called twice with the same order, rank 0 takes other examples the second time.",
            cause="the order is shuffled already, the same on every rank: take it as it is, and draw nothing.",
        )
    _require_partition(places, order, what)
    counts = [len(mine) for mine in places]
    if len(set(counts)) > 1:
        few, many = counts.index(min(counts)), counts.index(max(counts))
        raise CheckFailed(
            f"{what}: rank {many} has {counts[many]} batches, rank {few} only {counts[few]}.",
            cause="a rank without examples still takes part in the all-reduce, or the others wait for it for ever: "
            "give it an empty batch.",
        )
    n_iterations = -(-len(order) // (world_size * batch_size))
    if counts[0] > n_iterations:
        raise CheckFailed(
            f"{what}: every rank has {counts[0]} batches, {n_iterations} take all examples.",
            cause="an iteration in which nobody has an example is none: its n_total is 0, and the loss divides by it."
            if any(not any(mine[k] for mine in places) for k in range(counts[0]))
            else "an iteration takes N B examples, B for each rank: cut pieces of N B, not of B.",
        )
    for k in range(counts[0]):
        _require_iteration(k, [mine[k] for mine in places], [mine[k] for mine in totals], order, batch_size, what)
    for rank, (_, after, _) in enumerate(data):
        if not np.array_equal(after, order):
            raise CheckFailed(
                f"{what}: right, but `order` is another one after the call of rank {rank}.",
                cause="the order is the caller's, and shuffled once for all: take parts of it, write nothing into it.",
            )


def _read_batches(ranks: Any, what: str) -> tuple[list[list[list[int]]], list[list[int]]]:
    places, totals = [], []
    for rank, mine in enumerate(ranks):
        try:
            pairs = [(np.asarray(p), n) for p, n in mine]
            whole = all(p.ndim == 1 and p.dtype.kind == "i" and type(n) is int for p, n in pairs)
            whole = whole and not any(isinstance(p, list) for p, _ in mine)
        except (TypeError, ValueError):
            whole = False
        if not whole:
            raise CheckFailed(
                f"{what}: rank {rank} did not give a list of pairs (1-dimensional integer tensor, int).",
                cause=_why_no_pairs(mine),
            )
        places.append([[int(i) for i in p] for p, _ in pairs])
        totals.append([n for _, n in pairs])
    return places, totals


def _why_no_pairs(mine: Any) -> str:
    pairs = [pair for pair in mine if isinstance(pair, list) and len(pair) == 2] if isinstance(mine, list) else []
    if pairs and any(isinstance(n, np.ndarray) and n.ndim and type(p) is int for p, n in pairs):
        return "the two are swapped: first this rank's examples, then how many all ranks take together."
    if pairs and any(isinstance(n, np.ndarray) for _, n in pairs):
        return "how many all ranks take together is a plain int: len(piece)."
    if pairs and any(isinstance(p, list) for p, _ in pairs):
        return "this rank's examples are a list: a part of `order` is a tensor, and stays one (no tolist)."
    if pairs and any(np.asarray(p).dtype.kind == "f" and np.asarray(p).size for p, _ in pairs):
        return "the entries of `order` stay the integers that they are."
    if pairs and any(np.asarray(p).dtype.kind == "f" for p, _ in pairs):
        return "torch.tensor([]) is of floats, with which nothing can be indexed: an empty batch is order[:0]."
    return "an iteration is one pair: this rank's examples, and how many all ranks take together."


def _require_partition(places: list[list[list[int]]], order: list[int], what: str) -> None:
    mine = [[i for batch in batches for i in batch] for batches in places]
    taken = [i for part in mine for i in part]
    unknown = sorted(set(taken) - set(order))
    if unknown:
        raise CheckFailed(
            f"{what}: example {unknown[0]} is not in the order that was given ({min(order)} to {max(order)}).",
            cause="places in the order were returned, not what stands there: index the order with them.",
        )
    if len(set(taken)) < len(taken):
        raise CheckFailed(f"{what}: {_twice(mine)}.", cause=_why_shared(mine, order))
    lost = [i for i in order if i not in set(taken)]
    if lost:
        raise CheckFailed(
            f"{what}: {len(lost)} of {len(order)} examples are in nobody's batches, the first is example {lost[0]}.",
            cause=_why_lost(mine, order),
        )


def _twice(mine: list[list[int]]) -> str:
    first: dict[int, int] = {}
    for rank, part in enumerate(mine):
        for i in part:
            if i in first:
                both = f"rank {rank} takes" if first[i] == rank else f"ranks {first[i]} and {rank} both take"
                return f"{both} example {i}{' twice' if first[i] == rank else ''}"
            first[i] = rank
    return ""


def _why_shared(mine: Sequence[Sequence[int]], order: Sequence[int]) -> str:
    """Why ranks share examples."""
    n_more = -len(order) % len(mine)
    if sorted(i for part in mine for i in part) == sorted([*order, *order[:n_more]]):
        return (
            "the order is filled up with its first examples until N divides it, as DistributedSampler does: here "
            "nobody takes an example twice, and shares differ by one instead."
        )
    place = {i: k for k, i in enumerate(order)}
    if any(len(set(part)) == len(part) and sorted(part, key=place.get) != list(part) for part in mine):
        return "the order is shuffled already, the same on every rank: take it as it is, and draw nothing."
    if len(mine) > 1 and all(sorted(part) == sorted(mine[0]) for part in mine):
        return "every rank takes the same data: the rank must decide which examples are its own."
    if any(len(set(part)) < len(part) for part in mine):
        return "a rank takes an example twice, perhaps to fill its last batch; leave the batch short instead."
    return "the shards overlap: start at rank and go on in strides of world_size, no other step."


def _why_lost(mine: Sequence[Sequence[int]], order: Sequence[int]) -> str:
    """Why examples are in nobody's batches."""
    if not any(mine):
        return "no rank takes any example."
    taken = {i for part in mine for i in part}
    tail = [i not in taken for i in order]
    if tail == sorted(tail):
        return "the short end of the epoch is dropped: keep the last, smaller chunk."
    return "some ranks' shares are missing: the N shares of a chunk together are the chunk."


def _require_iteration(k: int, parts, totals, order: list[int], batch_size: int, what: str) -> None:
    world_size = len(parts)
    due = order[k * world_size * batch_size : (k + 1) * world_size * batch_size]
    taken, size = sorted(i for part in parts for i in part), world_size * batch_size
    if taken != sorted(due):
        raise CheckFailed(
            f"{what}: in iteration {k} the ranks together do not take the next {len(due)} examples of the order.",
            cause="they come by number: the order's own order decides, so sort nothing."
            if taken == sorted(order)[k * size : (k + 1) * size]
            else "cut the order into chunks of N B first, then share each chunk; shards that are cut first make "
            "another order than one worker's with batch N B.",
        )
    sizes = [len(part) for part in parts]
    if max(sizes) - min(sizes) > 1:
        raise CheckFailed(
            f"{what}: in iteration {k} the ranks take {sizes} examples; a fair share differs by at most one.",
            cause="the short last chunk goes to the first ranks alone: deal it out like cards, one at a time."
            if len(due) < world_size * batch_size
            else "the N B examples are all ranks' together: deal them out like cards, B to each.",
        )
    for rank, total in enumerate(totals):
        if total != len(due):
            raise CheckFailed(
                f"{what}: in iteration {k} rank {rank} counts {total} for all ranks, together they take {len(due)}.",
                cause="this is the rank's own number." if total == sizes[rank] else
                "that is the whole epoch: this iteration's examples are asked." if total == len(order) else
                "the last chunk of an epoch may be short: take its length, not N B.",
            )  # fmt: skip


@check(
    "lesson_03.batches",
    judge=_judge_batches,
    cases=[
        {"n_examples": n, "world_size": w, "batch_size": b}
        for n, w, b in ((4, 2, 1), (12, 1, 5), (23, 4, 3), (5, 8, 2), (97, 3, 7))
    ],
    ok="every example is somebody's, nobody shares one, and N ranks together take the batches of one.",
    hint="the hints of exercise 3.1a",
    look="print what every rank gets for torch.arange(10), 2 ranks and batches of 2.",
    hints={
        "hint 2 of exercise 3.1a": "for all ranks, together they take|own number|take its length",
        "hint 1 of exercise 3.1a": "cut the order|deal it|shares|strides|short end|empty batch|twice",
    },
)
def batches(batches, /, n_examples: int, world_size: int, batch_size: int):
    """Every rank's batches of one epoch, the order it was given as it is then, and the batches of a second call; there
    is no communication."""
    orders = [_order(n_examples) for _ in range(world_size)]
    firsts = [
        list(something(batches(order, rank, world_size, batch_size), "batches")) for rank, order in enumerate(orders)
    ]
    again = list(batches(_order(n_examples), 0, world_size, batch_size))
    return [[mine, order, again] for mine, order in zip(firsts, orders)]
