"""Judging an all-reduce by its ledger: did the messages go along a tree, around a ring, between halving partners.

What a right answer sends is read off the schedules of the built-in collectives, never computed by a formula.
"""

from __future__ import annotations

from collections import Counter

from hw_utils.checks.check import require_waits
from hw_utils.checks.lesson_02.all_reduce_judge import require_rounds
from hw_utils.checks.lesson_02.observed_all_reduce import Reduced, star, tensors
from hw_utils.core.collective_algorithms import cost, pieces
from hw_utils.core.errors import CheckFailed


def require_tree(seen: Reduced) -> None:
    """Raises CheckFailed unless the messages are those of a tree: how many, how long, in how many rounds."""
    n = seen.world_size
    down, up = cost("reduce", seen.n_bytes, n), cost("broadcast", seen.n_bytes, n)
    wanted = sum(down.sent_messages) + sum(up.sent_messages)
    if seen.n_messages != wanted or any(n_bytes != seen.n_bytes for _, _, n_bytes in seen.sends()):
        raise CheckFailed(
            f"{seen.what}: every value is right, but {seen.n_messages} messages were sent"
            f" ({tensors(seen, sum(b for _, _, b in seen.sends()))}); a tree sends {wanted} whole tensors.",
            cause=_why_not_tree(seen, wanted),
        )
    require_waits(seen.trace, seen.what)
    require_rounds(seen, down.rounds + up.rounds, "a tree", _why_slow_tree)


def _why_not_tree(seen: Reduced, wanted: int) -> str:
    whole = all(b == seen.n_bytes for _, _, b in seen.sends())
    if whole and seen.n_messages == seen.world_size * cost("reduce", seen.n_bytes, seen.world_size).rounds:
        return "both partners send. In a tree the one that hands its sum over is silent until the broadcast."
    if whole and seen.n_messages > wanted:
        return "some rank sends again after it has handed its sum over; it is silent until the broadcast."
    if not whole and seen.n_messages == wanted:
        return "the messages are not as long as the tensor: another dtype, or a part of it."
    if not all(b for _, _, b in seen.sends()) and all(b in (0, seen.n_bytes) for _, _, b in seen.sends()):
        return "some messages carry nothing: whoever has nothing to send is silent."
    if not whole:
        return "the tensor travels in pieces; in a tree every message is the whole tensor."
    return "each rank but the root sends its tensor once towards the root, and gets it once on the way back."


def _why_slow_tree(seen: Reduced) -> str:
    center = star(seen)
    if center is not None:
        return (
            f"every rank sends to rank {center} and gets its sum from there (gather and send back), one after the "
            "other. In a tree all pairs of a step exchange at once."
        )
    if all(abs(rank - peer) == 1 for rank, peer, _ in seen.sends()):
        return "a chain: each rank waits for the one before it. In a tree all pairs of a step exchange at once."
    sent = Counter(rank for rank, _, _ in seen.sends())
    rank, n = sent.most_common(1)[0]
    if n >= (seen.world_size - 1) * seen.calls and seen.world_size > 3:
        return f"in the second phase rank {rank} sends to everybody itself; let those who have the sum pass it on."
    return "some rank waits at a step in which it has nothing to do, or the order of the partners differs."


def require_ring(seen: Reduced) -> None:
    """Raises CheckFailed unless the messages are those of a ring: to the left, chunk by chunk, all at once."""
    n, total = seen.world_size, seen.calls
    ring = cost("all_reduce", seen.n_bytes, n, itemsize=seen.itemsize)
    sizes = pieces(seen.values[0][0].size, n) * seen.itemsize
    low, high = (total * 2 * (seen.n_bytes - int(size)) for size in (sizes.max(), sizes.min()))
    sent = [seen.trace.bytes_sent(rank) if rank < seen.trace.world_size else 0 for rank in range(n)]
    for rank in range(n):
        if n > 1 and not low <= sent[rank] <= high:
            usual = f"{(low + high) / 2 / seen.n_bytes / total:.4g}" if seen.n_bytes else "0"
            raise CheckFailed(
                f"{seen.what}: every value is right, but rank {rank} sent {tensors(seen, sent[rank])}"
                f" ({sent[rank]} bytes); a ring sends {usual}.",
                cause=_why_bytes(seen, sent, sizes),
            )
    _require_left(seen)
    _require_short(seen, int(sizes.max()))
    if sum(sent) != total * sum(ring.sent_bytes):
        raise CheckFailed(
            f"{seen.what}: every value is right, but {sum(sent)} bytes were sent in all, "
            f"a ring sends {total * sum(ring.sent_bytes)}.",
            cause=_why_bytes(seen, sent, sizes),
        )
    require_waits(seen.trace, seen.what)
    require_rounds(seen, ring.rounds, "a ring", _why_slow_ring)


def _why_bytes(seen: Reduced, sent: list[int], sizes) -> str:
    center, longest = star(seen), max((b for _, _, b in seen.sends()), default=0)
    if center is not None:
        return f"every rank sends to rank {center} and gets its sum from there: gather and send back, not a ring."
    if longest > sizes.max() and all(b == seen.n_bytes for _, _, b in seen.sends()):
        return "whole tensors travel around the ring. Send one chunk a step."
    right = sum(cost("all_reduce", seen.n_bytes, seen.world_size).sent_bytes) * seen.calls
    for times, wide in ((2, "twice as many bytes as"), (4, "four times as many bytes as"), (0.5, "half the bytes of")):
        if sum(sent) == times * right and seen.n_messages == 2 * seen.world_size * (seen.world_size - 1):
            return f"{wide} the tensor's own travel: every number goes in another dtype. Keep the one that it has."
    if longest == sizes.max() and len({b for _, _, b in seen.sends()}) == 1 and sizes.max() != sizes.min():
        return "the tensor is padded to a multiple of the number of ranks. Cut chunks that differ by one element."
    row = seen.n_bytes // seen.shape[0] if len(seen.shape) > 1 and seen.n_bytes else 0
    if row and not any(b % row for _, _, b in seen.sends()):
        return "whole rows travel: cut elements, not rows. Flatten first (view(-1)), then cut evenly (tensor_split)."
    if longest > sizes.max():
        return "some chunks are longer than they need be: cut as evenly as possible (tensor_split)."
    if sum(sent) == right and seen.n_messages == 2 * seen.world_size * (seen.world_size - 1):
        return "the chunks are cut unevenly: their lengths differ by one element at most with tensor_split."
    if {b for _, _, b in seen.sends()} - set(sizes.tolist()):
        return "something else travels beside the chunks: every rank knows the lengths without being told."
    if sum(sent) > right:
        return "some chunk is sent once more than needed: each phase has N - 1 steps, not N."
    return "the chunks are not cut evenly, or some step sends another one."


def _require_left(seen: Reduced) -> None:
    n = seen.world_size
    for rank, peer, _ in seen.sends():
        if peer != (rank - 1) % n:
            right = all(to == (who + 1) % n for who, to, _ in seen.sends())
            raise CheckFailed(
                f"{seen.what}: every value is right, but rank {rank} sent to rank {peer};"
                f" in this ring it sends to rank {(rank - 1) % n}.",
                cause="data travels to the right neighbour here. Send to the left one, (rank - 1) % world_size."
                if right
                else "some messages leave the ring: each rank sends to one neighbour only.",
            )


def _require_short(seen: Reduced, longest: int) -> None:
    for rank, _, n_bytes in seen.sends():
        if n_bytes > longest:
            raise CheckFailed(
                f"{seen.what}: every value is right, but rank {rank} sent a chunk of {n_bytes} bytes;"
                f" {longest} are enough.",
                cause="some chunks are longer than they need be, and the longest sets the time of every step:"
                " cut as evenly as possible (tensor_split).",
            )


def _why_slow_ring(seen: Reduced) -> str:
    if seen.n_messages > 2 * seen.world_size * (seen.world_size - 1):
        return "a chunk goes in several messages, one after the other: a step of the ring is one message a rank."
    if {"isend", "irecv"} & seen.trace.ops:
        return (
            "the ranks wait for one another: something is waited for before the other half is posted. "
            "Post the send, receive, then wait for the send."
        )
    return (
        "one rank receives before it sends (or every other one), so the messages of a step go one after the other. "
        "Start the send with isend, receive, then wait."
    )


def require_halving(seen: Reduced) -> None:
    """Raises CheckFailed unless as many bytes are sent as in a ring, in as many rounds as in a tree."""
    n = seen.world_size
    wanted = seen.calls * sum(cost("all_reduce", seen.n_bytes, n).sent_bytes)
    sent = sum(b for _, _, b in seen.sends())
    if sent != wanted:
        raise CheckFailed(
            f"{seen.what}: every value is right, but {sent} bytes were sent in all, expected {wanted}.",
            cause="whole tensors are exchanged. Give one half away and keep the other, then halve what you kept."
            if any(b == seen.n_bytes for _, _, b in seen.sends())
            else "each step exchanges half of what the step before did, and the second phase retraces the first.",
        )
    allowed = cost("reduce", seen.n_bytes, n).rounds + cost("broadcast", seen.n_bytes, n).rounds
    elements = seen.values[0][0]
    uneven = allowed * elements.itemsize if elements.size % n else 0  # a half may be one element longer, every time
    for rank in range(n if n > 1 else 0):
        most = seen.calls * (2 * seen.n_bytes * (n - 1) / n + uneven)
        if (mine := seen.trace.bytes_sent(rank)) > most:
            raise CheckFailed(
                f"{seen.what}: every value is right, but rank {rank} sent {tensors(seen, mine)}; halving and doubling "
                f"sends {2 * (n - 1) / n:.4g} from every rank.",
                cause="some ranks send more than others. In every step both partners send, and half of what they have.",
            )
    require_waits(seen.trace, seen.what)
    require_rounds(seen, allowed, "halving and doubling", lambda seen: _why_slow_halving(seen))


def _why_slow_halving(seen: Reduced) -> str:
    if all((rank - peer) % seen.world_size in (1, seen.world_size - 1) for rank, peer, _ in seen.sends()):
        return "this is a ring: exchange with partners at distance N/2, N/4, ..., 1 instead of with a neighbour."
    return "the two partners of a step wait for one another: post the send (isend), receive, then wait."
