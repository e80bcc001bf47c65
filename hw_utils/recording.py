"""The methods of a ledger-keeping group: write a call down, publish it, compare it with the other side's, hand it on.

All that may take 2 microseconds a call. Hence two long functions: each makes the method of one group, with all that it
needs at hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from hw_utils.board import COLLECTIVE, RAW, SEND, Channel
from hw_utils.keeper import Keeper
from hw_utils.ops import ALIASES, DTYPE_CODES, ENTRIES
from hw_utils.unlike import collectives_differ
from hw_utils.work import END, START, WAIT_END, WAIT_START, note_end

_TIMED_BYTES = 1 << 16  # from this size on an asynchronous collective's end is asked of gloo, which costs 5 us
_COMPACT_CALLS = 1 << 14


def compared(place: int, size: int) -> list[int]:
    """Whose calls a member compares with its own: all others of a small group, some of a large one."""
    if size <= 8:
        return [i for i in range(size) if i != place]
    return sorted({(place + sign * 2**i) % size for i in range(10) for sign in (1, -1)} - {place})


def point_to_point(group, direction: int) -> Callable[..., Any]:
    keeper = group.keeper
    publisher, q, add = keeper.publisher, keeper.q, keeper.rows.append
    channels, ranks, number, getframe = {}, group.ranks, group.number, sys._getframe
    untagged: list[Channel | None] = [None] * len(ranks)
    hand_on = group._inner.send if direction == SEND else group._inner.recv
    method, Work = "send" if direction == SEND else "recv", keeper.Work
    blocking, n_frames = ENTRIES[method]
    blocking_depth = 2 + n_frames
    sites, blocking_sites = {}, {}  # (code, instruction) of a student's call -> site
    compact_calls = _COMPACT_CALLS
    layout_header, ring, posting = publisher.channel_header, publisher.ring, publisher.posting_size

    def post(tensors, peer, tag=0):
        # Above are isend and then either the student's frame or send's; asking for a frame costs 50 ns.
        frame = getframe(2)
        known = sites
        if frame.f_code is blocking:
            frame = getframe(blocking_depth)
            known = blocking_sites
        site = known.get((id(frame.f_code), frame.f_lasti))
        outer = True
        if site is None:
            site, outer = keeper.slow_site(getframe(1), method, frame, known)
        channel = untagged[peer] if tag == 0 else channels.get((peer, tag))
        if channel is None:
            channel = group.open(peer, tag, direction)
            if tag == 0:
                untagged[peer] = channel
            else:
                channels[peer, tag] = channel
        tensor = tensors[0]
        n_bytes = tensor.nbytes
        dtype = tensor.dtype
        if dtype is not channel.dtype:
            channel.dtype, channel.code = dtype, DTYPE_CODES[dtype]
        code = channel.code
        start = perf_counter()
        k = channel.n
        channel.n = k + 1
        at = channel.at
        entry = at + layout_header + k % ring * posting
        q[entry] = n_bytes
        q[entry + 1] = code
        q[entry + 2] = site
        q[at + 4] = k + 1  # POSTED: now others see it; then look at theirs, and whoever comes second sees a difference
        other = channel.other_at
        if not other and q[channel.peer_count_at] != channel.seen:
            other = group.find_other(channel, peer, tag, direction, (n_bytes, code, site))
        if other and q[other + 4] > k:
            entry = other + layout_header + k % ring * posting
            if (q[entry] != n_bytes or q[entry + 1] != code) and q[other + 4] < k + ring:
                group.compare(direction, ranks[peer], (n_bytes, code, site), other, k)
        work = hand_on(tensors, peer, tag)
        row = Work((
            site, ranks[peer], n_bytes, start, start, tag, number, k, -1.0, -1.0, direction, 1, 0, 0,
            work, channel.wait_code,
        ))  # fmt: skip
        add(row)
        if outer is not True:
            if outer is None:
                return work
            keeper.note_part(row, outer, method)
        if not k % compact_calls:
            keeper.compact()
        return row

    return post


def collective(group, method: str, own: int | None) -> Callable[..., Any]:
    keeper = group.keeper
    publisher, q, add = keeper.publisher, keeper.q, keeper.rows.append
    me, number, getframe = publisher.rank, group.number, sys._getframe
    compared, slot, layout = group.compared, group.slot, publisher.layout
    hand_on = getattr(group._inner, ALIASES.get(method, method), None)
    entry_code, n_frames = ENTRIES.get(method, (None, 0))
    depth = 1 + n_frames
    Work, compact_calls = keeper.Work, _COMPACT_CALLS
    method_code = CODES[method]
    any_size, is_rooted = method in _UNEVEN, method in _ROOTED
    codes = DTYPE_CODES
    count_at, first_at = layout.group_count(slot, me), layout.group_posting(slot, 0, 0)
    ring, row_size, wait_code = publisher.group_ring, layout.world_size * 4, COLLECTIVE + 4 * slot
    sites: dict[tuple[int, int], int] = {}

    def collect(*arguments, **named):
        frame = getframe(depth)
        site, outer = sites.get((id(frame.f_code), frame.f_lasti)), True
        if site is None:
            top = getframe(1)
            site, outer = keeper.slow_site(top, method, frame if top.f_code is entry_code else None, sites)
        if own is None:
            n_bytes, itemsize, code = 0, 1, 0
        else:
            tensor = arguments[own]
            if own == 0 and len(tensor) == 1:
                tensor = tensor[0]
                n_bytes, itemsize, code = tensor.nbytes, tensor.itemsize, codes[tensor.dtype]
            else:
                n_bytes, itemsize, code = _measure(tensor)
        root = (named.get("opts") or arguments[-1]).rootRank if is_rooted else -1
        start = perf_counter()
        k = group.n_collectives
        group.n_collectives = k + 1
        signature = method_code | code << 16 | root + 1
        size = -1 if any_size else n_bytes
        base = first_at + k % ring * row_size
        at = base + me * 4
        q[at] = 0  # until the rest is written, no other rank may read it
        q[at + 1] = signature
        q[at + 2] = size
        q[at + 3] = site
        q[at] = k + 1
        q[count_at] = k + 1
        for rank in compared:
            at = base + rank * 4
            if q[at] == k + 1 and (q[at + 1] != signature or q[at + 2] != size):
                theirs = (q[at + 2], (q[at + 1] >> 16) & 0xFFFF, q[at + 3], (q[at + 1] & 0xFFFF) - 1)
                if q[at] == k + 1:  # still the same call: that rank may be a whole ring ahead by now
                    raise collectives_differ(publisher, (size, code, site, root), rank, theirs)
        work = hand_on(*arguments, **named)
        row = Work((
            site, -1, n_bytes, start, start, 0, number, k, -1.0, -1.0, root, itemsize, 0, 0, work, wait_code
        ))  # fmt: skip
        add(row)
        if not k % compact_calls:
            keeper.compact()
        if outer is not True and outer is not None:
            keeper.note_part(row, outer, method)
        if work is None or outer is None:
            return _unseen(work, row, keeper)
        if n_bytes >= _TIMED_BYTES:
            note_end(work, row)
        return row

    return collect


def _unseen(work: Any, row: list[Any], keeper: Keeper) -> Any:
    """The work itself, for a C++ caller, which waits for it where we cannot see; None if it is over already."""
    if work is None:
        row[WAIT_START], row[END] = row[START], perf_counter()
        row[WAIT_END] = row[END]
    else:
        keeper.raw.append((work, row))
        keeper.q[keeper.header + RAW] += 1
        note_end(work, row)
    return work


def _measure(tensors) -> tuple[int, int, int]:
    """(bytes, bytes of one element, code of the dtype) of tensors in lists."""
    if type(tensors) is list and len(tensors) == 1:
        tensors = tensors[0]
    if isinstance(tensors, torch.Tensor):
        return tensors.nbytes, tensors.element_size(), DTYPE_CODES[tensors.dtype]
    if not tensors:
        return 0, 1, 0
    parts = [_measure(t) for t in tensors]
    return sum(p[0] for p in parts), parts[0][1], parts[0][2]


# method -> which argument is this rank's own data (None: there is none)
COLLECTIVES = {
    "allreduce": 0, "allreduce_coalesced": 0, "broadcast": 0, "reduce": 0, "scatter": 0,
    "allgather": 1, "allgather_coalesced": 1, "_allgather_base": 1, "all_gather_single": 1,
    "allgather_into_tensor_coalesced": 1, "all_gather_single_coalesced": 1, "gather": 1,
    "reduce_scatter": 1, "_reduce_scatter_base": 1, "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1, "reduce_scatter_single_coalesced": 1,
    "alltoall": 1, "alltoall_base": 1, "all_to_all_single": 1,
    "barrier": None, "monitored_barrier": None,
}  # fmt: skip
CODES = {name: i << 32 for i, name in enumerate([*COLLECTIVES, "new_group"], 1)}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_UNEVEN = {"alltoall", "alltoall_base", "all_to_all_single"}  # each pair of ranks may exchange another size
