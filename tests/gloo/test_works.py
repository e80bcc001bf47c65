"""What works say of themselves, errors before communication, groups after a time limit: as bare gloo, both engines."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate
from hw_utils.core.versions import torch_version
from hw_utils.virtual.groups.signatures import GLOO_TAKES_LISTS

both = pytest.mark.parametrize("engine", [launch, simulate])
MUTE = "RuntimeError: result() not implemented.", "RuntimeError: Work::getFuture not implemented."


def told(ask):
    """What a call gives, or raises, as plain data."""
    try:
        value = ask()
    except (RuntimeError, ValueError, TypeError) as error:
        if "exception_ptr" in str(error):  # torch 2.10 asks for an exception and cannot say that there is none
            return None
        return f"{type(error).__name__}: {error}"
    return [part.tolist() for part in value] if isinstance(value, list) else value


def after_its_wait(work) -> list:
    return [
        *(told(ask) for ask in (work.wait, work.wait, work.is_completed, work.is_success, work.exception)),
        *(told(ask) for ask in (work.synchronize, work.result, lambda: work.get_future().wait())),
    ]


@both
def test_a_work_that_was_waited_for_has_its_result(engine):
    def worker(rank, world_size):
        x, whole = torch.full((2,), float(rank)), torch.zeros(2)
        return [
            after_its_wait(dist.all_reduce(x, async_op=True)),
            after_its_wait(dist.all_to_all_single(whole, torch.arange(2.0) + rank, async_op=True)),
            after_its_wait(dist.barrier(async_op=True)),
        ]

    over = [True, True, True, True, None, None]
    for rank, found in enumerate(engine(worker, 2).results):
        theirs = [[float(rank), rank + 1.0]]
        assert found == [[*over, [[1.0, 1.0]], [[1.0, 1.0]]], [*over, theirs, theirs], [*over, [], []]]


@both
def test_gloos_reduce_scatter_and_messages_have_no_result(engine):
    def worker(rank, world_size):
        work = dist.reduce_scatter_tensor(torch.zeros(1), torch.ones(2), async_op=True)
        sent, got = dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.zeros(1), 1 - rank)
        return [after_its_wait(one) for one in (work, sent, got)], got._source_rank(), told(sent._source_rank)

    for rank, (found, source, no_source) in enumerate(engine(worker, 2).results):
        assert found == [
            [True, True, False, True, None, None, *MUTE],
            *([True, True, True, True, None, None, *MUTE] for _ in "12"),
        ]
        assert source == 1 - rank
        assert "recv" in no_source


@both
def test_a_wait_takes_its_limit_by_name(engine):
    def worker(rank, world_size):
        return dist.all_reduce(torch.ones(1), async_op=True).wait(timeout=timedelta(seconds=20))

    assert engine(worker, 2).results == [True, True]


def red(rank: int, group=None):
    x = torch.full((1,), rank + 1.0)
    try:
        dist.all_reduce(x, group=group)
    except RuntimeError as error:
        return "closed" if "closed" in str(error) or "closure" in str(error) else str(error)
    return x.item()


@both
def test_after_a_monitored_barrier_that_a_rank_has_skipped_all_other_groups_go_on(engine):
    def worker(rank, world_size):
        group, found = dist.new_group(), []
        if rank != 1:  # of three ranks' ring, some would wait for ever if they called the group again
            found.append(told(lambda: dist.monitored_barrier(group, timeout=timedelta(seconds=0.3))).split("\n")[0])
        return [*found, red(rank), red(rank, dist.new_group())]

    zero, one, two = engine(worker, 3).results
    assert zero == ["RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms", 6.0, 6.0]
    assert one == [6.0, 6.0]
    assert two[0].startswith("RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors")
    assert two[1:] == [6.0, 6.0]


@both
def test_a_world_whose_monitored_barrier_failed_makes_new_groups(engine):
    def worker(rank, world_size):
        if rank != 1:
            told(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.3)))
        return red(rank, dist.new_group())

    assert engine(worker, 3).results == [6.0] * 3


@both
def test_whoever_comes_late_to_a_call_that_timed_out_gets_no_stale_values(engine):
    def worker(rank, world_size):
        group, found = dist.new_group(timeout=timedelta(seconds=0.5)), []
        if rank == 0:
            found.append("imed out" in red(rank, group))
        dist.barrier()
        found += [red(rank, group), red(rank)]
        dist.barrier()
        return found

    assert engine(worker, 2).results == [[True, "closed", 3.0], ["closed", 3.0]]


@both
def test_errors_before_communication_have_torchs_words(engine):
    def worker(rank, world_size):
        x, parts = torch.ones(2), [torch.ones(2)]
        asks = [
            lambda: dist.broadcast(x, 2),
            lambda: dist.gather(x, None, -1),
            lambda: dist.all_to_all(parts, parts),
            lambda: dist.all_to_all_single(torch.ones(2), x, [2], [2]),
            lambda: dist.all_to_all_single(torch.ones(2), x, [1, 1], [2, 1]),
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
            lambda: dist.all_gather_into_tensor(torch.ones(1), x[:1]),
        ]
        found = [told(ask) for ask in asks]
        for ask in (
            lambda: dist.P2POp(dist.all_reduce, x, 1 - rank),
            lambda: dist.isend(x, 1 - rank, group_dst=1 - rank),
            lambda: dist.irecv(x, 1 - rank, group_src=1 - rank),
        ):
            found.append(told(ask))
        alone = dist.new_group([0])
        outside = (dist.isend(x, 0, group=alone), dist.broadcast(x, 0, group=alone)) if rank else (None, None)
        return found, outside, red(rank)

    gloo = "RuntimeError: ProcessGroupGloo::"
    for found, outside, total in engine(worker, 2).results:
        assert found == [
            f"{gloo}broadcast: invalid root rank: 2",
            f"{gloo}gather: invalid root rank: -1",
            f"{gloo}alltoall: input tensor list size 1 does not match world size 2"
            if torch_version() >= GLOO_TAKES_LISTS
            else "RuntimeError: Backend gloo does not support alltoall",
            "RuntimeError: Number of tensor splits not equal to group size",
            "RuntimeError: Split sizes doesn't match total dim 0 size",
            "RuntimeError: Tensor's dim 0 does not divide equally across group size",
            f"{gloo}allgather: invalid output tensor list at index 0 (expected length 2, got 1)",
            "ValueError: Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
            "``torch.distributed.irecv``.",
            "ValueError: Can't specify both group_rank and global_rank",
            "ValueError: Can't specify both group_rank and global_rank",
        ]
        assert outside == (None, None)
        assert total == 3.0
