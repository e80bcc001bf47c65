"""What the checks of lesson 07 look at, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hw_utils import CheckFailed, checks
from hw_utils.checks.kept_bytes import drop_others
from hw_utils.checks.lesson_07.optimizer import _why
from hw_utils.checks.lesson_07.second_objects import LR, tower
from tests.checks.wrong_answers import lesson_07 as wrong


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


class _TakesTheFirst(wrong._Recomputed):
    def again(self, k):
        self.starts = [self.starts[0]] * len(self.starts)
        super().again(k)


class _SeedsInForward(wrong._Recomputed):
    def forward(self, x):
        torch.manual_seed(1)
        return super().forward(x)


class _DrawsNewMasks(wrong._Recomputed):
    restores = False


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_TakesTheFirst, "back in the reverse one, each with the input it had"),
        (_SeedsInForward, "forward leaves another random state already"),
        (_DrawsNewMasks, "recomputed layers draw other dropout masks"),
    ],
)
def test_with_dropout_masks_are_the_cause_of_nothing_else(answer, says):
    with pytest.raises(CheckFailed, match=says):
        checks.lesson_07.recomputed(answer, cases=[{"n_layers": 11, "n_segments": 4, "dropout": 0.25}])


@pytest.mark.parametrize(("times", "says"), [(3.162, "bias corrections are missing"), (20.0, "20 times as long")])
def test_steps_that_are_too_long_on_many_ranks_are_no_shards_of_others(times, says):
    widths, n_ranks = [3, 4, 2], 6
    start = torch.cat([p.detach().flatten() for p in tower(widths).parameters()]).numpy()
    way = LR * np.where(np.arange(len(start)) % 2, 1.0, -1.0)
    assert says in _why((start + times * way)[None], (start + way)[None], widths, n_ranks, 0)
