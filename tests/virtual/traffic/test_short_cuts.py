"""The short way of a message, and the plain one through torch's own functions: the same values, rows and errors."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_utils import Deadlock, Network, WorkerFailed, simulate
from hw_utils.virtual import run_in_one_process
from tests.virtual.test_same_function import disturbed, interpret

many = settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


class NoShortCuts:
    """torch's own send, recv, isend and irecv reach the virtual group's methods of these names."""

    def __init__(self, engine) -> None: ...

    def installed(self):
        return nullcontext()


def everything(world_size: int, programs, **options):
    """All that a run says: values and every column of its rows; or the table of its deadlock; or the failures."""
    try:
        run = simulate(interpret, world_size, (programs,), compute="free", echo=False, isolate=False, **options)
        return run.results, run.seconds, list(run.trace)
    except Deadlock as error:
        return error.table.sentence, [(row.rank, row.op, row.peers, row.since_s, row.tag) for row in error.rows]
    except WorkerFailed as error:
        return [(failure.rank, failure.kind, failure.reason) for failure in error.failures]


@many
@given(disturbed(), st.sampled_from([0, 8, 1000]), st.sampled_from([Network(), Network(0.0, 1e9), Network(1.0, 4.0)]))
def test_a_message_goes_the_same_on_both_ways(case, eager_bytes, network):
    with pytest.MonkeyPatch.context() as patch:
        short = everything(*case, eager_bytes=eager_bytes, network=network)
        patch.setattr(run_in_one_process, "ShortCuts", NoShortCuts)
        assert everything(*case, eager_bytes=eager_bytes, network=network) == short


def many_rows(rank: int, world_size: int, n: int) -> None:
    x = torch.zeros(1)
    for tag in range(n):
        (dist.send if rank else dist.recv)(x, 1 - rank)
        (dist.recv if rank else dist.send)(x, 1 - rank, tag=tag % 2)
        dist.all_reduce(x)


@pytest.mark.parametrize("n", [170, 171, 1000])
def test_a_ledger_keeps_every_row_in_order_whichever_way_it_was_written(n: int):
    """By short cuts, by `matching.py` and by collectives; 1,024 rows are made room for at a time."""
    run = simulate(many_rows, 2, (n,), compute="free", echo=False, isolate=False)
    for rank in range(2):
        events = [event for event in run.trace if event.rank == rank]
        first, second = ("send", "recv") if rank else ("recv", "send")
        assert [event.op for event in events] == [first, second, "all_reduce"] * n
        starts = [event.start_s for event in events]
        assert starts == sorted(starts)
        assert all(event.end_s > event.start_s for event in events)
