"""Judging an all-reduce by its ledger: did the messages go along a tree, around a ring, between halving partners.

What a right answer sends is read off the schedules of the built-in collectives, never computed by a formula.
"""

from __future__ import annotations

from collections import Counter

from hw_utils.checks.check import require_waits
from hw_utils.checks.lesson_02.all_reduce_causes import READ_TOO_SOON
from hw_utils.checks.lesson_02.all_reduce_judge import require_rounds
from hw_utils.checks.lesson_02.observed_all_reduce import Reduced, contributions, nothing_added, star, tensors
from hw_utils.core.collective_algorithms import cost, pieces
from hw_utils.core.errors import CheckFailed

NOTHING_ADDED = "nothing is ever added: receive into a buffer of your own, and add that to what is there."


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _messages(seen: Reduced) -> int:
    return len(seen.sends()) // seen.calls


def _complete(seen: Reduced) -> list[list[bool]]:
    """For each rank, which elements hold every share exactly once."""
    expected = seen.expected().ravel()
    return [[bool(v == e) for v, e in zip(values.ravel(), expected)] for values in seen.values[0]]


def _counts(seen: Reduced) -> list[list[int]]:
    """The contributions of every element on every rank that is a sum of shares."""
    flat = [contributions(seen, v.item(), k) for row in seen.values[0] for k, v in enumerate(row.ravel())]
    return [c for c in flat if c is not None]


# Values that are wrong ---------------------------------------------------------------------------------------


def why_tree(seen: Reduced) -> str:
    """The likely cause of a wrong sum in a tree."""
    done = [rank for rank, elements in enumerate(_complete(seen)) if all(elements)]
    if len(done) == 1 and _messages(seen) == seen.world_size - 1:
        return f"rank {done[0]} has the sum and nobody else: the second phase, the broadcast, is missing."
    if nothing_added(seen):
        return f"in the first phase {NOTHING_ADDED}"
    if not _power_of_two(seen.world_size):
        return (
            f"{seen.world_size} is not a power of two. Not every rank has a partner at every step: one that has none "
            "skips the step, and there are as many steps as it takes until one rank is left."
        )
    both_ways = 2 * (seen.world_size - 1)
    if done and 0 not in done and _holds_its_own(seen, 0):
        return (
            "some ranks have the sum, and rank 0's tensor is as it was: data = data + incoming makes another tensor. "
            "Add in place (+=), or copy the result back at the end."
        )
    counts = _counts(seen)
    if counts and counts[0][0] == 0 and max(counts[0]) > 1:
        return "what comes in lands on what was there already: receive into a buffer of its own, then add that."
    if any(max(c) > 1 for c in counts):
        return "a share is added twice: in the second phase a rank replaces its value, it does not add."
    if done == [0] and _messages(seen) == both_ways:
        return "the sum comes back to every rank, and none writes it into its tensor: receive into the tensor itself."
    if 0 in done and len(done) > 1 and _messages(seen) == both_ways:
        return (
            "some rank passes on what it had before the sum came: the second phase runs the same steps backwards, the "
            "last one first."
        )
    if not done:
        return "no rank has the whole sum: some rank hands its sum over before it has received all it should."
    return "the root has the sum, but not everybody is told: the second phase goes back along the same pairs."


def _holds_its_own(seen: Reduced, rank: int) -> bool:
    return bool((seen.values[0][rank] == seen.shares(0)[rank]).all())


def why_ring(seen: Reduced) -> str:
    """The likely cause of a wrong sum in a ring of chunks."""
    complete, n = _complete(seen), seen.world_size
    some = all(any(elements) for elements in complete)
    rest = seen.values[0][0].size % n
    if rest and all(all(elements[:-rest]) and not any(elements[-rest:]) for elements in complete):
        return "the last elements are in no chunk: length // N cuts the rest off. tensor_split cuts any length."
    if n > 2 and seen.sends() and all(n_bytes == seen.n_bytes for _, _, n_bytes in seen.sends()):
        return "whole tensors travel. A ring sends one chunk a step, 1 / world_size of the tensor, in 2 (N - 1) steps."
    if "irecv" in seen.trace.ops and n > 2 and _counts(seen) and all(sum(c) <= 1 for c in _counts(seen)):
        return f"{READ_TOO_SOON} Nothing was ever added."
    if n > 2 and seen.sends() and all(peer == (rank + 1) % n for rank, peer, _ in seen.sends()):
        return "data travels to the right neighbour, the chunk numbers are for the left one, (rank - 1) % world_size."
    alike = all((mine == seen.values[0][0]).all() for mine in seen.values[0])  # what is passed on unchanged
    if alike and nothing_added(seen):
        return (
            "no chunk ends with more than one rank's share. In the first phase what comes in is added, not copied, and "
            "to the chunk that leaves next; if it is added, the chunk index is off, or the second phase starts its "
            "numbers again: it begins with the chunk that is whole by then, chunk_owned."
        )
    if _messages(seen) == 2 * n * (n - 1) and _has_one_phase(seen):
        return (
            "the first phase is right, and nothing that comes in the second phase reaches the tensor: chunks[k] = ... "
            "puts it into the list, tensor = ... makes another one. Copy it into the chunk, which is a view (copy_)."
        )
    if some and not all(map(all, complete)) and _messages(seen) == n * (n - 1):
        return "every rank has one complete chunk and no more: the second phase, the all-gather, is missing."
    counts = _counts(seen)
    if counts and all(min(c) > 0 for c in counts) and any(max(c) > 1 for c in counts):
        return (
            "a complete chunk is added to what is there already: in the second phase a rank replaces, it does not add."
        )
    if _messages(seen) < 2 * n * (n - 1):
        return (
            f"some step is missing: {_messages(seen)} messages were sent, one fewer step in a phase leaves a chunk out."
        )
    return (
        "the chunk index is off. A rank passes on the chunk that it has just added to, and adds what comes in to the "
        "chunk of the same number that its right neighbour sent."
    )


def _has_one_phase(seen: Reduced) -> bool:
    """Whether every rank holds what a ring's first phase leaves: chunks with the shares of 1, 2, ... and all ranks."""
    every = [[contributions(seen, v.item(), k) for k, v in enumerate(row.ravel())] for row in seen.values[0]]
    return all(
        all(c is not None and max(c) == 1 for c in counts)
        and {sum(c) for c in counts} == set(range(1, seen.world_size + 1))
        for counts in every
    )


def why_halving(seen: Reduced) -> str:
    """The likely cause of a wrong sum in recursive halving and doubling."""
    complete, n = _complete(seen), seen.world_size
    steps = cost("reduce", seen.n_bytes, n).rounds + cost("broadcast", seen.n_bytes, n).rounds
    if _messages(seen) == n * steps // 2 and all(any(elements) for elements in complete):
        return "every rank has its part of the sum and no more: the second phase, the doubling, is missing."
    if all(any(elements) for elements in complete) and any(max(c) > 1 for c in _counts(seen)):
        return (
            "a complete part is added to what is there already: in the second phase a rank replaces, it does not add."
        )
    if any(max(c) > 1 for c in _counts(seen)):
        return "both partners of a step keep the same half: one gives away the half that the other keeps."
    return "the second phase goes back through the same partners, last one first, and replaces the halves given away."


# Values that are right, sent the wrong way -------------------------------------------------------------------


def require_tree(seen: Reduced) -> None:
    """Raises CheckFailed unless the messages are those of a tree: how many, how long, in how many rounds."""
    n = seen.world_size
    down, up = cost("reduce", seen.n_bytes, n), cost("broadcast", seen.n_bytes, n)
    wanted = sum(down.sent_messages) + sum(up.sent_messages)
    if _messages(seen) != wanted or any(n_bytes != seen.n_bytes for _, _, n_bytes in seen.sends()):
        raise CheckFailed(
            f"{seen.what}: every value is right, but {_messages(seen)} messages were sent"
            f" ({tensors(seen, sum(b for _, _, b in seen.sends()))}); a tree sends {wanted} whole tensors.",
            cause=_why_not_tree(seen, wanted),
        )
    require_rounds(seen, down.rounds + up.rounds, "a tree", _why_slow_tree)
    require_waits(seen.trace, seen.what)


def _why_not_tree(seen: Reduced, wanted: int) -> str:
    whole = all(b == seen.n_bytes for _, _, b in seen.sends())
    if whole and _messages(seen) == seen.world_size * cost("reduce", seen.n_bytes, seen.world_size).rounds:
        return "both partners send. In a tree the one that hands its sum over is silent until the broadcast."
    if whole and _messages(seen) > wanted:
        return "some rank sends again after it has handed its sum over; it is silent until the broadcast."
    if not whole and _messages(seen) == wanted:
        return "the messages are not as long as the tensor: another dtype, or a part of it."
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
    ring = cost("all_reduce", seen.n_bytes, n, itemsize=seen.values[0][0].itemsize)
    sizes = pieces(seen.values[0][0].size, n) * seen.values[0][0].itemsize
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
    require_rounds(seen, ring.rounds, "a ring", _why_slow_ring)
    require_waits(seen.trace, seen.what)


def _why_bytes(seen: Reduced, sent: list[int], sizes) -> str:
    center, longest = star(seen), max((b for _, _, b in seen.sends()), default=0)
    if center is not None:
        return f"every rank sends to rank {center} and gets its sum from there: gather and send back, not a ring."
    if longest > sizes.max() and all(b == seen.n_bytes for _, _, b in seen.sends()):
        return "whole tensors travel around the ring. Send one chunk a step."
    right = sum(cost("all_reduce", seen.n_bytes, seen.world_size).sent_bytes) * seen.calls
    for times, wide in ((2, "twice as many bytes as"), (4, "four times as many bytes as"), (0.5, "half the bytes of")):
        if sum(sent) == times * right and _messages(seen) == 2 * seen.world_size * (seen.world_size - 1):
            return f"{wide} the tensor's own travel: every number goes in another dtype. Keep the one that it has."
    if longest == sizes.max() and len({b for _, _, b in seen.sends()}) == 1 and sizes.max() != sizes.min():
        return "the tensor is padded to a multiple of the number of ranks. Cut chunks that differ by one element."
    row = seen.n_bytes // seen.shape[0] if len(seen.shape) > 1 and seen.n_bytes else 0
    if row and not any(b % row for _, _, b in seen.sends()):
        return "whole rows travel: cut elements, not rows. Flatten first (view(-1)), then cut evenly (tensor_split)."
    if longest > sizes.max():
        return "some chunks are longer than they need be: cut as evenly as possible (tensor_split)."
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
    require_rounds(seen, allowed, "halving and doubling", lambda seen: _why_slow_halving(seen))
    require_waits(seen.trace, seen.what)


def _why_slow_halving(seen: Reduced) -> str:
    if all((rank - peer) % seen.world_size in (1, seen.world_size - 1) for rank, peer, _ in seen.sends()):
        return "this is a ring: exchange with partners at distance N/2, N/4, ..., 1 instead of with a neighbour."
    return "the two partners of a step wait for one another: post the send (isend), receive, then wait."
