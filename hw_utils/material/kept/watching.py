"""What watches a module or its memory while a program uses it: it survives that the program copies or pickles these.

A hook goes along with its module. A bound method would bring a copy of its whole object, with every reference in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class Hook:
    """Calls `look` with what a module did, and goes on with copies of that module as it is; unpickled it does nothing.

    >>> import copy
    >>> linear = torch.nn.Linear(2, 1)
    >>> _ = linear.register_forward_hook(Hook(lambda module, args, output: print(tuple(output.shape))))
    >>> _ = copy.deepcopy(linear)(torch.zeros(3, 2))
    (3, 1)
    """

    __slots__ = ("look",)

    def __init__(self, look: Callable[..., None]) -> None:
        self.look = look

    def __call__(self, *args: Any) -> None:
        self.look(*args)

    def __copy__(self) -> Hook:
        return self

    def __deepcopy__(self, memo: dict) -> Hook:
        return self

    def __reduce__(self) -> tuple:
        return Hook, (look_past,)


def look_past(*args: Any) -> None:
    """The look of a hook that was pickled: who looks is not in the file."""


class MemoryRef(StorageWeakRef):
    """A weak reference to memory that torch counts: its copies are itself, and a pickled one refers to nothing.

    A second object with the same pointer would free torch's count a second time, and the process dies of that.
    """

    __slots__ = ()

    def __copy__(self) -> MemoryRef:
        return self

    def __deepcopy__(self, memo: dict) -> MemoryRef:
        return self

    def __reduce__(self) -> tuple:
        return _to_nothing, ()


def _to_nothing() -> MemoryRef:
    return MemoryRef(torch.UntypedStorage(0))


class Notes(list):
    """What a watched module has noted of its calls: a copy of it notes in the same list."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Notes:
        return self
