"""Checks of lesson 04: the whole worker, and DistributedDataParallel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hw_utils.checks.check import check
from hw_utils.checks.lesson_04 import loop_judge
from hw_utils.checks.lesson_04.collective_contents import note_inputs, take_out
from hw_utils.checks.lesson_04.costs_judge import judge_calls
from hw_utils.checks.lesson_04.loop import observed
from hw_utils.checks.lesson_04.worker_judge import (
    LR,
    MOMENTUM,
    N_EXAMPLES,
    judge_ddp,
    judge_worker,
    small_model,
    test_set,
)
from hw_utils.material import models
from hw_utils.material.job import Job
from hw_utils.material.timed_model import OnPaper
from hw_utils.simulate import simulate


def small_data(rank: int) -> tuple[TensorDataset, TensorDataset]:
    """96 training and 60 test points, four numbers each; random numbers are drawn, as a data set may do.

    Each rank has a test set of its own: who evaluates only one of them, or a part of each, cannot know all results.
    """
    torch.rand(1)
    parts = (loop_judge.examples(N_EXAMPLES), test_set(rank))
    return tuple(TensorDataset(*map(torch.from_numpy, part)) for part in parts)


def _drive_worker(worker, method, world_size, total_batch, n_iterations, seed):
    job = Job(method, small_model, partial(small_data, 0), total_batch, n_iterations, LR, MOMENTUM, seed)
    data = observed(_other_seeds(worker), world_size, job)
    return take_out(data, [p.numel() for p in small_model().parameters()])


def _other_seeds(worker):
    def with_its_own_seed(rank, world_size, job):
        torch.manual_seed(1000 + rank)  # ranks start different: a worker that forgets the seed must not pass
        carried, own = note_inputs(), replace(job, data=partial(small_data, rank))
        return {"returned": worker(rank, world_size, own), "carried": carried}

    return with_its_own_seed


def _case(method: str, world_size: int, n_iterations: int = 4, seed: int = 5, total_batch: int = 12) -> dict[str, Any]:
    return {
        "method": method,
        "world_size": world_size,
        "total_batch": total_batch,
        "n_iterations": n_iterations,
        "seed": seed,
    }


@check(
    "lesson_04.worker",
    follows_messages=True,
    judge=judge_worker,
    cases=[
        _case("one", 1),
        _case("all_reduce", 2),
        _case("gather_scatter", 2),
        _case("all_reduce", 4),
        _case("gather_scatter", 2, n_iterations=22, total_batch=4),  # long enough for a report
    ],
    ok="one worker, gather/scatter and all-reduce have the same losses, they are right, and rank 0 reports.",
    hint="hint 1 of exercise 4.3b",
    hints={
        "hint 2 of exercise 4.3b": "the first loss differs",
        "hint 3 of exercise 4.3b": "the first loss is right|momentum is missing|is N times|trains alone|job.method",
        "hint 1 of exercise 4.3b": "rank|report|return|n_iterations|test|train",
    },
    look="print the first two losses and the sum of all weights before the first step, on every rank.",
)
def worker(worker, /, method: str, world_size: int, total_batch: int, n_iterations: int, seed: int):
    """A short training run of softmax regression."""
    return _drive_worker(worker, method, world_size, total_batch, n_iterations, seed)


@check(
    "lesson_04.ddp",
    follows_messages=True,
    judge=judge_ddp,
    cases=[_case("ddp", 2, n_iterations=22, total_batch=4), _case("ddp", 3, 3, 1, total_batch=6)],
    ok="DistributedDataParallel has the same losses, and its own all-reduces.",
    hint="hint 2 of exercise 4.4",
    hints={
        "hint 2 of exercise 4.4": "wrap|DistributedDataParallel",
        "hint 2 of exercise 4.3b": "the first loss differs",
        "hint 3 of exercise 4.3b": "the first loss is right|momentum is missing|step is N times",
        "hint 1 of exercise 4.3b": "rank|report|return|n_iterations|test|train",
    },
    look="print the first two losses and the sum of all weights before the first step, on every rank.",
)
def ddp(worker, /, method: str, world_size: int, total_batch: int, n_iterations: int, seed: int):
    """A short training run of softmax regression with DistributedDataParallel."""
    return _drive_worker(worker, method, world_size, total_batch, n_iterations, seed)


def _steps(rank, world_size, n_steps):
    model = nn.parallel.DistributedDataParallel(OnPaper(models.VGG11(), torch.zeros(1, 3, 32, 32), 1e-3))
    for _ in range(n_steps):
        model(torch.zeros(1, 3, 32, 32)).sum().backward()


@lru_cache
def measured_calls() -> dict[str, int]:
    """All-reduces that one rank calls for VGG-11 in one iteration: measured."""
    two, three = (simulate(_steps, 2, (n,), compute="free", echo=False).trace.calls["all_reduce"] for n in (2, 3))
    return {"all_reduce": len(list(models.VGG11().parameters())), "ddp": (three - two) // 2}


def _judge_calls(data: Any) -> None:
    judge_calls(data, measured_calls())


@check("lesson_04.calls", judge=_judge_calls, ok="both counts are what the ledger says.", hint="hint 1 of exercise 4.4")
def calls(calls, /):
    """How many all-reduces one iteration of VGG-11 takes."""
    return calls
