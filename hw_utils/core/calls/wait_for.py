"""Who waits for whom: from blocked ranks to a table, a cycle and a sentence.

    rows = [Waiting(0, "recv", (1,), 0.2, where), Waiting(1, "recv", (0,), 0.3, where)]
    raise Deadlock(wait_table(rows, returned=[2]))

Both engines use it: `launch` fills the rows from what real ranks publish, the virtual cluster from its queues.
A row's `peers` are the ranks that would have to move for it; `returned` those whose worker has already ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from hw_utils.core.errors import Waiting, WaitTable, ranks_text

OWN_WAIT = "a wait in its own process"  # what a rank waits in that waits for no other one
_SHOWN_LINKS = 8


def waits_in(op: str) -> str:
    """What a rank that stands in an operation does: a handle was given back before it waits.

    >>> waits_in("recv"), waits_in("irecv")
    ('recv', 'wait for irecv')
    """
    return f"wait for {op}" if op in ("isend", "irecv") else op


def wait_table(rows: Iterable[Waiting], returned: Collection[int] = ()) -> WaitTable:
    """The rows in rank order with notes on peers that have returned, the cycle if there is one, and one sentence.

    >>> rows = [Waiting(r, "send", ((r + 1) % 3,), 0.1) for r in range(3)]
    >>> table = wait_table(rows)
    >>> table.cycle, table.sentence
    ([0, 1, 2], 'rank 0 waits for rank 1, 1 for 2, 2 for 0, all in send: a send waits until its receive is posted.')
    """
    gone = frozenset(returned)
    rows = [_noted(row, gone) for row in sorted(rows, key=lambda row: row.rank)]
    peers: dict[int, set[int]] = {}
    for row in rows:  # a rank has as many as it has threads that wait
        peers.setdefault(row.rank, set()).update(row.peers)
    cycle = find_cycle(peers)
    return WaitTable(rows, cycle, _sentence(rows, cycle, gone))


def find_cycle(peers: dict[int, Iterable[int]]) -> list[int]:
    """The ranks of one cycle in who-waits-for-whom, each followed by the one it waits for, its lowest rank first.

    >>> find_cycle({0: [1], 1: [2], 2: [1], 3: [0]})
    [1, 2]
    """
    finished: set[int] = set()
    for start in sorted(peers):
        path: list[int] = []
        place: dict[int, int] = {}
        branches = [iter([start])]
        while branches:
            rank = next(branches[-1], None)
            if rank is None:
                branches.pop()
                if path:
                    finished.add(path[-1])
                    del place[path.pop()]
            elif rank in place:
                return _lowest_first(path[place[rank] :])
            elif rank in peers and rank not in finished:
                place[rank] = len(path)
                path.append(rank)
                branches.append(iter(sorted(peers[rank])))
    return []


def _lowest_first(cycle: list[int]) -> list[int]:
    i = cycle.index(min(cycle))
    return cycle[i:] + cycle[:i]


def _noted(row: Waiting, gone: frozenset[int]) -> Waiting:
    missing = sorted(gone.intersection(row.peers))
    if not missing or row.note:
        return row
    verb = "has" if len(missing) == 1 else "have"
    return replace(row, note=f"{ranks_text(missing)} {verb} returned")


def _sentence(rows: list[Waiting], cycle: list[int], gone: frozenset[int]) -> str:
    by_rank = {row.rank: row for row in rows}
    if cycle:
        return _cycle_sentence([by_rank[r] for r in cycle])
    for row in rows:
        missing = sorted(gone.intersection(row.peers))
        if missing:
            alike = [other.rank for other in rows if (other.op, other.peers) == (row.op, row.peers)]
            wait = "waits" if len(alike) == 1 else "wait"
            have = "has" if len(missing) == 1 else "have"
            return f"{ranks_text(alike)} {wait} in {row.op} for {ranks_text(missing)}, which {have} returned."
    alone = stand_alone((row.rank, row.peers) for row in rows)
    if alone:
        waits, whose = ("waits", "its own process") if len(alone) == 1 else ("wait", "their own processes")
        return f"{ranks_text(alone)} {waits} in {whose}, and nothing that another rank does ends that."
    return ""


def stand_alone(waits: Iterable[tuple[int, Collection[int]]]) -> list[int]:
    """The ranks of (rank, its peers) that wait for no rank, in any of their threads: for a lock, an event, a queue.

    >>> stand_alone([(0, [1]), (1, []), (2, []), (2, [0])])
    [1]
    """
    peers: dict[int, set[int]] = {}
    for rank, its in waits:
        peers.setdefault(rank, set()).update(its)
    return sorted(rank for rank, its in peers.items() if not its)


def _cycle_sentence(rows: list[Waiting]) -> str:
    ranks = [row.rank for row in rows]
    links = [f"{a} for {b}" for a, b in zip(ranks, [*ranks[1:], ranks[0]])]
    links[0] = f"rank {ranks[0]} waits for rank {ranks[1 % len(ranks)]}"
    if len(links) > _SHOWN_LINKS:
        links = [*links[: _SHOWN_LINKS - 2], "...", links[-1]]
    text = ", ".join(links)
    if {row.op for row in rows} == {"send"}:
        text += ", all in send: a send waits until its receive is posted"
    elif {row.op for row in rows} == {"recv"}:
        text += ", all in recv: nobody has sent yet"
    return text + "."
