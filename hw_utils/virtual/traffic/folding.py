"""A folded run: one rank of each class runs; messages and collectives are matched, timed and written down for all.

Ranks of a class do the same at the same time, so their clocks and ports are equal at every moment: a collective is
complete when the ranks that run have called, each for all members of its class, and is costed for the whole group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy

import torch
from torch.optim import optimizer as optimizers

from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.hardware.fold import Fold
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.ranks.shapes.known_values import are_known, forget
from hw_utils.virtual.traffic import reductions
from hw_utils.virtual.traffic.collectives import Call, Post
from hw_utils.virtual.traffic.rooted_collective import Relay

_OF_PARTS = frozenset({"all_to_all", "reduce_scatter", "gather", "scatter"})


class Folding:
    """Which ranks of an engine run, and what they may do for the others."""

    def __init__(self, engine, fold: Fold) -> None:
        self.engine, self.fold = engine, fold
        self.uneven: dict[int, algorithms.Cost] = {}  # message of a collective -> what each place sends, if it differs
        self.torn: dict[tuple[int, ...], int] = {}  # shape of a parameter -> over how many equal ranks it is uneven
        self._peers: set[tuple[int, int]] = set()  # pairs of ranks that may send to each other
        self._stand: dict = {}  # group -> see `stand`
        self._open: dict[int, list[int]] = {rank: [] for rank in fold.representatives}  # rows, see `is_alone_in`
        self._post, engine.queues.post = engine.queues.post, self.post
        engine.agenda.due[:] = sorted(fold.representatives, reverse=True)

    @contextmanager
    def looking_at_shards(self) -> Iterator[None]:
        """While it lasts, parameters that an optimizer steps are looked at: are their shards equal?"""
        seen: set[int] = set()

        def look(optimizer, args, kwargs) -> None:
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        self._look_at(parameter)

        hook = optimizers.register_optimizer_step_pre_hook(look)
        try:
            yield
        finally:
            hook.remove()

    def _look_at(self, parameter: torch.Tensor) -> None:
        spec = getattr(parameter, "_spec", None)  # a DTensor's
        for dim, placement in enumerate(() if spec is None else spec.placements):
            members = spec.mesh.get_group(dim).members
            n = len(members.ranks)
            if placement.is_shard() and len(members.running) < n and parameter.shape[placement.dim] % n:
                self.torn[tuple(parameter.shape)] = n

    def running(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of these ranks that run."""
        return tuple(rank for rank in ranks if self.fold.representative(rank) == rank)

    def post(self, is_send, op, tensor, dtype, peer, tag, group, site, src, dst, is_blocking):
        """A send or receive between ranks at one place along the folded axes, as all of their classes do."""
        if (src, dst) not in self._peers:
            self._check_peers(src, dst, peer)
            self._peers.add((src, dst))
        request = self._post(is_send, op, tensor, dtype, peer, tag, group, site, src, dst, is_blocking)
        if request.done_s < 0:
            self.note_open(request.row)
        return request

    def note_open(self, row: int) -> None:
        """The running rank's part in something has been written down in this row; others have yet to do theirs."""
        self._open[self.engine.rank].append(row)

    def is_alone_in(self, members) -> bool:
        """Whether the running rank may call a collective of its class's before ranks whose time is earlier.

        On a device whose clock goes on alone anyway: nobody else can take the ports then. What they send it, or call
        with it, needs its own part first, and all that it has posted is over.
        """
        engine = self.engine
        rank, ports = engine.rank, engine.ports
        is_own = members.running == (rank,) and engine.lines is not None and not engine.queues.eager_bytes
        if not is_own or ports.uses_cards(members.ranks):
            return False
        self._open[rank] = [row for row in self._open[rank] if not engine.rows.has_ended(row)]
        return not self._open[rank]

    def _check_peers(self, src: int, dst: int, peer: int) -> None:
        rule = "in a folded run messages go between ranks at one place along the folded axes"
        if peer < 0:
            raise ValueError(f"{rule}, got a receive from anybody in a {self.fold}: name the sender")
        if self.fold.representative(peer) != peer:
            raise ValueError(
                f"{rule}, got one from rank {src} to rank {dst} in a {self.fold}. Next step: leave the axis along "
                "which they differ unfolded"
            )
        self._check_ports([self.fold.moved((src, dst), nth) for nth in range(self.fold.size)])

    def check_group(self, ranks: tuple[int, ...]) -> None:
        """Raises ValueError unless the ranks that run can stand for the members of a group in a collective."""
        self.fold.check_group(ranks)
        self._check_ports(list(dict.fromkeys(self.fold.images(ranks))))

    def stand(self, members) -> list[int]:
        """Place -> the place of the member of a group that runs for the one there."""
        if members not in self._stand:
            self.check_group(members.ranks)
            representative = self.fold.representative
            self._stand[members] = [members.place_of[representative(rank)] for rank in members.ranks]
        return self._stand[members]

    def _check_ports(self, images: list[tuple[int, ...]]) -> None:
        """Equal ranks on equal links, each its own: else one of them would wait where the other does not."""
        ports = self.engine.ports
        first, used = ports.layout(images[0]), set()
        for image in images:
            layout, mine = ports.layout(image)
            is_torn = layout != first[0]
            if is_torn or not used.isdisjoint(mine):
                what = "lie differently on the hosts" if is_torn else "share a network card"
                raise ValueError(
                    f"ranks that do the same must have links of their own, and equal ones, got ranks {images[0]} and "
                    f"{image}, which {what} of {ports.cluster.name} ({self.fold}). Next step: leave the axis along "
                    "which they differ unfolded, or take a cluster where they do not"
                )
            used.update(mine)


class FoldedCall(Call):
    """One collective of a folded run: a post is that of all members of its rank's class."""

    def __init__(self, engine, members, kind: str) -> None:
        super().__init__(engine, members, kind)
        self.stand = engine.folding.stand(members)  # place -> that of the member that runs for it
        self.left = {place: self.stand.count(place) for place in set(self.stand)}  # members of a class still under way
        self.latest_s = dict.fromkeys(self.left, 0.0)
        self.folded = len(self.stand) > len(self.left)

    @property
    def is_full(self) -> bool:
        return len(self.posts) == len(self.left)

    def add(self, place: int, post: Post) -> None:
        sizes = {tensor.numel() for tensor in (post.inputs if len(post.inputs) > 1 else post.outputs)}
        if self.folded and self.kind in _OF_PARTS and len(sizes) > 1:
            raise ValueError(
                f"ranks that do the same take equal parts, got {post.name} with parts of {sorted(sizes)} elements "
                f"({self.engine.folding.fold}): leave this group's axis unfolded"
            )
        super().add(place, post)
        if post.work.done_s < 0:
            self.engine.folding.note_open(post.row)

    def _n_bytes(self, post: Post):
        everybody = {i: self.posts.get(place) for i, place in enumerate(self.stand)}
        own, self.posts = self.posts, everybody
        try:
            return super()._n_bytes(post)
        finally:
            self.posts = own

    def _note(self, post: Post, place: int, cost: algorithms.Cost) -> None:
        rows = self.engine.rows
        rows.costs.append((post.row, cost.sent_bytes[place], cost.sent_messages[place], cost.rounds))
        if len(set(zip(cost.sent_bytes, cost.sent_messages))) > 1:
            self.engine.folding.uneven[self.message] = cost

    # everybody needs everybody

    def _finish_together(self) -> None:
        posts = self.posts
        self._require_fitting_pieces(self.stand)
        self._deliver_together()
        ready_s = [posts[place].at_s for place in self.stand]
        steps = self._steps(next(iter(posts.values())))
        done_s, cost = self.engine.ports.collective(self.members.ranks, ready_s, *steps)
        last_s = max(ready_s)
        for place, post in posts.items():
            self._note(post, place, cost)
            post.work.complete(max(done_s[place], last_s))

    def _deliver_together(self) -> None:
        own = self.posts.values()
        if not are_known(tensor for post in own for tensor in post.inputs):
            for post in own:
                for tensor in post.outputs:
                    forget(tensor)
            return
        with torch.no_grad(), unseen(), self._writing_to(own):
            everybody = [self.posts[at] if i == at else _twin(self.posts[at]) for i, at in enumerate(self.stand)]
            reductions.TOGETHER[self.kind](everybody)

    # through a root

    def _add_rooted(self, place: int, post: Post) -> None:
        arguments, ranks = self._steps(post), self.members.ranks
        if self.kind == "gather" or self.stand[post.root] == place:
            with unseen():
                post.kept = [reductions.kept(t) for t in post.inputs]
        if self.relay is None:
            self.relay = Relay(self.engine, ranks, algorithms.steps(*arguments), self._member_is_done)
        self._note(post, place, algorithms.cost(*arguments))
        mine = [i for i, stand in enumerate(self.stand) if stand == place]
        self.engine.ports.level([ranks[i] for i in mine])
        relay = self.relay
        for member in mine:
            relay.enter(member, post.at_s)

    def _member_is_done(self, member: int, at_s: float) -> None:
        """All members of a class leave when the last of them may: from then on they are equal again."""
        place = self.stand[member]
        self.left[place] -= 1
        self.latest_s[place] = max(self.latest_s[place], at_s)
        self.n_done += 1
        if self.n_done == len(self.stand):
            self.relay = None
        if self.left[place]:
            return
        ranks = self.members.ranks
        self.engine.ports.level([ranks[i] for i, stand in enumerate(self.stand) if stand == place])
        post = self.posts[place]
        with unseen():
            self._deliver_through_root(place, post)
        post.work.complete(self.latest_s[place])

    def _deliver_through_root(self, place: int, post: Post) -> None:
        root = self.stand[post.root]
        root_post = self.posts.get(root)
        if self.kind == "scatter" and not root_post.kept:  # its root is one of those that do not run
            for tensor in post.outputs:
                forget(tensor)
        elif self.kind != "gather":
            reductions.deliver(self.kind, post, place, root_post)
        elif place == root:
            reductions.deliver_gathered(post, {i: self.posts[stand] for i, stand in enumerate(self.stand)})


def _twin(post: Post) -> Post:
    """What a member that does not run brings: what its representative brings; what it gets goes nowhere."""
    twin = copy(post)
    twin.outputs = [torch.empty_like(tensor) for tensor in post.outputs]
    return twin
