"""Collectives on the virtual cluster: what each member gets, and when.

Values come from gloo's own order of additions (reductions.py), times from the point-to-point schedule (schedules.py).
Where every member needs all the others (all_reduce, all_gather, barrier, ...) the schedule is replayed in one go when
the last member calls; where it does not (broadcast, reduce, gather, scatter) its messages run one by one.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from hw_utils import replay
from hw_utils.errors import Failure
from hw_utils.reductions import VALUES, reduce_name
from hw_utils.schedules import steps

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


class Call:
    """One collective: the members that have called so far."""

    def __init__(self, kind: str, key) -> None:
        self.kind, self.key = kind, key
        self.posts: dict[int, Post] = {}
        self.relay = None


class Post:
    """One member's part in a call."""

    def __init__(self, name, inputs, outputs, row, at_s, work, root, reduce_op, details) -> None:
        self.name, self.inputs, self.outputs, self.row, self.at_s, self.work = name, inputs, outputs, row, at_s, work
        self.root, self.reduce_op, self.details = root, reduce_op, details
        self.n_bytes = sum(t.nbytes for t in inputs)


class VirtualWork(Work):
    """A collective's handle; what `wait` and a future see happens on the virtual clock."""

    def __init__(self, engine, rank: int, name: str, members, number: int) -> None:
        super().__init__()
        self.engine, self.owner, self.name, self.members, self.number = engine, rank, name, members, number
        self.done_s, self.row, self.is_awaited = -1.0, -1, False
        self.outputs: list = []
        self._future: Future | None = None

    def complete(self, end_s: float) -> None:
        self.done_s = end_s
        self.engine.rows[self.row + 5] = end_s
        if self._future is not None:
            self._future.set_result(self.outputs)
        if self.is_awaited:
            self.is_awaited = False
            self.engine.wake(self.owner, end_s)

    def wait(self, timeout=None) -> bool:
        engine, rank = self.engine, self.owner
        if not engine.is_free:
            engine.now()
        engine.order[rank] += 1
        self.stand_still(engine.order[rank])
        return True

    def stand_still(self, order: int) -> None:
        engine, rank, rows, row = self.engine, self.owner, self.engine.rows, self.row
        start_s = engine.clock[rank]
        if self.done_s < 0:
            self.is_awaited = True
            engine.block(rank, self)
        elif self.done_s > start_s:
            engine.clock[rank] = self.done_s
        if rows[row + 11] < 0:
            rows[row + 11], rows[row + 12], rows[row + 13] = order, start_s, engine.clock[rank]
        engine.resume_compute()

    def is_completed(self) -> bool:
        engine, rank = self.engine, self.owner
        engine.now()
        if not 0 <= self.done_s <= engine.clock[rank]:
            engine.clock[rank] += 1e-6
            engine.let_the_past_run(rank)
        engine.resume_compute()
        return 0 <= self.done_s <= engine.clock[rank]

    is_success = is_completed

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.outputs

    def get_future(self) -> Future:
        if self._future is None:
            self._future = Future()
            if self.done_s >= 0:
                self._future.set_result(self.outputs)
        return self._future


def call(group, name: str, place: int, kind: str, inputs, outputs, root: int, reduce_op, details) -> VirtualWork:
    """The running rank calls collective `kind` on `group`; `name` is the function that the student called."""
    engine, members = group.engine, group.members
    rank = engine.rank
    engine.now()
    if engine.carrier.is_shared and torch._C._current_graph_task_id() != -1:
        engine.need_threads()
    if engine.heap and engine.heap[0][0] < engine.clock[rank]:
        engine.let_the_past_run(rank)
    number = members.n_called[group.place]
    members.n_called[group.place] = number + 1
    work = VirtualWork(engine, rank, name, members, number)
    work.outputs = list(outputs)
    post = Post(name, inputs, outputs, 0, engine.clock[rank], work, root, reduce_op, details)
    work.row = post.row = _record(engine, rank, name, post, place, members)
    this = members.calls.get(number)
    key = (kind, root, reduce_name(reduce_op), details.get("fits", _shape_key(inputs)))
    if this is None:
        this = members.calls[number] = Call(kind, key)
    elif this.key != key:
        _refuse(engine, members, this, post, rank)
    this.posts[group.place] = post
    if len(this.posts) == len(members.ranks):
        del members.calls[number]
        _finish(engine, members, this)
    _drain_in_backward(engine, work)
    engine.resume_compute()
    return work


def _shape_key(tensors) -> tuple:
    return tuple((t.numel(), t.dtype) for t in tensors)


def _record(engine, rank, name, post, place, members) -> int:
    engine.order[rank] += 1
    row = len(engine.rows)
    at_s = engine.clock[rank]
    engine.rows.extend(
        (rank, engine.op(name), -1, post.n_bytes, at_s, -1.0, place, 0, members.number, -1, engine.order[rank],
         -1, at_s, at_s)
    )  # fmt: skip
    return row


def _refuse(engine, members, this: Call, post: Post, rank: int) -> None:
    other_place, other = next(iter(this.posts.items()))
    texts = [_describe(engine, members.ranks[other_place], other), _describe(engine, rank, post)]
    reason = f"{texts[0]}, but {texts[1]}; all members call the same collectives with the same sizes, in the same order"
    pairs = [(members.ranks[other_place], other), (rank, post)]
    engine.fail([Failure(r, "collective", reason, engine.places.frames(int(engine.rows[p.row + 6]))) for r, p in pairs])


def _describe(engine, rank: int, post: Post) -> str:
    tensors = " and ".join(f"{t.numel()} x {str(t.dtype).replace('torch.', '')}" for t in post.inputs[:3])
    more = f" with {tensors}" if tensors else ""
    return f"rank {rank} calls {post.name}{more} ({engine.places.where(int(engine.rows[post.row + 6]))})"


def _finish(engine, members, this: Call) -> None:
    """Everybody has called: the values, then when each member is done."""
    n, first = len(members.ranks), this.posts[0]
    posts = [this.posts[i] for i in range(n)]
    with torch.no_grad():
        VALUES[this.kind](posts)
    itemsize = first.inputs[0].element_size() if first.inputs else 1
    n_bytes = first.details.get("n_bytes", first.n_bytes)
    done_s, counts = replay.replay(
        engine, members.ranks, [p.at_s for p in posts], steps(this.kind, n_bytes, n, first.root, itemsize)
    )
    message = engine.n_messages
    engine.n_messages += 1
    for i, post in enumerate(posts):
        engine.rows[post.row + 9] = message
        engine.costs.append((post.row, counts.sent_bytes[i], counts.sent_messages[i], counts.rounds))
        post.work.complete(done_s[i])


def _drain_in_backward(engine, work: VirtualWork) -> None:
    """DistributedDataParallel waits for a C++ future at the end of a backward pass: wait here before it does."""
    if torch._C._current_graph_task_id() == -1:
        return
    pending = engine.pending.setdefault(engine.rank, [])
    pending.append(work)
    if len(pending) == 1:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _drain(pending))


def _drain(pending: list[VirtualWork]) -> None:
    for work in pending:
        work.wait()
    pending.clear()
