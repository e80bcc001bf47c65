"""A check's answers in their process, and what has come to live there since they were opened, wherever it is kept.

Python's own collector knows every tensor that was made since: in a module, on a class, in a list of nobody's.
"""

from __future__ import annotations

import ctypes
import pickle
from gc import collect, freeze, get_objects  # our own: a student may replace gc's
from threading import Thread
from typing import Any

import torch
from torch import nn

from hw_grader.driving import busy_calls, forwarded_calls
from hw_grader.driving.busy_calls import BusyCalls
from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.sandbox.call_filter import start_no_thread
from hw_utils.core.source.unseen_calls import refuse_unseen
from hw_utils.material.kept.tensors import beside_models, kept_elsewhere, kept_tensors
from hw_utils.threads import turns
from hw_utils.virtual.ranks.per_rank_state.worker_copies import is_constant

_libc = ctypes.CDLL(None)
_MMAP_THRESHOLD, _LARGE_BYTES = -3, 2**17


def run_in_ranks_only(served_by: str) -> None:
    """From now on no code of the answers' starts a thread, or runs where the tracer of its rank does not see it.

    served_by: the file of what serves calls, each in a thread.
    """
    own = [turns.__file__, busy_calls.__file__, served_by]
    refuse_unseen(own, everywhere=True, via=forwarded_calls.__file__, begins=start_no_thread)


def begin() -> None:
    """From now on what is made counts."""
    collect()
    freeze()


def made_since() -> list[torch.Tensor]:
    """Every tensor with memory of its own that is alive."""
    collect()
    found = (thing for thing in get_objects() if isinstance(thing, torch.Tensor))
    return [tensor.detach() for tensor in found if tensor.layout == torch.strided and tensor.device.type == "cpu"]


class Answers:
    """A check's answers: the ones that were opened, and a copy for each rank of a run if they hold what can change."""

    def __init__(self, blob: bytes) -> None:
        if hasattr(_libc, "mallopt"):  # a tensor's memory goes back to the kernel with the tensor
            _libc.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        self.blob, self.opened = blob, pickle.loads(blob)
        self.are_constant = is_constant(tuple(self.opened))
        self.copies: dict[str, list] = {}
        self.spare: list[list] = []  # copies that nobody has taken yet
        self.callers: set[str | None] = set()
        self.from_the_start = list(kept_elsewhere(self.opened, []).values())
        begin()
        self.sessions: dict[str, Any] = {}  # while they keep something
        self.leaving: list[Thread] = []
        self.busy = BusyCalls()

    def of(self, copy: str | None) -> list:
        """The copy of that name."""
        self.callers.add(copy)
        if copy is None or self.are_constant:
            return self.opened
        if copy not in self.copies:
            self.copies[copy] = self.spare.pop() if self.spare else self._copied()
        return self.copies[copy]

    def _copied(self) -> list:
        copy = pickle.loads(self.blob)
        self.from_the_start += kept_elsewhere(copy, []).values()
        begin()
        return copy

    def kept(self, thing: Any, served: Any) -> dict[str, torch.Tensor]:
        """What the object keeps, and what came to be kept elsewhere since the answers were opened."""
        known = {tensor.data_ptr() for tensor in self.from_the_start}
        models = models_of(served.lent)
        beside = kept_elsewhere(served.answers, models, with_numbers=True)
        found = {path: t for path, t in beside.items() if t.data_ptr() not in known}
        found |= kept_tensors(thing, with_numbers=True)
        if len(self.callers) < 2:  # else another rank's are here, too
            known |= {tensor.data_ptr() for tensor in [*found.values(), *served.handed.contents.values()]}
            found |= {f"something ({k})": t for k, t in enumerate(made_since()) if t.data_ptr() not in known}
            models = [model for session in [served, *self.sessions.values()] for model in models_of(session.lent)]
        return beside_models(found, models)

    def leaves(self, thread: Thread) -> None:
        """A thread has nothing more to do than to send its reply."""
        self.leaving = [*(one for one in self.leaving if one.is_alive()), thread]

    def settle(self, n_ranks: int) -> None:
        """Gives back what nobody uses: how much is in use is looked at from outside next.

        n_ranks: of a run that begins now. What the answers hold from the start, each rank's copy holds, too.
        """
        while not self.are_constant and len(self.spare) < n_ranks:
            self.spare.append(self._copied())
        for thread in self.leaving:  # its reply has come, and lies here, too, until it ends
            thread.join()
        collect()
        if hasattr(_libc, "malloc_trim"):  # another C library than glibc has none
            _libc.malloc_trim(0)


def models_of(lent: Lent) -> list[nn.Module]:
    """The models that a driver has lent."""
    return [thing for thing in lent.things if isinstance(thing, nn.Module)]
