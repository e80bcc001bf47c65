"""Checks of lesson 05: what a training made of the weights, seen from outside the student's code."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hw_utils.checks import drawn_numbers
from hw_utils.checks.lesson_04.collective_contents import is_made_of, note_inputs
from hw_utils.core.errors import CheckFailed
from hw_utils.material.models import SimpleCNN

LR, MOMENTUM = 0.01, 0.9  # of the lesson's fresh_start
PARTS = {"forward": 0.031, "backward": 0.053, "the step": 0.017}  # virtual seconds; no two sums of them are alike
_SHOWN = 8  # numbers of each parameter that are looked at


def seconds_of(part: str) -> float:
    """What a part of an iteration takes; a grader has each take its own while longer."""
    return PARTS[part] * drawn_numbers.factor(part)


class _Watch:
    """What a rank's SimpleCNN went through: weights before each backward, its loss at the scores, its gradients."""

    def __init__(self) -> None:
        self.model: SimpleCNN | None = None
        self.hooked: dict[int, torch.Tensor] = {}
        self.steps: list[dict[str, Any]] = []
        self.rank = dist.get_rank()
        self.known: dict[int, Any] = {}  # models and optimizers with a hook of ours
        self.n_steps = 0  # of optimizers; one who steps by hand has none
        self.n_iterations = 1

    # Torch's hooks for all modules and optimizers are one set for the threads of all ranks. So they only put hooks on
    # this rank's own, and no time passes in them: another rank might change the set meanwhile.
    def before_forward(self, module, args) -> None:
        if isinstance(module, SimpleCNN) and dist.get_rank() == self.rank and id(module) not in self.known:
            self.known[id(module)] = module
            module.register_forward_hook(self.after_forward)

    def before_step(self, optimizer, args, kwargs) -> None:
        if dist.get_rank() == self.rank and id(optimizer) not in self.known:
            self.known[id(optimizer)] = optimizer
            optimizer.register_step_post_hook(self.after_step)

    def spend(self, name: str, k: int) -> None:
        """Time of iteration k passes: a little in the first, most in the last, `seconds_of` in the mean."""
        time.sleep(seconds_of(name) * share(k, self.n_iterations))

    def after_step(self, optimizer, args, kwargs) -> None:
        self.stepped()

    def stepped(self) -> None:
        self.n_steps += 1
        time.sleep(seconds_of("the step"))

    def after_forward(self, module, args, scores) -> None:
        if not scores.requires_grad:
            return
        self.spend("forward", len(self.steps))
        self.model = module
        for k, p in enumerate(module.parameters()):  # those of this pass: what computes a model may lend it others
            if id(p) not in self.hooked:
                self.hooked[id(p)] = p
                p.register_hook(lambda gradient, k=k: self.gradient_comes(k, gradient))
        seen = {"weights": self.weights(), "scores": scores.detach().clone()}
        scores.register_hook(lambda gradient: self.backward_begins({**seen, "upstream": gradient.clone()}))

    def backward_begins(self, seen: dict[str, Any]) -> None:
        self.spend("backward", len(self.steps))
        self.steps.append({**seen, "gradients": {}})

    def gradient_comes(self, k: int, gradient: torch.Tensor) -> None:
        if self.steps:
            self.steps[-1]["gradients"][k] = gradient.flatten()[:_SHOWN].clone()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten()[:_SHOWN] for p in self.model.parameters()])

    def seen(self) -> dict[str, Any]:
        for step in self.steps:
            parts = step["gradients"]
            step["gradients"] = torch.cat([parts[k] for k in sorted(parts)]) if parts else None
        return {"steps": self.steps, "weights": self.weights() if self.steps else None}


def share(k: int, n_iterations: int) -> float:
    """How long iteration k's passes take, as a share of their mean: 1, 7, 19, ... of n * n, whose median is less."""
    return ((k + 1) ** 3 - k**3) / n_iterations**2


def watched(rank: int, world_size: int, worker, n_iterations: int, *args) -> dict[str, Any]:
    """What `worker(rank, world_size, n_iterations, *args)` returned, and what became of the SimpleCNN that it trained.

    A forward, a backward and a step of the optimizer take `seconds_of` of the rank's clock, in the mean.
    The passes are computed here, wherever the worker runs: no process but ours says what a gradient was.
    """
    watch = _Watch()
    watch.n_iterations = n_iterations
    if hasattr(type(worker), "CROSSES_AS"):  # its optimizer is in its own process
        worker = worker.with_passes_here(SimpleCNN, stepped=watch.stepped)
    hooks = [
        register_module_forward_pre_hook(watch.before_forward),
        register_optimizer_step_pre_hook(watch.before_step),
    ]
    carried = note_inputs()
    try:
        returned = worker(rank, world_size, n_iterations, *args)
    finally:
        for hook in hooks:
            hook.remove()
    put_in = [[t.numel(), t[:_SHOWN]] for kind, inputs in carried for t in inputs if kind == "all_reduce"]
    return {"returned": returned, "n_steps": watch.n_steps, "put_in": put_in, **watch.seen()}


def judge_weights(what: str, results: list[dict[str, Any]], n_iterations: int, *, waits_late: bool = False) -> None:
    """Raises CheckFailed unless every rank's weights followed SGD with the mean of all ranks' gradients.

    waits_late: calls under way at once, with async_op, are a cause to think of.
    """
    for rank, result in enumerate(results):
        if len(result["steps"]) != n_iterations:
            raise CheckFailed(
                f"{what}: rank {rank} ran backward through the model {len(result['steps'])} times.",
                cause="one forward and one backward an iteration.",
            )
    paths = [np.stack([*(step["weights"] for step in r["steps"]), r["weights"]]) for r in results]
    own = [[_own_gradient(what, step) for step in r["steps"]] for r in results]
    if len(results) > 1 and all(
        np.array_equal(r["steps"][0]["scores"], results[0]["steps"][0]["scores"]) for r in results
    ):
        raise CheckFailed(
            f"{what}: all ranks train on the same batch.",
            cause="every rank has images of its own: fresh_start(rank, batch_size), with the rank that came in.",
        )
    gradients = np.mean([[gradient for gradient, _ in steps] for steps in own], axis=0)
    scale = own[0][0][1]
    expected = paths[0][0] + _way(gradients)
    for rank, path in enumerate(paths):
        if not _same_way(path, expected):
            raise CheckFailed(
                f"{what}: the weights of rank {rank} do not follow SGD (step {LR}, momentum {MOMENTUM}) with the "
                "mean gradient of all ranks.",
                cause=_why_still(paths, n_steps=result["n_steps"])
                or _why_weights(paths, gradients, scale, len(results[0]["steps"][0]["scores"]), waits_late),
            )
    for rank, (result, steps) in enumerate(zip(results, own)):
        _require_own_gradients(f"{what}: rank {rank}", result["put_in"], [gradient for gradient, _ in steps])


def _require_own_gradients(who: str, put_in: list[Any], gradients: list[np.ndarray]) -> None:
    """Raises CheckFailed unless each all_reduce of a rank begins with what one of its gradients begins with.

    put_in: [numbers of the tensor, its first ones]; gradients: each iteration's, the first numbers of each parameter.
    """
    sizes = [p.numel() for p in SimpleCNN().parameters()]
    a_time = max(1, len(put_in) // len(gradients))
    for n, (size, first) in enumerate(put_in):
        shown = np.split(
            gradients[min(n // a_time, len(gradients) - 1)], np.cumsum([min(s, _SHOWN) for s in sizes])[:-1]
        )
        due = [gradient for s, gradient in zip(sizes, shown) if s == size]
        if due and all(np.any(gradient) and not is_made_of(np.asarray(first), [gradient]) for gradient in due):
            raise CheckFailed(
                f"{who}: what it puts into all_reduce number {n + 1}, of {size} numbers, is not one of its gradients.",
                cause="p.grad travels, as backward has left it: the others have no other way to learn of it.",
            )


def _own_gradient(what: str, step: dict[str, Any]) -> tuple[np.ndarray, float]:
    """A rank's gradient of its batch's mean loss, and how many times that loss was sent through backward."""
    chances = torch.softmax(torch.from_numpy(step["scores"]).double(), dim=1).numpy()
    upstream = step["upstream"]
    chances[np.arange(len(chances)), upstream.argmin(axis=1)] -= 1  # the right class is pulled up, all others down
    scale = len(chances) * float(np.abs(upstream).sum() / np.abs(chances).sum())
    if not scale > 0 or step["gradients"] is None or step["gradients"].shape != step["weights"].shape:
        raise CheckFailed(f"{what}: no gradient reaches the model's parameters.", cause="loss.backward() brings it.")
    return step["gradients"].astype("f8") / scale, scale


def _way(gradients: np.ndarray, *, factor: float = 1.0, keep: float = 0.0, momentum: float = MOMENTUM) -> np.ndarray:
    """How far SGD has come before each iteration and after the last. keep: of the old gradient, if never cleared."""
    way, speed, kept = [np.zeros_like(gradients[0])], 0.0, 0.0
    for row in gradients:
        kept = factor * row + keep * kept
        speed = momentum * speed + kept
        way.append(way[-1] - LR * speed)
    return np.stack(way)


def _same_way(path: np.ndarray, expected: np.ndarray) -> bool:
    tolerance = 0.02 * np.abs(expected - expected[0]).max() + 1e-7
    return bool(np.abs(path - expected).max() <= tolerance)


def _why_still(paths: list[np.ndarray], n_steps: int) -> str:
    """The cause, if no weight ever moves."""
    if not all(_same_way(path, path[:1].repeat(len(path), axis=0)) for path in paths):
        return ""
    if n_steps:
        return (
            "they never move: optimizer.step() is called, and finds gradients of zeros, or none. They are cleared "
            "before backward, and nothing clears them between backward and the step."
        )
    return "they never move: optimizer.step() ends the iteration."


def _why_weights(
    paths: list[np.ndarray], gradients: np.ndarray, scale: float, batch_size: int, waits_late: bool
) -> str:
    n = len(paths)
    if any(not _same_way(path[:1], paths[0][:1]) for path in paths):
        return "ranks start from different weights: take model and optimizer from fresh_start, once, before the loop."
    if len(gradients) > 1 and all(_same_way(path[:-1], path[:1].repeat(len(path) - 1, axis=0)) for path in paths):
        return "every iteration starts from the first weights: take model and optimizer once, before the loop."
    causes = {
        "the loss is the mean over the batch, not a sum.": {"factor": scale},
        "that is the sum of the gradients: divide every p.grad by world_size after its all_reduce.": {"factor": n},
        "the gradients are divided by world_size twice.": {"factor": 1 / n},
        "the gradients are divided by the batch's size too: the loss is its mean already.": {"factor": 1 / batch_size},
        "momentum is lost: step with the optimizer of fresh_start, the same one in every iteration.": {"momentum": 0.0},
        "gradients of the iteration before are still there: optimizer.zero_grad() before backward.": {"keep": 1.0},
        "gradients of the iteration before are still there, and no p.grad is divided: optimizer.zero_grad() before "
        "backward, and the mean after it.": {"factor": n, "keep": n},
    }
    for cause, change in causes.items():
        if all(_same_way(path, path[0] + _way(gradients, **change)) for path in paths):
            return cause
    if waits_late:
        return "with async_op=True no p.grad is yours until wait(): wait for every call, then divide, then step."
    if any(not _same_way(path, paths[0]) for path in paths):
        return "ranks drift apart: step with what the all_reduce left in p.grad, on every rank, and not before it."
    return "the optimizer of fresh_start steps once an iteration, with the mean of all ranks' gradients."
