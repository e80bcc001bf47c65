"""The handle of a collective on the virtual cluster."""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from hw_utils.requests import POLL_S


class VirtualWork(Work):
    """What `async_op=True` gives back; `wait` and futures keep to the virtual clock."""

    def __init__(self, engine, rank: int, post, members, number: int) -> None:
        super().__init__()
        self.engine, self.owner, self.members, self.number = engine, rank, members, number
        self.row, self.outputs, self.name, self.site = post.row, post.outputs, post.name, post.site
        self.done_s = -1.0
        self._future: Future | None = None

    def complete(self, end_s: float) -> None:
        """This member is done at `end_s`."""
        self.done_s = end_s
        self.engine.note_end(self.row, end_s)
        if self._future is not None:
            self._future.set_result(self.outputs)
        if self.engine.waiting[self.owner] is self:
            self.engine.wake(self.owner, end_s)

    def wait(self, timeout=None) -> bool:
        engine, rank = self.engine, self.owner
        engine.now()
        engine.order[rank] += 1
        start_s = engine.clock[rank]
        if self.done_s < 0:
            engine.block(rank, self)
        elif self.done_s > start_s:
            engine.move_on(rank, self.done_s)
        engine.note_wait(self.row, engine.order[rank], start_s, engine.clock[rank])
        engine.resume_compute()
        return True

    def is_completed(self) -> bool:
        engine, rank = self.engine, self.owner
        engine.now()
        if not 0 <= self.done_s <= engine.clock[rank]:
            engine.clock[rank] += POLL_S
            engine.let_the_past_run(rank)
        engine.resume_compute()
        return 0 <= self.done_s <= engine.clock[rank]

    is_success = is_completed

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return list(self.outputs)

    def get_future(self) -> Future:
        if self._future is None:
            self._future = Future()
            if self.done_s >= 0:
                self._future.set_result(self.outputs)
        return self._future

    def waits_for(self) -> tuple[int, ...]:
        """The members that have not made this call yet; all others if everybody has."""
        late = [r for i, r in enumerate(self.members.ranks) if self.members.n_called[i] <= self.number]
        return tuple(late or (r for r in self.members.ranks if r != self.owner))
