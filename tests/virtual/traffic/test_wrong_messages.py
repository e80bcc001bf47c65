"""Sends, receives and collectives of a wrong program on the virtual cluster: what is said of them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hw_utils import Deadlock, WorkerFailed
from tests.virtual.runs import run


def mismatched(rank, world_size):
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(5), 0)


def test_sizes_that_differ_name_both_ends():
    with pytest.raises(WorkerFailed) as caught:
        run(mismatched, 2)
    text = str(caught.value)
    assert "rank 0 sends 4 float32 (16 bytes) to rank 1" in text
    assert "rank 1 receives 5 float32 (20 bytes) from rank 0" in text
    assert "the same number of bytes" in text


def other_dtype(rank, world_size):
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(4, dtype=torch.int32), 0)


def test_dtypes_that_differ_name_both_ends():
    with pytest.raises(WorkerFailed, match=r"4 float32 .* 4 int32 .* the same dtype"):
        run(other_dtype, 2)


def forgotten_receive(rank, world_size):
    if rank == 0:
        dist.isend(torch.ones(3), 1)


def test_a_message_that_nobody_receives_is_an_error():
    with pytest.raises(WorkerFailed, match=r"rank 0 sends 3 float32 .* to rank 1 .*nobody received it"):
        run(forgotten_receive, 2)


def changed_buffer(rank, world_size):
    x = torch.ones(3)
    if rank == 0:
        request = dist.isend(x, 1)
        x += 1
        request.wait()
    else:
        dist.recv(x, 0)


def test_a_buffer_that_changes_before_the_wait_is_an_error():
    with pytest.raises(WorkerFailed, match=r"rank 0 sends 3 float32 .* changes the tensor between isend and wait"):
        run(changed_buffer, 2)


@pytest.mark.parametrize("is_send_first", [True, False])
def test_one_tensor_is_not_sent_and_received_into_at_once(is_send_first):
    def worker(rank, world_size, again):
        x = torch.full((2,), float(rank))
        for _ in range(2):  # one after the other it is nobody's fault
            dist.isend(x, (rank + 1) % world_size).wait() if rank else dist.irecv(x, world_size - 1).wait()
            dist.irecv(x, rank - 1).wait() if rank else dist.isend(x, 1).wait()
        if again:
            calls = [dist.isend(x, (rank + 1) % world_size), dist.irecv(x, (rank - 1) % world_size)]
            for call in calls if is_send_first else calls[::-1]:
                call.wait()

    run(worker, 3, False)
    with pytest.raises(WorkerFailed, match=r"sends 2 float32 .* changes the tensor between isend and wait"):
        run(worker, 3, True)


def neighbours_of_one_tensor(rank, world_size):
    whole = torch.tensor([1.0, float("nan"), 0.0, 0.0])
    sent, received = whole.chunk(2)
    request = dist.isend(sent, 1 - rank)
    dist.recv(received, 1 - rank)
    received += 1
    request.wait()
    return received[0].item()


def test_another_part_of_the_tensor_may_change():
    assert run(neighbours_of_one_tensor, 2).results == [2.0, 2.0]


def different_calls(rank, world_size):
    if rank == 0:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(3))


def test_collectives_that_differ_name_both_calls():
    with pytest.raises(WorkerFailed, match=r"calls barrier at .*all_reduce of 3 float32|all_reduce .*calls barrier at"):
        run(different_calls, 2)


def late_ranks_call_something_else(rank, world_size):
    time.sleep(min(rank, 1))
    different_calls(rank, world_size)


def test_ranks_that_differ_from_one_in_the_same_way_are_told_once():
    with pytest.raises(WorkerFailed) as caught:
        run(late_ranks_call_something_else, 4)
    said = str(caught.value)
    assert said.count("all ranks of a group make the same collective calls") == 1
    assert "ranks 1 to 3: rank 0 calls barrier at" in said
    assert "but each of them calls all_reduce of 3 float32" in said


def other_reduce_op(rank, world_size, name):
    op = dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(2), op) if name == "all_reduce" else dist.reduce(torch.ones(2), 0, op)


@pytest.mark.parametrize(("name", "root"), [("all_reduce", ""), ("reduce", " and root 0")])
def test_reduce_operations_that_differ_are_named(name, root):
    with pytest.raises(WorkerFailed) as caught:
        run(other_reduce_op, 2, name)
    assert f"rank 0 calls {name} of 2 float32 (8 bytes) with SUM{root} at" in str(caught.value)
    assert f"rank 1 calls {name} of 2 float32 (8 bytes) with MAX{root} at" in str(caught.value)


def one_fails_the_others_wait(rank, world_size, how):
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    if rank == 0:
        raise ValueError("no data")
    if rank == 1:
        dist.recv(torch.ones(1), 0) if how == "recv" else dist.barrier()
    dist.barrier()


@pytest.mark.parametrize("how", ["recv", "barrier"])
def test_who_only_waited_for_one_that_failed_has_not_timed_out(how):
    with pytest.raises(WorkerFailed) as caught:
        run(one_fails_the_others_wait, 3, how)
    assert [(f.rank, f.reason) for f in caught.value.failures] == [(0, "ValueError: no data")]
    assert str(caught.value).endswith("ranks 1, 2 waited for rank 0")


def one_is_missing(rank, world_size):
    if rank != 2:
        dist.all_reduce(torch.ones(3))


def test_a_collective_that_a_rank_leaves_out_is_a_deadlock():
    with pytest.raises(Deadlock) as caught:
        run(one_is_missing, 4)
    assert [(row.rank, row.op, row.peers) for row in caught.value.rows] == [(r, "all_reduce", (2,)) for r in (0, 1, 3)]
    assert "rank 2, which has returned" in str(caught.value)


def one_raises(rank, world_size):
    if rank == 2:
        raise KeyError("lost")
    if rank == 1:
        raise ValueError("also lost")
    dist.all_reduce(torch.ones(3))


def test_every_failing_rank_is_named_and_those_that_waited_are_not_deadlocked():
    with pytest.raises(WorkerFailed) as caught:
        run(one_raises, 4)
    error = caught.value
    assert not isinstance(error, Deadlock)
    assert [(f.rank, type(f.exception)) for f in error.failures] == [(1, ValueError), (2, KeyError)]
    assert "ranks 0, 3 waited for ranks 1, 2" in str(error)
    assert "raise KeyError" in str(error)
    assert isinstance(error.__cause__, ValueError)


def leave(rank, world_size):
    raise SystemExit(3)


def test_sys_exit_is_a_failure():
    with pytest.raises(WorkerFailed) as caught:
        run(leave, 2)
    assert {f.kind for f in caught.value.failures} == {"exit"}


def to_itself(rank, world_size):
    dist.isend(torch.ones(1), rank)


def test_gloo_connects_different_ranks_only():
    with pytest.raises(WorkerFailed, match="rank 0 sends to itself"):
        run(to_itself, 1)


def to_nobody(rank, world_size):
    dist.send(torch.ones(1), 7)


def test_a_rank_that_does_not_exist_is_an_error():
    with pytest.raises(WorkerFailed, match="there is no rank 7 in a group of 2"):
        run(to_nobody, 2)


def transposed(rank, world_size):
    dist.send(torch.ones(2, 3).t(), 1 - rank)


def to_no_root(rank, world_size, name, root):
    x, parts = torch.ones(1), [torch.ones(1) for _ in range(world_size)]
    if name in ("gather", "scatter"):
        getattr(dist, name)(x, parts if rank == root else None, root)
    else:
        getattr(dist, name)(x, root)


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_that_does_not_exist_is_an_error(name, root):
    for world_size in (1, 2):
        with pytest.raises(WorkerFailed, match=f"RuntimeError: ProcessGroupGloo::{name}: invalid root rank: {root}"):
            run(to_no_root, world_size, name, root)


def test_a_tensor_must_be_contiguous():
    with pytest.raises(WorkerFailed, match="has to be contiguous"):
        run(transposed, 2)
