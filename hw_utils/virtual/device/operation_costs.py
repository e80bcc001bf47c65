"""What an operation costs on a device: its FLOPs by torch's own formulas, and the bytes that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import flop_counter

from hw_utils.core.hardware import Device

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


class Kind:
    """What is known of an operation from its name."""

    def __init__(self, func) -> None:
        self.func, packet = func, func.overloadpacket
        self.is_kernel = func.namespace not in ("prim", "c10d") and not func.is_view and packet not in _NOTHING
        self.is_read = packet in READS
        self.picks, self.may_mask = packet in _PICKING, packet is _aten.index
        self.first_read = 1 if packet in _UNREAD else 0
        self.formula = FORMULAS.get(packet)
        self.flops: dict[tuple, int] = {}  # by the arguments' shapes


class Costs:
    """What operations cost on one device; looked up once an operation, and FLOPs once a shape."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.kinds: dict[int, Kind] = {}  # by the operation's id: to ask an operation for its hash takes longer

    def of(self, func, args: tuple, kwargs: dict, out: Any) -> tuple[float, bool]:
        """(seconds that the device is busy, -1 for nothing to do; whether the host waits for the result)."""
        kind = self.kinds.get(id(func))
        if kind is None:
            kind = self.kinds[id(func)] = Kind(func)
        is_read = kind.is_read or (kind.may_mask and _picks_by_a_mask(args))
        return (self._seconds(kind, args, kwargs, out) if kind.is_kernel else -1.0), is_read

    def _seconds(self, kind: Kind, args: tuple, kwargs: dict, out: Any) -> float:
        read, written = _bytes(args), _bytes(out)
        if kwargs:
            read = read + _bytes(tuple(kwargs.values()))
        n_bytes = sum(read[kind.first_read :]) + sum(written) * (2 if kind.picks else 1)
        if kind.formula is None:
            return self.device.operation_s(0, n_bytes)
        return self.device.operation_s(_flops(kind, args, kwargs, out), n_bytes, dtype_of(args, out))


def _flops(kind: Kind, args: tuple, kwargs: dict, out: Any) -> int:
    if kwargs or any(isinstance(value, (list, tuple)) and _bytes(value) for value in args):
        return kind.formula(*args, **kwargs, out_val=out)
    key = tuple(value.shape if isinstance(value, torch.Tensor) else str(value) for value in args)
    n_flops = kind.flops.get(key)
    if n_flops is None:
        n_flops = kind.flops[key] = kind.formula(*args, out_val=out)
    return n_flops


def _picks_by_a_mask(args: tuple) -> bool:
    """Whether the shape of what is picked depends on values."""
    return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])


def dtype_of(args: tuple, out: Any) -> str:
    """The data type at whose rate a device works: that of the first floating tensor, "tf32" where it is allowed."""
    found = out if isinstance(out, torch.Tensor) else next(t for t in (*args, *out) if isinstance(t, torch.Tensor))
    if found.dtype is torch.float32 and is_tf32_allowed():
        return "tf32"
    return str(found.dtype).removeprefix("torch.")


def is_tf32_allowed() -> bool:
    """Whether a program lets float32's products be less exact, for all backends or for CUDA's."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it has named a backend: torch has no answer for all of them then
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _bytes(value: Any) -> list[int]:
    """Bytes of each tensor, in lists of them too."""
    if isinstance(value, torch.Tensor):
        return [value.numel() * value.element_size()]  # `nbytes` is an error for a sparse one
    found = []
    for item in value if isinstance(value, (list, tuple)) else ():
        if isinstance(item, torch.Tensor):
            found.append(item.numel() * item.element_size())
        elif isinstance(item, (list, tuple)):
            found += _bytes(item)
    return found
