"""Operations that change a tensor in place: they read it, compute, and write, and others may run meanwhile.

Torch lets go of the interpreter's lock while it computes, and so does numpy above 500 elements. Where two ranks change
one tensor at a time, what stands there afterwards is what the last one made of what it had read: the other's change is
lost. So in between is a place to switch. What an operation of torch's writes to, its schema says. Of numpy's operations
those are seen that have to do with `tensor.numpy()`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch.utils import _python_dispatch

from hw_utils.core.calls.patched import patched
from hw_utils.threads.interleavings.switch_points import is_of_a_library

# Operations that do not read what they write over.
_WRITES_ONLY = {
    *("fill_", "zero_", "copy_", "_foreach_zero_", "_foreach_copy_"),
    *("index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "fill_diagonal_"),
}
Place = tuple[CodeType, int]  # a step of the student's code


class ChangedTensors:
    """Which tensors the ranks of one run change in place, and where."""

    def __init__(self) -> None:
        self.ranks: dict[int, set[int]] = defaultdict(set)  # storage -> who changes it
        self.places: dict[int, set[Place]] = defaultdict(set)
        self.kept: list[torch.UntypedStorage | np.ndarray] = []  # else the next tensor could get the address

    def note(self, memory: torch.UntypedStorage | np.ndarray, rank: int, place: Place) -> None:
        known = memory._cdata if isinstance(memory, torch.UntypedStorage) else id(memory)
        if known not in self.ranks:
            self.kept.append(memory)
        self.ranks[known].add(rank)
        self.places[known].add(place)

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
        run = functools.partial(func, *args, **(kwargs or {}))
        targets = list(_read_and_written(func, args, kwargs or {})) if _written_by(func) else []
        if targets:
            before = [target.clone() for target in targets]
            if self.others_run(target.untyped_storage() for target in targets):
                return _as_read_before(run, targets, before, of_all=torch.Tag.pointwise in func.tags)
        return run()

    def others_run(self, memories: Iterable[torch.UntypedStorage | np.ndarray]) -> bool:
        """Whether others may have run, now that this rank has read what it is about to change."""
        frame = _students_frame()
        if frame is None:
            return False
        place = (frame.f_code, frame.f_lasti)
        for memory in memories:
            self.changed.note(memory, self.rank, place)
        return self.pause(frame, place)

    def __enter__(self) -> InTwoSteps:
        _python_dispatch._push_mode(self)
        _of_thread.steps = self
        return self

    def __exit__(self, *error: Any) -> None:
        del _of_thread.steps
        _python_dispatch._pop_mode()


_of_thread = threading.local()  # .steps: those of the rank that this thread is


def arrays_are_seen() -> contextlib.AbstractContextManager:
    """Within it, `tensor.numpy()` on the thread of a rank gives an array whose operations are seen.

    A mode of torch's would see that, too, and take its time for every other call.
    """

    def numpy(tensor: torch.Tensor, *args: Any, **options: Any) -> np.ndarray:
        array = super(torch.Tensor, tensor).numpy(*args, **options)
        return array.view(SeenArray) if hasattr(_of_thread, "steps") else array

    return patched(torch.Tensor, "numpy", numpy)


# Within it, what torch computes on this thread is not looked at: a check's own steps are nobody's answer.
unseen = torch._C._DisableTorchDispatch


class SeenArray(np.ndarray):
    """An array, and what is made of it: where it is changed in place, it is read and written in two steps."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple = (), **options: Any) -> Any:
        own, into = [_plain(value) for value in inputs], tuple(_plain(value) for value in out)
        target = own[0] if method == "at" else into[0] if len(into) == 1 and method == "__call__" else None
        steps = getattr(_of_thread, "steps", None)
        if steps is not None and isinstance(target, np.ndarray) and any(_are_one(target, value) for value in own):
            before = target.copy()
            if steps.others_run([_memory_of(target)]):
                np.copyto(target, before)
        result = getattr(ufunc, method)(*own, **options, **({"out": into} if into else {}))
        if len(out) == 1:
            return out[0]
        return result.view(SeenArray) if type(result) is np.ndarray else result


SeenArray.__name__ = SeenArray.__qualname__ = "ndarray"  # as a check calls it that was given one


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, SeenArray) else value


def _are_one(target: np.ndarray, value: Any) -> bool:
    return isinstance(value, np.ndarray) and np.may_share_memory(target, value)


def _memory_of(array: np.ndarray) -> torch.UntypedStorage | np.ndarray:
    """What an array is a view of: a tensor's memory, or an array's."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base.untyped_storage() if isinstance(array.base, torch.Tensor) else array


def _as_read_before(
    run: Callable[[], Any], targets: list[torch.Tensor], before: list[torch.Tensor], *, of_all: bool
) -> Any:
    """Runs an operation on what stood there before others have written; of_all: it writes every number.

    Else what it leaves as it was stays as the others have written it: it may add to some rows, which are nobody else's.
    """
    since = [target.clone() for target in targets]
    for target, old in zip(targets, before):
        target.copy_(old)
    result = run()
    for target, old, other in zip(targets, before, since) if not of_all else ():
        is_left = (target == old) | (target.isnan() & old.isnan())
        target.copy_(torch.where(is_left, other, target))
    return result


def _read_and_written(func: Any, args: tuple, kwargs: dict) -> Iterator[torch.Tensor]:
    """The tensors of which an operation reads the numbers, and writes others there."""
    given = {a.data_ptr() for a in args if isinstance(a, torch.Tensor)}
    for place, name, is_out in _written_by(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, torch.Tensor) and (not is_out or tensor.data_ptr() in given):
                yield tensor


@functools.cache
def _written_by(func: Any) -> list[tuple[int, str, bool]]:
    """Of each argument that an operation writes to, by its schema: its place, its name, whether it is an `out=`; none
    where it reads nothing there, or changes no numbers."""
    schema = func._schema
    if schema.name.rpartition(":")[2] in _WRITES_ONLY or torch.Tag.inplace_view in func.tags:
        return []
    arguments = [(place, a) for place, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
    return [(place, a.name, a.is_out) for place, a in arguments]


def _students_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (is_of_a_library(frame.f_code) or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return frame
