"""What `isend` and `irecv` give back on the virtual cluster: a handle to wait on."""

from __future__ import annotations

import torch

from hw_utils.memory import contents, fill
from hw_utils.records import OP, SITE, WAITED, int_at, put_wait

POLL_S = 1e-6  # what one look at `is_completed` costs, so that a loop that polls lets time pass


class Request:
    """One side of a message; has the methods of `torch.distributed.Work`."""

    __slots__ = (
        "arrives_s",  # of a message that is sent ahead: when it is there
        "data",  # what is sent, if a copy was taken
        "done_s",  # -1: not yet
        "dtype",
        "engine",
        "is_awaited",
        "is_blocking",
        "is_delivered",
        "is_send",
        "is_waited",
        "members",
        "must_not_change",
        "n_bytes",
        "number",  # the place among all posts, where receives from anybody are about
        "peer",
        "rank",
        "row",
        "tag",
        "tensor",
    )  # fmt: skip

    def of_group(self, members) -> Request:
        """The handle as torch.distributed's own functions use it: ranks counted within the group."""
        self.members = members
        return self

    def take(self) -> None:
        """Keeps a copy of what is sent, as it is now."""
        if self.data is None:
            self.data = contents(self.tensor, self.n_bytes)

    def was_taken(self) -> None:
        """The copy of a message that was sent ahead has arrived."""
        self.is_delivered = True
        if not self.must_not_change:
            self.data = None

    def wait(self, timeout=None) -> bool:
        """Stands still until the message has crossed; a received tensor is filled now."""
        engine, rank = self.engine, self.rank
        clock = engine.clock
        start_s = clock[rank] if engine.is_free else engine.now()
        if self.done_s < 0:
            self.is_awaited = True
            engine.block(rank, self)
        elif self.done_s > start_s:
            clock[rank] = self.done_s
        if not self.is_blocking:
            order = engine.order
            order[rank] = place = order[rank] + 1
            if not self.is_waited:
                self.is_waited = True
                put_wait(engine.rows, self.row + WAITED, place, start_s, clock[rank])
        if self.must_not_change:
            self.check_unchanged()
        elif not self.is_send and not self.is_delivered:
            self.deliver()
        if not engine.is_free:
            engine.resume_compute()
        return True

    def deliver(self) -> None:
        """Fills the receive buffer, as gloo does: beside autograd."""
        self.is_delivered = True
        fill(self.tensor, self.data)
        self.data = None

    def check_unchanged(self) -> None:
        """The sent tensor must be as it was at `isend`."""
        data, self.must_not_change = self.data, False
        if self.arrives_s < 0 or self.is_delivered:  # else it is sent ahead, and still to be received
            self.data = None
        if contents(self.tensor, self.n_bytes) != data:
            raise RuntimeError(
                f"{self.text()} and changes the tensor between isend and wait: wait() before you write to it, "
                "or send a clone()"
            )

    def is_completed(self) -> bool:
        """Whether the message has crossed by now; never stands still."""
        engine, rank = self.engine, self.rank
        engine.now()
        if not 0 <= self.done_s <= engine.clock[rank]:
            engine.clock[rank] += POLL_S
            engine.let_the_past_run(rank)
        is_done = 0 <= self.done_s <= engine.clock[rank]
        if is_done and not self.is_send and not self.is_delivered:
            self.deliver()
        engine.resume_compute()
        return is_done

    @property
    def name(self) -> str:
        """`send`, `irecv`, ..."""
        return self.engine.names[int_at(self.engine.rows, self.row + OP)]

    @property
    def site(self) -> int:
        """The number of the line that posted it."""
        return int_at(self.engine.rows, self.row + SITE)

    def waits_for(self) -> tuple[int, ...]:
        """The ranks that could complete it."""
        if self.peer >= 0:
            return (self.peer,)
        ranks = self.members.ranks if self.members is not None else range(self.engine.world_size)
        return tuple(r for r in ranks if r != self.rank)

    def text(self) -> str:
        """`rank 0 sends 2 float32 (8 bytes) to rank 1 at cell.py, line 4`."""
        verb, way = ("sends", "to") if self.is_send else ("receives", "from")
        peer = f"rank {self.peer}" if self.peer >= 0 else "any rank"
        tag = f" with tag {self.tag}" if self.tag else ""
        dtype = str(self.dtype).removeprefix("torch.")
        where = self.engine.places.where(self.site)
        amount = f"{self.tensor.numel():,} {dtype} ({self.n_bytes:,} bytes)"
        return f"rank {self.rank} {verb} {amount} {way} {peer}{tag}" + (f" at {where}" if where else "")

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.members.place_of[self.peer] if self.members is not None else self.peer

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        return [self.tensor]

    def get_future(self) -> torch.futures.Future:
        self.wait()
        future = torch.futures.Future()
        future.set_result([self.tensor])
        return future
