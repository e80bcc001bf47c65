"""Softmax regression in plain numpy, for judges: what one process computes, with no torch and no ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Softmax:
    """Scores x @ weight.T + bias in float64; weight is (n_classes, d_in)."""

    weight: np.ndarray
    bias: np.ndarray

    def loss(self, x: np.ndarray, y: np.ndarray) -> float:
        """The mean cross-entropy of a batch."""
        return cross_entropy(x @ self.weight.T + self.bias, y)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(((x @ self.weight.T + self.bias).argmax(1) == y).mean())

    def gradient(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the mean cross-entropy: (to weight, to bias)."""
        scores = x @ self.weight.T + self.bias
        share = np.exp(scores - scores.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        share[np.arange(len(y)), y] -= 1
        return share.T @ x / len(y), share.mean(0)


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> float:
    shifted = scores - scores.max(1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]).mean())


def descend(model: Softmax, batches, lr: float, *, momentum: float = 0.0, shrink=1.0, keep=0.0, after=False):
    """Losses before each step of SGD on the batches; `model` is left as it is after the last one.

    Every gradient is multiplied by `shrink`. keep: the part of the last gradient that a forgotten zero_grad leaves.
    after: each loss is taken after its step.
    """
    losses, speed, left = [], [0.0, 0.0], [0.0, 0.0]
    for x, y in batches:
        before = model.loss(x, y)
        left = [shrink * (g + keep * old) for g, old in zip(model.gradient(x, y), left)]
        speed = [momentum * v + g for v, g in zip(speed, left)]
        model.weight, model.bias = model.weight - lr * speed[0], model.bias - lr * speed[1]
        losses.append(model.loss(x, y) if after else before)
    return losses
