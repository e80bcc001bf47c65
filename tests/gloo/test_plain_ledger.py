"""The quick ledger of real ranks beside the plain statement of it: the same rows, bytes, order, and times that fit."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_utils import launch
from tests.gloo.plain_ledger import Note, Notebook, communications, rows_of

WORLD_SIZE = 3
GROUPS = (None, (0, 2), (1, 2))  # None: all
COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "barrier")
CLOCK_STEP_S = 1e-7  # what a difference of two readings of the clock is rounded by, and more
some = settings(max_examples=4, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

_rank, _flag, _group = st.integers(0, WORLD_SIZE - 1), st.booleans(), st.integers(0, len(GROUPS) - 1)
_n_elements = st.sampled_from([0, 1, 3, 3, 3, 1000])
_message = st.tuples(st.just("message"), _group, _rank, _rank, st.integers(0, 1), _n_elements, _flag, _flag)
_collective = st.tuples(st.sampled_from(COLLECTIVES), _group, _rank, _n_elements, _flag)
_programs = st.lists(st.one_of(_message, _message, _collective, st.just(("wait",))), min_size=60, max_size=120)


def follow(rank: int, world_size: int, steps: list[tuple]) -> list[Note]:
    """All ranks go through the same steps, each does its part; returns this one's notes."""
    groups = [None if ranks is None else dist.new_group(ranks) for ranks in GROUPS]
    book, pending = Notebook(), []
    for step in [*steps, ("wait",)]:
        if step[0] == "wait":
            while pending:
                book.wait(*pending.pop(0))
            continue
        members = GROUPS[step[1]] or tuple(range(world_size))
        if rank in members:
            part = message if step[0] == "message" else collective
            waits_later = part(book, rank, members, GROUPS[step[1]], groups[step[1]], step)
            pending += [waits_later] if waits_later else []
    return book.notes


def message(book: Notebook, rank: int, members, ranks, group, step):
    _, _, src, dst, tag, n_elements, is_isend, is_irecv = step
    src, dst = members[src % len(members)], members[dst % len(members)]
    if src == dst or rank not in (src, dst):
        return None
    x = torch.ones(n_elements)
    where = {"peer": dst if rank == src else src, "tag": tag, "ranks": ranks}
    if rank == src and is_isend:
        return book.call("isend", x.nbytes, lambda: dist.isend(x, dst, group, tag), is_async=True, **where)
    if rank == src:  # two lines alike, of which each is the same instruction of another code
        one, other = (
            lambda: dist.send(x, dst, group, tag),
            lambda: dist.send(x, dst, group, tag),
        )
        return book.call("send", x.nbytes, one if n_elements else other, **where)
    if is_irecv:
        return book.call("irecv", x.nbytes, lambda: dist.irecv(x, src, group, tag), is_async=True, **where)
    return book.call("recv", x.nbytes, lambda: dist.recv(x, src, group, tag), **where)


def collective(book: Notebook, rank: int, members, ranks, group, step):
    op, _, root, n_elements, is_async = step
    size, root = len(members), root % len(members)
    r, x, parts = members[root], torch.ones(n_elements), list(torch.ones(size, n_elements))
    mine = parts if rank == r else None
    do = {
        "all_reduce": lambda: dist.all_reduce(x, group=group, async_op=is_async),
        "broadcast": lambda: dist.broadcast(x, r, group, is_async),
        "reduce": lambda: dist.reduce(x, r, group=group, async_op=is_async),
        "all_gather": lambda: dist.all_gather(parts, x, group, is_async),
        "gather": lambda: dist.gather(x, mine, r, group, is_async),
        "scatter": lambda: dist.scatter(x, mine, r, group, is_async),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts, group=group, async_op=is_async),
        "barrier": lambda: dist.barrier(group, is_async),
    }[op]
    n_bytes = {"barrier": 0, "reduce_scatter": size * x.nbytes}.get(op, x.nbytes)
    return book.call(op, n_bytes, do, ranks=ranks, root=root, is_async=is_async)


def facts(e) -> tuple:
    sent = e.sent_bytes, e.sent_messages, e.rounds
    return e.op, e.peer, e.n_bytes, e.tag, e.group, e.line, e.order, e.waited, *sent


@some
@given(_programs)
def test_the_quick_ledger_says_what_the_plain_one_says(steps):
    run = launch(follow, WORLD_SIZE, (steps,), echo=False)
    events = [sorted(run.trace.of_rank(rank), key=lambda e: e.order) for rank in range(WORLD_SIZE)]
    assert [[facts(e) for e in mine] for mine in events] == rows_of(run.results)
    require_same_partners(events, communications(run.results))
    require_times_that_fit(events, run.results)


def require_same_partners(events: list[list], keys: list[list[tuple]]) -> None:
    """Two rows have one number of a communication exactly if the notes say that they are sides of one."""
    pairs = {(e.message, key) for mine, own in zip(events, keys) for e, key in zip(mine, own)}
    assert len(pairs) == len({number for number, _ in pairs}) == len({key for _, key in pairs})


def require_times_that_fit(events: list[list], notebooks: list[list[Note]]) -> None:
    """One start of the run puts each of the ledger's times between the clock before a call and the clock after it."""
    earliest, latest = [], []
    for mine, notes in zip(events, notebooks):
        for e, n in zip(mine, notes):
            assert e.start_s <= e.wait_start_s <= e.wait_end_s == e.end_s
            inside = [(e.start_s, n.called_s, n.returned_s)]
            inside += [(at_s, n.wait_called_s, n.wait_returned_s) for at_s in (e.wait_start_s, e.wait_end_s)]
            earliest += [before_s - at_s for at_s, before_s, _ in inside]
            latest += [after_s - at_s for at_s, _, after_s in inside]
    assert max(earliest, default=0.0) <= min(latest, default=0.0) + CLOCK_STEP_S
