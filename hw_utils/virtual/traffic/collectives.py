"""Collectives on the virtual cluster: when they start, who gets what, and when each member is done.

Times, and bytes in the ledger, come from the point-to-point steps of core/collective_algorithms.py. Where everybody
needs everybody (all_reduce, barrier, ...) the ports replay them in one go when the last member calls; broadcast, gather
and scatter run message by message (rooted_collective.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager

import torch

from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.calls.mismatch_text import (
    amount_text,
    amounts_text,
    call_text,
    calls_differ,
    closed_text,
    pieces_differ,
)  # fmt: skip
from hw_utils.core.errors import CollectiveMismatch
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.traffic import reductions
from hw_utils.virtual.traffic.changed_in_flight import Watched
from hw_utils.virtual.traffic.rooted_collective import Relay
from hw_utils.virtual.traffic.work import VirtualWork

ROOTED = frozenset({"broadcast", "gather", "scatter"})
# The algorithm of each kind, by the name that collective_algorithms.py knows.
_ALGORITHM = {"reduce_scatter_tensor": "reduce_scatter", "sparse_all_reduce": "all_gather"}
_UNEVEN = frozenset({"all_to_all", "sparse_all_reduce"})  # members may bring different sizes


class Post:
    """One member's part in a call."""

    def __init__(self, name: str, place: int, kind: str, inputs, outputs, root: int, reduce_op, n_bytes) -> None:
        self.name, self.site, self.kind, self.inputs, self.outputs = name, place, kind, inputs, outputs
        self.root, self.reduce_op, self.n_bytes = root, reduce_op, n_bytes
        self.at_s, self.row = 0.0, -1
        self.limit_s: float | None = None  # seconds that a wait for it may take, where the program says so
        self.work: VirtualWork | None = None
        self.watched: Watched | None = None  # until its owner waits, if it need not at once
        self.kept: list[torch.Tensor] = []  # copies of what it sends, where it may be gone before they are taken

    def fits(self) -> tuple:
        """What must be the same for all members of one call."""
        tensors = self.inputs or self.outputs
        if self.kind == "scatter":
            tensors = self.outputs
        sizes = () if self.kind in _UNEVEN else tuple((t.numel(), t.dtype) for t in tensors)
        return self.kind, self.root, reductions.reduce_name(self.reduce_op), sizes

    def text(self, rank: int, places, *, with_reduce_op: bool = False) -> str:
        """`rank 0 calls all_reduce of 3 float32 (12 bytes) at cell.py, line 4`, or `... with MAX at ...`."""
        tensors = self.outputs if self.kind == "scatter" else self.inputs
        of = amounts_text(((t.numel(), _dtype(t)) for t in tensors), self.n_bytes) if tensors else ""
        root = self.root if self.kind in ROOTED or self.kind == "reduce" else -1
        reduce_op = reductions.reduce_name(self.reduce_op) if with_reduce_op else ""
        return call_text(rank, self.name, of, root=root, reduce_op=reduce_op, where=places.where(self.site))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class Call:
    """One collective: the posts of the members that have called so far."""

    def __init__(self, engine, members, kind: str) -> None:
        self.engine, self.members, self.kind = engine, members, kind
        self.posts: dict[int, Post] = {}
        self.relay: Relay | None = None
        self.n_done = 0
        self.fits: tuple | None = None  # what all members' posts must agree in
        self.message = engine.rows.next_message()

    def add(self, place: int, post: Post) -> None:
        """A member has called.

        Raises:
            CollectiveMismatch: it calls something else than the others.
        """
        fits = post.fits()
        if self.fits is None:
            self.fits = fits
        elif fits != self.fits:
            ranks, places = self.members.ranks, self.engine.places
            other, first = next(iter(self.posts.items()))
            differ = reductions.reduce_name(first.reduce_op) != reductions.reduce_name(post.reduce_op)
            texts = (one.text(ranks[i], places, with_reduce_op=differ) for i, one in ((other, first), (place, post)))
            raise CollectiveMismatch(calls_differ(*texts))
        self.posts[place] = post
        if self.kind in ROOTED:
            self._add_rooted(place, post)
        elif self.is_full:
            self._finish_together()

    @property
    def is_full(self) -> bool:
        return len(self.posts) == len(self.members.ranks)

    def _steps(self, post: Post):
        kind = _ALGORITHM.get(self.kind, self.kind)
        tensors = post.inputs or post.outputs
        itemsize = tensors[0].element_size() if tensors else 1
        return kind, self._n_bytes(post), len(self.members.ranks), post.root, itemsize

    def _n_bytes(self, post: Post):
        if self.kind not in _UNEVEN:
            return post.n_bytes
        posts = [self.posts[i] for i in range(len(self.posts))]
        if self.kind != "all_to_all":
            return [p.n_bytes for p in posts]
        return [[t.nbytes for t in p.inputs] for p in posts]

    @contextmanager
    def _writing_to(self, posts: Iterable[Post]):
        """What is written here is the backend's own doing."""
        in_flight = self.engine.in_flight
        if not in_flight.of_rank:
            yield
            return
        touched = [one for p in posts for one in in_flight.look(p.work.owner, p.watched, p.outputs)]
        try:
            yield
        finally:
            for one in touched:
                one.renew()

    # everybody needs everybody

    def _finish_together(self) -> None:
        engine, posts = self.engine, [self.posts[i] for i in range(len(self.posts))]
        try:
            self._require_fitting_pieces(range(len(posts)))
            with torch.no_grad(), unseen(), self._writing_to(posts):
                reductions.TOGETHER[self.kind](posts)
        except Exception as failure:  # all members', as with gloo, whoever comes last
            for post in posts:
                post.work.failure = failure
        ready_s = [p.at_s for p in posts]
        done_s, cost = engine.ports.collective(self.members.ranks, ready_s, *self._steps(posts[0]))
        last_s = max(ready_s)
        for i, post in enumerate(posts):
            engine.rows.costs.append((post.row, cost.sent_bytes[i], cost.sent_messages[i], cost.rounds))
            post.work.complete(max(done_s[i], last_s))  # with gloo nobody leaves before everybody has come

    def _require_fitting_pieces(self, stand: Sequence[int]) -> None:
        """Raises CollectiveMismatch if, in an all_to_all, a member wants another piece than the other one gives it.

        stand: whose post is each member's.
        """
        if self.kind != "all_to_all":
            return
        ranks, places = self.members.ranks, self.engine.places
        for i, post in sorted(self.posts.items()):
            for j, gives in enumerate(post.inputs):
                other = self.posts[stand[j]]
                takes = other.outputs[i]
                if (gives.numel(), gives.dtype) != (takes.numel(), takes.dtype):
                    amounts = (amount_text(t.numel(), _dtype(t), t.nbytes) for t in (gives, takes))
                    where = places.where(post.site), places.where(other.site)
                    raise CollectiveMismatch(pieces_differ(post.name, (ranks[i], ranks[j]), amounts, where))

    # through a root

    def _add_rooted(self, place: int, post: Post) -> None:
        is_source = self.kind == "gather" or place == post.root
        if is_source:
            with unseen():
                post.kept = [reductions.kept(t) for t in post.inputs]
        arguments = self._steps(post)
        if self.relay is None:
            self.relay = Relay(self.engine, self.members.ranks, algorithms.steps(*arguments), self._member_is_done)
        cost = algorithms.cost(*arguments)
        self.engine.rows.costs.append((post.row, cost.sent_bytes[place], cost.sent_messages[place], cost.rounds))
        self.relay.enter(place, post.at_s)

    def _member_is_done(self, place: int, at_s: float) -> None:
        post, root_post = self.posts[place], self.posts.get(self.posts[place].root)
        with unseen(), self._writing_to([post]):  # whoever's turn it is may have a mode of torch
            if self.kind != "gather":
                reductions.deliver(self.kind, post, place, root_post)
            elif post is root_post:
                reductions.deliver_gathered(post, self.posts)
        self.n_done += 1
        if self.n_done == len(self.members.ranks):
            self.relay = None  # the two would hold each other, and all members' tensors
        post.work.complete(at_s)


def call(group, post: Post, outer) -> VirtualWork:
    """The running rank makes its part `post` of a collective on `group`.

    outer: the frame of the torch.distributed function that the student called; None if C++ code asks, as
    DistributedDataParallel's does, and will wait for a future that no Python code sees.
    """
    engine, members, place = group.engine, group.members.counting(post), group.place
    rank = engine.rank
    if members.gave_up:
        raise RuntimeError(closed_text(place, members.gave_up))
    engine.compute.now()
    is_alone = engine.folding is not None and engine.folding.is_alone_in(members)
    if not is_alone:
        engine.keep_up(rank)
    number = members.n_called[place]
    members.n_called[place] = number + 1
    post.at_s = engine.clock[rank]
    this = members.calls.get(number)
    if this is None:
        this = members.calls[number] = engine.Call(engine, members, post.kind)
    post.row = engine.rows.add(rank, post.name, post.n_bytes, post.at_s, post.site, members.number, this.message)
    engine.rows.note_part(rank, post.row, post.name, outer)
    post.work = work = engine.Work(engine, rank, post, members, number)
    work.is_alone = is_alone
    this.add(place, post)
    if this.is_full:
        members.calls.pop(number, None)
    engine.compute.resume()
    return work
