"""Drivers and judges of lesson 06's data parallelism."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.checks.common_mistakes import cause_of_error
from hw_utils.checks.lesson_06.data_parallel_causes import off_multiple, weights_of_shard, why_brought, why_weights
from hw_utils.checks.lesson_06.one_process import (
    MOMENTUM,
    STEP_SIZE,
    flat_weights,
    model_of,
    shards_of,
    train_plainly,
    training_set,
)
from hw_utils.checks.lesson_06.shards import distance, n_ranks, require_array, require_results, run_ranks
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.material.by_hand.interface import Interface


def drive_dp(
    dp_step, n_examples: int, world_size: int, n_steps: int, seed: int, apart: bool, begun: float,
    sizes: list[int] | None,
) -> dict[str, Any]:  # fmt: skip
    """Losses, weights after and what is brought. sizes: how many of the examples there are in each step, if not all."""
    train_plainly(1, 1, seed)  # torch imports much at the first step: not on a rank's time
    _optimizer_of(model_of(seed), apart).step()
    x, y = training_set(n_examples, seed)
    steps = [shards_of(n, world_size) for n in sizes or [n_examples] * n_steps]

    def worker(rank: int, context: Any) -> dict[str, Any]:
        model = model_of(seed, rank if apart else 0)
        optimizer = _optimizer_of(model, apart)
        for p in model.parameters() if begun else ():
            p.grad = torch.full_like(p, begun * (rank + 1))
        brought: list[torch.Tensor] = []
        listened = _listening(context, brought)
        losses = [dp_step(model, optimizer, x[of[rank]], y[of[rank]], listened, rank) for of in steps]
        graphs = any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in losses)
        losses = [loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else loss for loss in losses]
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        return {"losses": losses, "weights": weights, "brought": brought[:1], "graphs": graphs}

    return run_ranks(worker, world_size)


def _optimizer_of(model: torch.nn.Module, apart: bool) -> torch.optim.Optimizer:
    """Apart, one whose update is not linear in the gradient: the mean of the ranks' updates is then another one than
    that of their mean gradient. A large eps: else a gradient of another size would make the same update."""
    if apart:
        return torch.optim.Adam(model.parameters(), lr=STEP_SIZE, eps=0.1)
    return torch.optim.SGD(model.parameters(), lr=STEP_SIZE, momentum=MOMENTUM)


def _listening(context: Any, brought: list[torch.Tensor]) -> Interface:
    """The same context; what the rank brings to all_reduce is noted."""

    def all_reduce(tensor: torch.Tensor, *where: Any, **options: Any) -> torch.Tensor:
        if isinstance(tensor, torch.Tensor):
            brought.append(tensor.detach().flatten().clone())
        return context.all_reduce(tensor, *where, **options)

    parts = {"world_size": context.world_size, "all_gather": context.all_gather, "all_reduce": all_reduce}
    return Interface(parts)


_IS_PUT_BACK = re.compile("split|assign a gradient|grad has|is invalid for|stack expects")
_PIECES = "put the reduced vector back piece by piece: p.numel() numbers in the shape of p"


_BEGUN = (
    "gradients that stood there before the call are in its step: optimizer.zero_grad() before backward, and not only "
    "after the step"
)


def judge_dp(
    data: Any, *, n_examples: int, world_size: int, n_steps: int, seed: int, apart: bool = False, begun: float = 0.0,
    sizes: list[int] | None = None,
) -> None:  # fmt: skip
    what = f"{n_steps} steps on {n_examples} examples, {n_ranks(world_size)}"
    if begun:
        what += ", with gradients of something else from before"
    crash = data.get("crash", {}).get("reason", "")
    cause = _PIECES if _IS_PUT_BACK.search(crash) else cause_of_error(crash)
    results, calls = require_results(data, what, crash_cause=cause)
    if apart:
        return _judge_apart(results, n_examples, world_size, n_steps, seed)
    if sizes:
        return _judge_sizes(results, sizes, world_size, seed)
    right = train_plainly(n_examples, n_steps, seed)[1]
    weights = [
        require_array(r["weights"], right.shape, f"{what}: the weights of rank {i}") for i, r in enumerate(results)
    ]
    case = (n_examples, n_steps, seed)
    _require_drift_free(weights, results, calls, what, case, world_size)
    if not distance(weights[0], right) <= 1e-6:
        text, cause = why_weights(weights[0], case, world_size)
        cause = cause or (_BEGUN if begun else why_brought(results, case, world_size))
        far = distance(weights[0], right)
        raise CheckFailed(f"{what}: weights differ from those of one process by {far:.2g}{text}", cause=cause)
    _require_losses(results, case, world_size, what)
    if any(result["graphs"] for result in results):
        raise CheckFailed(
            f"{what}: the loss that comes back is right, and a tensor that autograd still follows",
            cause="a loss that is a tensor keeps its whole graph in memory: loss.item()",
        )
    if world_size > 1:
        _require_one_all_reduce(calls, world_size, n_steps, len(right), what)


def _judge_apart(results: list, n_examples: int, world_size: int, n_steps: int, seed: int) -> None:
    what = f"{n_ranks(world_size)} that begin with different weights and step with Adam, {n_examples} examples"
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
        cause="differences of weights travel, what each rank's optimizer makes of its own gradient: their mean is "
        "right for plain SGD only. Gradients travel, and each rank then makes the same update"
        if all(_brings_its_step(r["brought"], rank, n_examples, world_size, seed) for rank, r in enumerate(results))
        else "something else than the gradient of the rank's own model and shard goes into the all_reduce, or into "
        "the update",
    )


def _judge_sizes(results: list, sizes: list[int], world_size: int, seed: int) -> None:
    what = f"{n_ranks(world_size)}, steps on {', '.join(map(str, sizes))} examples"
    right = _train_on(sizes, sizes, seed)
    for rank, result in enumerate(results):
        got = require_array(result["weights"], right.shape, f"{what}: weights of rank {rank}")
        if not distance(got, right) <= 1e-6:
            is_known = distance(got, _train_on(sizes, sizes[:1] * len(sizes), seed)) <= 1e-6
            raise CheckFailed(
                f"{what}: rank {rank}'s weights differ from those of one process by {distance(got, right):.2g}",
                cause="each step divides by the first step's number of all examples: it is another one in each step, "
                "so add it up anew, in the same vector"
                if is_known
                else "each step has shards of other sizes: nothing of an earlier step's sizes is kept",
            )


def _train_on(sizes: list[int], divisors: list[int], seed: int) -> np.ndarray:
    """The weights after steps of one process along the sum over so many examples, divided by that."""
    x, y = training_set(max(sizes), seed)
    model = model_of(seed)
    optimizer = _optimizer_of(model, False)
    for n, divisor in zip(sizes, divisors):
        optimizer.zero_grad()
        ((model(x[:n]) - y[:n]).square().sum() / divisor).backward()
        optimizer.step()
    return flat_weights(model)


def _brings_its_step(brought: list, rank: int, n_examples: int, world_size: int, seed: int) -> bool:
    """Whether what a rank puts into its first all_reduce is Adam's step on its own shard, in whatever proportion: along
    the mean of its examples' gradients, or their sum."""
    (x, y), mine = training_set(n_examples, seed), shards_of(n_examples, world_size)[rank]
    put_in = np.asarray(brought[0], "f8") if brought else np.zeros(0)
    for reduction in ("mean", "sum"):
        model = model_of(seed, rank)
        mse_loss(model(x[mine]), y[mine], reduction=reduction).backward()
        before = flat_weights(model)
        _optimizer_of(model, True).step()
        step = flat_weights(model) - before
        if any(off_multiple(cut, step) <= 1e-3 for cut in (put_in[: len(step)], put_in[-len(step) :])):
            return True
    return False


def _train_apart(n_examples: int, world_size: int, n_steps: int, seed: int) -> list[np.ndarray]:
    """Each rank's weights after steps along the mean of all examples' gradients, each at its own rank's weights."""
    x, y = training_set(n_examples, seed)
    models = [model_of(seed, rank) for rank in range(world_size)]
    optimizers = [_optimizer_of(model, True) for model in models]
    shards = shards_of(n_examples, world_size)
    for _ in range(n_steps):
        losses = [((m(x[mine]) - y[mine]).square().sum() / n_examples) for m, mine in zip(models, shards)]
        each = [torch.autograd.grad(loss, list(m.parameters())) for loss, m in zip(losses, models)]
        total = [sum(gradients) for gradients in zip(*each)]
        for model, optimizer in zip(models, optimizers):
            for p, gradient in zip(model.parameters(), total):
                p.grad = gradient
            optimizer.step()
    return [flat_weights(model) for model in models]


def _require_one_all_reduce(calls: list, world_size: int, n_steps: int, n_weights: int, what: str) -> None:
    for rank in range(world_size):
        mine = [c for c in calls if c["rank"] == rank]
        names = sorted({c["call"] for c in mine})
        large = [c for c in mine if c["numel"] >= n_weights]
        if names != ["all_reduce"] or len(mine) != n_steps:
            cause = "one collective a step: all gradients travel in one flat vector"
            if any(c["call"] == "all_gather" and c["numel"] >= n_weights for c in mine):
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


def _require_drift_free(weights: list, results: list, calls: list, what: str, case: tuple, world_size: int) -> None:
    n_examples, _, seed = case
    apart = [r for r, w in enumerate(weights) if not distance(w, weights[0]) <= 1e-9]
    if not apart:
        return
    cause = ""
    if n_examples % world_size:
        cause = "a rank's own number of examples comes in after the sum: what comes back is the same on every rank"
    own = [
        train_plainly(*case, weights=weights_of_shard(shard, n_examples))[1]
        for shard in shards_of(n_examples, world_size)
    ]
    if all(distance(w, o) <= 1e-6 for w, o in zip(weights, own)):
        cause = "the reduced gradient never reaches p.grad, or optimizer.step() comes before it"
    still = [r for r, w in enumerate(weights) if distance(w, flat_weights(model_of(seed))) == 0]
    if still:
        cause = f"{ranks_text(still)} never moved: every rank steps, with the same gradient, also for an empty shard"
    if not calls:
        cause = "no gradient is reduced: every rank follows its own shard"
    same = [all(abs(w[k] - weights[0][k]) <= 1e-9 for w in weights) for k in range(len(weights[0]))]
    if not cause and any(same):
        cause = "some parameters follow their own shard: every parameter gets its piece of the reduced vector"
    if not cause and not n_examples % world_size and not why_brought(results, case, world_size, only_brought=True):
        cause = "something of the rank's own is in p.grad beside what was reduced: that takes its place, whole"
    raise CheckFailed(f"{what}: {ranks_text(apart)} and rank 0 end with different weights", cause=cause)


def _require_losses(results: list, case: tuple, world_size: int, what: str) -> None:
    """Each rank returns the loss of its own shard before each step."""
    n_examples, n_steps, seed = case
    x, y = training_set(n_examples, seed)
    at = [torch.from_numpy(train_plainly(n_examples, step, seed)[1]) for step in range(n_steps + 1)]

    def loss_of(which: list[int], step: int) -> float:
        model = model_of(seed)
        torch.nn.utils.vector_to_parameters(at[step], model.parameters())
        return mse_loss(model(x[which]), y[which]).item() if which else 0.0

    everything = list(range(n_examples))
    for step in range(n_steps):
        for rank, (shard, result) in enumerate(zip(shards_of(n_examples, world_size), results)):
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
                    "that is the loss times the shard's examples, divided by N: return it as it is": (
                        right * len(shard) / world_size
                    ),
                    "return the loss; 0.0 for an empty shard only": 0.0,
                }
                raise CheckFailed(
                    f"{where} {got:.6f} on rank {rank}, whose own shard of {len(shard)} examples has {right:.6f}",
                    cause=next(
                        (cause for cause, value in causes.items() if abs(got - value) <= 1e-6),
                        "the weights are right, so the gradients are: only what is returned is not. It is mse_loss of "
                        "the rank's own shard before the step, as it is",
                    ),
                )
