"""Tensors on their way between a rank's process and the hub: dtype and bytes, in the order of memory."""

from __future__ import annotations

import torch

from hw_utils.virtual.traffic.reductions import flat
from hw_utils.virtual.traffic.tensor_bytes import contents, fill

Packed = tuple[torch.dtype, int, str, bytes | None]  # dtype, elements, device, and the bytes unless nobody reads them


def packed(tensor: torch.Tensor, *, with_bytes: bool = True) -> Packed:
    """A dense tensor as it is now; of the device "meta" its shape alone, which a collective takes."""
    line = flat(tensor)
    if line.is_meta:
        return line.dtype, line.numel(), "meta", None
    return line.dtype, line.numel(), "cpu", contents(line, line.nbytes) if with_bytes else None


def unpacked(parts: Packed) -> torch.Tensor:
    """A tensor of one dimension with a memory of its own."""
    dtype, n_elements, device, data = parts
    tensor = torch.empty(n_elements, dtype=dtype, device=device)  # whatever the program's default is
    if data is not None:
        fill(tensor, data)
    return tensor


def write(tensor: torch.Tensor, data: bytes | None) -> None:
    """What came back, to where the rank wants it; beside autograd, as gloo does."""
    if data is not None:
        fill(flat(tensor), data)
