"""A call of an operation as a case: what the shapes of its results depend on, and the results made of them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import torch

_CPU, _META = torch.device("cpu"), torch.device("meta")
_NUMBERS = (float, complex, torch.Generator)  # no shape depends on them
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's, of which Python before 3.13 does not know
_empty, _STRIDED, _resize = torch.empty_strided, torch.strided, torch.UntypedStorage.resize_  # torch's own
SPARSE = "there are no sparse tensors without values: take sparse=False"


class Shape:
    """A tensor to be made."""

    __slots__ = ("dtype", "n_bytes", "size", "stride")

    def __init__(self, like: torch.Tensor) -> None:
        if like.layout is not torch.strided:
            raise NotImplementedError(SPARSE)
        self.size, self.stride, self.dtype = like.size(), like.stride(), like.dtype
        self.n_bytes = like.untyped_storage().nbytes()

    def made(self) -> torch.Tensor:
        try:
            tensor = _empty(self.size, self.stride, dtype=self.dtype, device=_CPU)
        except RuntimeError:
            if not hasattr(mmap, "MAP_ANONYMOUS"):
                raise
            return self._promised()
        storage = tensor.untyped_storage()
        storage.has_no_values = True
        if storage.nbytes() != self.n_bytes:
            _resize(storage, self.n_bytes)
        return tensor

    def _promised(self) -> torch.Tensor:
        """One of more bytes than this machine has: nobody writes to them."""
        room = mmap.mmap(-1, self.n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        storage = torch.frombuffer(room, dtype=torch.uint8).untyped_storage()
        storage.has_no_values = True
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, 0, self.size, self.stride)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples and dicts of arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


def described(values, key: list, tensors: list) -> bool:
    """Adds what a result's shape depends on to `key`, the tensors to `tensors`; False if one is not in our memory."""
    is_here = True
    for value in values:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if not value.is_cpu or value.layout is not _STRIDED:
                return False
            tensors.append(value)
            key += (value.dtype, value.size(), value.stride())
        elif kind is list or kind is tuple:
            key.append(len(value))
            is_here &= described(value, key, tensors)
        elif kind in _NUMBERS:
            key.append(kind)
        else:
            key += (kind, value)
            if kind is torch.device and value.type == "meta":
                is_here = False
    return is_here


def on_meta(value: Any):
    """The same arguments without memory."""
    if isinstance(value, torch.Tensor):
        return _empty(value.size(), value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, (list, tuple)):
        return [on_meta(item) for item in value]
    if isinstance(value, dict):
        return {name: on_meta(item) for name, item in value.items()}
    if isinstance(value, torch.Generator):
        return None
    return _META if isinstance(value, torch.device) else value


def shapes_of(result: Any):
    if isinstance(result, torch.Tensor):
        return Shape(result)
    return result if result is None else tuple(map(shapes_of, result))


def made(found: Any):
    if type(found) is Shape:
        return found.made()
    return found if found is None else [made(shape) for shape in found]
