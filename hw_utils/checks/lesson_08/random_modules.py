"""A stage whose module draws random numbers: its gradients belong to the output that has left, not to new draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import observe, require_no_deadlock
from hw_utils.checks.lesson_06.shards import distance
from hw_utils.core.errors import CheckFailed
from hw_utils.simulate import simulate

_WIDTH, _ROWS, _BATCHES = 8, 16, (0, 1, 2)
_PASSES = (("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2))


def _batch(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(input, gradient of the output) of micro-batch k."""
    draw = torch.Generator().manual_seed(k)
    x, gradient = (torch.randn(_ROWS, _WIDTH, generator=draw, dtype=torch.float64) for _ in range(2))
    return x, gradient


def _weight() -> torch.Tensor:
    """Of the last layer, which can be undone: what the dropout has left shows in the output."""
    return torch.eye(_WIDTH, dtype=torch.float64) + 0.5 * torch.ones(_WIDTH, _WIDTH, dtype=torch.float64).tril(-1)


def _worker(rank: int, world_size: int, make: Any, p: float) -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        last = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
        module = torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.Dropout(p), last).double()
    with torch.no_grad():
        last.weight.copy_(_weight())
    drawn_numbers.set_random_state(9, "forward")
    stage = make(module)
    outputs: list[Any] = [None] * len(_BATCHES)
    for kind, k in _PASSES:
        if kind == "B":
            drawn_numbers.set_random_state(90 + k, "backward")  # what came before it, nobody works out from it
            stage.backward(k, _batch(k)[1])
        else:
            y = stage.forward(k, _batch(k)[0])
            outputs[k] = y.detach().clone() if isinstance(y, torch.Tensor) else y
    return {"outputs": outputs, "gradient": last.weight.grad}


def drive_random(make: Any, p: float) -> dict[str, Any]:
    """Three micro-batches through a module with a dropout layer, the third one when the first one is back."""
    return observe(lambda: simulate(_worker, 1, (make, p), compute="free", echo=False))


def judge_random(data: Any, p: float) -> None:
    """Raises CheckFailed unless the gradient of the last layer's weight is that of the outputs that have left."""
    what = f"a module with dropout({p:g}), {len(_BATCHES)} micro-batches"
    require_no_deadlock(data, what)
    (result,) = data["results"]
    undo = np.linalg.inv(_weight().numpy())
    right, masks = np.zeros((_WIDTH, _WIDTH)), []
    for k, y in zip(_BATCHES, result["outputs"]):
        if not isinstance(y, np.ndarray) or y.shape != (_ROWS, _WIDTH):
            raise CheckFailed(f"{what}: forward gave no tensor of {(_ROWS, _WIDTH)}.", cause="forward gives module(x).")
        kept = y @ undo.T
        if not np.isclose(kept, 0, atol=1e-9).any():
            raise CheckFailed(
                f"{what}: nothing is dropped.",
                cause="the module is in training, and stays so: eval() is its caller's to call.",
            )
        masks.append(np.isclose(kept, 0, atol=1e-9))
        right += _batch(k)[1].numpy().T @ kept
    got = result["gradient"]
    if not isinstance(got, np.ndarray) or distance(got, right) > 1e-9:
        raise CheckFailed(
            f"{what}: a gradient is not that of the output that forward gave.",
            cause="whoever goes through the module again draws anew: keep the graph of forward, or put back the random "
            "state that it began with.",
        )
    same = [(j, k) for k in _BATCHES for j in range(k) if np.array_equal(masks[j], masks[k])]
    if same:
        shown = " ".join(f"{kind}{k}" for kind, k in _PASSES)
        raise CheckFailed(
            f"{what}: in {shown}, the same is dropped of micro-batches {same[0][0]} and {same[0][1]}.",
            cause="each micro-batch draws numbers of its own: a backward that sets torch's random state puts back the "
            "one that was there before.",
        )
