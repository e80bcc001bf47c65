"""What lesson 07's checks share: the bytes that an answer's object keeps, wherever it lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hw_utils.checks.lesson_06.shards import kept_tensors


def floats_kept(thing: Any) -> list[torch.Tensor]:
    """The float tensors that hang on an object, one of each memory; masks and random states are not floats."""
    found: dict[int, torch.Tensor] = {}
    for tensor in kept_tensors(thing).values():
        if tensor.is_floating_point() and tensor.numel():
            found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
    return list(found.values())


def n_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their memory."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def bytes_beside(tensors: Iterable[torch.Tensor], model: torch.nn.Module) -> int:
    """Bytes of their memory, without the model's own weights and gradients."""
    own = [t.detach() for p in model.parameters() for t in (p, p.grad) if t is not None]
    others = []
    for tensor in tensors:
        known = [k for k, t in enumerate(own) if t.shape == tensor.shape and torch.equal(t, tensor.detach())]
        if known:
            own.pop(known[0])
        else:
            others.append(tensor)
    return n_bytes(others)
