"""At which process a rank's copy of the answers is asked: all at one, or each at one of its own.

Ranks of one answer that share a process can find there what nobody sent: in a module, on a class, in a file. Where each
has its own process, behind its own walls, what it knows came as its arguments and by what the driver carried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from hw_utils.threads import turns


@dataclass
class ProcessOfEachRank:
    """Those of the case that is driven now."""

    own: list[str] = field(default_factory=list)  # a process's socket for each rank; none: they share one
    alters: bool = False  # what messages bring
    # What the grader sees of the memory of a rank's process, or of the shared one.
    look: Callable[[int | None, list[list]], list[int] | None] = lambda number, lent: None
    more: Callable[[int], list[str]] = lambda n_ranks: []  # sockets of so many new processes with answers
    known: dict[Hashable, int] = field(default_factory=dict)  # a rank -> its place in the order in which they came
    begins_again: bool = False  # ranks of a further run, or of the same one that began again, have the same processes

    def begin(self, own: list[str], *, alters: bool = False) -> None:
        """Another case begins; the answers' own sockets, if each rank has one."""
        self.own, self.alters, self.known, self.begins_again = own, alters, {}, False

    def share_nothing(self, n_ranks: int) -> None:
        """In the run that comes each of so many ranks has a process of its own, in the next one the same processes."""
        self.own, self.known, self.begins_again = self.own or self.more(n_ranks), {}, True

    def look_at(self, path: str, lent: list[list]) -> list[int] | None:
        """What the grader sees of the memory of the process behind this socket, beside what was lent."""
        return self.look(self.own.index(path) if path in self.own else None, lent)

    def alter(self, tensors: list[torch.Tensor]) -> None:
        """Gives what a call of torch.distributed has brought other numbers, if this case is to have such.

        Zeros stay zeros: who sends them for show cannot tell.
        """
        for tensor in tensors if self.alters else ():
            if tensor.is_floating_point():
                tensor.detach().mul_(1.25)

    def of_caller(self, path: str, copy: str | None) -> str:
        """The socket for the calling rank, and the shared one for what no rank calls.

        Raises:
            IndexError: it is one more rank than last time.
        """
        rank = copy or turns.place()
        if rank is None:
            return path
        number = self.known.setdefault(rank, len(self.known))
        if self.begins_again and self.own:
            number %= len(self.own)
        return self.own[number] if self.own else path


PROCESS_OF_EACH_RANK = ProcessOfEachRank()
