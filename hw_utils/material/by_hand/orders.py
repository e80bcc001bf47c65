"""Orders of passes, played: each rank makes its passes in its own order, each as soon as what it needs is there.

A rank's order is a list of (kind, chunk, micro-batch), or of (kind, micro-batch) where there is
one chunk; kinds are those of stages.py. Chunk c of rank r is stage c * n_ranks + r of the model, and where no kind is
W, a B is a whole backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hw_utils.material.by_hand.stages import Pass

Step = tuple[str, int, int] | tuple[str, int]  # kind, chunk, micro-batch
_SAME_S = 1e-9


def play(
    orders: Sequence[Sequence[Step]], seconds: Mapping[str, float | Sequence[float]], message_s: float = 0.0
) -> tuple[list[Pass], list[str]]:
    """What happens, (rank, kind, micro-batch, chunk, start_s, end_s) each, and who waits for what if it stops midway.

    seconds: of a pass of each kind, on all ranks or one a rank. message_s: from a pass on one rank to what needs it on
    another; the rank goes on.

    >>> play([[("F", 0, 0), ("B", 0, 0)], [("F", 0, 0), ("B", 0, 0)]], {"F": 1.0, "B": 2.0})[0][-1]
    (0, 'B', 0, 0, 4.0, 6.0)
    """
    n_ranks, passes, free_s = len(orders), [], [0.0] * len(orders)
    orders = [[step if len(step) == 3 else (step[0], 0, step[1]) for step in order] for order in orders]
    n_stages = n_ranks * (1 + max((chunk for order in orders for _, chunk, _ in order), default=0))
    done: dict[tuple[str, int, int], float] = {}  # (kind, stage, micro-batch) -> when it was over
    places = [0] * n_ranks
    while True:
        moved = False
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                kind, chunk, k = order[places[rank]]
                stage = chunk * n_ranks + rank
                needed = _needed(kind, stage, k, n_stages)
                if any(need not in done for need in needed):
                    break
                there_s = [done[need] + message_s * (need[1] % n_ranks != rank) for need in needed]
                start_s = max([free_s[rank], *there_s])
                takes_s = seconds[kind]
                free_s[rank] = start_s + (takes_s if isinstance(takes_s, int | float) else takes_s[rank])
                done[kind, stage, k] = free_s[rank]
                passes.append((rank, kind, k, chunk, start_s, free_s[rank]))
                places[rank] += 1
                moved = True
        if not moved:
            break
    waits = [
        f"rank {rank} waits in {_named(*order[place])} for {_what(*order[place], rank, n_ranks, n_stages, done)}"
        for rank, (order, place) in enumerate(zip(orders, places))
        if place < len(order)
    ]
    return sorted(passes, key=lambda one: (one[5], one[0])), waits


def _needed(kind: str, stage: int, k: int, n_stages: int) -> list[tuple[str, int, int]]:
    """What must be over before a pass begins."""
    if kind == "F":
        return [("F", stage - 1, k)] if stage else []
    if kind == "W":
        return [("B", stage, k)]
    return [("F", stage, k)] + ([("B", stage + 1, k)] if stage + 1 < n_stages else [])


def _named(kind: str, chunk: int, k: int) -> str:
    return f"{kind} of micro-batch {k}" + (f" in chunk {chunk}" if chunk else "")


def _what(kind: str, chunk: int, k: int, rank: int, n_ranks: int, n_stages: int, done) -> str:
    missing = [need for need in _needed(kind, chunk * n_ranks + rank, k, n_stages) if need not in done]
    return " and ".join(f"{_named(kind, stage // n_ranks, k)} on rank {stage % n_ranks}" for kind, stage, k in missing)


def in_flight(passes: Sequence[Pass]) -> dict[int, list[tuple[float, int]]]:
    """Rank -> (seconds, how many it holds from then on): from a forward pass's begin to its backward pass's end.

    Where there are passes of kind W, an activation is held until that one is over.

    >>> in_flight([(0, "F", 0, 0, 0.0, 1.0), (0, "B", 0, 0, 1.0, 3.0)])
    {0: [(0.0, 1), (3.0, 0)]}
    """
    last = "W" if any(kind == "W" for _, kind, *_ in passes) else "B"
    found = {}
    for rank in sorted({one[0] for one in passes}):
        mine = [one for one in passes if one[0] == rank]
        changes = [(one[5], -1) for one in mine if one[1] == last] + [(one[4], 1) for one in mine if one[1] == "F"]
        marks, held = [], 0
        for at_s, change in sorted(changes):  # what ends at a moment is gone before something else begins
            held += change
            if marks and at_s - marks[-1][0] < _SAME_S:
                marks.pop()
            marks.append((at_s, held))
        found[rank] = marks
    return found
