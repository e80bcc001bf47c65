"""Whether a program writes to a collective's tensors between the call and its `wait`, where what is read is chance.

A backend reads and writes them at any moment until then. Here it does so at one, so the program would get the same
result in every run, and on real processes another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from zlib import crc32

import torch

from hw_utils.virtual.traffic.tensor_bytes import writable


class Watched:
    """The tensors of one call, until somebody waits for it. text: what it says of the call, given the first of them."""

    def __init__(self, tensors: Iterable[torch.Tensor], text: Callable[[torch.Tensor], str]) -> None:
        self.tensors, self.text, self.is_changed = list(tensors), text, False
        self.renew()

    def renew(self) -> None:
        """From now on they are as they are now: the backend has written to them."""
        self.states = [(t._version, _bytes_of(t) if _is_part(t) else 0) for t in self.tensors]

    def look(self) -> None:
        """Notes whether they are other ones by now. In a larger tensor a version may be a neighbour's: bytes decide."""
        for tensor, (version, its_bytes) in zip(self.tensors, self.states):
            if tensor._version != version and not (_is_part(tensor) and _bytes_of(tensor) == its_bytes):
                self.is_changed = True

    def overlaps(self, others: Iterable[torch.Tensor]) -> bool:
        mine = [_place(tensor) for tensor in self.tensors]
        places = [_place(tensor) for tensor in others if tensor.layout is torch.strided]
        return any(s == storage and a < end and begin < b for s, a, b in mine for storage, begin, end in places)

    def require_unchanged(self) -> None:
        """Raises:
        RuntimeError: they were changed.
        """
        self.look()
        if self.is_changed:
            raise RuntimeError(
                f"{self.text(self.tensors[0])}, and changes the tensor between the call and its wait: wait() before "
                "you write to it, or hand in a clone()"
            )


class InFlight:
    """What is watched, by rank; only for so long as the program has the work."""

    def __init__(self) -> None:
        self.of_rank: dict[int, weakref.WeakSet[Watched]] = {}

    def watch(self, rank: int, tensors: Iterable[torch.Tensor], text: Callable[[torch.Tensor], str]) -> Watched | None:
        """The first of what a call reads and of what it writes; None if nothing tells whether they change."""
        if not (found := [tensor for tensor in tensors if _tells(tensor)]):
            return None
        watched = Watched(found, text)
        self.of_rank.setdefault(rank, weakref.WeakSet()).add(watched)
        return watched

    def look(self, rank: int, own: Watched | None, outputs: list[torch.Tensor]) -> list[Watched]:
        """Those that the backend, which is about to write to a rank's `outputs`, changes itself: to be renewed then."""
        touched = [one for one in self.of_rank.get(rank, ()) if one is own or one.overlaps(outputs)]
        for one in touched:
            one.look()
        return touched


def _tells(tensor: torch.Tensor) -> bool:
    """Whether a write shows: in the version if the tensor is all of its storage, else in its bytes."""
    if tensor.layout is not torch.strided or tensor.is_inference() or not tensor.numel():
        return False
    return not _is_part(tensor) or (tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.data_ptr() != 0)


def _is_part(tensor: torch.Tensor) -> bool:
    return tensor.nbytes < tensor.untyped_storage().nbytes()


def _bytes_of(tensor: torch.Tensor) -> int:
    at = tensor.data_ptr()
    return crc32(writable[at : at + tensor.nbytes])


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    """(its storage, first byte, byte after the last)."""
    begin = tensor.storage_offset() * tensor.element_size()
    extent = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
    return tensor.untyped_storage()._cdata, begin, begin + extent * tensor.element_size()
