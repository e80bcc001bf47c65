"""What a wrong Adam comes of: by its steps' length, by what it takes of the weights, or by what becomes of eps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce

import numpy as np
import torch

from hw_utils.checks.lesson_07.second_objects import LR, batch, tower

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
# (v, 1 - beta2**t) -> what m / (1 - beta1**t) is divided by
Divisor = Callable[[torch.Tensor, float], torch.Tensor]


class _Adam:
    """Adam's steps by hand."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float, divisor: Divisor) -> None:
        self.state = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.lr, self.divisor, self.t = lr, divisor, 0

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        for p, m, v in self.state:
            m.lerp_(p.grad, 1 - BETA1)
            v.lerp_(p.grad.square(), 1 - BETA2)
            p -= self.lr * m / (1 - BETA1**self.t) / self.divisor(v, 1 - BETA2**self.t)


_NO_SUMS = {"largest (MAX)": torch.maximum, "smallest (MIN)": torch.minimum, "product (PRODUCT)": torch.mul}
_INSIDE = "eps belongs outside the root: sqrt(v / (1 - beta2**t)) + eps."
_CAUSES: list[tuple[Divisor, str]] = [
    (
        lambda v, correction: (v.sqrt() + EPS) / correction**0.5,
        "eps is added to sqrt(v) before the bias correction, which then makes it larger: torch's Adam adds it to "
        "sqrt(v / (1 - beta2**t)).",
    ),
    (lambda v, correction: (v / correction + EPS).sqrt(), _INSIDE),
    (lambda v, correction: ((v + EPS) / correction).sqrt(), _INSIDE),
    (lambda v, correction: (v / correction).sqrt(), "eps is missing: sqrt(v / (1 - beta2**t)) + eps."),
]


def with_eps_elsewhere() -> Iterator[tuple[Callable, str]]:
    """(makes an optimizer of (parameters, lr), the cause of what it does otherwise)."""
    for divisor, cause in _CAUSES:
        yield partial(_Adam, divisor=divisor), cause
    for digits in (5, 6, 7, 9, 10, 12):
        eps = 10.0**-digits
        cause = f"that is Adam with an eps of {eps:g}: take the one that came in, which is {EPS:g} if nothing is said."
        yield partial(_Adam, divisor=lambda v, correction, eps=eps: (v / correction).sqrt() + eps), cause


def why_no_sum(got: np.ndarray, widths: list[int], world_size: int) -> str:
    """The cause of weights after one step that come of a reduction with another operation than SUM or AVG; "" if of
    none."""
    model = tower(widths)
    parameters = list(model.parameters())
    losses = [model(batch(rank, 0, widths[0])).square().mean() for rank in range(world_size)]
    gradients = [torch.autograd.grad(loss, parameters) for loss in losses]

    def stepped(combine: Callable) -> np.ndarray:
        flat = [p.detach().clone().requires_grad_() for p in parameters]
        for p, *each in zip(flat, *gradients):
            p.grad = reduce(combine, each)
        torch.optim.Adam(flat, lr=LR).step()
        return torch.cat([p.detach().flatten() for p in flat]).numpy()

    right = stepped(torch.add)
    for name, combine in _NO_SUMS.items() if world_size > 1 else ():
        other = stepped(combine)
        if abs(other - right).max() > LR and np.allclose(got, other, rtol=0, atol=LR / 20):
            return f"that is Adam with the {name} of the ranks' gradients: their sum divided by N is asked, or AVG."
    return ""


def is_decay(difference: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the difference is the same share of each weight, as a step's is that also makes weights smaller."""
    large = abs(weights) > 1e-3
    shares = difference[large] / weights[large]
    return bool(large.any() and (shares < -1e-9).all() and np.ptp(shares) < 1e-3 * abs(shares).max())


def are_others(got: np.ndarray, start: np.ndarray, size: int, lr: float) -> bool:
    """Whether each shard of the weights is a step away from some shard of the first ones, one of them from another."""
    n_shards = -(-len(start) // size)
    now, first = (np.pad(one, (0, n_shards * size - len(one))).reshape(n_shards, size) for one in (got, start))
    there = np.arange(n_shards * size).reshape(n_shards, size) < len(start)
    near = (abs(now[:, None] - first[None]) < 1.1 * lr) | ~(there[:, None] & there[None])
    fits = near.all(axis=2)
    return bool(fits.any(axis=1).all() and not fits.diagonal().all())


_LENGTHS = (  # the first step's, in times of the right one: there every weight moves by lr
    (0.1, "m / (1 - beta1**t) is missing: the first step is a tenth of the right one."),
    (0.1 / 0.001**0.5, "both bias corrections are missing: the first step is 3.16 times the right one."),
    (0.001**-0.5, "v / (1 - beta2**t) is missing: the first step is 31.6 times the right one."),
    (0.01, "m is made with beta2: it takes beta1, and v beta2."),
    (0.1 / 0.19 * (0.001999 / 0.001) ** 0.5, "t is 2 in the first step's bias correction: it counts from 1."),
    (
        10.0,
        "the first step is 10 times the right one: m takes 1 - beta1 of the gradient, and v the square of the "
        "gradient, not of m.",
    ),
    ((0.001 / 0.999) ** 0.5, "v takes 1 - beta2 of the square of the gradient, not beta2 of it."),
    (9.0, "m takes 1 - beta1 of the gradient, not beta1 of it."),
    (-1.0, "the weights go up the gradient: they lose the step."),
)


def _of_ranks(n: int) -> tuple[tuple[float, str], ...]:
    """The same for what is taken N times too large or too small, if N ranks say something."""
    if n < 2:
        return ()
    return (
        (n**-0.5, "v is N times too large: it takes the square of the mean gradient, as m takes the mean."),
        (n**0.5, "v is N times too small: it takes the square of the mean gradient, as m takes the mean."),
        (1 / n, "the first step is 1/N of the right one: m and v take the same gradient, the mean, and lr is lr."),
        (n, "the first step is N times the right one: m and v take the same gradient, the mean, and lr is lr."),
    )


def why_length(ratio: np.ndarray, world_size: int = 1) -> str:
    """The cause of a first step of which every weight's is equally many times too long."""
    if not np.isfinite(ratio).all():
        return "a step gives nan or inf: t is 1 in the first step, and counted before it is used."
    if np.ptp(ratio) < 1e-2 * abs(ratio).max():
        if np.isclose(ratio[0], 1.0, rtol=1e-2):
            return "the first step is lr to a few digits, as that of sign(g): m, v and eps make the rest of it."
        lengths = (*_LENGTHS, *_of_ranks(world_size))
        named = next((text for times, text in lengths if np.isclose(ratio[0], times, rtol=1e-2)), "")
        return named or (
            f"the first step is {ratio.mean():.3g} times as long in every weight. There each is lr long: look at what "
            "lr, m or v is multiplied with."
        )
    return "compare m, v, their bias corrections and eps with torch.optim.Adam's formula."
