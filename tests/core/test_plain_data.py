"""Plain data: the only thing that crosses from a student's process to a judge."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hw_utils.core.plain_data import DTYPES, decode, encode, plain

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(values)
def test_plain_values_come_back_equal(value):
    assert decode(encode(value)) == value


@settings(derandomize=True, max_examples=60, deadline=None)
@given(npst.arrays(st.sampled_from([d for d in DTYPES if d != "float16"]), npst.array_shapes(min_dims=0, min_side=0)))
def test_arrays_come_back_with_dtype_and_shape(array):
    back = decode(encode(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)


def test_an_array_in_the_other_byte_order_keeps_its_numbers():
    found = decode(encode(plain(np.array([1.5, -2.0, 3.25], dtype=">f4"))))
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, -2.0, 3.25]


def test_tensors_become_arrays_and_tuples_lists():
    data = plain({"x": torch.arange(3.0, requires_grad=True), "y": (1, None), 3: True})
    np.testing.assert_array_equal(data["x"], [0.0, 1.0, 2.0])
    assert (data["y"], data["3"]) == ([1, None], True)


class AlwaysEqual:
    def __eq__(self, other):
        return True

    __hash__ = None


class Sly(int):
    def __eq__(self, other):
        return True

    __hash__ = None


class SlyTensor(torch.Tensor):
    pass


@pytest.mark.parametrize("value", [AlwaysEqual(), Sly(3), torch.ones(2).as_subclass(SlyTensor), object, len])
def test_objects_with_a_will_of_their_own_do_not_cross(value):
    assert plain([value]) == [{"unknown": type(value).__name__}]


def test_what_has_no_memory_of_its_own_or_too_much_is_named_and_not_copied():
    assert plain(torch.ones(3, device="meta")) == plain(torch.eye(2).to_sparse()) == {"unknown": "Tensor"}
    assert plain(torch.ones(1).expand(10**11)) == {"unknown": "Tensor of 400,000,000,000 bytes"}
    assert plain(np.broadcast_to(1.0, (10**6, 10**6))) == {"unknown": "ndarray of 8,000,000,000,000 bytes"}
    assert plain(-(10**5000)) == {"unknown": "whole number of 16,610 bits"}


def test_a_list_that_holds_itself_does_not_cross():
    knot: list = []
    knot.append(knot)
    assert encode(plain(knot))


@pytest.mark.parametrize(
    "forged",
    [
        ["float32", [3], "AAAA"],
        ["object", [1], "AAAAAAAA"],
        ["float32", [-1], ""],
        ["float32", [2**50], ""],
        ["float32", "x", ""],
        ["float32", [True], "AAAA"],
        ["float32", [1], 7],
        ["float32", [1]],
        "float32",
    ],
)
def test_a_forged_array_is_refused(forged):
    with pytest.raises(ValueError, match=r"array|Incorrect padding|Only base64"):
        decode(json.dumps({"__array__": forged}).encode())


def test_too_much_data_is_refused():
    with pytest.raises(ValueError, match="over the limit of 100"):
        decode(b'"' + b"x" * 200 + b'"', max_bytes=100)


def test_data_nested_too_deeply_is_refused():
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(b"[" * 100_000 + b"]" * 100_000)


def test_what_is_not_plain_cannot_be_encoded():
    with pytest.raises(TypeError, match="object is not plain data"):
        encode({"x": object()})


@pytest.mark.parametrize("told", ["ask ada, she has it", 7, "x" * 41, {"unknown": "list"}])
def test_what_an_answer_writes_in_the_place_of_a_types_name_is_not_told(told):
    assert decode(encode(plain({"unknown": told}))) == {"unknown": "dict"}
    assert decode(encode(plain({"unknown": "list", "more": 1}))) == {"unknown": "dict"}


@pytest.mark.parametrize("value", [object(), 10**4000, torch.zeros(2, device="meta"), {1}])
def test_what_is_not_plain_is_told_by_its_type_or_size(value):
    assert decode(encode(plain(value))) == plain(value)
