"""Checks of lesson 04: the training loop, and its test."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from hw_utils.checks import lesson_04_judges as judges
from hw_utils.checks.check import check, observe
from hw_utils.errors import WorkerFailed
from hw_utils.network import Network
from hw_utils.simulate import simulate


def observed(worker, world_size: int, *args, network: Network = Network()) -> dict[str, Any]:  # noqa: B008, frozen
    try:
        return observe(lambda: simulate(worker, world_size, args, network=network, compute="free", echo=False))
    except WorkerFailed as error:
        if all(failure.kind in ("collective", "mismatch", "deadlock") for failure in error.failures):
            return {"deadlock": str(error)}  # ranks that call different collectives: for a judge to explain
        raise


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
    return observed(_drive_train, 1, train, n_iterations, momentum)


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
