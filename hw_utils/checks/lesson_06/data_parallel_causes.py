"""Which mistake gives such weights after steps of data parallelism, and what the ranks brought to all_reduce."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.checks.lesson_06.one_process import (
    LESSONS_STEP_SIZE,
    STEP_SIZE,
    flat_weights,
    model_of,
    shards_of,
    train_plainly,
    training_set,
)
from hw_utils.checks.lesson_06.shards import FEW_DIGITS, distance


def weights_of_shard(shard: list[int], n_examples: int) -> torch.Tensor:
    """Weights of the examples in the mean loss of one shard."""
    weights = torch.zeros(n_examples, dtype=torch.float64)
    weights[shard] = 1 / max(len(shard), 1)
    return weights


def _mean_of_means(n_examples: int, world_size: int) -> torch.Tensor:
    return sum(weights_of_shard(shard, n_examples) for shard in shards_of(n_examples, world_size)) / world_size


def _pieces(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    return [piece.view_as(p) for piece, p in zip(flat.split([p.numel() for p in parameters]), parameters)]


def _reversed(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    pieces = flat.split([p.numel() for p in reversed(parameters)])
    return [piece.reshape(p.shape) for piece, p in zip(reversed(pieces), parameters)]


def _transposed(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    pieces = flat.split([p.numel() for p in parameters])
    return [piece.reshape(p.shape[::-1]).T for piece, p in zip(pieces, parameters)]


def _first_piece(flat: torch.Tensor, parameters: list) -> list[torch.Tensor]:
    return [flat[: p.numel()].reshape(p.shape) for p in parameters]


def why_weights(got: np.ndarray, case: tuple, world_size: int) -> tuple[str, str]:
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
        (f"; so does one process with the step {LESSONS_STEP_SIZE}, which is not the optimizer's",
         "the step is the given optimizer's: optimizer.step()", {"factor": LESSONS_STEP_SIZE / STEP_SIZE}),
        ("; so does one process without the optimizer's momentum", "the step is the given optimizer's: "
         "optimizer.step()", {"momentum": 0.0}),
        ("; so does one process with that step size, and without the optimizer's momentum", "the step is the given "
         "optimizer's: optimizer.step()", {"momentum": 0.0, "factor": LESSONS_STEP_SIZE / STEP_SIZE}),
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
        ("; so does one process that goes the other way", "the optimizer subtracts already: the gradient keeps its "
         "sign", {"back": lambda flat, ps: _pieces(-flat, ps)}),
        ("; so does one process that takes the signs of the gradients", "an optimizer gets the numbers themselves",
         {"back": lambda flat, ps: _pieces(flat.sign(), ps)}),
        ("; so does one process with gradients of length 1", "the gradient keeps its length: whoever wants it clipped "
         "or scaled says so", {"back": lambda flat, ps: _pieces(flat / flat.norm(), ps)}),
        ("; so does one that takes the pieces in reverse order", order, {"back": _reversed}),
        ("; so does one that takes each piece for the transpose", order, {"back": _transposed}),
        ("; so does one that gives every parameter the first piece", order, {"back": _first_piece}),
    ):  # fmt: skip
        if distance(got, train_plainly(*case, **options)[1]) <= 1e-6:
            return text, cause
    if distance(got, train_plainly(*case)[1]) <= FEW_DIGITS:
        return (
            "; they are right to a few digits",
            "digits are lost, or something small is added to the gradient, as weight decay: gradients travel as they "
            "are, in the dtype that they have",
        )
    if distance(got, flat_weights(model_of(seed))) <= 1e-9:
        return "; they are still the initial ones", "no optimizer.step(), or it sees no gradient"
    return "", ""


def off_multiple(mine: np.ndarray, own: np.ndarray) -> float:
    """How far it is from the nearest multiple of the gradient."""
    return distance(mine, own * float(mine @ own / (own @ own))) if len(mine) == len(own) else np.inf


def why_brought(results: list, case: tuple, world_size: int, *, only_brought: bool = False) -> str:
    """What is wrong with what the ranks bring to their first all_reduce; else what can only come after it."""
    n_examples, _, seed = case
    x, y = training_set(n_examples, seed)
    for rank, (shard, result) in enumerate(zip(shards_of(n_examples, world_size), results)):
        if not shard or not result["brought"]:
            continue
        model, got = model_of(seed), np.asarray(result["brought"][0], dtype="f8")
        gradients = torch.autograd.grad(mse_loss(model(x[shard]), y[shard]), list(model.parameters()))
        own = torch.cat([g.flatten() for g in gradients]).numpy()
        n = len(own)
        mine, beside = min(((got[:n], got[n:]), (got[-n:], got[:-n])), key=lambda cut: off_multiple(cut[0], own))
        factor = float(mine @ own / (own @ own)) if len(mine) == len(own) else 0.0
        if not factor or distance(mine, factor * own) > FEW_DIGITS:
            return (
                f"what rank {rank} brings is not the gradient of its own shard's mse_loss, one parameter after another"
            )
        count = f" and {beside[0]:.4g} beside it" if len(beside) else ""
        is_counted = count or n_examples % world_size  # nobody knows beforehand how many examples the others have
        right, due = (len(shard), [len(shard)] if count else []) if is_counted else (1.0, [])
        if abs(factor - right) > 1e-3 or distance(beside, due) > 1e-6:
            return (
                f"rank {rank}, which has {len(shard)} examples, brings {factor:.4g} times its mean gradient{count}: in "
                "the sum of all ranks an example must count the same wherever it is"
            )
    if only_brought or not any(result["brought"] for result in results):
        return ""
    return (
        "what the ranks bring at first is right: is it changed after all_reduce, before the optimizer takes it from "
        "p.grad, or is something of the step before in the next one (optimizer.zero_grad())?"
    )


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
