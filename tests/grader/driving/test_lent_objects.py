"""What is lent to an answer in another process: models and optimizers stay equal, functions are asked for."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.driving.marshalling.model_and_optimizer_states import set_state, state_of
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker
from hw_grader.driving.marshalling.passes_elsewhere import Shell
from hw_utils.checks.lesson_04.worker import Job, small_data, small_model
from tests.grader.driving.lent_sides import both_sides, brought_back, equal


class Counts(nn.Module):
    """Two layers and plain attributes that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.n_seen, self.sizes = 0, []

    def forward(self, x):
        self.n_seen += len(x)
        self.sizes.append(len(x))
        return self.inner(x)


class Layer:
    LENDS = ("world_size", "double")
    world_size, secret = 3, "case"

    def double(self, x):
        return 2 * x


def trained() -> tuple[Counts, torch.optim.SGD]:
    torch.manual_seed(4)
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(5, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_model_and_its_optimizer_cross_with_gradients_and_come_back_changed():
    model, optimizer = trained()
    (far, far_optimizer), here, there = both_sides(model, optimizer)
    assert type(far) is Shell  # the tests' class stays here
    assert equal(far, model)
    assert far_optimizer.param_groups[0]["params"][0] is next(far.parameters())

    expected, expected_optimizer = copy.deepcopy((model, optimizer))
    for net, steps in ((far, far_optimizer), (expected, expected_optimizer)):
        steps.zero_grad()
        sum(p.square().sum() for p in net.parameters()).backward()
        steps.step()
        net.eval()
    assert not equal(far, model)
    brought_back(here, there)
    assert equal(model, expected)
    assert str(optimizer.state_dict()) == str(expected_optimizer.state_dict())
    assert (model.training, model.n_seen) == (False, 5)


def test_layers_in_another_order_are_the_same_objects_on_the_other_side():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    (far,), here, there = both_sides(model)
    first, second, third = (layer.weight for layer in far)
    first.hooked = True
    model[0], model[1] = model[1], model[0]
    model[2].weight = nn.Parameter(torch.ones(1, 1))  # this one is new
    both_sides(model, here=here, there=there)
    assert [layer.weight for layer in far][:2] == [second, first]
    assert far[1].weight.hooked
    assert far[2].weight is not third
    assert equal(far, model)


def crossing(side: Lent) -> int:
    """How many tensors its states bring now."""
    parcel = Parcel(side)
    parcel.pack(side.states())
    return len(parcel.tensors)


def test_only_what_has_changed_crosses_again_until_a_call_has_failed():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    (far,), here, there = both_sides(model)
    n = len(state_of(model)["tensors"])
    assert (crossing(here), crossing(there)) == (0, 0)
    model[0].bias.data += 1  # no version of autograd's tells that
    both_sides(here=here, there=there)
    assert equal(far, model)
    far[2].weight.grad = torch.ones(1, 3)
    brought_back(here, there)
    assert equal(far, model)
    assert (crossing(here), crossing(there)) == (0, 0)
    far[0].weight.data += 1  # in a call that does not return
    here.forget_states()
    assert crossing(here) == n + 1
    here.forget_states()
    both_sides(here=here, there=there)
    assert equal(far, model)


CHANGES = {
    "weight": lambda m: m[0].weight.data.add_(1),
    "back": lambda m: m[0].weight.data.sub_(1),
    "by numpy": lambda m: m[2].bias.detach().numpy().fill(3),
    "gradient": lambda m: setattr(m[0].bias, "grad", torch.ones(3)),
    "no gradient": lambda m: m.zero_grad(),
    "buffer": lambda m: m[1].running_mean.add_(2),
    "frozen": lambda m: m[2].requires_grad_(False),
    "evaluates": lambda m: m.train(not m.training),
    "elsewhere": lambda m: setattr(m[2].weight, "data", m[2].weight.data.clone()),
    "anew": lambda m: setattr(m[2], "bias", nn.Parameter(torch.zeros(3))),
    "swapped": lambda m: m._modules.update({"0": m[2], "2": m[0]}),
    "as wide": lambda m: setattr(m[0].weight, "data", m[0].weight.data.repeat(1, 1).t().contiguous().t()),
}


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(sorted(CHANGES)), max_size=4)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_whatever_either_side_does_in_turn_the_other_one_has_it(turns):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    (far,), here, there = both_sides(model)
    for is_drivers, changes in turns:
        for name in changes:
            CHANGES[name](model if is_drivers else far)
        both_sides(here=here, there=there) if is_drivers else brought_back(here, there)
        assert equal(far, model), changes


@pytest.mark.parametrize("n_bytes", [0, 4])
def test_a_weight_without_its_memory_ends_no_process(n_bytes):
    model = nn.Linear(2, 2)
    (far,), _, there = both_sides(model)
    far.weight.untyped_storage().resize_(n_bytes)
    assert there.states()[0]["tensors"]["weight"] is not None
    far.bias = nn.Parameter(far.bias.to("meta"))
    assert there.states()[0]["tensors"]["bias"] is not None


def test_what_the_driver_noted_and_set_does_not_come_back():
    model, optimizer = trained()
    (far, far_optimizer), here, there = both_sides(model, optimizer)
    far_optimizer.param_groups[0]["lr"] = 9.0
    far.n_seen = far.inner.n_seen = 0
    brought_back(here, there)
    assert model.n_seen == 5
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not hasattr(model.inner, "n_seen")


def test_a_thing_is_sent_once_and_a_later_one_may_hold_it():
    model, _ = trained()
    (far,), here, there = both_sides(model)
    (again, layer), here, there = both_sides(model, nn.Linear(1, 1), here=here, there=there)
    assert again is far
    assert type(layer) is nn.Linear


def test_what_an_answer_made_has_a_number_and_is_the_same_each_time():
    there = Lent(print)
    made = object()
    tree = Parcel(there).pack([made, made])
    assert tree == [{"object": [0, "object", None]}] * 2
    assert there.kept == [made]


def test_the_same_model_twice_is_one_model():
    model, _ = trained()
    (one, two), _, _ = both_sides(model, model)
    assert one is two


def test_parameters_keep_their_place_in_memory_and_in_a_graph():
    model, _ = trained()
    weight, at = model.inner[0].weight, model.inner[0].weight.data_ptr()
    loss = model(torch.ones(3, 2)).sum()
    state = copy.deepcopy(state_of(model))
    state["tensors"]["inner.0.bias"] += 1
    set_state(model, state)
    loss.backward()  # autograd has not seen a change
    assert model.inner[0].weight is weight
    assert weight.data_ptr() == at


def test_a_parameter_may_change_its_shape_a_gradient_may_go():
    model, _ = trained()
    state = copy.deepcopy(state_of(model))
    state["tensors"]["inner.0.weight"] = torch.zeros(1, 2, dtype=torch.float64)
    state["gradients"] = {}
    set_state(model, state)
    assert model.inner[0].weight.shape == (1, 2)
    assert model.inner[0].weight.dtype == torch.float64
    assert all(p.grad is None for p in model.parameters())


def test_a_parameter_that_one_side_makes_anew_is_another_object_on_the_other():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
            self.b.weight = self.a.weight

    model = Tied()
    (theirs,), here, there = both_sides(model)
    weight, other = model.a.weight, model.c.weight
    here.set_states(there.states())
    assert model.a.weight is weight
    theirs.a.weight = theirs.b.weight = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    here.set_states(there.states())
    assert model.a.weight is not weight
    assert model.a.weight is model.b.weight
    assert model.c.weight is other
    assert not model.a.weight.requires_grad
    assert torch.equal(model.a.weight, torch.ones(2, 2))
    new = model.a.weight
    here.set_states(there.states())
    assert model.a.weight is new


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s["tensors"].pop("inner.0.bias"),
        lambda s: s["tensors"].update(more=torch.ones(1)),
        lambda s: s["tensors"].update({"inner.0.bias": 3}),
        lambda s: s.pop("training"),
        lambda s: s["gradients"].update({"inner.0.bias": torch.ones(7)}),
        lambda s: s["training"].pop(""),
        lambda s: s.pop("replaced"),
        lambda s: s.update(replaced=[["no.such"]]),
        lambda s: s.update(replaced=[[]]),
        lambda s: s.update(replaced=[[3]]),
        lambda s: s.update(replaced="weights"),
    ],
)
def test_a_made_up_state_is_refused(spoil):
    model, _ = trained()
    state = copy.deepcopy(state_of(model)) | {"replaced": []}
    spoil(state)
    here = Lent()
    here.things.append(model)
    with pytest.raises(TypeError, match="does not cross"):
        here.set_states([state])
    with pytest.raises(TypeError, match="not the states"):
        here.set_states([])


def test_functions_and_layers_stay_on_the_drivers_side():
    (add, layer), here, _ = both_sides(lambda a, b: a + b, Layer())
    assert add(1, b=2) == 3
    assert (layer.world_size, layer.double(4)) == (3, 8)
    assert not hasattr(layer, "secret")
    assert len(here.functions) == 2


def test_a_function_with_some_arguments_is_called_with_these():
    job = Job("ddp", small_model, functools.partial(small_data, 3), 12, 4, 0.1, 0.9, 5)
    (far,), _, _ = both_sides(job)
    assert not hasattr(far.data, "func")
    assert str([*far.data()[1]]) == str([*job.data()[1]])


def test_settings_and_data_sets_are_copied():
    from hw_utils.material.recipe import Recipe

    data = TensorDataset(torch.arange(4))
    (recipe, far), here, there = both_sides(Recipe(seed=3), data)
    assert recipe == Recipe(seed=3)
    assert far is not data
    assert far[2] == data[2]
    brought_back(here, there)


def test_what_cannot_be_lent_is_named():
    with pytest.raises(TypeError, match="a object does not cross"):
        Parcel(Lent()).pack(object())
    net = nn.Linear(1, 1)
    net.register_forward_hook(lambda *_: None)
    here = Lent()
    Parcel(here).pack(net)
    with pytest.raises(TypeError, match="a Linear does not cross"):
        here.dump()


@pytest.mark.parametrize(
    "tree", [{"lent": 1}, {"lent": -1}, {"lent": "0"}, {"function": 0}, {"layer": []}, {"object": [0, "x", None]}]
)
def test_an_answer_can_name_only_what_it_was_lent(tree):
    here = Lent()
    here.things.append(nn.Linear(1, 1))
    with pytest.raises(ValueError, match="not a packed value"):
        Unpacker(b"", here).unpack(tree)


def test_what_an_answer_returns_may_be_gone_through_once():
    parcel = Parcel(Lent(print))
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=3)
    tree = parcel.pack([(n * n for n in range(3)), loader])
    squares, batches = Unpacker(parcel.blob(), Lent()).unpack(tree)
    assert (type(squares).__name__, list(squares), list(squares)) == ("generator", [0, 1, 4], [])
    assert [batch[0].tolist() for batch in batches] == [[0, 1, 2], [3]]
