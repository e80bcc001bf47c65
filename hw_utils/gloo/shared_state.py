"""What each rank publishes in shared memory: what it has posted, and what it waits for.

The ranks of a launch map one file. A rank writes only its own part, others and the kernel read it:

- a header: running, blocked or returned; if blocked, in the k-th message of which channel, since when;
- its channels (to or from a peer, one tag): how many messages it has posted on each, and the last runs of them;
- its sites: the operations that it called and the lines where;
- in each group's table: how many collectives it has posted, and the last runs of them.

A run is calls in a row that are alike: of one size, dtype and line. A call like the one before it, which is the usual
case, is published by one number: how many there are now, and a mark of its kind, size and dtype. The other side
has posted the same number, a lower one (it is yet to come), or has to be looked at more closely.

The k-th send of a channel meets the k-th receive of its other end, so sizes can be compared before gloo sees them (it
aborts the process when they differ), and a rank can go on if and only if what it waits for has been posted.
All numbers are 8 bytes; places are counted in numbers. Writing one costs about 30 ns, reading one 25.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from struct import Struct

HEADER, NAMES = 16, 4096
WAIT, K, SINCE, N_CHANNELS, SITES_END, OVERFLOW = range(6)  # places in a header
RUNNING, BLOCKED, RETURNED, MAY_MOVE = range(4)  # states
RECEIVE, SEND, COLLECTIVE = range(3)  # kinds
PEER, TAG, GROUP, DIRECTION, DONE, CALLS = range(6)  # places in a channel
ANY_PEER = -1
# Calls are: the number and mark of the last one, the first one with that mark, how many runs there have been, then the
# last RING of them, each (first call, bytes, code, site).
POSTED, FIRST, N_RUNS, RUNS = range(4)
RING, RUN = 32, 4
CALLS_SIZE = RUNS + RING * RUN
ONE = 1 << 32  # posted: ONE * number of calls + mark
MAX_GROUPS = 64

_put_run = Struct("qqqq").pack_into


def wait_word(kind: int, place: int) -> int:
    """What a rank that waits for a channel or a group publishes, beside the number of the call."""
    return BLOCKED + 4 * kind + 16 * place


class Layout:
    """Places of everything in a board of `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.max_channels = 1024 if world_size <= 8 else 512
        self.channel_size = CALLS + CALLS_SIZE
        self.rank_size = HEADER + NAMES + (self.max_channels + 1) * self.channel_size
        self.group_size = 1 + world_size * (1 + CALLS_SIZE)
        self.groups_at = world_size * self.rank_size
        self.size = self.groups_at + (MAX_GROUPS + 1) * self.group_size

    def header(self, rank: int) -> int:
        return rank * self.rank_size

    def sites(self, rank: int) -> int:
        return self.header(rank) + HEADER

    def channel(self, rank: int, index: int) -> int:
        return self.header(rank) + HEADER + NAMES + index * self.channel_size

    def group_members(self, group: int) -> int:
        return self.groups_at + group * self.group_size

    def group_calls(self, group: int, rank: int) -> int:
        return self.group_members(group) + 1 + self.world_size + rank * CALLS_SIZE


class Board:
    """The mapped file."""

    def __init__(self, path: str, world_size: int, *, create: bool = False) -> None:
        self.layout = Layout(world_size)
        flags = os.O_RDWR | (os.O_CREAT if create else 0) | getattr(os, "O_BINARY", 0)
        fd = os.open(path, flags, 0o600)
        try:
            if create:
                os.ftruncate(fd, self.layout.size * 8)
            self.map = mmap.mmap(fd, self.layout.size * 8)
        finally:
            os.close(fd)
        self.bytes = memoryview(self.map)
        self.q, self.d = self.bytes.cast("q"), self.bytes.cast("d")

    def close(self) -> None:
        for view in (self.q, self.d, self.bytes):
            view.release()
        self.map.close()

    def posted(self, at: int) -> int:
        """How many of the calls at a place have been posted."""
        return self.q[at + POSTED] // ONE

    def call(self, at: int, k: int) -> tuple[int, int, int] | None:
        """(bytes, code, site) of the k-th of the calls at a place; None if it is not posted or forgotten."""
        q = self.q
        if k >= q[at] // ONE:  # POSTED
            return None
        n_runs, runs_at = q[at + N_RUNS], at + RUNS
        low, high = max(n_runs - RING + 1, 0), n_runs - 1
        while low < high:  # the last run that begins at k or before
            middle = (low + high + 1) // 2
            if q[runs_at + middle % RING * RUN] <= k:
                low = middle
            else:
                high = middle - 1
        first, *found = q[runs_at + low % RING * RUN : runs_at + low % RING * RUN + RUN]
        taken = q[at + N_RUNS] >= low + RING  # its place may have been, by another run
        return None if first > k or taken else tuple(found)

    def wait_of(self, rank: int) -> tuple[int, int, int, int]:
        """(state, kind, channel or group, k) of a rank."""
        at = self.layout.header(rank)
        word, k = self.q[at + WAIT], self.q[at + K]
        return word & 3, word >> 2 & 3, word >> 4, k

    def members(self, group: int) -> list[int]:
        """The global ranks of a group, in the group's order."""
        at = self.layout.group_members(group)
        n = self.q[at]
        return [self.q[at + 1 + i] for i in range(n)]

    def set_members(self, group: int, ranks) -> None:
        at = self.layout.group_members(group)
        for i, rank in enumerate(ranks):
            self.q[at + 1 + i] = rank
        self.q[at] = len(ranks)

    def site(self, rank: int, number: int) -> tuple[str, str, int]:
        """(operation, file, line) of a rank's site."""
        start = self.layout.sites(rank) * 8
        end = start + min(self.q[self.layout.header(rank) + SITES_END], NAMES * 8)
        entries = bytes(self.bytes[start:end]).split(b"\n")
        if not 0 <= number < len(entries) or not entries[number]:
            return "", "", 0
        op, file, line = entries[number].decode("utf-8", "replace").split("\0")
        return op, file, int(line)


@dataclass(slots=True)
class Calls:
    """A rank's own calls on one channel, or its collectives in one group, in order."""

    at: int
    wait_word: int
    n: int = 0  # posted so far
    n_runs: int = 0
    n_bytes: int = 0  # of the run that is going on
    code: int = -1
    site: int = -1
    mark: int = 0
    posted: int = 0  # as published
    dtype: object = None

    def begin_run(self, board: Board, n_bytes: int, code: int, site: int) -> None:
        """The next call is unlike the one before. Others read it only when that call is posted, too."""
        at, q = self.at, board.q
        _put_run(board.map, (at + RUNS + self.n_runs % RING * RUN) * 8, self.n, n_bytes, code, site)
        self.n_runs = q[at + N_RUNS] = self.n_runs + 1
        self.site = site
        if n_bytes != self.n_bytes or code != self.code:
            mark = hash((n_bytes, code)) % ONE
            self.posted += mark - self.mark
            self.n_bytes, self.code, self.mark = n_bytes, code, mark
            q[at + FIRST] = self.n

    def take_back(self, q: memoryview) -> None:
        """The last call was none, as gloo has given up."""
        self.n -= 1
        q[self.at] = self.posted = self.posted - ONE


@dataclass(slots=True)
class Channel(Calls):
    """One direction of messages between this rank and a peer, with one tag, in one group."""

    other_at: int = 0  # the peer's end; while that is not known, the number of the peer's channels
    is_met: bool = False
    seen: int = -1  # that many channels were there when the peer's end was last looked for


class Publisher:
    """A rank's own part of the board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.layout = board, rank, board.layout
        self.q, self.d = board.q, board.d
        self.header = self.layout.header(rank)
        self._sites: dict[tuple[str, str, int], int] = {}
        self.site_list: list[tuple[str, str, int]] = []
        self._known: dict[int, dict[tuple, int]] = {}  # peer -> its channels found so far
        self._scanned: dict[int, int] = {}

    def site(self, key: tuple[str, str, int]) -> int:
        """The number of an (operation, file, line), published when it is new."""
        number = self._sites.get(key)
        if number is None:
            number = self._sites[key] = len(self.site_list)
            self.site_list.append(key)
            op, file, line = key
            text = f"{op}\0{file}\0{line}\n".encode().replace(b"\n", b"") + b"\n"
            end = self.q[self.header + SITES_END]
            if end + len(text) <= NAMES * 8:
                start = self.layout.sites(self.rank) * 8 + end
                self.board.bytes[start : start + len(text)] = text
                self.q[self.header + SITES_END] = end + len(text)
        return number

    def channel(self, peer: int, tag: int, group: int, direction: int) -> Channel:
        """A new channel, published."""
        index = self.q[self.header + N_CHANNELS]
        if index >= self.layout.max_channels or group >= MAX_GROUPS:
            self.q[self.header + OVERFLOW] = 1
            index = self.layout.max_channels  # a spare one, that nobody reads
        at = self.layout.channel(self.rank, index)
        for place, value in ((PEER, peer), (TAG, tag), (GROUP, group), (DIRECTION, direction)):
            self.q[at + place] = value
        if index < self.layout.max_channels:
            self.q[self.header + N_CHANNELS] = index + 1
        other_at = self.layout.header(max(peer, 0)) + N_CHANNELS
        return Channel(at + CALLS, wait_word(direction, index), other_at=other_at)

    def post(self, calls: Calls, n_bytes: int, code: int, site: int) -> int:
        """Publishes the next call; its number."""
        k = calls.n
        if n_bytes != calls.n_bytes or code != calls.code or site != calls.site:
            calls.begin_run(self.board, n_bytes, code, site)
            calls.dtype = None
        calls.n = k + 1
        self.q[calls.at] = calls.posted = calls.posted + ONE
        return k

    def counterpart(self, peer: int, tag: int, group: int, direction: int) -> int:
        """Where the peer's end of a channel is: its calls with this rank, the other direction. 0: not there yet."""
        return self._find(peer).get((self.rank, tag, group, 1 - direction), 0)

    def waiting_wildcard(self, peer: int, tag: int, group: int) -> tuple[int, int]:
        """(where, number) of the peer's receive from anybody that is next to be met; (0, 0) if there is none."""
        at = self._find(peer).get((ANY_PEER, tag, group, RECEIVE), 0)
        done = self.q[at - CALLS + DONE] if at else 0
        return (at, done) if at and self.board.posted(at) > done else (0, 0)

    def _find(self, peer: int) -> dict[tuple, int]:
        known = self._known.setdefault(peer, {})
        scanned = self._scanned.get(peer, 0)
        count = self.q[self.layout.header(peer) + N_CHANNELS]
        for index in range(scanned, count):
            at = self.layout.channel(peer, index)
            known[tuple(self.q[at : at + 4])] = at + CALLS
        self._scanned[peer] = count
        return known
