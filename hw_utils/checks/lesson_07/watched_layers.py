"""Layers whose slots are watched: what an answer puts in, pass by pass, and which mistake gives such numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.material.by_hand.layers import SlotLayer

GATHERS, SCATTERS = ("all_gather", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_tensor")


class WatchedLayer(SlotLayer):
    """`seen` has (what, layer, seconds, what came in, what it gave) of each fill and each pass; `owns` the weight's
    gradients, as they came."""

    def __init__(self, *args: Any, seen: list[tuple]) -> None:
        super().__init__(*args)
        self.seen, self.owns = seen, []

    def fill(self, full: torch.Tensor) -> None:
        """As a layer with a slot."""
        super().fill(full)
        self._see("fill", full, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As a layer with a slot."""
        y = super().forward(x)
        self._see("forward", x, y)
        return y

    def backward(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As a layer with a slot."""
        given = gradient.clone()
        back, own = super().backward(gradient)
        self._see("backward", given, back)
        self.owns.append(_array(own))
        return back, own

    def _see(self, what: str, came: torch.Tensor, gave: torch.Tensor | None) -> None:
        at_s = self.log[-1][2]
        # as arrays: the run's books of memory are about what the answer holds
        self.seen.append((what, self.number, at_s, _array(came), None if gave is None else _array(gave)))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def same(got: Any, right: np.ndarray, within: float = 1e-10) -> bool:
    """Equal in shape and, as good as, in numbers."""
    return isinstance(got, np.ndarray) and got.shape == right.shape and np.allclose(got, right, within, 1e-2 * within)


def judge_fills(what: str, seen: list, weights: list[np.ndarray], trace: Trace, rank: int, world_size: int) -> None:
    """Raises unless every slot was filled with the weight of its layer."""
    for kind, k, at_s, came, _ in seen:
        if kind == "fill" and not same(came, weights[k]):
            raise CheckFailed(
                f"{what}: the slot of layer {k} was filled with other numbers than the layer's weight.",
                cause=_why_filled(came, k, at_s, weights, trace.of_rank(rank), rank, world_size),
            )


def _why_filled(
    came: Any, k: int, at_s: float, weights: list[np.ndarray], trace: Trace, rank: int, world_size: int
) -> str:
    pieces, n = cut(weights[k], world_size), len(weights[k])
    if same(came, np.tile(pieces[rank], world_size)[:n]):
        return "that is this rank's own shard again and again: an all_gather brings those of all ranks."
    of_layer = [e for e in trace.of_op(*GATHERS) if e.sent_bytes == (world_size - 1) * pieces[0].nbytes]
    if any(e.start_s <= at_s < e.end_s for e in of_layer):
        return "it was filled while a gather was still under way: wait() for its handle first."
    if same(came, weights[k], 1e-5):
        return "right to six places: weights travel in the dtype that they have."
    if any(same(came, w) for w in weights):
        return "that is another layer's weight: keep each gather under its layer's number."
    if isinstance(came, np.ndarray) and came.shape == weights[k].shape and not came.any():
        return "it is zero: nothing was received in what was filled."
    return "the shards lie in the order of the ranks, each whole, and the padding at the end is left out."


def judge_handed_on(what: str, seen: list, x: np.ndarray, gradient: np.ndarray) -> None:
    """Raises unless each layer of one step got what its neighbour gave; x and gradient are what the caller gave."""
    for kind, given, name, neighbour in (
        ("forward", x, "x", "the layer before it returned"), ("backward", gradient, "gradient", "the layer behind it "
         "returned first, the gradient of its x"),
    ):  # fmt: skip
        due = given
        for _, k, _, came, gave in (row for row in seen if row[0] == kind):
            if not same(came, due):
                raise CheckFailed(
                    f"{what}: in the {kind} pass layer {k} got another {name} than {neighbour}.",
                    cause=_why_handed(kind, came, due, given),
                )
            due = gave


def _why_handed(kind: str, came: Any, due: np.ndarray, given: np.ndarray) -> str:
    if same(came, given):
        return f"that is what {kind} was called with: only one layer gets that, each other one what came out of the " \
               "last pass."  # fmt: skip
    for n in range(2, 9):
        if same(came * n, due) or same(came, due * n):
            return "it is multiplied or divided on the way: only the gradients of weights become a mean, at the end."
    if same(came, due, 1e-5):
        return "right to six places: numbers keep the dtype that they have."
    return "print what each pass gives and what the next one gets."


def cut(flat: np.ndarray, world_size: int) -> np.ndarray:
    """(world_size, size): the ranks' shards, the last one padded with zeros."""
    size = -(-len(flat) // world_size)
    return np.pad(flat, (0, size * world_size - len(flat))).reshape(world_size, size)


def why_shards(got: list, k: int, owns: list[list[np.ndarray]], before: list | None, n_examples: int) -> str:
    """What wrong gradient shards of layer k come from, those of all ranks together.

    owns: of each layer all ranks' own gradients, whole and flat. before: what the ranks had in the step before.
    """
    n, means = len(owns[k]), [cut(np.mean(own, axis=0), len(own)) for own in owns]
    right = means[k]
    in_front = np.concatenate([np.zeros(right.size - len(owns[k][0])), np.mean(owns[k], axis=0)]).reshape(n, -1)
    alone = np.stack([cut(own, n)[rank] for rank, own in enumerate(owns[k])])
    values = {
        "divided by the number of ranks twice.": [right / n],
        "that is this rank's own gradient, cut: reduce_scatter adds up those of all ranks.": [alone, alone / n],
        "a rank has another rank's shard: the pieces lie in the order of the ranks.": [
            by * np.roll(turned, r, axis=0) for turned in (right, right[::-1]) for r in range(n) for by in (1, n)
            if not same(np.roll(turned, r, axis=0), right)
        ],
        "the padding stands behind the gradient, not in front of it.": [in_front, n * in_front],
        "that is the largest of the ranks' numbers, or the smallest: they are added.": [
            cut(pick(owns[k], axis=0), n) / by for pick in (np.max, np.min) for by in (1, n)
        ],
        "that is another layer's shard: the list is in the order of the layers.": [
            factor * mean for mean in means for factor in (1, n) if not same(mean, right)
        ],
        f"divided by the number of examples, {n_examples}, too: the mean is over the ranks.": [
            factor * right / n_examples for factor in (1, n)
        ],
        "the step before is in it: each backward begins with new tensors.": [
            before, [a + b for a, b in zip(right, before) if np.shape(a) == np.shape(b)]] if before else [],
        "that is the sum over the ranks: the mean is asked.": [right * n],
    }  # fmt: skip
    named = [cause for cause, found in values.items() if any(_alike(got, value) for value in found)]
    return (named or [_why_one(got, right, means)])[-1]


def _why_one(got: list, right: np.ndarray, means: list[np.ndarray]) -> str:
    other = [shard for shard in got if not isinstance(shard, np.ndarray) or shard.shape != right[0].shape]
    if other:
        return f"a shard has as many elements as layer.shard, padding included: {right[0].shape}, got " \
               f"{getattr(other[0], 'shape', None)}."  # fmt: skip
    if any(not mine.any() and due.any() for mine, due in zip(got, right)):
        return "it is zero: its buffer was read before wait(), or is another layer's."
    if _alike(got, right, 1e-5):
        return "right to six places: gradients travel in the dtype that they have."
    if any(_begins_as(mine, other, due) for mean in means for mine, other, due in zip(got, mean, right)):
        return "it begins with another layer's numbers: until wait() each reduce_scatter has a tensor of its own."
    there = [rank for rank, (mine, due) in enumerate(zip(got, right)) if same(mine, due) and due.any()]
    if there and len(got) > 1:
        return f"rank {there[0]} has the right one: the last rank to call has its sum at once, the others after " \
               "wait(); is a shard read, or divided, before that?"  # fmt: skip
    return "the flat gradient is padded at its end, cut for the ranks in their order, summed and divided."


def _alike(got: list, values: Any, within: float = 1e-10) -> bool:
    return len(got) == len(values) and all(same(mine, np.asarray(v), within) for mine, v in zip(got, values))


def _begins_as(mine: np.ndarray, other: np.ndarray, right: np.ndarray) -> bool:
    length = min(len(mine), len(other))
    return same(mine[:length], other[:length]) and not same(mine[:length], right[:length])
