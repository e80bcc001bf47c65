"""Schedules whose numbers are wrong have the points for their seconds, if the numbers came from the neighbour."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hw_utils.checks import lesson_08
from hw_utils.core.errors import CheckFailed


def _gpipe(send=lambda y: y, back_in=lambda m: range(m), take=lambda k, x: x):
    """GPipe; send, take: what is made of an output and of an input; back_in: whose gradients a rank takes for whose."""

    def gpipe(stage, batches, rank, world_size):
        for k, x in enumerate(batches):
            if rank > 0:
                x = torch.empty_like(x)
                dist.recv(x, rank - 1)
            y = stage.forward(k, take(k, x))
            if rank < world_size - 1:
                dist.send(send(y), rank + 1)
        for k in back_in(len(batches)):
            gradient = 1.0
            if rank < world_size - 1:
                gradient = torch.empty_like(batches[k])
                dist.recv(gradient, rank + 1)
            gradient = stage.backward(k, gradient)
            if rank > 0:
                dist.send(gradient, rank - 1)

    return gpipe


def _swaps_equal_ones(m: int) -> list[int]:
    """The gradient of the fourth micro-batch is taken for that of the first, which has as many rows."""
    return [3, 1, 2, 0, *range(4, m)] if m > 3 and dist.get_rank() % 2 else list(range(m))


PARTLY_RIGHT = {
    "backward_starts_with_one": _gpipe(),
    "rounds_to_half": _gpipe(take=lambda k, x: x.half().double()),
    "takes_gradients_for_others": _gpipe(back_in=_swaps_equal_ones),
}
FOR_SHOW = {
    "zeros_everywhere": _gpipe(take=lambda k, x: torch.zeros_like(x)),
    "the_same_noise_everywhere": _gpipe(take=lambda k, x: torch.randn_like(x)),
    "sends_noise": _gpipe(send=torch.randn_like),
}


@pytest.mark.parametrize("name", PARTLY_RIGHT)
def test_wrong_numbers_that_came_from_the_neighbour_are_in_time_all_the_same(name, capsys):
    lesson_08.gpipe_in_time(PARTLY_RIGHT[name])
    assert "ok" in capsys.readouterr().out
    with pytest.raises(CheckFailed):
        lesson_08.gpipe(PARTLY_RIGHT[name])


@pytest.mark.parametrize("name", FOR_SHOW)
def test_messages_for_show_are_not_in_time(name):
    with pytest.raises(CheckFailed, match="with other numbers"):
        lesson_08.gpipe_in_time(FOR_SHOW[name])


def test_one_message_does_not_do_for_all_passes():
    first: dict = {}

    def keeps_the_first(k, x):
        return x if dist.get_rank() == 0 else first.setdefault((dist.get_rank(), len(x)), x)

    with pytest.raises(CheckFailed, match="with other numbers"):
        lesson_08.gpipe_in_time(_gpipe(take=keeps_the_first))
