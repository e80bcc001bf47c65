"""What an answer says of lent models: plain values, and no memory behind them but their own numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker
from tests.grader.driving.lent_sides import both_sides, brought_back, equal


def test_what_comes_for_a_lent_model_is_plain_and_has_no_memory_behind_it():
    model = nn.Linear(2, 3)
    (far,), here, there = both_sides(model)
    far.bias.data = torch.arange(9.0)[:3].view(1, 3)
    far.weight.grad = torch.ones(4, 3, 2)[1]
    brought_back(here, there)
    assert equal(far, model)
    kept = (model.bias, model.weight.grad)
    assert [t.untyped_storage().nbytes() for t in kept] == [t.nbytes for t in kept]


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("view", [torch.rand(9)[::3], torch.rand(1).expand(7), torch.rand(9)[2:5], torch.rand(2, 3).T])
def test_a_plain_tensor_is_no_view_of_more_than_its_own_numbers(view, is_whole):
    parcel = Parcel(Lent(), is_whole=is_whole)
    tree = parcel.pack({"grad": [view, (view.numpy(),)]})
    got = Unpacker(parcel.blob(), Lent()).unpack_plain(tree)["grad"]
    assert torch.equal(got[0], view)
    assert got[0].untyped_storage().nbytes() == view.nbytes
    assert got[1][0].base is None


@pytest.mark.parametrize(
    "lent", [{"object": [0, "bool", None]}, {"function": 0}, {"lent": 0}, {"iterator": ["zip", []]}]
)
def test_nothing_lent_stands_in_what_comes_for_a_lent_model(lent):
    model = nn.Linear(2, 3)
    (_, _), here, there = both_sides(model, len)
    tree = Parcel(there).pack(there.states())
    with pytest.raises(ValueError, match="not a packed value"):
        Unpacker(b"", here).unpack_plain([tree, lent])


def test_parameters_that_a_lent_model_does_not_have_cannot_be_put_into_it():
    model = nn.Linear(2, 3)
    (_,), here, there = both_sides(model)
    (state,) = there.states()
    with pytest.raises(TypeError, match="this Linear does not cross"):
        here.set_states([{**state, "replaced": [["weight", "another"]]}])
    assert set(dict(model.named_parameters())) == {"weight", "bias"}
