"""What `isend` and `irecv` give back on the virtual cluster: a handle to wait on."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from hw_utils.core.calls.mismatch_text import amount_text, message_text
from hw_utils.virtual.traffic.ledger_rows import OP, PEER, SITE, TAG, WAITED, int_at, long_at, put_wait
from hw_utils.virtual.traffic.tensor_bytes import NOTHING, contents, fill, memory

NO_SOURCE = "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
POLL_S = 1e-6  # what one look at `is_completed` costs, so that a loop that polls lets time pass

_set_class = object.__dict__["__class__"].__set__  # requests say that they are torch's works


class Request:
    """One side of a message; has the methods of `torch.distributed.Work`. `requests_of` makes those of an engine."""

    __slots__ = (
        "arrives_s",  # where messages may be sent ahead: when this one is there, -1 if it is not on its way
        "data",  # of what is sent, a copy, if one was taken; of what is received, what is to be filled in at `wait`
        "done_s",  # -1: not yet
        "dtype",
        "is_blocking",
        "is_send",
        "is_waited",  # from the start, if it blocks where it is called
        "members",  # of its group, if torch.distributed's own function asked
        "n_bytes",
        "rank",
        "row",  # where in `engine.rows.data`
        "tensor",
    )  # fmt: skip
    engine = None
    Limited = None  # of an engine: the kind for groups with short time limits
    arrived = None  # of an engine: address -> the receive whose bytes are to be filled in there at its `wait`
    __class__ = property(lambda self: Work)  # for those who ask with `isinstance`

    def of_group(self, members) -> Request:
        """The handle as torch.distributed's own functions use it: ranks counted within the group."""
        self.members = members
        if members.is_short:
            _set_class(self, self.Limited)
        return self

    def take(self) -> None:
        """Keeps a copy of what is sent, as it is now."""
        if self.data is None:
            self.data = contents(self.tensor, self.n_bytes)

    def was_taken(self) -> None:
        """The copy of a message that was sent ahead has arrived."""
        self.arrives_s = -1.0
        if self.is_blocking or self.is_waited:
            self.data = None

    def deliver(self) -> None:
        """Fills the receive buffer, as gloo does: beside autograd."""
        self.arrived.pop(self.tensor.data_ptr(), None)
        fill(self.tensor, self.data)
        self.data = None

    def _changed(self) -> RuntimeError:
        return RuntimeError(
            f"{self.text()} and changes the tensor between isend and wait: wait() before you write to it, "
            "or send a clone()"
        )

    def is_completed(self) -> bool:
        """Whether the message has crossed by now; never stands still."""
        engine, rank = self.engine, self.rank
        engine.compute.now()
        if not 0 <= self.done_s <= engine.clock[rank]:
            engine.clock[rank] += POLL_S
            engine.let_the_past_run(rank)
        is_done = 0 <= self.done_s <= engine.clock[rank]
        if is_done and not self.is_send and self.data is not None:
            self.deliver()
        engine.compute.resume()
        return is_done

    @property
    def name(self) -> str:
        """`send`, `irecv`, ..."""
        return self.engine.rows.names[int_at(self.engine.rows.data, self.row + OP)]

    @property
    def site(self) -> int:
        """The number of the line that posted it."""
        return int_at(self.engine.rows.data, self.row + SITE)

    @property
    def peer(self) -> int:
        """The global rank at the other end, -1 if that may be anybody."""
        return int_at(self.engine.rows.data, self.row + PEER)

    @property
    def tag(self) -> int:
        return long_at(self.engine.rows.data, self.row + TAG)

    def waits_for(self) -> tuple[int, ...]:
        """The ranks that could complete it."""
        if self.peer >= 0:
            return (self.peer,)
        return tuple(r for r in self.members.ranks if r != self.rank)

    def text(self) -> str:
        """`rank 0 sends 2 float32 (8 bytes) to rank 1 at cell.py, line 4`."""
        amount = amount_text(self.tensor.numel(), str(self.dtype).removeprefix("torch."), self.n_bytes)
        where = self.engine.places.where(self.site)
        return message_text(self.is_send, self.rank, self.peer, amount, tag=self.tag, where=where)

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if self.is_send:
            raise RuntimeError(NO_SOURCE)
        return self.its_members.place_of[self.peer]

    @property
    def its_members(self):
        """Of its group: that of all where a short cut was taken."""
        return getattr(self, "members", self.engine.groups.numbered[0])

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        if self.engine.lines is None:  # as gloo's
            raise RuntimeError("result() not implemented.")
        return [self.tensor]

    def get_future(self) -> torch.futures.Future:
        if self.engine.lines is None:
            raise RuntimeError("Work::getFuture not implemented.")
        self.wait()
        future = torch.futures.Future()
        future.set_result([self.tensor])
        return future


class MessageWork(Work):
    """A request as C++ code takes it, which knows real works only."""

    def __init__(self, request) -> None:
        super().__init__()
        self.request, self.was_waited_for = request, False

    def wait(self, timeout=None) -> bool:
        self.was_waited_for = True
        return self.request.wait(timeout)

    synchronize = wait

    def is_completed(self) -> bool:
        return self.request.is_completed()

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self.request.result()

    def get_future(self) -> torch.futures.Future:
        return self.request.get_future()

    def source_rank(self) -> int:
        return self.request.source_rank()

    _source_rank = source_rank


def requests_of(engine, queues) -> type[Request]:
    """The requests of one engine's queues; `wait` is here because it has all that it needs at hand."""
    clock, waiting, turns = engine.clock, engine.agenda.waiting, engine.turns
    order, rows, arrived = engine.rows.order, engine.rows.data, {}
    is_free, is_eager = engine.compute.is_free, queues.eager_bytes > 0

    class Own(Request):
        __slots__ = ()

        def wait(self, timeout=None, *, is_groups: bool = False) -> bool:
            """Stands still until the message has crossed; a received tensor is filled now."""
            rank, done_s = self.rank, self.done_s
            start_s = clock[rank] if is_free else engine.compute.now()
            if done_s < 0 and timeout:
                if not engine.block_for(rank, self, timeout.total_seconds(), is_groups=is_groups):
                    queues.given_up.add(self.row)
                    self.its_members.close(self.its_members.place_of[rank])
                    raise RuntimeError(f"Timed out waiting {timeout.total_seconds() * 1000:g}ms: {self.text()}")
            elif done_s < 0:
                waiting[rank] = self
                turns.switch(rank)
            elif done_s > start_s:
                engine.move_on(rank, done_s)
            if not self.is_waited:
                self.is_waited = True
                order[rank] = place = order[rank] + 1
                put_wait(rows, self.row + WAITED, place, start_s, clock[rank])
                if self.is_send:
                    at = self.tensor.data_ptr()
                    if self.data is not NOTHING and memory[at : at + self.n_bytes] != self.data:
                        raise self._changed()
                    if arrived and at in arrived and arrived[at].rank == rank:  # a real network has written there
                        raise self._changed()
                    if not is_eager or self.arrives_s < 0:  # else it is still to be received
                        self.data = None
                elif self.data is not None:
                    self.deliver()
            if not is_free:
                engine.compute.resume()
            return True

    class Limited(Own):
        """Of a group whose calls may take so many seconds."""

        __slots__ = ()

        def wait(self, timeout=None) -> bool:
            limit = timedelta(seconds=self.members.limit_s)
            return Own.wait(self, timeout or limit, is_groups=not timeout)

    Own.engine, Own.arrived, Own.Limited = engine, arrived, Limited
    return Own
