"""Drivers and judges of lesson 06's data parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import mse_loss

from hw_utils.checks.lesson_06.shards import distance, n_ranks, random_tensor, require_array, require_results, run_ranks
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.material.models import SimpleMLP


def judge_split(data: Any, *, n_examples: int, world_size: int) -> None:
    what = f"split_batch of {n_examples} examples over {n_ranks(world_size)}"
    parts = [
        require_array(
            part, (len(part), 2) if isinstance(part, np.ndarray) and part.ndim else (0, 2), f"{what}: rank {r}"
        )
        for r, part in enumerate(data)
    ]
    if len(parts) != world_size:
        raise ValueError(f"{len(parts)} parts for {world_size} ranks")
    sizes = [len(part) for part in parts]
    rows = np.concatenate(parts)[:, 0].astype(int).tolist() if parts else []
    lost = sorted(set(range(n_examples)) - set(rows))
    if lost:
        where = "the remainder is dropped" if lost[-1] == n_examples - 1 else "some rank's part is cut wrongly"
        raise CheckFailed(f"{what} loses {len(lost)} examples, the first is number {lost[0]}", cause=where)
    if len(rows) != n_examples:
        raise CheckFailed(f"{what} gives {len(rows)} examples in all: some are on two ranks", cause="the parts overlap")
    if max(sizes) - min(sizes) > 1:
        rounded_up = sizes[0] * world_size > n_examples and sizes == sorted(sizes, reverse=True)
        cause = "sizes are rounded up (as chunk does), so that the last ranks run short: hand the remainder out"
        if not (rounded_up and sizes.count(sizes[0]) > 1):
            cause = "one rank gets the whole remainder: hand it out one by one"
        raise CheckFailed(f"{what} gives parts of {sizes}: sizes may differ by 1 at most", cause=cause)
    if rows != list(range(n_examples)):
        raise CheckFailed(
            f"{what}: the parts in rank order are not x again; rank 0 has examples {rows[: sizes[0]][:4]}",
            cause="every rank takes one run of neighbours, rank 0 the first",
        )


_STEP_SIZE, _LESSONS_STEP_SIZE = 0.04, 0.05  # of SGD; not the lesson's, so that one written in shows


def _training_set(n_examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = random_tensor(seed, n_examples, 2)
    return x, (x[:, :1] * x[:, 1:]).tanh() + 0.1 * random_tensor(seed + 1, n_examples, 1)


def _model(seed: int) -> torch.nn.Module:
    model = SimpleMLP(2, 8, 1).double()
    for k, p in enumerate(model.parameters()):
        p.data.copy_(random_tensor(seed + 10 + k, *p.shape))
    return model


def _shards(n_examples: int, world_size: int) -> list[list[int]]:
    """Which examples a rank has: every N-th one, so that no rank's shard looks like another's."""
    return [list(range(rank, n_examples, world_size)) for rank in range(world_size)]


def drive_dp(dp_step, n_examples: int, world_size: int, n_steps: int, seed: int) -> dict[str, Any]:
    _train_plainly(1, 1, seed)  # torch imports much at the first step: not on a rank's time
    x, y = _training_set(n_examples, seed)
    shards = _shards(n_examples, world_size)

    def worker(rank: int, context: Any) -> dict[str, Any]:
        model = _model(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=_STEP_SIZE)
        mine = shards[rank]
        losses = [dp_step(model, optimizer, x[mine], y[mine], context, rank) for _ in range(n_steps)]
        losses = [loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else loss for loss in losses]
        return {"losses": losses, "weights": torch.cat([p.detach().flatten() for p in model.parameters()])}

    return run_ranks(worker, world_size)


def _train_plainly(n_examples: int, n_steps: int, seed: int, *, weights=None, factor=1.0, clear=True) -> tuple:
    """(losses, weights after) of one process that has the whole batch; `weights` of the examples in the gradient."""
    x, y = _training_set(n_examples, seed)
    model = _model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=_STEP_SIZE * factor)
    losses = []
    for _ in range(n_steps):
        if clear:
            optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        (loss if weights is None else ((model(x) - y).square()[:, 0] * weights).sum()).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


def judge_dp(data: Any, *, n_examples: int, world_size: int, n_steps: int, seed: int) -> None:
    what = f"{n_steps} steps on {n_examples} examples, {n_ranks(world_size)}"
    crash = "put the reduced vector back piece by piece: p.numel() numbers in the shape of p"
    results, calls = require_results(data, what, crash_cause=crash)
    losses, right = _train_plainly(n_examples, n_steps, seed)
    weights = [
        require_array(r["weights"], right.shape, f"{what}: the weights of rank {i}") for i, r in enumerate(results)
    ]
    case = (n_examples, n_steps, seed)
    start = torch.cat([p.detach().flatten() for p in _model(seed).parameters()]).numpy()
    _require_drift_free(weights, calls, what, start, uneven=bool(n_examples % world_size))
    if not distance(weights[0], right) <= 1e-6:
        text, cause = _why_weights(weights[0], case, world_size)
        far = distance(weights[0], right)
        raise CheckFailed(f"{what}: weights differ from those of one process by {far:.2g}{text}", cause=cause)
    _require_losses(results, losses, n_examples, world_size, what)
    _require_own_losses(results, case, world_size, what)
    n_calls = [sum(c["rank"] == r for c in calls) for r in range(world_size)]
    if world_size > 1 and (set(n_calls) != {n_steps} or any(c["call"] != "all_reduce" for c in calls)):
        names = sorted({c["call"] for c in calls})
        raise CheckFailed(
            f"{what}: {max(n_calls)} calls ({', '.join(names)}) on a rank, expected {n_steps} all_reduce",
            cause="one collective a step: all gradients travel in one flat vector",
        )


def _require_drift_free(weights: list, calls: list, what: str, start: np.ndarray, *, uneven: bool) -> None:
    apart = [r for r, w in enumerate(weights) if not distance(w, weights[0]) <= 1e-9]
    if not apart:
        return
    cause = "the reduced gradient never reaches p.grad, or optimizer.step() comes before it"
    if uneven:
        cause = "a rank's own number of examples comes in after the sum, or " + cause
    still = [r for r, w in enumerate(weights) if distance(w, start) == 0]
    if still:
        cause = f"{ranks_text(still)} never moved: every rank steps, with the same gradient, also for an empty shard"
    if not calls:
        cause = "no gradient is reduced: every rank follows its own shard"
    raise CheckFailed(f"{what}: {ranks_text(apart)} and rank 0 end with different weights", cause=cause)


def _why_weights(got: np.ndarray, case: tuple, world_size: int) -> tuple[str, str]:
    n_examples, _, _ = case
    for text, cause, options in (
        ("; so does one process with N times the step size", "the gradients' sum is used: the mean divides it by N",
         {"factor": float(world_size)}),
        ("; so does one process with a step N times too small", "the gradient is divided by N twice",
         {"factor": 1 / world_size}),
        ("; so does one process with a step as many times longer as a shard has examples",
         "the loss of a shard is the mean over its examples, not their sum", {"factor": n_examples / world_size}),
        (f"; so does one process with the step {_LESSONS_STEP_SIZE}, which is not the optimizer's",
         "the step is the given optimizer's: optimizer.step()", {"factor": _LESSONS_STEP_SIZE / _STEP_SIZE}),
        ("; so does one process that never clears gradients", "optimizer.zero_grad() is missing", {"clear": False}),
        ("; so does one in which every shard counts the same, large or small",
         "a mean of means: weigh each shard's gradient by its number of examples",
         {"weights": _mean_of_means(n_examples, world_size)}),
    ):  # fmt: skip
        if distance(got, _train_plainly(*case, **options)[1]) <= 1e-6:
            return text, cause
    start = torch.cat([p.detach().flatten() for p in _model(case[2]).parameters()]).numpy()
    if distance(got, start) <= 1e-9:
        return "; they are still the initial ones", "no optimizer.step(), or it sees no gradient"
    if n_examples % world_size:
        return "", "weigh a shard's gradient by its examples before the sum; then divide by the number of all examples"
    order = "every number of the flat vector goes back to where it came from, in the same order"
    return "", order if world_size > 1 else f"one rank is plain training: the loss is mse_loss, and {order}"


def _require_own_losses(results: list, case: tuple, world_size: int, what: str) -> None:
    n_examples, n_steps, seed = case
    x, y = _training_set(n_examples, seed)
    shards = _shards(n_examples, world_size)
    for step in range(n_steps):
        weights = _train_plainly(n_examples, step, seed)[1]
        model = _model(seed)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
        for rank, (shard, result) in enumerate(zip(shards, results)):
            right = mse_loss(model(x[shard]), y[shard]).item() if shard else 0.0
            if not abs(result["losses"][step] - right) <= 1e-6:
                raise CheckFailed(
                    f"{what}: step {step + 1} returns {result['losses'][step]:.6f} on rank {rank}, whose own shard of "
                    f"{len(shard)} examples has {right:.6f}",
                    cause="return the loss of the rank's own shard, not that of all ranks; 0.0 for an empty shard",
                )


def _mean_of_means(n_examples: int, world_size: int) -> torch.Tensor:
    weights = torch.zeros(n_examples, dtype=torch.float64)
    for shard in _shards(n_examples, world_size):
        weights[shard] = 1 / (world_size * max(len(shard), 1))
    return weights


def _require_losses(results: list, losses: list[float], n_examples: int, world_size: int, what: str) -> None:
    shards = _shards(n_examples, world_size)
    for step, right in enumerate(losses):
        got = 0.0
        for rank, (shard, result) in enumerate(zip(shards, results)):
            loss = result["losses"][step]
            if type(loss) not in (int, float) or not np.isfinite(loss):
                raise CheckFailed(
                    f"{what}: step {step + 1} returns {loss!r} on rank {rank}, which has {len(shard)} examples",
                    cause="return the loss of the rank's own shard as a float; 0.0 for an empty shard",
                )
            got += loss * len(shard) / n_examples
        if not abs(got - right) <= 1e-6:
            raise CheckFailed(
                f"{what}: the ranks' losses in step {step + 1} make {got:.6f}, one process has {right:.6f}",
                cause="return the loss of the rank's own shard, before the step",
            )
