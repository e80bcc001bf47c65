"""What an operation costs on a device: its FLOPs by torch's own formulas, and the bytes that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import flop_counter

from hw_utils.core.network import Device

_aten = torch.ops.aten
# They give the host a value, or a shape that depends on one: it waits for the stream.
READS = frozenset(
    {
        _aten._local_scalar_dense, _aten.equal, _aten.is_nonzero, _aten.nonzero, _aten.masked_select, _aten._unique,
        _aten._unique2, _aten.unique_dim, _aten.unique_consecutive,
    }
)  # fmt: skip
# No kernel: views that do not say so, memory without contents, and what only the host does.
_NOTHING = frozenset(
    {
        _aten._unsafe_view, _aten._reshape_alias, _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty,
        _aten.new_empty_strided, _aten.lift_fresh, _aten.set_, _aten.resize_, _aten._has_compatible_shallow_copy_type,
        _aten.detach_,
    }
)  # fmt: skip
# They write their first tensor and do not read it; or read as much of it as they return.
_UNREAD = frozenset(
    {
        _aten.copy_, _aten.zero_, _aten.fill_, _aten.normal_, _aten.uniform_, _aten.embedding, _aten.index_select,
        _aten.gather, _aten.index, _aten._foreach_zero_, _aten._foreach_copy_,
    }
)  # fmt: skip
_PICKING = frozenset({_aten.embedding, _aten.index_select, _aten.gather, _aten.index})


def _attention(query, key, value, *args, out_val=None, **kwargs) -> int:
    return flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad, query, key, value, *args, out_val=None, **kwargs) -> int:
    return flop_counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


FORMULAS: dict[Any, Callable] = {
    **flop_counter.flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def flops_of(func, args: tuple, kwargs: dict, out: Any) -> int:
    """Floating-point operations; 0 for those that `torch.utils.flop_counter` counts as none."""
    formula = FORMULAS.get(func.overloadpacket)
    return 0 if formula is None else formula(*args, **kwargs, out_val=out)


def bytes_of(func, args: tuple, kwargs: dict, out: Any) -> int:
    """Bytes that an operation reads and writes, each tensor once a side; of a table it reads what it picks."""
    packet = func.overloadpacket
    read = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    written = sum(t.numel() * t.element_size() for t in _tensors(out))
    if packet in _UNREAD:
        read = read[1:]
    return sum(t.numel() * t.element_size() for t in read) + (2 * written if packet in _PICKING else written)


def is_kernel(func) -> bool:
    """Whether the device does anything for it."""
    return func.namespace not in ("prim", "c10d") and not func.is_view and func.overloadpacket not in _NOTHING


def reads(func, args: tuple) -> bool:
    """Whether the host waits for it; picking by a mask does, its shape depends on values."""
    if func.overloadpacket is _aten.index:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return func.overloadpacket in READS


def dtype_of(args: tuple, out: Any) -> str:
    """The data type at whose rate a device works: that of the first floating tensor, "tf32" where it is allowed."""
    for tensor in (*_tensors(args), *_tensors(out)):
        if tensor.is_floating_point():
            if tensor.dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
                return "tf32"
            return str(tensor.dtype).removeprefix("torch.")
    return "float32"


def operation_s(device: Device, func, args: tuple, kwargs: dict, out: Any) -> float:
    """Seconds that the device is busy with it."""
    n_flops = flops_of(func, args, kwargs, out)
    return device.operation_s(n_flops, bytes_of(func, args, kwargs, out), dtype_of(args, out) if n_flops else "float32")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
