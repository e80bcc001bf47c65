"""What a call of an answer did to the arguments it was given: numbers, memory, gradients, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hw_grader.driving.marshalling.packed_values import Parcel, containers_in


class GivenArguments:
    """The arguments as they were when the call began."""

    def __init__(self, arguments: list, tensors: Sequence[torch.Tensor], memory: Sequence[torch.Tensor]) -> None:
        self.tensors, self._memory = tensors, memory
        self._numbers = [_numbers(flat) for flat in memory]
        self._places = [_place(t) for t in tensors]
        self._gradients = [(t.requires_grad, t.grad) for t in tensors]  # they are leaves
        self._contents = [(container, _content(container)) for container in containers_in(arguments)]

    def changed(self, parcel: Parcel) -> list:
        """Of each tensor: where it lies now; of each memory, its numbers; of each tensor, whether autograd follows it
        and its gradient; of each container, its content. None for what is as before; all packed."""
        moved = [t.detach() if _place(t) != old else None for t, old in zip(self.tensors, self._places)]
        written = [m if _numbers(m) != old else None for m, old in zip(self._memory, self._numbers)]
        followed = [_followed(t, *old) for t, old in zip(self.tensors, self._gradients)]
        contents = [now if not _is_same(_content(now), old) else None for now, old in self._contents]
        return [*map(parcel.pack, (moved, written, followed)), [parcel.pack_what_crosses(c) for c in contents]]


def _numbers(flat: torch.Tensor) -> bytes:
    return flat.numpy().tobytes()


def _place(tensor: torch.Tensor) -> tuple:
    """Where it lies, and as what."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _followed(tensor: torch.Tensor, was_followed: bool, gradient: torch.Tensor | None) -> list | None:
    """Whether autograd follows it now, and its gradient; None if it does as before."""
    now = tensor.grad if tensor.is_leaf else None
    if tensor.requires_grad == was_followed and now is gradient:
        return None
    return [tensor.requires_grad, None if now is None else now.detach()]


def _content(container: list | dict) -> list:
    return list(container) if isinstance(container, list) else [part for pair in container.items() for part in pair]


def _is_same(now: list, old: list) -> bool:
    return len(now) == len(old) and all(a is b for a, b in zip(now, old))
