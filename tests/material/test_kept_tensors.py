"""What hangs on an object is found wherever it is kept; what belongs to nobody, or to the kit, is not."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from hw_utils.material.kept.tensors import Memories, has_numbers, kept_by_frames, kept_elsewhere, kept_tensors
from hw_utils.threads.rendezvous import Rendezvous
from hw_utils.threads.turns import Turns

ONE = torch.ones(2)


class _Slots:
    __slots__ = ("part",)

    def __init__(self):
        self.part = ONE


def _closes_over():
    one = ONE
    return lambda: one


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (SimpleNamespace(a=ONE), "a"),
        (SimpleNamespace(a=[0, ONE]), "a[1]"),
        (SimpleNamespace(a={"b": (ONE,)}), "a['b'][0]"),
        (SimpleNamespace(a=SimpleNamespace(b=ONE)), "a.b"),
        (SimpleNamespace(a=_Slots()), "a.part"),
        (_Slots(), "part"),
        (SimpleNamespace(a=_closes_over()), "a, in its one"),
        (SimpleNamespace(a=lambda x=ONE: x), "a, in a default"),
        (SimpleNamespace(a=functools.partial(print, ONE)), "a"),
        (SimpleNamespace(a=_Slots().__init__), "a.part"),
        (SimpleNamespace(a=ONE.numpy()), "a"),
    ],
    ids=[
        "object",
        "list",
        "dictionary",
        "inner object",
        "inner slots",
        "slots",
        "closure",
        "default",
        "partial",
        "method",
        "numpy",
    ],
)
def test_a_tensor_is_found_where_it_is_kept(thing, path):
    found = kept_tensors(thing)
    assert list(found) in ([path], [f"a{path[1:]}"])
    assert all(tensor.data_ptr() == ONE.data_ptr() for tensor in found.values())


def test_a_module_has_its_parameters_buffers_and_parts():
    module = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    module.register_buffer("seen", ONE)
    assert {"seen", "0.weight", "0.bias", "1.running_mean"} <= set(kept_tensors(module))


def test_a_circle_ends_and_a_communication_layer_is_left_out():
    context = Rendezvous(Turns(1))
    context.tensor = ONE
    thing = SimpleNamespace(context=context, call=context.all_gather)
    thing.itself = thing
    assert kept_tensors(thing) == {}


def test_what_hangs_on_the_class_is_left_out():
    class Layer:
        shared = ONE

    assert kept_tensors(Layer()) == {}


_STORE: dict = {}


def _puts_into_a_global(tensor):
    _STORE[0] = tensor


class _KeepsOnItsClass:
    one = None

    def keep(self, tensor):
        type(self).one = tensor


@pytest.mark.parametrize("answer", [_puts_into_a_global, _KeepsOnItsClass], ids=["global", "class"])
def test_what_an_answer_keeps_beside_its_objects_is_found_when_asked_for(answer, monkeypatch):
    module = sys.modules.pop(__name__)  # as in the grader, where the notebook is no module
    monkeypatch.setitem(sys.modules, "kept", module)
    try:
        assert kept_elsewhere([answer], []) == {}
        answer().keep(ONE) if isinstance(answer, type) else answer(ONE)
        assert [t.data_ptr() for t in kept_elsewhere([answer], []).values()] == [ONE.data_ptr()]
    finally:
        sys.modules[__name__] = module


def _keeps_on_itself(tensor):
    _keeps_on_itself.last = tensor
    del tensor
    return kept_by_frames([sys._getframe()])


def _keeps_in_a_global(tensor):
    _STORE["running"] = tensor
    del tensor
    return kept_by_frames([sys._getframe()])


def _keeps_by_globals(tensor):
    globals()["_no_name_in_the_code"[1:]] = tensor
    del tensor
    return kept_by_frames([sys._getframe()])


@pytest.mark.parametrize("answer", [_keeps_on_itself, _keeps_in_a_global, _keeps_by_globals])
def test_what_a_running_function_keeps_beside_its_variables_is_found(answer, monkeypatch):
    module = sys.modules.pop(__name__)  # as in the grader, where the notebook is no module
    monkeypatch.setitem(sys.modules, "kept", module)
    tensor = torch.ones(3)
    try:
        assert any(found is tensor for found in answer(tensor))
    finally:
        sys.modules[__name__] = module


def _keeps_nothing(tensor):
    del tensor
    return kept_by_frames([sys._getframe()])


def test_what_others_keep_is_not_found_in_a_running_function():
    assert _keeps_nothing(ONE) == []


def test_what_hangs_on_a_given_models_parameters_is_found_when_asked_for():
    model = nn.Linear(2, 1)
    model.weight.moment = ONE
    assert list(kept_elsewhere([], [model])) == ["weight.moment"]


def test_keys_that_begin_alike_hide_nobody():
    class Long:
        def __repr__(self) -> str:
            return "an object that says much of itself before it says which one it is"

    class Layer:
        def __init__(self) -> None:
            self.inputs = {Long(): torch.ones(k) for k in range(1, 4)}
            self.listed = {Long(): [float(k)] * 9 for k in range(3)}

    found = kept_tensors(Layer(), with_numbers=True)
    assert sorted(t.numel() for t in found.values()) == [1, 2, 3, 9, 9, 9]


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64, torch.uint8, torch.complex64])
def test_floats_are_numbers_whatever_their_bits_are_called(kind):
    assert has_numbers(torch.linspace(0, 1, 64, dtype=torch.float64).view(kind))


def test_places_masks_and_random_states_are_no_numbers():
    others = [torch.arange(1000), torch.arange(1000, dtype=torch.int32), torch.ones(99, dtype=torch.bool)]
    assert not any(map(has_numbers, [*others, torch.get_rng_state(), torch.empty(0, dtype=torch.int64)]))


def test_an_array_of_any_kind_is_found():
    kept = SimpleNamespace(whole=np.linspace(0, 1, 64).view("i4"), wide=np.linspace(0, 1, 64, dtype=np.longdouble))
    assert {path: has_numbers(t) for path, t in kept_tensors(kept).items()} == {"whole": True, "wide": True}


@pytest.mark.parametrize("n_beside", [0, 5_000], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_found_in_any_shape_of_any_memory(n_beside: int, dtype: torch.dtype):
    draw = torch.Generator().manual_seed(1)
    numbers, others = (torch.randn(4, 3, generator=draw, dtype=torch.float32).double() for _ in range(2))
    memory = torch.zeros(12 + n_beside, dtype=dtype)
    memory[n_beside // 2 :][:12] = numbers.flatten().to(dtype)
    kept = Memories([torch.arange(9), memory[:1], torch.ones(2), torch.zeros(0)])  # a view keeps all of its memory
    assert kept.have(numbers)
    assert kept.have(numbers.T)
    assert not kept.have(others)
    assert not kept.have(torch.cat([numbers, others]))
    assert not kept.have(torch.zeros(3))  # of a constant nobody can say
    assert not kept.have(torch.zeros(0))
    assert not Memories([]).have(numbers)


def test_the_parts_of_numbers_in_two_memories_are_none_of_them():
    draw = torch.Generator().manual_seed(2)
    numbers = torch.randn(6, generator=draw)
    assert not Memories([numbers[:3].clone(), numbers[3:].clone()]).have(numbers)


FLOATS = sorted({str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype) and d.is_floating_point}.items())


@pytest.mark.parametrize("dtype", [dtype for _, dtype in FLOATS], ids=[name for name, _ in FLOATS])
def test_memory_of_floats_of_any_kind_can_be_looked_through(dtype):
    is_packed = "float4" in str(dtype)  # two to a byte: nothing converts to it
    kept = torch.arange(4, dtype=torch.uint8).view(dtype) if is_packed else torch.tensor([1.0, 2, 4, 8]).to(dtype)
    assert Memories([kept, ONE]).have(torch.tensor([1.0, 2, 4, 8])) != is_packed
