"""Why the virtual cluster stands still: who waits for whom, as the table that `Deadlock` shows."""

from __future__ import annotations

from hw_utils.errors import Waiting, WaitTable, ranks_text


def wait_table(engine, returned: list[bool]) -> WaitTable:
    """One row a waiting rank, and the cycle if there is one."""
    rows = [_row(engine, rank, request, returned) for rank, request in sorted(engine.waiting.items())]
    cycle = _cycle({row.rank: row.peers for row in rows})
    return WaitTable(rows, cycle, _sentence(rows, cycle))


def _row(engine, rank: int, request, returned: list[bool]) -> Waiting:
    op = engine.names[int(engine.rows[request.row + 1])]
    if engine.rows[request.row + 10] != engine.order[rank]:
        op = f"wait for {op}"
    peers = _peers(engine, request)
    gone = [p for p in peers if returned[p]]
    note = f"{ranks_text(gone)} {'has' if len(gone) == 1 else 'have'} returned" if gone else ""
    where = engine.places.where(int(engine.rows[request.row + 6]))
    tag = getattr(request, "tag", 0)
    return Waiting(rank, op, tuple(peers), engine.clock[rank], where, tag, note)


def _peers(engine, request) -> list[int]:
    members = getattr(request, "members", None)
    if not hasattr(request, "is_send"):  # a collective: those who have not called it yet
        return [r for i, r in enumerate(members.ranks) if members.n_called[i] <= request.number]
    if request.peer >= 0:
        return [request.peer]
    return [r for r in range(engine.world_size) if r != request.rank]


def _cycle(peers: dict[int, tuple[int, ...]]) -> list[int]:
    """Ranks that wait for each other in a circle, from the smallest."""
    done: set[int] = set()
    for start in peers:
        path: list[int] = []
        rank: int | None = start
        while rank in peers and rank not in done and rank not in path:
            path.append(rank)
            rank = next((p for p in peers[rank] if p in peers), None)
        if rank in path:
            circle = path[path.index(rank) :]
            least = circle.index(min(circle))
            return circle[least:] + circle[:least]
        done.update(path)
    return []


def _sentence(rows: list[Waiting], cycle: list[int]) -> str:
    if cycle:
        return " waits for ".join(f"rank {r}" for r in [*cycle, cycle[0]]) if len(cycle) <= 12 else (
            " waits for ".join(f"rank {r}" for r in cycle[:4]) + f" and so on, through {len(cycle)} ranks"
        )  # fmt: skip
    for row in rows:
        if row.note:
            return f"rank {row.rank} waits in {row.op}, but {row.note}"
    return ""


def who_waited(engine) -> str:
    """`ranks 0, 1 waited for rank 2` when the run ended in failures."""
    failed = {f.rank for f in engine.failures}
    waiters = [rank for rank in engine.waiting if rank not in failed]
    if not waiters:
        return ""
    return f"{ranks_text(waiters)} waited for {ranks_text(failed)}"
