"""Whether a pass through large layers is right, by weighted sums: of each vector one number is kept, and not its own.

On memory alone no pass is judged: what is held may be little because nothing was gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.lesson_07.watched_layers import cut, same
from hw_utils.core.errors import CheckFailed
from hw_utils.material.by_hand.layers import SlotLayer

_WITHIN = 1e-9  # of the length of a vector, and of a sum's weights
_LARGE = "in large layers, too: a layer's size changes nothing in"


def sum_of(tensor: Any, seed: int) -> list | None:
    """[shape, weighted sum]; None for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        return None
    flat = tensor.detach().double().flatten().numpy()
    return [list(tensor.shape), float(drawn_numbers.weighted_sum(flat, seed))]


def _is_of(found: Any, right: np.ndarray, seed: int) -> bool:
    due = float(drawn_numbers.weighted_sum(right.ravel(), seed))
    return (
        found is not None
        and found[0] == list(right.shape)
        and bool(abs(found[1] - due) <= _WITHIN * float(np.linalg.norm(right)))
    )


class Whole:
    """A step of all ranks through layers that are never cut."""

    def __init__(self, weights: list[torch.Tensor], given: Callable[[int], tuple[torch.Tensor, torch.Tensor]], n: int):
        """given: each of n ranks' input, and its gradient of the output."""
        self.weights = [weight.flatten().numpy() for weight in weights]
        self.came: list[dict[tuple[str, int], np.ndarray]] = []  # of each rank, into each layer's passes
        self.outputs: list[np.ndarray] = []
        owns: list[list[np.ndarray]] = [[] for _ in weights]
        layers = [SlotLayer(k, weight, 0, 1, 0.0, 0.0, []) for k, weight in enumerate(weights)]
        for rank in range(n):
            (x, gradient), came = given(rank), {}
            for k, layer in enumerate(layers):
                layer.fill(layer.shard)
                came["forward", k] = x.numpy()
                x = layer.forward(x)
            for k in reversed(range(len(layers))):
                came["backward", k] = gradient.numpy()
                gradient, own = layers[k].backward(gradient)
                owns[k].append(own.numpy())
            self.came.append(came)
            self.outputs.append(x.numpy())
        self.shards = [cut(np.mean(own, axis=0), n) for own in owns]  # of each layer (n, size)


def judge_sums(what: str, result: Any, whole: Whole, rank: int, seed: int) -> None:
    """Raises CheckFailed unless a rank's slots, passes and results are those of layers that are whole."""
    for kind, k, found in result["seen"]:
        if kind == "fill" and not _is_of(found, whole.weights[k], seed):
            raise CheckFailed(
                f"{what}: the slot of layer {k} was filled with other numbers than the layer's weight.",
                cause=f"each slot takes what all ranks' shards were gathered to, {_LARGE} that.",
            )
        if kind != "fill" and not _is_of(found, whole.came[rank][kind, k], seed):
            name, neighbour = ("x", "before") if kind == "forward" else ("gradient", "behind")
            raise CheckFailed(
                f"{what}: in the {kind} pass layer {k} got another {name} than the layer {neighbour} it gave.",
                cause=f"what a layer's {kind} returned goes on to the next one, {_LARGE} that.",
            )
    if not same(result["output"], whole.outputs[rank]):
        raise CheckFailed(
            f"{what}: forward returned something else than the output of the last layer.",
            cause="return what layer.forward of the last layer gave.",
        )
    if result["changed"]:
        raise CheckFailed(
            f"{what}: layer.shard of layer {result['changed'][0]} has other numbers than before.",
            cause="it is the weight, which only an optimizer changes: gather from it, and receive in tensors of your "
            "own.",
        )
    if len(result["shards"]) != len(whole.shards):
        raise CheckFailed(f"{what}: backward gave no list of {len(whole.shards)} gradient shards.",
                          cause="return a list in the order of the layers.")  # fmt: skip
    for k, found in enumerate(result["shards"]):
        if not _is_of(found, whole.shards[k][rank], seed):
            raise CheckFailed(
                f"{what}: the gradient shard of layer {k} is not the mean of all ranks' gradients.",
                cause=f"the flat gradient is cut for the ranks in their order, summed and divided, {_LARGE} that.",
            )
