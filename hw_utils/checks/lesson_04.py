"""Checks of lesson 04: the training loop, and three ways to synchronise gradients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hw_utils import models
from hw_utils.checks import lesson_04_judges as judges
from hw_utils.checks import lesson_04_sync as sync_judges
from hw_utils.checks.check import check, observe
from hw_utils.errors import WorkerFailed
from hw_utils.job import Job
from hw_utils.network import Network
from hw_utils.on_paper import OnPaper
from hw_utils.simulate import simulate

ALL = ["weight", "bias", "scalar"]


def _observed(worker, world_size: int, *args, network: Network = Network()) -> dict[str, Any]:  # noqa: B008, frozen
    try:
        return observe(lambda: simulate(worker, world_size, args, network=network, compute="free", echo=False))
    except WorkerFailed as error:
        if all(failure.kind in ("collective", "mismatch", "deadlock") for failure in error.failures):
            return {"deadlock": str(error)}  # ranks that call different collectives: for a judge to explain
        raise


# 4.1 ---------------------------------------------------------------------------------------------------------


class _Slow(nn.Module):
    """Softmax regression from `judges.start()`; iteration i of training takes `judges.pauses(n)[i]` seconds."""

    def __init__(self, n_iterations: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        start = judges.start()
        self.linear.weight.data = torch.tensor(start.weight, dtype=torch.float32)
        self.linear.bias.data.zero_()
        self.left_s = judges.pauses(n_iterations)

    def forward(self, x):
        if self.left_s:
            time.sleep(self.left_s.pop(0))
        return self.linear(x)


def _halve(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)


def _drive_train(rank, world_size, train, n_iterations, momentum):
    model, said = _Slow(n_iterations), []
    x, y = map(torch.from_numpy, judges.examples(6 * n_iterations))
    batches = [(x[i : i + 6], y[i : i + 6]) for i in range(0, len(x), 6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    losses, iteration_s = train(model, batches, _halve, optimizer, said.append)
    losses = [loss.item() if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return {"losses": losses, "iteration_s": iteration_s, "said": said, "weight": model.linear.weight.detach()}


@check(
    "lesson_04.train",
    judge=judges.judge_train,
    cases=[{"n_iterations": 5, "momentum": 0.0}, {"n_iterations": 45, "momentum": 0.9}],
    ok="losses, steps, reports and the mean time of iterations 2 to 40 are right.",
    hint="hint 1 of exercise 4.1",
)
def train(train, /, n_iterations: int, momentum: float):
    """The loop on softmax regression, with a `sync` that halves the gradients, on a virtual clock."""
    return _observed(_drive_train, 1, train, n_iterations, momentum)


class _Answers(nn.Module):
    """Gives the score that stands in the input, and remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.trained, self.recorded = False, False

    def forward(self, x):
        self.trained |= self.training
        scores = x * self.weight
        self.recorded |= scores.requires_grad
        return scores


@check(
    "lesson_04.evaluate",
    judge=judges.judge_evaluate,
    cases=[{"sizes": [4]}, {"sizes": [8, 8, 3]}],
    ok="loss and accuracy are those of the whole test set.",
    hint="hint 2 of exercise 4.1",
)
def evaluate(evaluate, /, sizes: list[int]):
    """Loss and accuracy over batches of the given sizes."""
    scores, y = map(torch.tensor, judges.evaluation(sizes))
    model = _Answers().train()
    loss, accuracy = evaluate(model, list(zip(scores.float().split(sizes), y.split(sizes))))
    return {"loss": loss, "accuracy": accuracy, "training": model.trained, "graph": model.recorded}


# 4.2 and 4.3 -------------------------------------------------------------------------------------------------


@check(
    "lesson_04.batches",
    judge=judges.judge_batches,
    cases=[
        {"n_examples": 8, "world_size": 1, "total_batch": 4},
        {"n_examples": 24, "world_size": 2, "total_batch": 8},
        {"n_examples": 50, "world_size": 4, "total_batch": 8},
    ],
    ok="parts are disjoint, cover everything, and are mixed anew each epoch; the total batch stays.",
    hint="hint 1 of exercise 4.2",
)
def batches(batches, /, n_examples: int, world_size: int, total_batch: int):
    """Which examples each rank gets, in two epochs."""
    numbers = torch.arange(n_examples)
    dataset = TensorDataset(numbers, numbers)

    def epoch(number: int, seed: int = 3) -> list[list[list[int]]]:
        ranks = range(world_size)
        parts = [batches(dataset, rank, world_size, total_batch, epoch=number, seed=seed) for rank in ranks]
        return [[x.tolist() for x, _ in part] for part in parts]

    return {"epochs": [epoch(0), epoch(1)], "again": epoch(0), "other_seed": epoch(0, seed=30)}


class _Bare(nn.Module):
    """Parameters with the gradients of `sync_judges.gradient`, all of value rank + 1."""

    def __init__(self, names: list[str], rank: int) -> None:
        super().__init__()
        for name in names:
            shape, kind = sync_judges.PARAMETERS[name]
            parameter = nn.Parameter(torch.full(shape, rank + 1.0), requires_grad=kind != "frozen")
            gradient = sync_judges.gradient(name, rank)
            if gradient is not None:
                parameter.grad = torch.from_numpy(gradient).float()
            self.register_parameter(name, parameter)


def _drive_sync(rank, world_size, sync, names):
    model = _Bare(names, rank)
    sync(model)
    found = dict(model.named_parameters())
    return {
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in found.items()},
        "values": {name: p.detach().clone() for name, p in found.items()},
    }


_GRADIENT_CASES = (
    {"world_size": 1, "names": ["bias"]},
    {"world_size": 3, "names": ["bias"]},
    {"world_size": 2, "names": ALL},
    {"world_size": 4, "names": [*ALL, "frozen"]},
    {"world_size": 3, "names": ["bias", "unused", "weight"]},
    {"world_size": 4, "names": ["bias", "branch", "weight"]},
)
_TRAFFIC_CASES = ({"world_size": 2, "names": ["bias"]}, {"world_size": 4, "names": [*ALL, "frozen"]})


@check(
    "lesson_04.gather_scatter",
    judge=sync_judges.judge_gradients("gather_scatter"),
    cases=_GRADIENT_CASES,
    ok="every rank ends with the mean gradient of every parameter.",
    hint="hint 2 of exercise 4.2",
)
def gather_scatter(gather_scatter, /, world_size: int, names: list[str]):
    """The gradients that are left on every rank."""
    return _observed(_drive_sync, world_size, gather_scatter, names)


@check(
    "lesson_04.gather_scatter_traffic",
    judge=sync_judges.judge_traffic(
        "gather_scatter",
        frozenset({"gather", "scatter"}),
        "dist.gather brings the gradients to rank 0, dist.scatter takes the mean back; nothing else is needed.",
    ),
    cases=_TRAFFIC_CASES,
    ok="a gather and a scatter for each parameter, and rank 0 sends what a scatter sends.",
    hint="hint 2 of exercise 4.2",
)
def gather_scatter_traffic(gather_scatter, /, world_size: int, names: list[str]):
    """The ledger of one synchronisation."""
    return _observed(_drive_sync, world_size, gather_scatter, names)


@check(
    "lesson_04.all_reduce_mean",
    judge=sync_judges.judge_gradients("all_reduce_mean"),
    cases=_GRADIENT_CASES,
    ok="every rank ends with the mean gradient of every parameter.",
    hint="hint 1 of exercise 4.3",
)
def all_reduce_mean(all_reduce_mean, /, world_size: int, names: list[str]):
    """The gradients that are left on every rank."""
    return _observed(_drive_sync, world_size, all_reduce_mean, names)


@check(
    "lesson_04.all_reduce_traffic",
    judge=sync_judges.judge_traffic(
        "all_reduce_mean",
        frozenset({"all_reduce"}),
        "dist.all_reduce does both ways at once: it needs no root and no second call.",
    ),
    cases=_TRAFFIC_CASES,
    ok="all-reduces only, and rank 0 sends no more than the others.",
    hint="hint 1 of exercise 4.3",
)
def all_reduce_traffic(all_reduce_mean, /, world_size: int, names: list[str]):
    """The ledger of one synchronisation."""
    return _observed(_drive_sync, world_size, all_reduce_mean, names)


# 4.3 and 4.4 -------------------------------------------------------------------------------------------------


def small_data() -> tuple[TensorDataset, TensorDataset]:
    """96 training and 60 test points, four numbers each."""
    parts = (judges.examples(judges.N_EXAMPLES), judges.examples(60, seed=2))
    return tuple(TensorDataset(*map(torch.from_numpy, part)) for part in parts)


def _drive_worker(worker, method, world_size, total_batch, n_iterations, seed):
    job = Job(method, judges.small_model, small_data, total_batch, n_iterations, judges.LR, judges.MOMENTUM, seed)
    return _observed(_other_seeds(worker), world_size, job)


def _other_seeds(worker):
    def with_its_own_seed(rank, world_size, job):
        torch.manual_seed(1000 + rank)  # ranks start different: a worker that forgets the seed must not pass
        return worker(rank, world_size, job)

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
    judge=judges.judge_worker,
    cases=[
        _case("one", 1),
        _case("all_reduce", 2),
        _case("gather_scatter", 2),
        _case("all_reduce", 4),
        _case("gather_scatter", 2, n_iterations=22, total_batch=4),  # long enough for a report
    ],
    ok="one worker, gather/scatter and all-reduce have the same losses, they are right, and rank 0 reports.",
    hint="hint 2 of exercise 4.3",
)
def worker(worker, /, method: str, world_size: int, total_batch: int, n_iterations: int, seed: int):
    """A short training run of softmax regression."""
    return _drive_worker(worker, method, world_size, total_batch, n_iterations, seed)


@check(
    "lesson_04.ddp",
    judge=judges.judge_ddp,
    cases=[_case("ddp", 2), _case("ddp", 3, 3, 1)],
    ok="DistributedDataParallel has the same losses, and its own all-reduces.",
    hint="hint 1 of exercise 4.4",
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
    sync_judges.judge_calls(data, measured_calls())


@check("lesson_04.calls", judge=_judge_calls, ok="both counts are what the ledger says.", hint="hint 1 of exercise 4.4")
def calls(calls, /):
    """How many all-reduces one iteration of VGG-11 takes."""
    return calls


# 4.5 ---------------------------------------------------------------------------------------------------------


class _Equal(nn.Module):
    """`n_tensors` parameters of 240 elements, which 2, 3, 4, 5, 6 and 8 ranks divide evenly."""

    def __init__(self, n_tensors: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.ones(240)) for _ in range(n_tensors))
        for p in self.tensors:
            p.grad = torch.ones(240)


def _drive_step(rank, world_size, sync, n_tensors, compute_s):
    model = _Equal(n_tensors)
    time.sleep(compute_s)
    if sync is not None:
        sync(model)


def _sync_of(method: str, gather_scatter, all_reduce_mean):
    return {"one": None, "gather_scatter": gather_scatter, "all_reduce": all_reduce_mean}[method]


def _bytes_cases() -> Iterator[dict[str, Any]]:
    for method in ("one", "gather_scatter", "all_reduce"):
        for world_size in (1,) if method == "one" else (3, 4):
            yield {"method": method, "world_size": world_size}


@check(
    "lesson_04.bytes_sent",
    judge=sync_judges.judge_bytes,
    cases=list(_bytes_cases()),
    ok="your formula and the ledger of your own functions agree, for every rank.",
    hint="hint 1 of exercise 4.5",
)
def bytes_sent(bytes_sent, gather_scatter, all_reduce_mean, /, method: str, world_size: int):
    """The student's formula beside the ledger of the student's own functions."""
    data = _observed(_drive_step, world_size, _sync_of(method, gather_scatter, all_reduce_mean), 3, 0.0)
    return {**data, "said": [bytes_sent(method, rank, world_size, 3 * 240 * 4) for rank in range(world_size)]}


@check(
    "lesson_04.predicted_s",
    judge=sync_judges.judge_predicted_s,
    cases=[
        {"method": "one", "world_size": 1, "n_tensors": 2},
        {"method": "all_reduce", "world_size": 2, "n_tensors": 1},
        {"method": "gather_scatter", "world_size": 2, "n_tensors": 1},
        {"method": "all_reduce", "world_size": 4, "n_tensors": 5},
        {"method": "gather_scatter", "world_size": 5, "n_tensors": 3},
    ],
    ok="your formula predicts what your own functions take on the virtual cluster.",
    hint="hint 3 of exercise 4.5",
)
def predicted_s(predicted_s, gather_scatter, all_reduce_mean, /, method: str, world_size: int, n_tensors: int):
    """The student's formula beside the virtual time of the student's own functions."""
    network, one_node_s = Network(latency_s=1e-3, bandwidth_Bps=1e6), 0.12
    sync = _sync_of(method, gather_scatter, all_reduce_mean)
    run = _observed(_drive_step, world_size, sync, n_tensors, one_node_s / world_size, network=network)
    run.pop("results", None)
    said = predicted_s(method, world_size, one_node_s, n_tensors * 240 * 4, n_tensors, network)
    return {"run": run, "said": said, "one_node_s": one_node_s, "latency_s": network.latency_s}
