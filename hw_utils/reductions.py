"""What each member holds after a collective. Sums are added in gloo's order: they equal `launch`'s to the bit."""

from __future__ import annotations

import torch

_REDUCE = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduce_name(op) -> str:
    """`SUM` for ReduceOp.SUM in any of its wrappings."""
    return "" if op is None else getattr(op, "op", op).name


def reducer(op):
    """The elementwise function of a ReduceOp.

    Raises:
        ValueError: gloo has no such operation.
    """
    name = reduce_name(op)
    if name not in _REDUCE:
        raise ValueError(f"Cannot use ReduceOp.{name} with Gloo")
    return _REDUCE[name]


def all_reduce(posts) -> None:
    combine = reducer(posts[0].reduce_op)
    for i in range(len(posts[0].inputs)):
        tensors = [post.inputs[i].data for post in posts]
        total = reduced(tensors, combine)
        for tensor in tensors:
            tensor.copy_(total)


def reduced(tensors: list[torch.Tensor], combine) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        combine(total, tensor, out=total)
    return total


def broadcast(posts) -> None:
    for post in posts:
        for mine, source in zip(post.outputs, posts[post.root].inputs):
            if mine is not source:
                mine.data.copy_(source.data)


def barrier(posts) -> None:
    """Nobody gets anything."""


VALUES = {"all_reduce": all_reduce, "broadcast": broadcast, "barrier": barrier}
