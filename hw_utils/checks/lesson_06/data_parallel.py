"""Drivers and judges of lesson 06's data parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.checks.lesson_06.shards import (
    FEW_DIGITS,
    distance,
    n_ranks,
    random_tensor,
    require_array,
    require_results,
    run_ranks,
)
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.material.models import SimpleMLP

_MOMENTUM = 0.5
_STEP_SIZE, _LESSONS_STEP_SIZE = 0.04, 0.05  # of SGD; not the lesson's, so that one written in shows


def _training_set(n_examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = random_tensor(seed, n_examples, 2)
    return x, (x[:, :1] * x[:, 1:]).tanh() + 0.1 * random_tensor(seed + 1, n_examples, 1)


def _model(seed: int, apart: int = 0) -> torch.nn.Module:
    """The model that a rank begins with; `apart`: another one for each number but 0."""
    model = SimpleMLP(2, 8, 1).double()
    for k, p in enumerate(model.parameters()):
        p.data.copy_(random_tensor(seed + 10 + k, *p.shape) + 0.1 * apart * random_tensor(seed + 20 + k, *p.shape))
    return model


def _shards(n_examples: int, world_size: int) -> list[list[int]]:
    """Which examples a rank has: every N-th one, so that no rank's shard looks like another's."""
    return [list(range(rank, n_examples, world_size)) for rank in range(world_size)]


def drive_dp(dp_step, n_examples: int, world_size: int, n_steps: int, seed: int, apart: bool) -> dict[str, Any]:
    _train_plainly(1, 1, seed)  # torch imports much at the first step: not on a rank's time
    x, y = _training_set(n_examples, seed)
    shards = _shards(n_examples, world_size)

    def worker(rank: int, context: Any) -> dict[str, Any]:
        model = _model(seed, rank if apart else 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=_STEP_SIZE, momentum=_MOMENTUM)
        mine = shards[rank]
        losses = [dp_step(model, optimizer, x[mine], y[mine], context, rank) for _ in range(n_steps)]
        losses = [loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else loss for loss in losses]
        return {"losses": losses, "weights": torch.cat([p.detach().flatten() for p in model.parameters()])}

    return run_ranks(worker, world_size)


def _train_plainly(
    n_examples: int,
    n_steps: int,
    seed: int,
    *,
    weights=None,
    factor=1.0,
    clear=True,
    back=None,
    momentum=_MOMENTUM,
    n_times=1,
) -> tuple[list[float], np.ndarray]:
    """(losses, weights after) of one process that has the whole batch; `weights` of the examples in the gradient,
    `back(gradients, parameters)` what the optimizer finds in their place."""
    x, y = _training_set(n_examples, seed)
    model = _model(seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=_STEP_SIZE * factor, momentum=momentum)
    losses = []
    for _ in range(n_steps):
        if clear:
            optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        (loss if weights is None else ((model(x) - y).square()[:, 0] * weights).sum()).backward()
        if back:
            for p, gradient in zip(parameters, back(torch.cat([p.grad.flatten() for p in parameters]), parameters)):
                p.grad = gradient
        for _ in range(n_times):
            optimizer.step()
        losses.append(loss.item())
    return losses, _flat(model)


def _flat(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def judge_dp(data: Any, *, n_examples: int, world_size: int, n_steps: int, seed: int, apart: bool = False) -> None:
    what = f"{n_steps} steps on {n_examples} examples, {n_ranks(world_size)}"
    crash = "put the reduced vector back piece by piece: p.numel() numbers in the shape of p"
    results, calls = require_results(data, what, crash_cause=crash)
    if apart:
        return _judge_apart(results, n_examples, world_size, n_steps, seed)
    right = _train_plainly(n_examples, n_steps, seed)[1]
    weights = [
        require_array(r["weights"], right.shape, f"{what}: the weights of rank {i}") for i, r in enumerate(results)
    ]
    case = (n_examples, n_steps, seed)
    _require_drift_free(weights, calls, what, case, world_size)
    if not distance(weights[0], right) <= 1e-6:
        text, cause = _why_weights(weights[0], case, world_size)
        far = distance(weights[0], right)
        raise CheckFailed(f"{what}: weights differ from those of one process by {far:.2g}{text}", cause=cause)
    _require_losses(results, case, world_size, what)
    if world_size > 1:
        _require_one_all_reduce(calls, world_size, n_steps, len(right), what)


def _judge_apart(results: list, n_examples: int, world_size: int, n_steps: int, seed: int) -> None:
    what = f"{n_ranks(world_size)} that begin with different weights, {n_examples} examples"
    rights = _train_apart(n_examples, world_size, n_steps, seed)
    got = [require_array(r["weights"], rights[0].shape, f"{what}: weights of rank {i}") for i, r in enumerate(results)]
    if all(distance(w, right) <= 1e-6 for w, right in zip(got, rights)):
        return
    if all(distance(w, got[0]) <= 1e-9 for w in got):
        raise CheckFailed(
            f"{what}: after {n_steps} steps all have the same; one update for all would leave them as far apart",
            cause="weights travel: averaging them is another algorithm, for any optimizer but plain SGD. The gradient "
            "travels, and each rank makes the update itself",
        )
    worst = max(range(world_size), key=lambda r: distance(got[r], rights[r]))
    raise CheckFailed(
        f"{what}: rank {worst} is off by {distance(got[worst], rights[worst]):.2g} after {n_steps} steps of the mean "
        "gradient",
        cause="something else than the gradient of the rank's own model and shard goes into the all_reduce, or into "
        "the update",
    )


def _train_apart(n_examples: int, world_size: int, n_steps: int, seed: int) -> list[np.ndarray]:
    """Each rank's weights after steps along the mean of all examples' gradients, each at its own rank's weights."""
    x, y = _training_set(n_examples, seed)
    models = [_model(seed, rank) for rank in range(world_size)]
    shards, speed = _shards(n_examples, world_size), 0.0
    for _ in range(n_steps):
        total = 0.0
        for model, mine in zip(models, shards):
            loss = (model(x[mine]) - y[mine]).square().sum() / n_examples
            total = total + torch.nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
        speed = _MOMENTUM * speed + total
        for model in models:
            new = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - _STEP_SIZE * speed
            torch.nn.utils.vector_to_parameters(new, model.parameters())
    return [torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy() for model in models]


def _require_one_all_reduce(calls: list, world_size: int, n_steps: int, n_weights: int, what: str) -> None:
    for rank in range(world_size):
        mine = [c for c in calls if c["rank"] == rank]
        names = sorted({c["call"] for c in mine})
        large = [c for c in mine if c["numel"] >= n_weights]
        if names != ["all_reduce"] or len(mine) != n_steps:
            cause = "one collective a step: all gradients travel in one flat vector"
            if "all_gather" in names:
                cause = "all_gather brings every rank's whole vector to every rank; all_reduce gives what they make"
            elif len(large) > n_steps:
                cause = "one collective a step: the whole vector travels more than once"
            elif len(large) == n_steps:
                cause = "one collective a step: what else the ranks must know travels in the same vector"
            raise CheckFailed(
                f"{what}: {len(mine)} calls ({', '.join(names) or 'none'}) on a rank, expected {n_steps} all_reduce",
                cause=cause,
            )
        if max(c["numel"] for c in mine) >= 2 * n_weights:
            raise CheckFailed(
                f"{what}: rank {rank} brings {max(c['numel'] for c in mine)} numbers to all_reduce; the model has "
                f"{n_weights} weights",
                cause="one gradient travels, and the sum of all comes back: no place for each rank in the vector, and "
                "no weights beside the gradient",
            )


def _require_drift_free(weights: list, calls: list, what: str, case: tuple, world_size: int) -> None:
    n_examples, _, seed = case
    apart = [r for r, w in enumerate(weights) if not distance(w, weights[0]) <= 1e-9]
    if not apart:
        return
    cause = ""
    if n_examples % world_size:
        cause = "a rank's own number of examples comes in after the sum: what comes back is the same on every rank"
    own = [_train_plainly(*case, weights=_only(shard, n_examples))[1] for shard in _shards(n_examples, world_size)]
    if all(distance(w, o) <= 1e-6 for w, o in zip(weights, own)):
        cause = "the reduced gradient never reaches p.grad, or optimizer.step() comes before it"
    still = [r for r, w in enumerate(weights) if distance(w, _flat(_model(seed))) == 0]
    if still:
        cause = f"{ranks_text(still)} never moved: every rank steps, with the same gradient, also for an empty shard"
    if not calls:
        cause = "no gradient is reduced: every rank follows its own shard"
    raise CheckFailed(f"{what}: {ranks_text(apart)} and rank 0 end with different weights", cause=cause)


def _only(shard: list[int], n_examples: int) -> torch.Tensor:
    """Weights of the examples in the mean loss of one shard."""
    weights = torch.zeros(n_examples, dtype=torch.float64)
    weights[shard] = 1 / max(len(shard), 1)
    return weights


def _mean_of_means(n_examples: int, world_size: int) -> torch.Tensor:
    return sum(_only(shard, n_examples) for shard in _shards(n_examples, world_size)) / world_size


def _reversed(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    pieces = flat.split([p.numel() for p in reversed(parameters)])
    return [piece.reshape(p.shape) for piece, p in zip(reversed(pieces), parameters)]


def _transposed(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    pieces = flat.split([p.numel() for p in parameters])
    return [piece.reshape(p.shape[::-1]).T for piece, p in zip(pieces, parameters)]


def _first_piece(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    return [flat[: p.numel()].reshape(p.shape) for p in parameters]


def _why_weights(got: np.ndarray, case: tuple, world_size: int) -> tuple[str, str]:
    n_examples, _, seed = case
    per_shard = "the loss of a shard is the mean over its examples, not their sum"
    if n_examples % world_size:
        per_shard = "the sum is over all examples: divide by the number of all examples, not of the ranks"
    if n_examples < world_size:
        per_shard = "the divisor counts an empty shard as one example: it has none"
    order = "every number of the flat vector goes back to where it came from, in the same order"
    for text, cause, options in (
        ("; so does one process with N times the step size", "the gradients' sum is used: the mean divides it by N",
         {"factor": float(world_size)}),
        ("; so does one process with a step N times too small", "the gradient is divided by N twice",
         {"factor": 1 / world_size}),
        ("; so does one process with a step as many times longer as a shard has examples", per_shard,
         {"factor": n_examples / world_size}),
        ("; so does one process with a step as many times longer as there are examples",
         "the sum over all examples is used: divide it by their number", {"factor": float(n_examples)}),
        ("; so does one process with a shorter step", "the divisor counts every shard as large as the largest: add up "
         "how many examples the ranks have", {"factor": n_examples / (world_size * -(-n_examples // world_size))}),
        (f"; so does one process with the step {_LESSONS_STEP_SIZE}, which is not the optimizer's",
         "the step is the given optimizer's: optimizer.step()", {"factor": _LESSONS_STEP_SIZE / _STEP_SIZE}),
        ("; so does one process without the optimizer's momentum", "the step is the given optimizer's: "
         "optimizer.step()", {"momentum": 0.0}),
        ("; so does one process with that step size, and without the optimizer's momentum", "the step is the given "
         "optimizer's: optimizer.step()", {"momentum": 0.0, "factor": _LESSONS_STEP_SIZE / _STEP_SIZE}),
        *_divided_by_a_constant(world_size),
        ("; so does one process with twice the step", "the mean gradient counts twice: it replaces what stands in "
         "p.grad, and the optimizer steps once", {"factor": 2.0}),
        ("; so does one process with half the step", "the loss is mse_loss as it is, without a half",
         {"factor": 0.5}),
        ("; so does one process that steps twice", "one optimizer.step() a step", {"n_times": 2}),
        ("; so does one process that never clears gradients", "optimizer.zero_grad() is missing", {"clear": False}),
        ("; so does one in which every shard counts the same, large or small",
         "a mean of means: weigh each shard's gradient by its number of examples",
         {"weights": _mean_of_means(n_examples, world_size)}),
        ("; so does one that takes the pieces in reverse order", order, {"back": _reversed}),
        ("; so does one that takes each piece for the transpose", order, {"back": _transposed}),
        ("; so does one that gives every parameter the first piece", order, {"back": _first_piece}),
    ):  # fmt: skip
        if distance(got, _train_plainly(*case, **options)[1]) <= 1e-6:
            return text, cause
    if distance(got, _train_plainly(*case)[1]) <= FEW_DIGITS:
        return "; they are right to a few digits", "gradients travel in the dtype that they have"
    if distance(got, _flat(_model(seed))) <= 1e-9:
        return "; they are still the initial ones", "no optimizer.step(), or it sees no gradient"
    return "", ""


def _divided_by_a_constant(world_size: int) -> list[tuple[str, str, dict[str, float]]]:
    found = [k for k in (2, 4, 8, 10) if k not in (world_size, 2 * world_size)]
    return [
        (
            f"; so does one process whose sum of N gradients is divided by {k}",
            f"the sum is divided by {k}, however many ranks there are",
            {"factor": world_size / k},
        )
        for k in found
    ]


def _require_losses(results: list, case: tuple, world_size: int, what: str) -> None:
    """Each rank returns the loss of its own shard before each step."""
    n_examples, n_steps, seed = case
    x, y = _training_set(n_examples, seed)
    at = [torch.from_numpy(_train_plainly(n_examples, step, seed)[1]) for step in range(n_steps + 1)]

    def loss_of(which: list[int], step: int) -> float:
        model = _model(seed)
        torch.nn.utils.vector_to_parameters(at[step], model.parameters())
        return mse_loss(model(x[which]), y[which]).item() if which else 0.0

    everything = list(range(n_examples))
    for step in range(n_steps):
        for rank, (shard, result) in enumerate(zip(_shards(n_examples, world_size), results)):
            got, right = result["losses"][step], loss_of(shard, step)
            where = f"{what}: step {step + 1} returns"
            if type(got) not in (int, float) or not np.isfinite(got):
                raise CheckFailed(
                    f"{where} {got!r} on rank {rank}, which has {len(shard)} examples",
                    cause="return the loss of the rank's own shard as a float; 0.0 for an empty shard",
                )
            if not abs(got - right) <= 1e-6:
                causes = {
                    "return the loss of the rank's own shard, not that of all ranks": loss_of(everything, step),
                    "that is the loss after the step: return the one before": loss_of(shard, step + 1),
                    "the loss is the mean over the shard's examples, not their sum": right * len(shard),
                    "that is the shard's part of the batch's loss: return the mean over its own examples": (
                        right * len(shard) / n_examples
                    ),
                    "that is the loss divided by N: return it as it is": right / world_size,
                    "return the loss; 0.0 for an empty shard only": 0.0,
                }
                raise CheckFailed(
                    f"{where} {got:.6f} on rank {rank}, whose own shard of {len(shard)} examples has {right:.6f}",
                    cause=next((cause for cause, value in causes.items() if abs(got - value) <= 1e-6), ""),
                )
