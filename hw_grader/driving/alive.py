"""What has come to live in an answers' process, wherever it is kept: in a module, on a class, in a list of nobody's.

Python's own collector knows every tensor, list and dictionary that was made since the answers were opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from gc import collect, freeze, get_objects  # our own: a student may replace gc's
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import Node

from hw_utils.material.kept_tensors import kept_tensors

_MOST_NODES = 10_000


def begin() -> None:
    """From now on what is made counts."""
    collect()
    freeze()


def made_since() -> list[torch.Tensor]:
    """Every tensor and array that is alive, what graphs keep for their backward pass, and numbers in lists."""
    collect()
    found: list[torch.Tensor] = []
    nodes: list[Node] = []
    for thing in get_objects():
        if isinstance(thing, torch.Tensor):
            found.append(thing)
            nodes += [thing.grad_fn] if thing.grad_fn is not None else []
        elif isinstance(thing, Node):
            nodes.append(thing)
        elif type(thing) in (list, dict, tuple, set):
            found += _numbers(thing)
    return found + list(_saved(nodes))


def _numbers(container: Any) -> Iterator[torch.Tensor]:
    """Arrays in it, and its floats and raw bytes as one tensor each."""
    inside = container.values() if type(container) is dict else container
    if any(type(part) in (float, bytes, bytearray) or isinstance(part, np.ndarray) for part in inside):
        plain = [part for part in inside if type(part) in (float, bytes, bytearray) or isinstance(part, np.ndarray)]
        yield from kept_tensors(_Holder(plain), with_numbers=True).values()


class _Holder:
    def __init__(self, parts: list) -> None:
        self.parts = parts


def _saved(waiting: list[Node]) -> Iterator[torch.Tensor]:
    seen: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions if following is not None]
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    value = getattr(node, name)
                except RuntimeError:
                    continue  # let go of by its backward pass
                yield from (part for part in (value if isinstance(value, tuple) else [value])
                            if isinstance(part, torch.Tensor))  # fmt: skip
