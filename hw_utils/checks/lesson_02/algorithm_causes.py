"""Why a sum is wrong, by algorithm: tree, ring, halving-doubling. What any all-reduce gets wrong: value_causes.py."""

from __future__ import annotations

from hw_utils.checks.lesson_02.observed_all_reduce import Reduced, contributions, nothing_added
from hw_utils.checks.lesson_02.value_causes import READ_TOO_SOON
from hw_utils.core.collective_algorithms import cost

NOTHING_ADDED = "nothing is ever added: receive into a buffer of your own, and add that to what is there."


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _complete(seen: Reduced) -> list[list[bool]]:
    """For each rank, which elements hold every share exactly once."""
    expected = seen.expected().ravel()
    return [[bool(v == e) for v, e in zip(values.ravel(), expected)] for values in seen.values[0]]


def _counts(seen: Reduced) -> list[list[int]]:
    """The contributions of every element on every rank that is a sum of shares."""
    flat = [contributions(seen, v.item(), k) for row in seen.values[0] for k, v in enumerate(row.ravel())]
    return [c for c in flat if c is not None]


def why_tree(seen: Reduced) -> str:
    """The likely cause of a wrong sum in a tree."""
    done = [rank for rank, elements in enumerate(_complete(seen)) if all(elements)]
    if len(done) == 1 and seen.n_messages == seen.world_size - 1:
        return f"rank {done[0]} has the sum and nobody else: the second phase, the broadcast, is missing."
    if nothing_added(seen):
        return f"in the first phase {NOTHING_ADDED}"
    if not _is_power_of_two(seen.world_size):
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
    if done == [0] and seen.n_messages == both_ways:
        return "the sum comes back to every rank, and none writes it into its tensor: receive into the tensor itself."
    if 0 in done and len(done) > 1 and seen.n_messages == both_ways:
        return (
            "some rank passes on what it had before the sum came: the second phase runs the same steps backwards, the "
            "last one first."
        )
    if not done and seen.n_messages < both_ways:
        return (
            f"no rank has the whole sum after {seen.n_messages} messages; both phases have {both_ways}. A step is left "
            "out: range(1, steps) ends with steps - 1."
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
    if seen.n_messages == 2 * n * (n - 1) and _has_one_phase(seen):
        return (
            "the first phase is right, and nothing that comes in the second phase reaches the tensor: chunks[k] = ... "
            "puts it into the list, tensor = ... makes another one. Copy it into the chunk, which is a view (copy_)."
        )
    if some and not all(map(all, complete)) and seen.n_messages == n * (n - 1):
        return "every rank has one complete chunk and no more: the second phase, the all-gather, is missing."
    counts = _counts(seen)
    if n > 2 and counts and all(max(c) == sum(c) == 2 ** (n - 1) for c in counts):
        return (
            "what comes in lands on what was there already, and is added to itself: receive into a buffer of its own, "
            "which is then added to the chunk."
        )
    if n > 2 and counts and not some and any(max(c) > 1 and min(c) > 0 for c in counts):
        return (
            "no chunk is ever whole, and shares are in it more than once: in the first phase what comes in goes into a "
            "buffer of its own, which is added to the chunk; is what was sent added, or another chunk?"
        )
    if counts and all(min(c) > 0 for c in counts) and any(max(c) > 1 for c in counts):
        return (
            "a complete chunk is added to what is there already: in the second phase a rank replaces, it does not add."
        )
    if seen.n_messages < 2 * n * (n - 1):
        return (
            f"some step is missing: {seen.n_messages} messages were sent, one fewer step in a phase leaves a chunk out."
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
    if seen.n_messages == n * steps // 2 and all(any(elements) for elements in complete):
        return "every rank has its part of the sum and no more: the second phase, the doubling, is missing."
    if all(any(elements) for elements in complete) and any(max(c) > 1 for c in _counts(seen)):
        return (
            "a complete part is added to what is there already: in the second phase a rank replaces, it does not add."
        )
    if any(max(c) > 1 for c in _counts(seen)):
        return "both partners of a step keep the same half: one gives away the half that the other keeps."
    return "the second phase goes back through the same partners, last one first, and replaces the halves given away."
