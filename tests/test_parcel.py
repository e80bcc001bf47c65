"""What crosses between a driver and an answer: plain values, tensors and networks, as they were; nothing else."""

from __future__ import annotations

import pytest
import torch

from hw_grader.parcel import Parcel, Unpacker
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
