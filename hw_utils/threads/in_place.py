"""Operations of torch that change a tensor in place: they read it, compute, and write, and others may run meanwhile.

Torch lets go of the interpreter's lock while it computes. Where two ranks change one tensor at a time, what stands
there afterwards is what the last one made of what it had read: the other's change is lost. So in between is a place to
switch.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils import _python_dispatch

from hw_utils.threads.switch_points import points_in

_WRITES_ONLY = ("fill_", "zero_", "copy_")
Place = tuple[CodeType, int]  # a step of the student's code


class ChangedTensors:
    """Which tensors the ranks of one run change in place, and where."""

    def __init__(self) -> None:
        self.ranks: dict[int, set[int]] = defaultdict(set)  # storage -> who changes it
        self.places: dict[int, set[Place]] = defaultdict(set)
        self.kept: list[torch.UntypedStorage] = []  # else the next tensor could get the address

    def note(self, tensor: torch.Tensor, rank: int, place: Place) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.ranks:
            self.kept.append(storage)
        self.ranks[storage._cdata].add(rank)
        self.places[storage._cdata].add(place)

    def shared(self) -> set[Place]:
        """Where a tensor is changed that another rank changes, too."""
        return {place for storage, ranks in self.ranks.items() if len(ranks) > 1 for place in self.places[storage]}


class InTwoSteps(_python_dispatch.TorchDispatchMode):
    """On the thread of a rank. pause(frame, place): may let others run; whether it did."""

    def __init__(self, rank: int, changed: ChangedTensors, pause: Callable[[FrameType, Place], bool]) -> None:
        super().__init__()
        self.rank, self.changed, self.pause = rank, changed, pause

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below in `torch.compiler.disable`

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        target = _read_and_written(func, args, kwargs or {})
        if target is not None and (frame := _students_frame()) is not None:
            place = (frame.f_code, frame.f_lasti)
            self.changed.note(target, self.rank, place)
            before = target.clone()
            if self.pause(frame, place):
                target.copy_(before)  # what others have written since is not what this one has read
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> InTwoSteps:
        _python_dispatch._push_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _python_dispatch._pop_mode()


def _read_and_written(func: Any, args: tuple, kwargs: dict) -> torch.Tensor | None:
    """The tensor of which an operation reads each number, and writes another one there."""
    if torch.Tag.pointwise not in func.tags:
        return None
    name, given = func._schema.name.rpartition(":")[2], [a for a in args if isinstance(a, torch.Tensor)]
    if "out" in kwargs and isinstance(kwargs["out"], torch.Tensor):
        out = kwargs["out"]
        return out if any(a.data_ptr() == out.data_ptr() for a in given) else None
    return given[0] if name.endswith("_") and name not in _WRITES_ONLY and given else None


def _students_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (not points_in(frame.f_code) or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return frame
