"""Where what a driver has lent lies in an answer's process: a look at its memory leaves out what is found there.

The answer's process says where; whether the bytes are there is seen from outside, by a digest of the driver's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.driving.marshalling.model_and_optimizer_states import state_of
from hw_grader.sandbox.changed_pages import digest

_LARGE_BYTES = 2**16  # of fewer a look takes no notice
_MOST = 256
_NUMBERS = {torch.float32: "f4", torch.float64: "f8"}


def _large_tensors(lent: Lent) -> Iterator[tuple[str, torch.Tensor]]:
    """Name -> weights, buffers and gradients of the models, by the same names on both sides."""
    for number, thing in enumerate(lent.things):
        state = state_of(thing) if isinstance(thing, nn.Module) else {}
        for kind in ("tensors", "gradients"):
            for name, tensor in state.get(kind, {}).items():
                if tensor.nbytes >= _LARGE_BYTES and tensor.is_contiguous() and tensor.device.type == "cpu":
                    yield f"{number} {kind} {name}", tensor


def places(lent: Lent) -> dict[str, int]:
    """Name -> address, in this process."""
    return {name: tensor.data_ptr() for name, tensor in _large_tensors(lent)}


def expected(lent: Lent, said: Any) -> list[list]:
    """[address, bytes, kind of numbers, digest] of what should lie at the places that the other side has said."""
    found = said if type(said) is dict else {}
    return [
        [found[name], tensor.nbytes, kind := _NUMBERS.get(tensor.dtype, ""), digest(_bytes_of(tensor), kind)]
        for name, tensor in _large_tensors(lent)
        if type(found.get(name)) is int and 0 < found[name] < 2**48
    ][:_MOST]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
