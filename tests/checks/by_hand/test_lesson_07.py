"""What the checks of lesson 07 look at, by hand."""

from __future__ import annotations

import pytest
import torch

from hw_utils.checks.kept_bytes import drop_others
from hw_utils.checks.lesson_07.second_objects import tower


@pytest.mark.parametrize("change", [lambda g: g, lambda g: g / 3, lambda g: -g, lambda g: torch.zeros_like(g)])
def test_a_gradient_stays_the_models_own_whatever_it_is_divided_by(change):
    model = tower([3, 4, 2])
    model(torch.rand(5, 3, dtype=torch.float64)).square().mean().backward()
    own = [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad.copy_(change(p.grad))
    drop_others(model, own)
    assert all(p.grad is not None for p in model.parameters())


def test_what_lies_in_a_gradients_place_is_none_of_the_models():
    model = tower([3, 4, 2])
    model(torch.rand(5, 3, dtype=torch.float64)).square().mean().backward()
    own = [p.grad.clone() for p in model.parameters()]
    first, second, third, fourth = model.parameters()
    first.grad = 0.1 * first.grad + 0.01 * torch.rand_like(first)  # a moment
    second.grad = second.grad.square()
    third.grad = None
    drop_others(model, own)
    assert [p.grad is None for p in (first, second, third, fourth)] == [True, True, True, False]
