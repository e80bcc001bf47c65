"""Tensors on their way between a rank's process and the server: dtype and bytes, in the order of memory."""

from __future__ import annotations

import torch

from hw_utils.virtual.traffic.reductions import flat, put
from hw_utils.virtual.traffic.tensor_bytes import contents, fill

Packed = tuple[torch.dtype, int, str, bytes | None]  # dtype, elements, device, and the bytes unless nobody reads them


def packed(tensor: torch.Tensor, *, with_bytes: bool = True) -> Packed:
    """A dense tensor as it is now; of the device "meta" its shape alone, which a collective takes.

    with_bytes: False for one that is only written to, which may have gaps.
    """
    if not with_bytes:
        return tensor.dtype, tensor.numel(), "meta" if tensor.is_meta else "cpu", None
    line = flat(tensor)
    if line.is_meta:
        return line.dtype, line.numel(), "meta", None
    return line.dtype, line.numel(), "cpu", contents(line, line.nbytes)


def unpacked(parts: Packed) -> torch.Tensor:
    """A tensor of one dimension with a memory of its own."""
    dtype, n_elements, device, data = parts
    tensor = torch.empty(n_elements, dtype=dtype, device=device)  # whatever the program's default is
    if data is not None:
        fill(tensor, data)
    return tensor


def write(tensor: torch.Tensor, data: bytes | None, *, by_shape: bool = False) -> None:
    """What came back, to where the rank wants it; beside autograd, as gloo does.

    by_shape: in the order of its shape, not of its memory.
    """
    if data is None:
        return
    if by_shape and data and not tensor.is_contiguous():
        put(tensor, unpacked((tensor.dtype, tensor.numel(), "cpu", data)))
    else:
        fill(flat(tensor) if data else tensor, data)
