"""Checks of lesson 04: who sees what, and gradients synchronised by a root and without one."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import something
from hw_utils.checks.lesson_04 import gradients_judge
from hw_utils.checks.lesson_04.batches_judge import LABEL_OF_0, judge_batches
from hw_utils.checks.lesson_04.collective_contents import note_inputs
from hw_utils.checks.lesson_04.loop import observed

ALL = ["weight", "bias", "scalar"]


@check(
    "lesson_04.batches",
    judge=judge_batches,
    cases=[
        {"n_examples": 8, "world_size": 1, "total_batch": 4},
        {"n_examples": 24, "world_size": 2, "total_batch": 8},
        {"n_examples": 50, "world_size": 4, "total_batch": 8},
    ],
    ok="parts are disjoint, cover everything, make up one rank's batches, and are mixed anew each epoch.",
    hint="hint 1 of exercise 4.2a",
    hints={
        "hint 2 of exercise 4.2a": "epoch is the same|nothing (is mixed|either)|generator|same order|order of its own",
        "hint 1 of exercise 4.2a": "rank|seed|total_batch|drop|cards|sampler",
    },
    errors={
        "mutually exclusive with shuffle": "the sampler mixes already, and says which examples are a rank's: leave "
        "shuffle out of the DataLoader.",
    },
    look="print the lists of examples of every rank, for 8 examples and 2 ranks.",
)
def batches(batches, /, n_examples: int, world_size: int, total_batch: int):
    """Which examples each rank gets, in four epochs."""
    dataset = TensorDataset(torch.arange(n_examples), LABEL_OF_0 + torch.arange(n_examples))

    def epoch(number: int, seed: int = 3, n_ranks: int = world_size) -> list[list[Any]]:
        parts = [batches(dataset, rank, n_ranks, total_batch, epoch=number, seed=seed) for rank in range(n_ranks)]
        alike = [islice(something(part, "batches"), n_examples + 1) for part in parts]  # one may never end
        return [[_as_lists(batch) for batch in part] for part in alike]

    found = {"epochs": [epoch(k) for k in range(4)], "again": epoch(0), "other_seed": epoch(0, seed=30)}
    return {**found, "alone": epoch(0, n_ranks=1)[0]}


def _as_lists(batch: Any) -> Any:
    """[examples, labels], or the name of what is no pair of tensors."""
    is_pair = isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(t, torch.Tensor) for t in batch)
    return [t.flatten().tolist() for t in batch] if is_pair else type(batch).__name__


class _Bare(nn.Module):
    """Parameters with the gradients of `gradients_judge.gradient`, all of value rank + 1."""

    def __init__(self, names: list[str], rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        for name in names:
            shape, kind = gradients_judge.PARAMETERS[name]
            parameter = nn.Parameter(torch.full(shape, rank + 1.0, dtype=dtype), requires_grad="frozen" not in kind)
            self.register_parameter(name, parameter)
        self.register_buffer("running_mean", torch.full((3,), rank + 1.0))
        self.go_back(rank)

    def go_back(self, rank: int, factor: float = 1.0) -> None:
        """A backward pass, by which so many times the gradients come, in new tensors."""
        self.zero_grad()
        for name, parameter in self.named_parameters():
            gradient = gradients_judge.gradient(name, rank)
            if gradient is not None:
                parameter.grad = (factor * torch.from_numpy(gradient)).to(parameter.dtype)


def _drive_sync(rank, world_size, sync, names, dtype="float32", again=False):
    """again: of the same model other gradients were synchronised before."""
    model, carried = _Bare(names, rank, getattr(torch, dtype)), note_inputs()
    if again:
        model.go_back(rank, -2.0)
        sync(model)
        model.go_back(rank)
    sync(model)
    found = dict(model.named_parameters())
    return {
        "carried": carried,
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in found.items()},
        "values": {name: p.detach().clone() for name, p in found.items()},
    }


_GRADIENT_CASES = (
    {"world_size": 1, "names": ["bias"]},
    {"world_size": 3, "names": ["bias"]},
    {"world_size": 2, "names": ALL},
    {"world_size": 4, "names": [*ALL, "frozen"]},
    {"world_size": 3, "names": ["bias", "unused", "weight", "still"]},
    {"world_size": 4, "names": ["bias", "branch", "weight"]},
    {"world_size": 3, "names": ["branch", "bias", "twig"]},
    {"world_size": 2, "names": ["frozen_later", "bias"]},
    {"world_size": 2, "names": ["branch", "bias", "unused"], "dtype": "float64"},
    {"world_size": 2, "names": ["bias", "branch", "weight"], "again": True},
)
_TRAFFIC_CASES = ({"world_size": 2, "names": ["bias"]}, {"world_size": 4, "names": [*ALL, "frozen"]})


@check(
    "lesson_04.gather_scatter",
    judge=gradients_judge.judge_gradients("gather_scatter", adds_itself=True),
    cases=_GRADIENT_CASES,
    ok="every rank ends with the mean gradient of every parameter.",
    hint="hint 1 of exercise 4.2b",
    hints={
        "hint 2 of exercise 4.2b": "hangs|no rank can|take part|same calls|zeros|None on this rank|frozen",
        "hint 1 of exercise 4.2b": "gather|scatter|root|rank|p.grad|mean|sum|call",
    },
    look="print p.grad of every parameter on every rank, before and after.",
)
def gather_scatter(gather_scatter, /, world_size: int, names: list[str], dtype: str = "float32", again: bool = False):
    """The gradients that are left on every rank."""
    return observed(_drive_sync, world_size, gather_scatter, names, dtype, again)


@check(
    "lesson_04.gather_scatter_traffic",
    judge=gradients_judge.judge_traffic(
        "gather_scatter",
        frozenset({"gather", "scatter"}),
        "dist.gather brings the gradients to rank 0, dist.scatter takes the mean back; nothing else is needed.",
    ),
    cases=_TRAFFIC_CASES,
    ok="a gather and a scatter for each parameter, and rank 0 sends what a scatter sends.",
    hint="hint 1 of exercise 4.2b",
    hints={
        "hint 2 of exercise 4.2b": "hangs|no rank can|take part|same calls|zeros|None on this rank|frozen",
        "hint 1 of exercise 4.2b": "gather|scatter|root|rank|p.grad|mean|sum|call",
    },
    look="print p.grad of every parameter on every rank, before and after.",
)
def gather_scatter_traffic(gather_scatter, /, world_size: int, names: list[str]):
    """The ledger of one synchronisation."""
    return observed(_drive_sync, world_size, gather_scatter, names)


@check(
    "lesson_04.all_reduce_mean",
    judge=gradients_judge.judge_gradients("all_reduce_mean"),
    cases=_GRADIENT_CASES,
    ok="every rank ends with the mean gradient of every parameter.",
    hint="hint 1 of exercise 4.3a",
    hints={
        "hint 2 of exercise 4.3a": "sum|added up|divided|rounded|own gradient|copy|mean",
        "hint 1 of exercise 4.3a": "frozen|None|hangs|zeros|left out|every parameter|call|travels",
    },
    look="print p.grad of every parameter on every rank, before and after.",
)
def all_reduce_mean(all_reduce_mean, /, world_size: int, names: list[str], dtype: str = "float32", again: bool = False):
    """The gradients that are left on every rank."""
    return observed(_drive_sync, world_size, all_reduce_mean, names, dtype, again)


@check(
    "lesson_04.all_reduce_traffic",
    judge=gradients_judge.judge_traffic(
        "all_reduce_mean",
        frozenset({"all_reduce"}),
        "dist.all_reduce does both ways at once: it needs no root and no second call.",
    ),
    cases=_TRAFFIC_CASES,
    ok="all-reduces only, and rank 0 sends no more than the others.",
    hint="hint 1 of exercise 4.3a",
    hints={
        "hint 2 of exercise 4.3a": "sum|added up|divided|rounded|own gradient|copy|mean",
        "hint 1 of exercise 4.3a": "frozen|None|hangs|zeros|left out|every parameter|call|travels",
    },
    look="print p.grad of every parameter on every rank, before and after.",
)
def all_reduce_traffic(all_reduce_mean, /, world_size: int, names: list[str]):
    """The ledger of one synchronisation."""
    return observed(_drive_sync, world_size, all_reduce_mean, names)
