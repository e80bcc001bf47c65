"""The ledger: every communication of a run, and the sums over it that checks grade."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

# How a trace is stored: one record an operation and rank. `op`, `file` and `group` index the trace's tables.
RECORD = np.dtype(
    [
        ("rank", "i4"),
        ("op", "i4"),
        ("peer", "i4"),  # -1: a collective
        ("n_bytes", "i8"),
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("message", "i8"),
        ("file", "i4"),
        ("line", "i4"),
        ("tag", "i8"),
        ("group", "i4"),
        ("order", "i8"),
        ("waited", "i8"),  # -1: never
        ("wait_start_s", "f8"),
        ("wait_end_s", "f8"),
        ("sent_bytes", "i8"),
        ("sent_messages", "i8"),
        ("rounds", "i8"),
    ]
)

# When the streams of ranks' devices were busy with operations, for ranks that have such.
STREAM = np.dtype([("rank", "i4"), ("stream", "i4"), ("start_s", "f8"), ("end_s", "f8")])

SENDS = frozenset({"send", "isend", "send_object_list"})
RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})
POINT_TO_POINT = SENDS | RECEIVES
BLOCKING = frozenset({"send", "recv"})  # the call is its own wait; a collective's wait is the next place


def joined(records: np.ndarray, parts: Iterable[tuple[int, int]]) -> np.ndarray:
    """The records with each call as one: a part's sizes and messages are added to the whole's, times span both.

    parts: the places of a part and of its whole; an object collective sends sizes, then bytes.
    """
    keep = np.ones(len(records), bool)
    for i, first in parts:
        part, whole, keep[i] = records[i], records[first], False
        for name in ("n_bytes", "sent_bytes", "sent_messages", "rounds"):
            whole[name] += part[name]
        for name in ("end_s", "wait_end_s", "waited"):
            whole[name] = max(whole[name], part[name])
    return records if keep.all() else records[keep]


@dataclass(frozen=True)
class Event:
    """One communication as one rank saw it.

    A message is two events, one on each side, with the same `message`; so is a collective, one a member.
    `start_s` is when the rank called, `end_s` when the data had arrived (both since the start of the run);
    in between the rank stood still from `wait_start_s` to `wait_end_s` (equal if it never had to).
    """

    rank: int
    op: str  # the torch.distributed function: "send", "irecv", "all_reduce", ...
    peer: int | None  # None: a collective; the root's rank is in nobody's way
    n_bytes: int  # of this rank's own tensor
    start_s: float
    end_s: float
    line: int = 0  # of the student's code
    file: str = ""
    tag: int = 0
    group: tuple[int, ...] | None = None  # None: all ranks
    message: int = -1  # the same number on every side of one communication; -1: nobody matched it
    order: int = 0  # the place of the call among this rank's calls and waits
    waited: int | None = 0  # the place of its wait: `order` if it is in BLOCKING, None if nobody waited
    wait_start_s: float = 0.0
    wait_end_s: float = 0.0
    sent_bytes: int = 0  # what this rank put on the wire for it
    sent_messages: int = 0
    rounds: int = 1  # dependent messages in a row; more than 1 for a collective

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def is_send(self) -> bool:
        return self.op in SENDS

    @property
    def is_collective(self) -> bool:
        return self.op not in POINT_TO_POINT


class Trace(Sequence[Event]):
    """A sequence of `Event`, in order of `start_s`, with sums over it.

    >>> trace = Trace.of([Event(0, "send", 1, 8, 0.0, 1.0, sent_bytes=8, sent_messages=1, message=0),
    ...                   Event(1, "recv", 0, 8, 0.0, 1.0, message=0)])
    >>> trace.bytes_sent(0), trace.messages_sent(1), trace.rounds
    (8, 0, 1)
    """

    def __init__(
        self,
        records: np.ndarray,
        names: Sequence[str],
        groups: Sequence[tuple[int, ...] | None] = (None,),
        world_size: int = 0,
        streams: np.ndarray | None = None,
    ) -> None:
        """`records` has dtype RECORD; `op` and `file` index `names`, `group` indexes `groups`; `streams` STREAM."""
        self.streams = np.zeros(0, STREAM) if streams is None else streams
        start_s = records["start_s"]
        is_sorted = bool((start_s[1:] >= start_s[:-1]).all())
        self.records = records if is_sorted else records[np.argsort(start_s, kind="stable")]
        self.names = tuple(names)
        self.groups = tuple(groups)
        self.world_size = world_size or (int(records["rank"].max()) + 1 if len(records) else 0)

    @classmethod
    def of(cls, events: Iterable[Event], world_size: int = 0) -> Trace:
        """A trace from events."""
        events = list(events)
        names: dict[str, int] = {}
        groups: dict[tuple[int, ...] | None, int] = {None: 0}
        records = np.zeros(len(events), RECORD)
        for i, e in enumerate(events):
            group = None if e.group is None else tuple(e.group)
            records[i] = (
                e.rank,
                names.setdefault(e.op, len(names)),
                -1 if e.peer is None else e.peer,
                e.n_bytes,
                e.start_s,
                e.end_s,
                e.message,
                names.setdefault(e.file, len(names)),
                e.line,
                e.tag,
                groups.setdefault(group, len(groups)),
                e.order,
                -1 if e.waited is None else e.waited,
                e.wait_start_s,
                e.wait_end_s,
                e.sent_bytes,
                e.sent_messages,
                e.rounds,
            )
        return cls(records, list(names), list(groups), world_size)

    def as_plain(self) -> dict[str, Any]:
        """The trace as plain data (see `plain_data.py`): what crosses from a sandbox to a judge."""
        columns = {name: np.ascontiguousarray(self.records[name]) for name in RECORD.names}
        groups = [None if g is None else list(g) for g in self.groups]
        return {"columns": columns, "names": list(self.names), "groups": groups, "world_size": self.world_size}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Trace:
        """The trace that `as_plain` wrote.

        Raises:
            ValueError: it is not one; nothing in it is trusted.
        """
        try:
            columns = {name: np.asarray(data["columns"][name]) for name in RECORD.names}
            names = [str(n) for n in data["names"]]
            groups = [None if g is None else tuple(int(r) for r in g) for g in data["groups"]]
            world_size = int(data["world_size"])
            records = np.zeros(len(columns["rank"]), RECORD)
            for name, column in columns.items():
                records[name] = column
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"this is not a trace: {error}") from None
        for name, size in (("op", len(names)), ("file", len(names)), ("group", len(groups)), ("rank", world_size)):
            if len(records) and not (records[name].min() >= 0 and records[name].max() < size):
                raise ValueError(f"this is not a trace: {name} out of range")
        return cls(records, names, groups, world_size)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return Trace(self.records[i], self.names, self.groups, self.world_size, self.streams)
        row = self.records[i].item()
        (rank, op, peer, n_bytes, start_s, end_s, message, file, line, tag, group, order, waited, *rest) = row
        return Event(
            rank, self.names[op], None if peer < 0 else peer, n_bytes, start_s, end_s, line, self.names[file],
            tag, self.groups[group], message, order, None if waited < 0 else waited, *rest,
        )  # fmt: skip

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Trace({len(self):,} events, {self.world_size} ranks, ops: {', '.join(sorted(self.ops)) or 'none'})"

    def summed(self) -> tuple[np.ndarray, np.ndarray]:
        """(records, the bytes sent for each); those of ranks that stand for others count for all of them."""
        return self.records, self.records["sent_bytes"]

    def of_rank(self, rank: int) -> Trace:
        """The events of one rank."""
        return self._where(self.records["rank"] == rank)

    def of_op(self, *ops: str) -> Trace:
        """The events of the given operations."""
        return self._where(np.isin(self.records["op"], [i for i, n in enumerate(self.names) if n in ops]))

    def _where(self, mask: np.ndarray) -> Trace:
        return Trace(self.records[mask], self.names, self.groups, self.world_size, self.streams)

    @cached_property
    def ops(self) -> frozenset[str]:
        """The names of the torch.distributed functions that were called."""
        return frozenset(self.names[i] for i in np.unique(self.records["op"]))

    @cached_property
    def calls(self) -> Counter[str]:
        """How often each function was called, all ranks together."""
        codes, counts = np.unique(self.records["op"], return_counts=True)
        return Counter({self.names[i]: int(n) for i, n in zip(codes, counts)})

    @cached_property
    def _sent(self) -> tuple[np.ndarray, np.ndarray]:
        rank, size = self.records["rank"], max(self.world_size, 1)
        n_bytes, n_messages = np.zeros(size, "i8"), np.zeros(size, "i8")
        np.add.at(n_bytes, rank, self.records["sent_bytes"])
        np.add.at(n_messages, rank, self.records["sent_messages"])
        return n_bytes, n_messages

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` put on the wire; collectives count as the messages of their algorithm."""
        return int(self._sent[0][rank])

    def messages_sent(self, rank: int) -> int:
        """Messages that `rank` sent; collectives count as the messages of their algorithm."""
        return int(self._sent[1][rank])

    @cached_property
    def _replay(self) -> tuple[int, int]:
        return _replay(self)

    @property
    def rounds(self) -> int:
        """The longest chain of dependent messages: the completion time if a message costs 1 and bytes nothing.

        A port carries one message a round and direction, so n messages to one rank take n rounds.
        """
        return self._replay[0]

    @property
    def max_in_flight(self) -> int:
        """The most messages under way in one round."""
        return self._replay[1]


def _replay(trace: Trace) -> tuple[int, int]:
    """(rounds, most messages in one round): the ledger run again with one round a message.

    Of messages that can go at one time, that goes first which was sent first.
    """
    actions = _actions(trace)
    clock = dict.fromkeys(actions, 0)
    place = dict.fromkeys(actions, 0)
    sending, receiving = Counter(), Counter()  # when a port is free again
    posted: dict[int, list[int]] = {}  # message -> clocks of those who posted it
    sent: dict[int, tuple[int, int, int]] = {}  # message -> clock, rank and place of its send
    done: dict[int, int] = {}
    sleepers: dict[int, list[int]] = {}  # message -> ranks that wait for it
    sides = Counter(trace.records["message"].tolist())
    in_round: Counter[int] = Counter()
    # (time, 0, rank) of ranks that go on; after them (time, 1, its send, message, rounds) of messages that can go
    heap: list[tuple] = [(0, 0, r) for r in sorted(actions)]
    heapq.heapify(heap)

    def end(message: int, at: int) -> None:
        done[message] = at
        for other in sleepers.pop(message, ()):
            clock[other] = max(clock[other], at)
            heapq.heappush(heap, (clock[other], 0, other))

    while heap:
        now, is_message, *rest = heapq.heappop(heap)
        if is_message:
            (_, src, _), message, dst, rounds = rest
            start = max(now, sending[src], receiving[dst])
            sending[src] = receiving[dst] = start + 1
            in_round[start] += 1
            end(message, start + rounds)
            continue
        (rank,) = rest
        while place[rank] < len(actions[rank]):
            kind, message, src, dst, rounds = actions[rank][place[rank]]
            if heap and heap[0] < (clock[rank], 0, rank):
                heapq.heappush(heap, (clock[rank], 0, rank))
                break
            if kind == "post":
                arrivals = posted.setdefault(message, [])
                arrivals.append(clock[rank])
                if rank == src:
                    sent[message] = clock[rank], rank, place[rank]
                if len(arrivals) == sides[message] and src < 0:
                    end(message, max(arrivals) + rounds)
                elif len(arrivals) == sides[message]:
                    heapq.heappush(heap, (max(arrivals), 1, sent[message], message, dst, rounds))
            elif message not in done:
                sleepers.setdefault(message, []).append(rank)
                place[rank] += 1
                break
            elif done[message] > clock[rank]:
                clock[rank] = done[message]
            place[rank] += 1
    return max(done.values(), default=0), max(in_round.values(), default=0)


def _actions(trace: Trace) -> dict[int, list[tuple[str, int, int, int, int]]]:
    """rank -> its posts and waits in program order; what nobody matched is left out."""
    found: dict[int, list[tuple[int, int, tuple[str, int, int, int, int]]]] = {}
    records = trace.records
    is_send = np.isin(records["op"], [i for i, n in enumerate(trace.names) if n in SENDS])
    columns = (records[c].tolist() for c in ("rank", "peer", "message", "order", "waited", "rounds"))
    for rank, peer, message, order, waited, rounds, sends in zip(*columns, is_send.tolist()):
        mine = found.setdefault(rank, [])
        if message < 0:
            continue
        src, dst = (-1, -1) if peer < 0 else (rank, peer) if sends else (peer, rank)
        mine.append((order, 0, ("post", message, src, dst, rounds)))
        if waited >= 0:
            mine.append((waited, 1, ("wait", message, src, dst, rounds)))
    return {rank: [action for _, _, action in sorted(mine)] for rank, mine in found.items()}
