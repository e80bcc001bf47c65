"""Lesson 07's objects, each made for a second time in one process: what the first has kept is none of the second's.

Both have the same shapes and live at once, and all of the first one's numbers are others. Each check has a case of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import observe, require_no_deadlock
from hw_utils.checks.lesson_06.shards import DTYPES, n_ranks
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.layers import KeepingLayer, SlotLayer, drawn_weights
from hw_utils.simulate import simulate

LR = 0.1
SIZES = (2.0, 1.0)  # of the first one's numbers, in times of the second one's
N_LAYERS, WIDTH, HIDDEN, EXAMPLES = 4, 3, 5, 6
WIDTHS, BUCKET_BYTES = [3, 5, 4, 2], 100
_CAUSE = (
    "another one was made and used before in this process, for other numbers of the same shapes: what is an object's "
    "own hangs on it, not on the class, and nothing is kept by shape or under a global name."
)


_OF_DTYPE = "every tensor that is made has the dtype of the parameters: torch.empty alone makes another one."


def drive(worker: Callable, make: Any, world_size: int, *dtype: str) -> dict[str, Any]:
    """What the second one of two objects gives on every rank."""
    return observe(lambda: simulate(worker, world_size, (make, *dtype), compute="free", echo=False))


def judge(data: Any, name: str, right: list[list[np.ndarray]], words: tuple[str, ...], dtype: str = "float64") -> None:
    """Raises CheckFailed unless the second one gave on each rank what is right. words: for each of its results."""
    is_double = dtype == "float64"
    what = f"a second {name} in one process, {n_ranks(len(right))}" + f", a model of {dtype}" * (not is_double)
    within = (1e-9, 1e-12) if is_double else (1e-4, 1e-5)
    require_no_deadlock(data, what, cause=_CAUSE)
    if not is_double:
        for mine in (mine for got in data["results"] for mine in (got if isinstance(got, list) else [])):
            if isinstance(mine, np.ndarray) and str(mine.dtype) != dtype:
                raise CheckFailed(f"{what}: a result is of {mine.dtype}.", cause=_OF_DTYPE)
    for rank, expected in enumerate(right):
        got = data["results"][rank]
        for k, array in enumerate(expected):
            mine = got[k] if isinstance(got, list) and len(got) == len(expected) else None
            if not (isinstance(mine, np.ndarray) and mine.shape == array.shape and np.allclose(mine, array, *within)):
                raise CheckFailed(
                    f"{what}: {words[min(k, len(words) - 1)]} on rank {rank} is wrong.",
                    cause=_CAUSE if is_double else _OF_DTYPE,
                )


def _numbers(rank: int, seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(drawn_numbers.seed(1000 * seed + rank))
    return torch.randn(EXAMPLES, WIDTH, generator=drawn, dtype=torch.float64)


# 7.2 ---------------------------------------------------------------------------------------------------------


def _keeping(size: float) -> list[KeepingLayer]:
    return [KeepingLayer(size * drawn_weights(HIDDEN, WIDTH, k)) for k in range(N_LAYERS)]


def _given() -> torch.Tensor:
    """Input and gradient of the output: the same for every salt, so that cases with masks are those to repeat."""
    return torch.randn(2, EXAMPLES, WIDTH, generator=torch.Generator().manual_seed(1000), dtype=torch.float64)


def recompute(rank: int, world_size: int, make: Any) -> list:
    """Output, gradient of the input and of each weight."""
    made = []
    for size in SIZES:
        layers = _keeping(size)
        made.append(make([interface(layer) for layer in layers], 2))
        x, gradient = _given()
        found = [made[-1].forward(size * x), made[-1].backward(size * gradient)]
    return [*found, *(layer.gradient for layer in layers)]


def judge_recompute(data: Any) -> None:
    """Against the plain layers."""
    layers, (x, gradient) = _keeping(1.0), _given()
    for layer in layers:
        x = layer.forward(x)
    for layer in reversed(layers):
        gradient = layer.backward(gradient)
    right = [x, gradient, *(layer.gradient for layer in layers)]
    words = "the output", "the gradient of the input", "the gradient of a weight"
    judge(data, "Recomputed", [[t.numpy() for t in right]], words)


# 7.3 and 7.4 -------------------------------------------------------------------------------------------------


def tower(widths: list[int]) -> nn.Sequential:
    """Linear layers with tanh between them, float64, the same weights every time."""
    parts: list[nn.Module] = []
    for k, (d_in, d_out) in enumerate(pairwise(widths)):
        layer = nn.Linear(d_in, d_out, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(drawn_weights(d_out, d_in, 10 + k))
            layer.bias.copy_(drawn_weights(1, d_out, 20 + k)[0])
        parts += [layer, nn.Tanh()]
    return nn.Sequential(*parts[:-1])


def batch(rank: int, step: int, width: int) -> torch.Tensor:
    """Each rank's own examples, of another size on every rank."""
    return (rank + 1) * torch.randn(
        4, width, generator=torch.Generator().manual_seed(drawn_numbers.seed(100 * step + rank)), dtype=torch.float64
    )


def _tower(size: float) -> torch.nn.Sequential:
    model = tower(WIDTHS)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(size)
    return model


def adam(rank: int, world_size: int, make: Any) -> list:
    """The weights after each of two steps."""
    made = []
    for size in SIZES:
        model, found = _tower(size), []
        made.append(make(model, LR))
        for step in range(2):
            model.zero_grad()
            model(size * batch(rank, step, WIDTHS[0])).square().mean().backward()
            made[-1].step()
            found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return found


def judge_adam(data: Any, world_size: int) -> None:
    """Against one Adam with the mean gradient."""
    model, right = _tower(1.0), []
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for step in range(2):
        model.zero_grad()
        for rank in range(world_size):
            (model(batch(rank, step, WIDTHS[0])).square().mean() / world_size).backward()
        optimizer.step()
        right.append(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy())
    judge(data, "ShardedAdam", [right] * world_size, ("a weight after step 1", "a weight after step 2"))


def gradients(rank: int, world_size: int, make: Any, dtype: str = "float64") -> list:
    """The shards of one backward pass."""
    made = []
    for size in SIZES:
        model = _tower(size).to(DTYPES[dtype])
        made.append(make(model, BUCKET_BYTES))
        model((size * batch(rank, 0, WIDTHS[0])).to(DTYPES[dtype])).square().mean().backward()
        found = plain(made[-1].wait())
    return found


def judge_gradients(data: Any, world_size: int, buckets: list[list[int]], dtype: str) -> None:
    """Against the mean gradient. buckets: the numbers of each one's parameters."""
    model = _tower(1.0)
    for rank in range(world_size):
        (model(batch(rank, 0, WIDTHS[0])).square().mean() / world_size).backward()
    own = list(model.parameters())
    flat = [torch.cat([own[k].grad.flatten() for k in bucket]).numpy() for bucket in buckets]
    pieces = [_cut(one, world_size) for one in flat]
    judge(data, "ShardedGradients", [[cut[rank] for cut in pieces] for rank in range(world_size)], ("a shard",), dtype)


# 7.5 ---------------------------------------------------------------------------------------------------------


def _slots(size: float, rank: int, world_size: int, dtype: str = "float64") -> list[SlotLayer]:
    weights = [(size * drawn_weights(k + 2, WIDTH, k)).to(DTYPES[dtype]) for k in range(N_LAYERS)]
    return [SlotLayer(k, weight, rank, world_size, 0.0, 0.0, []) for k, weight in enumerate(weights)]


def weights(rank: int, world_size: int, make: Any, dtype: str = "float64") -> list:
    """The output, and the gradient shards of all layers."""
    made = []
    for size in SIZES:
        made.append(make([interface(layer) for layer in _slots(size, rank, world_size, dtype)]))
        x, gradient = ((size * _numbers(rank, seed)).to(DTYPES[dtype]) for seed in (1, 2))
        found = [made[-1].forward(x), *made[-1].backward(gradient)]
    return found


def judge_weights(data: Any, world_size: int, dtype: str) -> None:
    """Against layers that are whole."""
    layers, outputs = _slots(1.0, 0, 1), []
    owns: list[list[np.ndarray]] = [[] for _ in layers]
    for layer in layers:
        layer.fill(layer.shard)
    for rank in range(world_size):
        x, gradient = _numbers(rank, 1), _numbers(rank, 2)
        for layer in layers:
            x = layer.forward(x)
        for k in reversed(range(N_LAYERS)):
            gradient, own = layers[k].backward(gradient)
            owns[k].append(own.numpy())
        outputs.append(x.numpy())
    pieces = [_cut(np.mean(own, axis=0), world_size) for own in owns]
    right = [[outputs[rank], *(cut[rank] for cut in pieces)] for rank in range(world_size)]
    judge(data, "FullySharded", right, ("the output", "a gradient shard"), dtype)


def _cut(flat: np.ndarray, world_size: int) -> np.ndarray:
    """(world_size, size): padded with zeros, and cut in the order of the ranks."""
    size = -(-len(flat) // world_size)
    return np.pad(flat, (0, size * world_size - len(flat))).reshape(world_size, size)
