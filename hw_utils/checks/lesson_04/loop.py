"""Checks of lesson 04: the training loop, and its test."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from hw_utils.checks.check import check, observe
from hw_utils.checks.lesson_04 import loop_judge, seconds
from hw_utils.core.errors import WorkerFailed
from hw_utils.core.hardware import Network
from hw_utils.material.kept.watching import Notes
from hw_utils.material.timed_layers import TakesTime, TimedBatches, TimedSGD
from hw_utils.simulate import simulate


def observed(worker, world_size: int, *args, network: Network = Network()) -> dict[str, Any]:  # noqa: B008, frozen
    try:
        return observe(lambda: simulate(worker, world_size, args, network=network, compute="free", echo=False))
    except WorkerFailed as error:
        if all(failure.kind in ("collective", "mismatch", "deadlock") for failure in error.failures):
            return {"deadlock": str(error)}  # ranks that call different collectives: for a judge to explain
        raise


class _Slow(nn.Module):
    """Softmax regression from `loop_judge.start()`; forward i of training takes `seconds.forwards(n)[i]` seconds."""

    def __init__(self, n_iterations: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        start = loop_judge.start()
        self.linear.weight.data = torch.tensor(start.weight, dtype=torch.float32)
        self.linear.bias.data.zero_()
        self.left_s = seconds.forwards(n_iterations)
        self.always_trains = True

    def forward(self, x):
        self.always_trains &= self.training
        if self.left_s:
            time.sleep(self.left_s.pop(0))
        return TakesTime.apply(self.linear(x), seconds.of("backward"))


def _slow_sync(model: nn.Module) -> None:
    time.sleep(seconds.of("sync"))
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(loop_judge.SYNC_FACTOR)


def _says_nothing(text: str) -> None:
    """A report that is not looked at."""


def _train_before(train) -> None:
    """Three iterations of another training: what an answer keeps of it does not belong to the one that is judged."""
    model = _Slow(3)
    optimizer = TimedSGD(model.parameters(), seconds.of("the step"), seconds.of("zero_grad"), lr=loop_judge.STEP_SIZE)
    x, y = map(torch.from_numpy, loop_judge.examples(18, seed=1))
    batches = TimedBatches(list(zip(x.split(6), y.split(6))), seconds.of("batch"))
    train(model, batches, _slow_sync, optimizer, _says_nothing)


def _drive_train(rank, world_size, train, n_iterations, momentum):
    _train_before(train)
    begun_s = time.perf_counter()
    model, said, said_at, n_steps = _Slow(n_iterations), [], [], [0]

    def sync(model: nn.Module) -> None:
        n_steps[0] += 1
        _slow_sync(model)

    def report(text: str) -> None:
        time.sleep(seconds.of("report"))
        said.append(text)
        said_at.append(n_steps[0])

    optimizer = TimedSGD(
        model.parameters(), seconds.of("the step"), seconds.of("zero_grad"), lr=loop_judge.STEP_SIZE, momentum=momentum
    )
    x, y = map(torch.from_numpy, loop_judge.examples(6 * n_iterations))
    batches = [(x[i : i + 6], y[i : i + 6]) for i in range(0, len(x), 6)]
    returned = train(model, TimedBatches(batches, seconds.of("batch")), sync, optimizer, report)
    losses = returned[0] if isinstance(returned, list | tuple) and returned else None
    graphs = [isinstance(loss, torch.Tensor) and loss.requires_grad for loss in losses or []] if _many(losses) else []
    found = {
        "returned": returned,
        "graphs": any(graphs),
        "tensors": any(isinstance(part, torch.Tensor) for part in _parts_of(returned)),
        "always_trains": model.always_trains,
        "said": said,
        "said_at": said_at,
        "run_s": time.perf_counter() - begun_s,
    }
    return {**found, "weight": model.linear.weight.detach()}


def _parts_of(returned: Any) -> list[Any]:
    """The losses, whatever holds them, each loss, and the seconds."""
    parts = list(returned) if _many(returned) else [returned]
    return [*parts, *(loss for part in parts if _many(part) for loss in part)]


def _many(losses: Any) -> bool:
    return isinstance(losses, list | tuple)


@check(
    "lesson_04.train",
    judge=loop_judge.judge_train,
    cases=[{"n_iterations": 5, "momentum": 0.0}, {"n_iterations": 45, "momentum": 0.9}],
    ok="losses, steps, reports and the mean time of iterations 2 to 40 are right.",
    hint="hint 1 of exercise 4.1a",
    hints={
        "hint 2 of exercise 4.1a": "in the mean|lists (count )?from 0|this mean ",
        "hint 1 of exercise 4.1a": "sync|zero_grad|optimizer|step|clock|gradients",
    },
    errors={
        "has no len|is not subscriptable": "batches may be an iterator, as the islice of 4.3 is, which has no length "
        "and no places: go through it once, and count what you have kept (len(times)).",
        "ZeroDivisionError|mean requires at least one|no median": "nothing is left to take the mean of: lists count "
        "from 0, so times[1:40] are iterations 2 to 40, and a run of 2 has one of them.",
    },
    look="print the losses of the first three iterations, and the readings of the clock around each part of one.",
)
def train(train, /, n_iterations: int, momentum: float):
    """The loop on softmax regression; forward, backward, `sync` and the step take known virtual seconds."""
    return observed(_drive_train, 1, train, n_iterations, momentum)


class _Mixes(nn.Module):
    """Scores that are mixtures of what is in the input; notes for each call its mode, whether autograd follows it, and
    what it was shown."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.calls = Notes()

    def forward(self, x):
        scores = x @ self.weight.T
        self.calls.append((self.training, scores.requires_grad, x.tolist()))
        return scores


@check(
    "lesson_04.evaluate",
    judge=loop_judge.judge_evaluate,
    cases=[{"sizes": [5]}, {"sizes": [8, 8, 4]}],
    ok="loss and accuracy are those of the whole test set.",
    hint="hint 1 of exercise 4.1b",
    hints={
        "hint 2 of exercise 4.1b": "training mode|records gradients",
        "hint 1 of exercise 4.1b": "batches|sum|divide|count|last batch",
    },
    look="print the loss and the number of right answers of every batch, and its size.",
)
def evaluate(evaluate, /, sizes: list[int]):
    """Loss and accuracy over batches of the given sizes."""
    x, weight, y = map(torch.from_numpy, loop_judge.evaluation(sizes))
    model = _Mixes(weight).train()
    returned = evaluate(model, list(zip(x.split(sizes), y.split(sizes))))
    modes, are_followed, shown = zip(*model.calls) if model.calls else ((), (), ())
    found = {
        "returned": returned,
        "training": any(modes),
        "graph": any(are_followed),
        "shown": [row for rows in shown for row in rows],
    }
    found["tensors"] = any(isinstance(part, torch.Tensor) for part in _parts_of(returned))
    return {**found, "follows": model.weight.requires_grad, "weight": model.weight.detach()}
