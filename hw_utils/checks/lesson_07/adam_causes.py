"""Adams that differ from torch's by what becomes of eps: right to many places, and not to the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

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
