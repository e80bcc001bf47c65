"""The handle of a collective on the virtual cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.futures import Future

from hw_utils.core.errors import ranks_text
from hw_utils.virtual.traffic.changed_in_flight import Watched
from hw_utils.virtual.traffic.messages.requests import POLL_S


class VirtualFuture(Future):
    """What a collective will give, or what `then` makes of it; its wait lets the other ranks run.

    Callbacks run in the turn of the rank that owns it: they may communicate themselves.
    """

    def __init__(self, settle) -> None:
        super().__init__()
        self._settle = settle  # stands still until the value is there

    def wait(self):
        self._settle()
        return super().wait()

    def then(self, callback) -> VirtualFuture:
        chained = VirtualFuture(self._settle)

        def go_on(done: Future) -> None:
            try:
                value = callback(done)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.set_result(value)

        self.add_done_callback(go_on)
        return chained


def _is_settled() -> None:
    """There is nothing to wait for."""


def _note_wait(engine, rank: int, row: int) -> None:
    order = engine.rows.order[rank] = engine.rows.order[rank] + 1
    engine.rows.note_wait(row, order, engine.clock[rank], engine.clock[rank])


def collect_all(futures) -> VirtualFuture:
    """torch.futures.collect_all, whose own future waits in C++ for other ranks."""
    futures = list(futures)

    def settle() -> None:
        for future in futures:
            future.wait()

    collected = VirtualFuture(settle)
    left = [len(futures)]

    def one_is_done(_) -> None:
        left[0] -= 1
        if not left[0]:
            collected.set_result(futures)

    if not futures:
        collected.set_result([])
    for future in futures:
        future.add_done_callback(one_is_done)
    return collected


def wait_all(futures) -> list:
    """torch.futures.wait_all, in Python."""
    return [future.wait() for future in futures]


def together(works: list):
    """The last of several works, which is over when all of them are."""
    last = works[-1]

    def wait_for_all() -> None:
        for work in works[:-1]:
            work.wait()
        last.outputs = [tensor for work in works for tensor in work.outputs]

    if len(works) > 1:
        last.finish_with(wait_for_all)
    return last


@contextmanager
def virtual_futures():
    """While a simulation runs, torch.futures waits where other ranks can run; works live as long as C++ has them."""
    handed: dict[int, Work] = {}  # a reducer of DistributedDataParallel's -> what its join() has given it to wait for
    hand_over = dist.Reducer._set_forward_pass_work_handle

    def keeping(reducer, work, *more) -> None:
        handed[id(reducer)] = work
        hand_over(reducer, work, *more)

    before = {name: getattr(torch.futures, name) for name in ("collect_all", "wait_all")}
    torch.futures.collect_all, torch.futures.wait_all = collect_all, wait_all
    dist.Reducer._set_forward_pass_work_handle = keeping
    try:
        yield
    finally:
        _backward.passes.clear()
        dist.Reducer._set_forward_pass_work_handle = hand_over
        for name, function in before.items():
            setattr(torch.futures, name, function)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.passes: dict[int, list] = {}  # number of a backward pass -> works that it has yet to wait for


_backward = _OfThread()  # a rank that communicates inside a pass has its thread to itself


class WithFuture:
    """A work's future: set when the owner waits for the work, or at the latest when its backward pass ends.

    C++ code, as DistributedDataParallel's, waits for futures where no other rank could run. It does so in a callback
    at the end of a backward pass: ours is queued before, or waits here if it is that callback that asks.
    """

    future: VirtualFuture | None = None
    held_in: dict | None = None  # where it is kept until somebody waits for it
    unfinished: tuple[Callable[[], None], ...] = ()  # what its result still wants, see finish_with
    gives: list | Callable[[], list] | None = None  # what its result is, if not the outputs as they travel
    watched: Watched | None = None  # its tensors, until it is known to be over
    is_mute = False  # its result and its future are asked for in vain, as of a few of gloo's

    def result(self) -> list[torch.Tensor]:
        if self.is_mute:
            raise RuntimeError("result() not implemented.")
        gives = self.gives() if callable(self.gives) else self.gives
        return list(self.outputs if gives is None else gives)

    def get_future(self) -> VirtualFuture:
        if self.is_mute:
            raise RuntimeError("Work::getFuture not implemented.")
        if self.future is None:
            self.future = VirtualFuture(self.wait)
            if self.is_over:
                self.settle_future()
            elif torch._C._current_graph_task_id() == -1:
                self.future_is_taken()
            elif torch._C._current_autograd_node() is None:
                self.wait()
            else:
                works = _backward.passes.setdefault(torch._C._current_graph_task_id(), [])
                works.append(self)
                if len(works) == 1:
                    torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_of_backward, works))
        return self.future

    def let_go(self) -> None:
        """Somebody has waited: its tensors live no longer than who asked for it wants them to."""
        if self.held_in is not None:
            self.held_in.pop(id(self), None)

    def finish_with(self, finish: Callable[[], None]) -> None:
        """`finish()` is called once, before whoever waits for the work goes on and its future has its value."""
        self.unfinished = (*self.unfinished, finish)

    def settle_future(self) -> None:
        self.watched = None
        while self.unfinished:
            finish, *left = self.unfinished
            self.unfinished = tuple(left)
            finish()
        if self.future is not None and not self.future.done():
            if self.exception() is None:
                self.future.set_result(self.result())
            else:
                self.future.set_exception(RuntimeError(str(self.exception())))
            self.future._settle = self.once_settled()  # not wait: the two would hold each other, and its tensors

    def once_settled(self) -> Callable[[], None]:
        """What waiting for the future is when its value is there."""
        return _is_settled

    def future_is_taken(self) -> None:
        """By code that may wait for it where no Python code sees it."""

    def _end_of_backward(self, works: list) -> None:
        _backward.passes.clear()  # those that an error has ended, too
        while works:
            works.pop(0).wait()


class VirtualWork(WithFuture, Work):
    """What `async_op=True` gives back; `wait` and futures keep to the virtual clock."""

    def __init__(self, engine, rank: int, post, members, number: int) -> None:
        super().__init__()
        self.engine, self.owner, self.members, self.number = engine, rank, members, number
        self.row, self.outputs, self.name, self.site = post.row, post.outputs, post.name, post.site
        self.done_s, self.limit_s, self.watched = -1.0, post.limit_s, post.watched
        self.was_waited_for = self.is_alone = False  # is_alone: none of the other ranks that run has a part in it
        self.failure: Exception | None = None  # the same for all members

    def complete(self, end_s: float) -> None:
        """This member is done at `end_s`."""
        self.done_s = end_s
        self.engine.rows.note_end(self.row, end_s)
        if self.engine.agenda.waiting[self.owner] is self:
            self.engine.agenda.wake(self.owner, end_s)

    def wait(self, timeout=None) -> bool:
        engine, rank = self.engine, self.owner
        self.was_waited_for = True
        engine.compute.now()
        order = engine.rows.order[rank] = engine.rows.order[rank] + 1
        start_s = engine.clock[rank]
        limit_s = timeout.total_seconds() if timeout else self.limit_s
        is_groups = not timeout and self.name != "monitored_barrier"  # which is there to name who does not come
        if self.done_s < 0 and not engine.block_for(rank, self, limit_s, is_groups=is_groups):
            if not timeout:  # only gloo's own limit closes its connections
                self.members.close(self.members.place_of[rank])
            raise RuntimeError(
                f"{self.name}: Timed out waiting {limit_s * 1000:g}ms for {ranks_text(self.waits_for())}"
            )
        if self.done_s > start_s and self.is_alone:
            engine.clock[rank] = self.done_s
        elif self.done_s > start_s:
            engine.move_on(rank, self.done_s)
        engine.rows.note_wait(self.row, order, start_s, engine.clock[rank])
        engine.compute.resume()  # other ranks' threads have run: what follows may wait and ask for the time
        if self.watched is not None and self.failure is None:
            self.watched.require_unchanged()
        self.settle_future()
        self.let_go()
        engine.compute.resume()
        if self.failure is not None:
            raise RuntimeError(str(self.failure))
        return True

    def is_completed(self) -> bool:
        engine, rank = self.engine, self.owner
        engine.compute.now()
        if not 0 <= self.done_s <= engine.clock[rank]:
            engine.clock[rank] += POLL_S
            engine.let_the_past_run(rank)
        is_done = 0 <= self.done_s <= engine.clock[rank]
        engine.compute.resume()
        if is_done and not self.is_mute:
            _note_wait(engine, rank, self.row)  # who asks until it is over has waited
        if is_done:
            self.settle_future()
        engine.compute.resume()
        return is_done and not self.is_mute

    def once_settled(self) -> Callable[[], None]:
        """The ledger notes who waits for it late, too."""
        return _is_settled if self.was_waited_for else partial(_note_wait, self.engine, self.owner, self.row)

    def is_success(self) -> bool:
        return self.failure is None

    def exception(self) -> Exception | None:
        return self.failure

    def synchronize(self) -> None:
        self.wait()

    @property
    def is_over(self) -> bool:
        """Whether its owner has it by now."""
        return 0 <= self.done_s <= self.engine.clock[self.owner]

    def waits_for(self) -> tuple[int, ...]:
        """The members that have not made this call yet; all others if everybody has."""
        late = [r for r in self.members.running if self.members.n_called[self.members.place_of[r]] <= self.number]
        return tuple(late or (r for r in self.members.running if r != self.owner))
