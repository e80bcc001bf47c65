"""What crosses between a driver and an answer: plain values, tensors and networks, as they were; nothing else."""

from __future__ import annotations

import collections
import socket
import struct

import numpy as np
import pytest
import torch

from hw_grader.driving.marshalling.call_channel import Forged, Line
from hw_grader.driving.marshalling.packed_values import Parcel, Unpacker, containers_in
from hw_utils import Network

FAST = Network(latency_s=0, bandwidth_Bps=1e9)
VALUES = [
    [1, 2.5, True, None, "text", (3, [4])], {"a": {1: float("inf")}}, torch.arange(6).reshape(2, 3), FAST,
    torch.arange(2)[::2], torch.arange(12).reshape(3, 4)[::2, 1::2], torch.tensor(3.5), torch.zeros(0, 3),
    (Network.two_level(4, FAST, Network()), torch.ones(1)), {"network": [1, 2, None, None]},
]  # fmt: skip


def crossed(value):
    parcel = Parcel()
    tree = parcel.pack(value)
    return Unpacker(parcel.blob()).unpack(tree)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_what_may_cross_is_the_same_on_the_other_side(value):
    assert str(crossed(value)) == str(value)


def test_both_sides_count_lists_and_dictionaries_alike():
    value = [[1, ([2], {"a": [3, {}]})], {"b": (4, [])}, torch.ones(2), collections.OrderedDict(c=[5])]
    mine, theirs = list(containers_in(value)), list(containers_in(crossed(value)))
    assert [len(c) for c in mine] == [len(c) for c in theirs]
    assert len(mine) == 10


def test_of_what_does_not_cross_it_is_said_that_there_is_something():
    parcel = Parcel()
    trees = [parcel.pack_what_crosses([torch.ones(3), object()]), parcel.pack_what_crosses([torch.zeros(2)])]
    unpacker = Unpacker(parcel.blob())
    assert str([unpacker.unpack(tree) for tree in trees]) == str([[None, None], [torch.zeros(2)]])


@pytest.mark.parametrize("value", [object(), torch.nn.Linear(1, 1), type("N", (Network,), {})(), lambda: 1, {1, 2}])
def test_anything_else_does_not_cross(value):
    with pytest.raises(TypeError, match="does not cross"):
        Parcel().pack(value)


@pytest.mark.parametrize("parts", [
    [-1.0, 1.0, None, None], [0.0, 0.0, None, None], ["1", 1.0, None, None], [True, 1.0, None, None],
    [{"float": "nan"}, 1.0, None, None], [0.0, 1.0, 2, None], [0.0, 1.0, 2, {"dict": []}], [0.0, 1.0, 2.0, None],
])  # fmt: skip
def test_a_made_up_network_is_refused(parts):
    with pytest.raises(ValueError, match=r"network|must be|go together"):
        Unpacker(b"").unpack({"network": parts})


def test_views_of_one_tensor_still_share_it_and_what_is_written_beside_them_is_seen():
    base = torch.arange(12.0)
    parcel = Parcel(is_whole=True)
    tree = parcel.pack([base[2:4], base.view(3, 4).T, base[8:]])
    unpacker = Unpacker(parcel.blob())
    first, turned, last = unpacker.unpack(tree)
    assert len(unpacker.memory) == 1
    assert unpacker.memory[0].numel() == 48
    assert (turned.shape, turned.stride(), turned.is_contiguous()) == ((4, 3), (1, 4), False)
    first[0] = -1
    assert turned[2, 0] == -1
    last.resize_(4)  # in torch's own memory, as a rank's tensor is
    assert last.tolist() == [8, 9, 10, 11]


def test_what_is_sent_on_its_own_brings_only_its_own_bytes_and_keeps_its_form():
    base = torch.arange(1000)
    parcel = Parcel()
    tree = parcel.pack([base[10:20:3], base[:6].view(2, 3).T, torch.ones(()).expand(4), torch.zeros(0, 3)])
    assert len(parcel.blob()) == 8 * 10 + 8 * 6 + 4
    got = Unpacker(parcel.blob()).unpack(tree)
    assert [t.tolist() for t in got] == [[10, 13, 16, 19], [[0, 3], [1, 4], [2, 5]], [1.0] * 4, []]
    assert [t.is_contiguous() for t in got] == [False, False, False, True]


def test_a_tensor_that_autograd_follows_is_one_on_the_other_side():
    parameter = torch.nn.Parameter(torch.ones(2))
    got, product = crossed([parameter, parameter * 2])
    assert got.requires_grad
    assert got.is_leaf
    assert product.requires_grad
    assert product.is_leaf


@pytest.mark.parametrize("content", [
    ["torch.float32", [2], [1], 0, [0, 4], False], ["torch.float32", [2], [1], 1, [0, 8], False],
    ["torch.float32", [2], [-1], 1, [0, 8], False], ["torch.float32", [2], [1], 0, [1, 8], False],
    ["torch.float32", [2], [1, 1], 0, [0, 8], False], ["torch.float32", [1], [1], 0, [0, 9], False],
    ["torch.float32", [2.0], [1], 0, [0, 8], False], ["torch.float32", [2], [2**50], 0, [0, 8], False],
])  # fmt: skip
def test_a_made_up_tensor_is_refused(content):
    with pytest.raises(ValueError, match="tensor's"):
        Unpacker(bytes(8)).unpack({"tensor": content})


def test_numbers_and_containers_of_a_kind_of_their_own_become_plain():
    named = collections.namedtuple("named", "a b")
    ordered = collections.OrderedDict(a=1)
    assert crossed([named(1, 2), ordered, collections.defaultdict(list, b=[3])]) == [(1, 2), {"a": 1}, {"b": [3]}]
    number = crossed(np.float64(0.5))
    assert type(number) is np.float64
    assert number == 0.5
    assert type(crossed(np.int32(3))) is np.int32


@pytest.mark.parametrize("written", [
    b'{"state": "pass", "points": 4}\n', struct.pack("!II", 4, 0) + b"pass", struct.pack("!II", 2, 0) + b"[]",
    struct.pack("!II", 100_000, 0) + 100_000 * b"[",
])  # fmt: skip
def test_what_somebody_else_has_written_is_no_message_and_is_remembered(written, monkeypatch):
    monkeypatch.setattr(Forged, "seen", [])
    mine, other = socket.socketpair()
    with mine, other:
        other.sendall(written)
        with pytest.raises(Forged) as forged:
            Line(mine).receive()
    assert Forged.seen == [str(forged.value)]


def test_tensors_that_are_too_large_are_the_answers_own():
    mine, other = socket.socketpair()
    with mine, other:
        other.sendall(struct.pack("!II", 2, 2**29) + b"{}")
        with pytest.raises(ValueError, match="536,870,914 bytes is over the limit"):
            Line(mine).receive()
