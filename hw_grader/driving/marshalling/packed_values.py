"""What crosses between a trusted driver and the process with the student's answers: plain values and tensors.

A value becomes a JSON tree and one blob of tensor bytes. What is not plain can be lent for a call (lent_objects);
all else is a TypeError. Nothing that comes from the answers is unpickled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hw_grader.driving.marshalling.lent_objects import Lent
from hw_utils.core.hardware import Network
from hw_utils.core.plain_data import EXACT, MAX_BITS, as_float

DTYPES = {
    str(d): d
    for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint8, torch.bool)
}  # fmt: skip


class Parcel:
    """Packs values; remembers the tensors in them and the memory that these lie in, in order."""

    def __init__(self, lent: Lent | None = None, *, is_whole: bool = False) -> None:
        """lent: what is no plain value, for the call that this belongs to. is_whole: a view brings all that it is a
        view of, so that two of one tensor still are, and what is written beside one is seen."""
        self.tensors: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []  # bytes: of a whole storage, or from a tensor's first element to its last
        self.lent, self.is_whole = lent, is_whole
        self._places: dict[int, int] = {}  # address of a storage -> place in `memory`

    def pack(self, value: Any) -> Any:
        """The value's JSON tree.

        Raises:
            TypeError: something in it is neither plain nor a tensor nor lent.
            ValueError: a whole number in it is too long to be written.
        """
        kind = type(value)
        if kind is int and value.bit_length() > MAX_BITS:
            raise ValueError(f"a whole number of {value.bit_length():,} bits")
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.pack(v) for v in value]
        if kind in (tuple, torch.Size):
            return {"tuple": [self.pack(v) for v in value]}
        if kind is dict:
            return {"dict": [[self.pack(k), self.pack(v)] for k, v in value.items()]}
        if kind is Network:
            return {"network": [self.pack(v) for v in dataclasses.astuple(value)[:3]] + [self.pack(value.inside)]}
        if kind in (torch.Tensor, torch.nn.Parameter) and str(value.dtype) in DTYPES:
            return {"tensor": self._tensor(value)}
        if kind is np.ndarray or isinstance(value, np.generic):
            name = "numpy" if kind is np.ndarray else "number"
            return {name: self.pack(torch.from_numpy(np.array(value)))}
        if kind in EXACT:
            return self.pack(as_float(value))
        for plain in (bool, int, float, str, list, tuple, dict):
            if isinstance(value, plain):  # of a kind of its own: a defaultdict, a named tuple
                return self.pack(plain(value))
        if self.lent is not None:
            return self.lent.pack(value, self.pack)
        raise TypeError(f"a {kind.__name__} does not cross")

    def pack_what_crosses(self, container: list | dict | None) -> Any:
        """The same of what an answer may have put anything into; if that does not cross, how much it is."""
        n_tensors, n_memory = len(self.tensors), len(self.memory)
        try:
            return self.pack(container)
        except TypeError:
            del self.tensors[n_tensors:], self.memory[n_memory:]
            self._places = {address: place for address, place in self._places.items() if place < n_memory}
            return self.pack([None] * len(container))

    def _tensor(self, value: torch.Tensor) -> list:
        self.tensors.append(value)
        flat, shape, stride = bytes_of(value), list(value.shape), list(value.stride())
        first, itemsize = value.storage_offset(), value.dtype.itemsize
        if not self.is_whole:
            flat, first = flat[first * itemsize : (first + _span(shape, stride)) * itemsize], 0
        place = self._places.get(flat.data_ptr()) if self.is_whole else None
        if place is None:
            place = self._places[flat.data_ptr()] = len(self.memory)
            self.memory.append(flat)
        return [str(value.dtype), shape, stride, first, [place, flat.numel()], value.requires_grad]

    def blob(self) -> bytes:
        """The bytes of all tensors packed so far."""
        return b"".join(memoryview(flat.numpy()) for flat in self.memory)


def containers_in(value: Any) -> Iterator[list | dict]:
    """The lists and dictionaries in a packed value, in order: what whoever is given them can change."""
    if isinstance(value, list | dict):
        yield value
    parts = value if isinstance(value, list | tuple) else value.items() if isinstance(value, dict) else ()
    for part in parts:
        yield from containers_in(part)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All memory that the tensor is a view of: uint8, one dimension, the same memory."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _span(shape: list[int], stride: list[int]) -> int:
    """How many elements from the first to the last, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride)) if 0 not in shape else 0


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, as they lie in memory when contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.stride() != (1,):  # one element of a wider stride counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


class Unpacker:
    """Builds values from a tree and a blob; remembers the tensors, in order."""

    def __init__(self, blob: bytes | memoryview, lent: Lent | None = None) -> None:
        self.blob, self.at = blob, 0
        self.tensors: list[torch.Tensor] = []
        self.memory: list[torch.Tensor] = []
        self.lent = lent

    def unpack(self, tree: Any, depth: int = 0) -> Any:
        """The value.

        Raises:
            ValueError: the tree or the blob is not what `pack` makes.
        """
        if depth > 100:
            raise ValueError("nested too deeply")
        if tree is None or type(tree) in (bool, int, float, str):
            return tree
        if type(tree) is list:
            return [self.unpack(v, depth + 1) for v in tree]
        if type(tree) is not dict or len(tree) != 1:
            raise ValueError("not a packed value")
        ((kind, content),) = tree.items()
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if kind == "tuple" and type(content) is list:
            return tuple(self.unpack(v, depth + 1) for v in content)
        if kind == "dict" and type(content) is list:
            return {self.unpack(k, depth + 1): self.unpack(v, depth + 1) for k, v in content}
        if kind == "tensor":
            return self._tensor(*content)
        if kind == "network":
            return _network(*(self.unpack(v, depth + 1) for v in content))
        if kind == "numpy":
            return self.unpack(content, depth + 1).numpy()
        if kind == "number":
            return self.unpack(content, depth + 1).numpy()[()]  # numpy's own kind of number
        if self.lent is not None:
            return self.lent.unpack(kind, content, lambda v: self.unpack(v, depth + 1))
        raise ValueError(f"not a packed value: {kind!r}"[:100])

    def unpack_plain(self, tree: Any) -> Any:
        """The value of a tree in which nothing is lent; behind a tensor of it lies no more memory than it has numbers.

        Raises:
            ValueError: something in it is lent, or it is not what `pack` makes.
        """
        lent, self.lent = self.lent, None
        try:
            return _without_more_behind(self.unpack(tree))
        finally:
            self.lent = lent

    def _tensor(self, dtype: str, shape: list, stride: list, first: int, place: list, is_followed: bool):
        kind, (number, n_bytes) = DTYPES[dtype], place
        numbers = [*shape, *stride, first, number, n_bytes]
        if not all(type(n) is int and 0 <= n < 2**40 for n in numbers) or not len(shape) == len(stride) <= 16:
            raise ValueError("not a tensor's shape")
        if number == len(self.memory):
            self._take(n_bytes)
        if number >= len(self.memory) or (first + _span(shape, stride)) * kind.itemsize > self.memory[number].numel():
            raise ValueError("a tensor's bytes are missing")
        flat = self.memory[number]
        flat = flat[: flat.numel() // kind.itemsize * kind.itemsize].view(kind)
        tensor = flat.as_strided(shape, stride, first)
        self.tensors.append(tensor.requires_grad_() if is_followed is True else tensor)
        return self.tensors[-1]

    def _take(self, n_bytes: int) -> None:
        part = self.blob[self.at : self.at + n_bytes]
        if len(part) != n_bytes:
            raise ValueError("a tensor's bytes are missing")
        self.at += n_bytes
        self.memory.append(torch.empty(n_bytes, dtype=torch.uint8))  # torch's own memory: an answer may resize it
        self.memory[-1].numpy()[:] = np.frombuffer(part, np.uint8)


def _without_more_behind(value: Any) -> Any:
    """The same value, with a copy in the place of each tensor that is a view of more memory than its own numbers."""
    if isinstance(value, torch.Tensor):
        is_all = value.nbytes == value.untyped_storage().nbytes()
        return value if is_all else value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _without_more_behind(part) for key, part in value.items()}
    return type(value)(map(_without_more_behind, value)) if isinstance(value, list | tuple) else value


def _network(latency_s: float, bandwidth_Bps: float, ranks_per_host: int | None, inside: Network | None) -> Network:
    """A network from its parts, which are what they must be."""
    if {type(latency_s), type(bandwidth_Bps)} - {int, float} or type(ranks_per_host) not in (int, type(None)):
        raise ValueError("not a network")
    if type(inside) not in (Network, type(None)):
        raise ValueError("not a network")
    return Network(latency_s, bandwidth_Bps, ranks_per_host, inside)
