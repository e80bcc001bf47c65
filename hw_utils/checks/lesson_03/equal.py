"""Lesson 03: who takes which examples; equal starts; the mean of the models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hw_utils.checks.check import check, require_waits
from hw_utils.checks.lesson_03 import causes
from hw_utils.checks.lesson_03.problem import on_ranks, ranks_of, results_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.material.recipe import Recipe


def _order(n_examples: int) -> torch.Tensor:
    """Shuffled, and from 100 up, so that a place in the order cannot be taken for what stands there."""
    return 100 + Recipe(seed=n_examples).order(0, n_examples)


def _judge_batches(data: Any, n_examples: int, world_size: int, batch_size: int) -> None:
    what = f"batches of {n_examples} examples for {ranks_of(world_size)} of {batch_size}"
    if not isinstance(data, list) or len(data) != world_size:
        raise CheckFailed(f"{what}: expected the batches of {ranks_of(world_size)}.")
    places, totals = _read_batches(data, what)
    order = _order(n_examples).tolist()
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


def _read_batches(ranks: Any, what: str) -> tuple[list[list[list[int]]], list[list[int]]]:
    places, totals = [], []
    for rank, mine in enumerate(ranks):
        try:
            pairs = [(np.asarray(p), n) for p, n in mine]
            whole = all(p.ndim == 1 and (p.size == 0 or p.dtype.kind == "i") and type(n) is int for p, n in pairs)
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
    if pairs and any(np.asarray(p).dtype.kind == "f" and np.asarray(p).size for p, _ in pairs):
        return "the entries of `order` stay the integers that they are."
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
        raise CheckFailed(f"{what}: {_twice(mine)}.", cause=causes.overlap(mine))
    lost = [i for i in order if i not in set(taken)]
    if lost:
        raise CheckFailed(
            f"{what}: {len(lost)} of {len(order)} examples are in nobody's batches, the first is example {lost[0]}.",
            cause=causes.lost(mine, order),
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


def _require_iteration(k: int, parts, totals, order: list[int], batch_size: int, what: str) -> None:
    world_size = len(parts)
    due = order[k * world_size * batch_size : (k + 1) * world_size * batch_size]
    if sorted(i for part in parts for i in part) != sorted(due):
        raise CheckFailed(
            f"{what}: in iteration {k} the ranks together do not take the next {len(due)} examples of the order.",
            cause="cut the order into chunks of N B first, then share each chunk; shards that are cut first make "
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
    """Every rank's batches of one epoch, without any communication."""
    order = _order(n_examples)
    return [list(batches(order.clone(), rank, world_size, batch_size)) for rank in range(world_size)]


def marked_model(rank: int) -> nn.Module:
    """A model whose numbers name their rank: every tensor of rank r holds 10**r * [4/3, 7/3, ...]."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            marks = 10**rank * (torch.arange(tensor.numel(), dtype=torch.float64) + 4 / 3)
            if not tensor.is_floating_point():
                marks = 10**rank * (2**24 + marks)  # no float32 holds these, and no float16 a third
            tensor.copy_(marks.view_as(tensor))
    return model


def _marks(rank: int) -> dict[str, np.ndarray]:
    return {name: tensor.double().numpy() for name, tensor in marked_model(rank).state_dict().items()}


def _state(state: Any, rank: int, what: str) -> dict[str, np.ndarray]:
    expected = _marks(rank)
    if not isinstance(state, dict) or state.keys() != expected.keys():
        raise CheckFailed(f"{what}: the model of rank {rank} has lost or gained tensors.")
    got = {name: np.asarray(value) for name, value in state.items()}
    for name, value in got.items():
        if value.shape != expected[name].shape or value.dtype.kind not in "fiu":
            raise CheckFailed(f"{what}: {name} of rank {rank} has changed its shape or type.")
    return {name: value.astype(float) for name, value in got.items()}


def _numbers(array: np.ndarray) -> str:
    shown = ", ".join(f"{v:g}" for v in array.ravel()[:3])
    return f"[{shown}{', ...' if array.size > 3 else ''}]"


def _judge_start(data: dict[str, Any], world_size: int) -> None:
    what = f"start_equal on {ranks_of(world_size)}"
    results = results_of(data, world_size, what, hang="every rank must call the same broadcasts in the same order.")
    states = [_state(result, rank, what) for rank, result in enumerate(results)]
    marks = [_marks(rank) for rank in range(world_size)]
    for rank, state in enumerate(states):
        for name, expected in marks[0].items():
            if np.array_equal(state[name], expected):
                continue
            raise CheckFailed(
                f"{what}: {name} of rank {rank} is {_numbers(state[name])}, rank 0 began with {_numbers(expected)}.",
                cause=causes.start(states, marks, name, rank),
            )
    require_waits(Trace.from_plain(data["trace"]), what)
    _require_nothing_else(Trace.from_plain(data["trace"]), world_size, len(marks[0]), what)


def _require_nothing_else(trace: Trace, world_size: int, n_tensors: int, what: str) -> None:
    for rank in range(1, world_size):
        n_received = len(trace.of_rank(rank).of_op("broadcast", "recv", "irecv"))
        if n_received > n_tensors:
            raise CheckFailed(
                f"{what}: every value is right, but rank {rank} receives {n_received} tensors; the model has "
                f"{n_tensors} parameters and buffers.",
                cause="something is sent twice, or something else is (gradients?): one broadcast a tensor is enough.",
            )


@check(
    "lesson_03.start_equal",
    judge=_judge_start,
    cases=[{"world_size": 1}, {"world_size": 2}, {"world_size": 5}],
    ok="every rank begins with the weights and buffers of rank 0.",
    hint="the hints of exercise 3.1b",
    look="print name and first number of every tensor, before and after, on every rank.",
    hints={
        "hint 2 of exercise 3.1b": "a leaf Variable",
        "hint 1 of exercise 3.1b": "broadcast|state_dict|every parameter|all of them|send what|root",
    },
)
def start_equal(start_equal, /, world_size: int):
    """What each rank's model holds after `start_equal(model)`."""

    def worker(rank, world_size):
        model = marked_model(rank)
        model[2].weight.requires_grad_(False)  # frozen, and still a parameter
        start_equal(model)
        return dict(model.state_dict())

    return on_ranks(world_size, worker)


def _judge_average(data: dict[str, Any], world_size: int, own: bool) -> None:
    what = f"average on {ranks_of(world_size)}" + (" with a given all_reduce" if own else "")
    results = results_of(data, world_size, what, hang="every rank must call the same all-reduces in the same order.")
    if not all(isinstance(result, list) and len(result) == 4 for result in results):
        raise CheckFailed(f"{what}: expected a model, its calls and its gradients from every rank.")
    states = [_state(state, rank, what) for rank, (state, *_) in enumerate(results)]
    marks = [_marks(rank) for rank in range(world_size)]
    for rank, state in enumerate(states):
        for name in [n for n in marks[0] if "running" not in n and "num" not in n]:
            expected = sum(m[name] for m in marks) / world_size
            if np.allclose(state[name], expected, rtol=1e-5, atol=0):
                continue
            raise CheckFailed(
                f"{what}: {name} of rank {rank} is {_numbers(state[name])}, the mean is {_numbers(expected)}.",
                cause=causes.average(states, marks, name, rank),
            )
    for rank, state in enumerate(states):
        for name in [n for n in marks[0] if "running" in n or "num" in n]:
            if not np.array_equal(state[name], marks[rank][name]):
                raise CheckFailed(
                    f"{what}: the buffer {name} of rank {rank} has changed.",
                    cause="parameters alone are averaged: model.parameters(), not model.state_dict().",
                )
    _require_kept(results, what)
    require_waits(Trace.from_plain(data["trace"]), what)
    if own and any(type(n) is not int or n == 0 for _, n, *_ in results):
        raise CheckFailed(
            f"{what}: it was never called.",
            cause="dist.all_reduce stands in the function: call the argument, so that your ring can take its place.",
        )
    n_parameters = len(results[0][2])
    n_calls = len(Trace.from_plain(data["trace"]).of_rank(0).of_op("all_reduce"))
    if world_size > 1 and n_calls > n_parameters:
        raise CheckFailed(
            f"{what}: every value is right after {n_calls} all-reduces a rank; {n_parameters} parameters need one "
            "each.",
            cause="the mean of means is the same mean: average once, and nothing but the parameters."
            if n_calls % n_parameters == 0
            else "a parameter goes whole: no all-reduce for a part of it, and none for anything else.",
        )


def _require_kept(results: list[Any], what: str) -> None:
    """Raises CheckFailed unless parameters are the objects they were, and gradients as they were."""
    for rank, (_, _, gradients, same) in enumerate(results):
        if not isinstance(gradients, dict) or not gradients:
            raise CheckFailed(f"{what}: expected a gradient of every parameter of rank {rank}.")
        if same is not True:
            raise CheckFailed(
                f"{what}: rank {rank}'s model has new parameters.",
                cause="the optimizer still steps the old ones: write the mean into parameter.data.",
            )
        for name, gradient in gradients.items():
            if not np.all(np.asarray(gradient) == _GRADIENT + 10**rank):
                raise CheckFailed(
                    f"{what}: the gradient of {name} on rank {rank} has changed.",
                    cause="average is about parameters; gradients stay, and optimizer.zero_grad() has its own place.",
                )


_GRADIENT = 0.5  # what every gradient is before, plus 10**rank


@check(
    "lesson_03.average",
    judge=_judge_average,
    cases=[{"world_size": w, "own": own} for w, own in ((1, False), (2, False), (5, False), (3, True))],
    ok="every parameter is the mean over the ranks, whichever all-reduce is given.",
    hint="the hints of exercise 3.1c",
    look="print the first number of a parameter before the all-reduce, after it and after the division, on every rank.",
    hints={
        "hint 2 of exercise 3.1c": "divides|not divided|divided twice|never summed|rounded down",
        "hint 1 of exercise 3.1c": "in place|parameter.data|go through all",
    },
)
def average(average, /, world_size: int, own: bool):
    """What each rank's model holds after `average(model)`, or with an all-reduce that counts its calls."""

    def worker(rank, world_size):
        model, calls = marked_model(rank), []
        parameters = dict(model.named_parameters())
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, _GRADIENT + 10**rank)

        def counted(tensor):
            calls.append(tensor.numel())
            dist.all_reduce(tensor)

        average(model, counted) if own else average(model)
        same = all(new is parameters.get(name) for name, new in model.named_parameters())
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        return dict(model.state_dict()), len(calls), gradients, same

    return on_ranks(world_size, worker)
