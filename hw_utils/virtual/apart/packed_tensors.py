"""Tensors on their way between a rank's process and the hub: dtype and bytes, in the order of memory."""

from __future__ import annotations

import torch

from hw_utils.virtual.traffic.memory import contents, fill
from hw_utils.virtual.traffic.reductions import flat

Packed = tuple[torch.dtype, int, bytes | None]  # dtype, elements, and the bytes unless nobody reads them


def packed(tensor: torch.Tensor, *, with_bytes: bool = True) -> Packed:
    """A dense tensor as it is now."""
    line = flat(tensor)
    return line.dtype, line.numel(), contents(line, line.nbytes) if with_bytes else None


def unpacked(parts: Packed) -> torch.Tensor:
    """A tensor of one dimension with a memory of its own."""
    dtype, n_elements, data = parts
    tensor = torch.empty(n_elements, dtype=dtype, device="cpu")  # whatever the program's default is
    if data is not None:
        fill(tensor, data)
    return tensor


def write(tensor: torch.Tensor, data: bytes) -> None:
    """What came back, to where the rank wants it; beside autograd, as gloo does."""
    if data is not None:
        fill(flat(tensor), data)
