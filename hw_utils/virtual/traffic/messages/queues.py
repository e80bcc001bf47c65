"""Sends and receives that wait for their other end, in the order in which they were posted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from torch import Tensor

from hw_utils.virtual.traffic.ledger_rows import start_of
from hw_utils.virtual.traffic.messages.matching import post_of
from hw_utils.virtual.traffic.messages.requests import Request, requests_of


class _Never(dict):
    """Has no queue for anybody."""

    def __setitem__(self, peer: int, queue: deque) -> None: ...


class Queues:
    """A queue for each sender, receiver, tag and group; what waits in one is all sends or all receives.

    post(is_send, op, tensor, dtype, peer, tag, group, site, src, dst, is_blocking): the running rank's side of a
    message, a `Request`, which meets the other end or waits for it. cross: what happens when the two meet.
    eager_bytes: messages of at most so many leave before their receive is posted.
    """

    def __init__(self, engine, eager_bytes: int) -> None:
        world_size = engine.world_size
        self.world_size, self.rows, self.eager_bytes = world_size, engine.rows, eager_bytes
        self.by_key: dict = {}  # (group, src, dst, tag) -> deque of requests
        # Those of messages without a tag in the group of all: by sender, then receiver; and the other way round.
        self.sent_by: list[dict[int, deque]] = [{} for _ in range(world_size)]
        self.sent_to: list[dict[int, deque]] = [{} for _ in range(world_size)]
        self.any_source: dict = {}  # (group, dst, tag) -> the same, of receives from anybody
        self.given_up: set[int] = set()  # rows of messages that their ranks have given up: a time limit has passed
        self.unusual: set[str] = set()  # why no message may take the short cut
        self.elsewhere: set[int] = set()  # ranks whose default group is another one than that of all
        self.watched: dict[int, Callable] = {}
        if eager_bytes:
            self.unusual.add("sent ahead")
        self.Request = self.requests(engine)
        self.post, self.cross = post_of(engine, self)

    def watch(self, rank: int, told: Callable[[bool, Tensor], None]) -> None:
        """From now on `told(is_send, tensor)` is called before the rank posts a send or receive."""
        self.watched[rank] = told
        self.unusual.add("watched")  # else messages take a way that does not pass here

    def requests(self, engine) -> type[Request]:
        """What a send or a receive gives back."""
        return requests_of(engine, self)

    def __iter__(self) -> Iterator[deque]:
        yield from self.by_key.values()
        yield from self.any_source.values()

    def key(self, group: int, src: int, dst: int, tag: int):
        """What a queue is found by; a plain number for messages without a tag in the group of all."""
        return (group, src, dst, tag) if tag or group else src * self.world_size + dst

    def route(self, me: int, src, dst, peer) -> deque | None:
        """The queue of messages without a tag in the group of all; None if `peer`, one of the two, is no other rank."""
        if type(peer) is not int or peer == me or not 0 <= peer < self.world_size or me in self.elsewhere:
            return None
        queue = self.by_key.setdefault(self.key(0, src, dst, 0), deque())
        self.sent_by[src][dst] = self.sent_to[dst][src] = queue
        return queue

    def go_elsewhere(self, rank: int) -> None:
        """From now on the rank's messages without a group are none of the group of all."""
        self.elsewhere.add(rank)
        self.sent_by[rank], self.sent_to[rank] = _Never(), _Never()

    def match_anybody(self, request, key, group: int, dst: int, tag: int):
        """The other end, while some receive takes a message from anybody: the first posted goes first."""
        self.unusual.add("a receive from anybody")
        anybody = self.any_source.setdefault((group, dst, tag), deque())
        queue = self.by_key.setdefault(key, deque())
        if request.is_send:
            named = queue[0] if queue and not queue[0].is_send else None
            if anybody and (named is None or anybody[0].row < named.row):
                return anybody.popleft()
        elif request.peer < 0:
            sent = [q for q in self._to(group, dst, tag) if q and q[0].is_send]
            if sent:
                return min(sent, key=lambda q: (start_of(self.rows.data, q[0].row), q[0].row)).popleft()
            anybody.append(request)
            return None
        if queue and queue[0].is_send is not request.is_send:
            return queue.popleft()
        queue.append(request)
        return None

    def _to(self, group: int, dst: int, tag: int) -> Iterator[deque]:
        for src in range(self.world_size):
            queue = self.by_key.get(self.key(group, src, dst, tag))
            if queue:
                yield queue
