"""Why the virtual cluster stands still: its waiting ranks as rows of a wait-for table."""

from __future__ import annotations

from hw_utils.core.calls.wait_for import wait_table, waits_in
from hw_utils.core.errors import Failure, Waiting, WaitTable, ranks_text


def table_of(engine, returned: list[bool]) -> WaitTable:
    """One row a rank that stands still."""
    rows = [_row(engine, rank, what) for rank, what in engine.agenda.rows()]
    return wait_table(rows, [rank for rank, has in enumerate(returned) if has])


def _row(engine, rank: int, what) -> Waiting:
    """`what` is a message's or a collective's handle."""
    where, tag, thread = engine.places.where(what.site), getattr(what, "tag", 0), getattr(rank, "name", "")
    note = f"in its thread {thread}" if thread else ""
    return Waiting(int(rank), waits_in(what.name), what.waits_for(), engine.clock[rank], where, tag, note)


def who_waited(engine) -> str:
    """`ranks 0, 1 waited for rank 2`, for a run that ended in failures."""
    failed = {f.rank for f in engine.ending.failures}
    waiters = sorted({int(rank) for rank, _ in engine.agenda.rows() if rank not in failed})
    if not waiters or not failed:
        return ""
    return f"{ranks_text(waiters)} waited for {ranks_text(failed)}"


def lost(engine) -> list[Failure]:
    """Messages that were posted and never met their other end, as failures of those who posted them."""
    left = (q for queue in engine.queues for q in queue if q.row not in engine.queues.given_up)
    requests = sorted(left, key=lambda q: q.row)
    why = {True: "nobody received it", False: "nobody sent it"}
    return [
        Failure(q.rank, "mismatch", f"{q.text()}, and {why[q.is_send]}", engine.places.frames(q.site)) for q in requests
    ]
