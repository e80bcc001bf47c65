"""What each rank puts into collectives comes of its own share of the examples, not of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hw_utils.core.errors import CheckFailed

_REST = 0.3  # of a rank's part of the step: rounding and other orders of a sum are a hundredth of it
_OFF = 0.02  # of the step: so much of all ranks' together shows that an earlier step was another one
_USED = 0.1  # of the largest weight of an example: below it is not there


@dataclass(frozen=True)
class Iteration:
    """What one iteration of one worker is made of."""

    before: np.ndarray  # (d,) the weights
    gradients: np.ndarray  # (n, d) of each example at these weights


def iteration(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Iteration:
    """Of the model as it stands; the loss is the cross entropy. It leaves the model's gradients alone."""
    weights = list(model.parameters())
    losses = (cross_entropy(model(x[k : k + 1]), y[k : k + 1]) for k in range(len(x)))
    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]).numpy() for loss in losses]
    return Iteration(torch.cat([w.detach().flatten() for w in weights]).numpy().copy(), np.stack(rows))


def require_own_shares(who: str, brought: np.ndarray, whole: np.ndarray, made_of: Iteration, at_most: int) -> None:
    """Raises CheckFailed unless each rank brought the weights, changed by few examples' gradients, or these alone.

    brought: (ranks, d), together `whole` but for a factor and the order of its numbers. at_most: examples a rank.
    """
    brought = _in_order(np.asarray(brought, "f8"), whole)
    columns = np.stack([made_of.before, *made_of.gradients], axis=1).astype("f8")
    found = np.linalg.lstsq(columns, brought.T, rcond=None)[0]  # (1 + n, ranks)
    rest = np.linalg.norm(brought.T - columns @ found, axis=0)
    step = np.linalg.norm(columns[:, 1:] @ found[1:].sum(axis=1)) / len(brought)
    is_used = np.abs(found[1:]) > _USED * np.abs(found[1:]).max()
    wrong = np.flatnonzero((rest > _REST * step) | (is_used.sum(axis=0) > at_most))
    if len(wrong) and np.linalg.norm((brought.T - columns @ found).mean(axis=1)) > _OFF * step:
        raise CheckFailed(
            f"{who}: what all ranks together put into collectives is near to one worker's, and not the same.",
            cause="an earlier step was another one: where the ranks' shares differ in length, a mean of their means is "
            "not the mean over all examples. Weigh each example alike.",
        )
    if len(wrong):
        raise CheckFailed(
            f"{who}: what rank {wrong[0]} puts into collectives does not come of {at_most} examples, its share.",
            cause="each rank computes with its own share of the batch, and brings what comes of that: the sum over the "
            "ranks is right, but every rank has done the whole work.",
        )


def _in_order(brought: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The rows with their numbers in the whole's order."""
    together = brought.sum(axis=0)
    if np.abs(np.corrcoef(together, whole)[0, 1]) > 0.999:
        return brought
    ordered = np.empty_like(brought)
    ordered[:, np.argsort(whole, kind="stable")] = brought[:, np.argsort(together, kind="stable")]
    return ordered
