"""Which tensors have values. Known is what comes from Python's numbers and objects, and what is computed from that.

A storage without values has its bytes like any other, asked of the allocator and never touched: an operating system
gives such memory no pages. So its size, its views and its end are torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

KNOWN_BYTES = 2**20  # of one tensor: a larger one is worth more without its values
KNOWN_INDEX_BYTES = 2**24  # of integers: they say where, as a shuffled order of samples
_INDEX = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def is_known(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values."""
    return not hasattr(tensor.untyped_storage(), "has_no_values")


def are_known(tensors: Iterable[torch.Tensor]) -> bool:
    return all(map(is_known, tensors))


def forget(tensor: torch.Tensor) -> None:
    """From now on it has none, nor has what shares its storage."""
    tensor.untyped_storage().has_no_values = True


def learn(tensors: Iterable[torch.Tensor]) -> None:
    """Values have been written to all elements of these: a storage that they cover has values again."""
    written: dict[int, list] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        written.setdefault(storage._cdata, [storage, 0])[1] += tensor.nbytes
    for storage, n_bytes in written.values():
        if n_bytes >= storage.nbytes() and hasattr(storage, "has_no_values"):
            del storage.has_no_values


def is_index(dtype: torch.dtype) -> bool:
    """Whether its numbers say where something is, or how often."""
    return dtype in _INDEX


def is_small(n_bytes: int, dtype: torch.dtype) -> bool:
    """Whether a tensor of so many bytes keeps its values."""
    return n_bytes <= (KNOWN_INDEX_BYTES if dtype in _INDEX else KNOWN_BYTES)
