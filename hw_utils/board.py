"""What each rank publishes in shared memory: what it has posted, and what it waits for.

The ranks of a gang map one file. A rank writes only its own part, others and the kernel read it:

- a header: running, blocked or returned; if blocked, in the k-th message of which channel, since when;
- its channels (to or from a peer, one tag): how many messages it has posted on each, and the last of them;
- its sites: the operations that it called and the lines where;
- in each group's table: how many collectives it has posted, and the last of them.

The k-th send of a channel meets the k-th receive of its other end, so sizes can be compared before gloo sees them (it
aborts the process when they differ), and a rank can go on if and only if what it waits for has been posted.
All numbers are 8 bytes; places are counted in numbers. Writing one costs about 40 ns.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

HEADER, NAMES = 16, 4096
STATE, CODE, K, SINCE, N_CHANNELS, N_SITES, SITES_END, OVERFLOW, RAW, LAST_SITE = range(10)  # places in a header
RUNNING, BLOCKED, RETURNED, MAY_MOVE = range(4)  # states
RECEIVE, SEND, COLLECTIVE = range(3)  # kinds; a code is kind + 4 * (channel or group)
CHANNEL_HEADER, RING, POSTING = 8, 32, 4
PEER, TAG, GROUP, DIRECTION, POSTED, DONE = range(6)  # places in a channel
ANY_PEER = -1
MAX_GROUPS, GROUP_RING = 64, 16


class Layout:
    """Places of everything in a board of `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.max_channels = 1024 if world_size <= 8 else 512
        self.channel_size = CHANNEL_HEADER + RING * POSTING
        self.rank_size = HEADER + NAMES + (self.max_channels + 1) * self.channel_size
        self.group_size = 1 + 2 * world_size + GROUP_RING * world_size * POSTING
        self.groups_at = world_size * self.rank_size
        self.size = self.groups_at + (MAX_GROUPS + 1) * self.group_size

    def header(self, rank: int) -> int:
        return rank * self.rank_size

    def sites(self, rank: int) -> int:
        return self.header(rank) + HEADER

    def channel(self, rank: int, index: int) -> int:
        return self.header(rank) + HEADER + NAMES + index * self.channel_size

    def spare_channel(self, rank: int) -> int:
        """Where messages go that nobody reads, once all channels are taken."""
        return self.channel(rank, self.max_channels)

    def group_count(self, group: int, rank: int) -> int:
        return self.groups_at + group * self.group_size + rank

    def group_members(self, group: int) -> int:
        return self.groups_at + group * self.group_size + self.world_size

    def group_posting(self, group: int, rank: int, k: int) -> int:
        slot = (k % GROUP_RING) * self.world_size + rank
        return self.group_members(group) + 1 + self.world_size + slot * POSTING


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

    def posting(self, at: int, k: int) -> tuple[int, int, int] | None:
        """(bytes, dtype, site) of the k-th message on the channel at a place; None if not posted or forgotten."""
        posted = self.q[at + POSTED]
        if not k < posted < k + RING:  # the next to come takes the same place
            return None
        entry = at + CHANNEL_HEADER + (k % RING) * POSTING
        found = self.q[entry], self.q[entry + 1], self.q[entry + 2]
        return found if self.q[at + POSTED] < k + RING else None

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
class Channel:
    """One direction of messages between this rank and a peer, with one tag, in one group."""

    index: int  # -1: the board was full, nothing is known about this channel
    at: int
    wait_code: int
    peer_count_at: int  # where the peer says how many channels it has
    n: int = 0  # posted so far
    seen: int = -1  # that many were there when the peer's end was last looked for
    other_at: int = 0  # the peer's end; 0: not known yet
    dtype: object = None  # of the last message, and its code
    code: int = 0


class Publisher:
    """A rank's own part of the board."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.layout = board, rank, board.layout
        self.q, self.d = board.q, board.d
        self.channel_header, self.ring, self.posting_size, self.group_ring = CHANNEL_HEADER, RING, POSTING, GROUP_RING
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
            return Channel(-1, self.layout.spare_channel(self.rank), -4 + direction, self.header)
        at = self.layout.channel(self.rank, index)
        for place, value in ((PEER, peer), (TAG, tag), (GROUP, group), (DIRECTION, direction)):
            self.q[at + place] = value
        self.q[self.header + N_CHANNELS] = index + 1
        return Channel(index, at, direction + 4 * index, self.layout.header(max(peer, 0)) + N_CHANNELS)

    def post(self, channel: Channel, n_bytes: int, dtype: int, site: int) -> int:
        """Publishes the next message of a channel; its number."""
        k = channel.n
        channel.n = k + 1
        q = self.q
        at = channel.at + CHANNEL_HEADER + (k % RING) * POSTING
        q[at] = n_bytes
        q[at + 1] = dtype
        q[at + 2] = site
        q[channel.at + POSTED] = k + 1
        return k

    def counterpart(self, peer: int, tag: int, group: int, direction: int) -> int:
        """Where the peer's end of a channel is: its channel with this rank, the other direction. 0: not there yet."""
        return self._find(peer).get((self.rank, tag, group, 1 - direction), 0)

    def waiting_wildcard(self, peer: int, tag: int, group: int) -> tuple[int, int]:
        """(where, number) of the peer's receive from anybody that is next to be met; (0, 0) if there is none."""
        at = self._find(peer).get((ANY_PEER, tag, group, RECEIVE), 0)
        return (at, self.q[at + DONE]) if at and self.q[at + POSTED] > self.q[at + DONE] else (0, 0)

    def _find(self, peer: int) -> dict[tuple, int]:
        known = self._known.setdefault(peer, {})
        scanned = self._scanned.get(peer, 0)
        count = self.q[self.layout.header(peer) + N_CHANNELS]
        for index in range(scanned, count):
            at = self.layout.channel(peer, index)
            known[tuple(self.q[at : at + 4])] = at
        self._scanned[peer] = count
        return known
