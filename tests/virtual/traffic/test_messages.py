"""Sends and receives on the virtual cluster: who gets whose message, and what is said of a wrong program."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from hw_utils import Deadlock, WorkerFailed
from tests.virtual.runs import run

# Meaning of send and receive


def send_first(rank, world_size):
    x = torch.ones(1)
    dist.send(x, (rank + 1) % world_size)
    dist.recv(x, (rank - 1) % world_size)


def test_a_ring_of_blocking_sends_is_reported_as_a_deadlock():
    with pytest.raises(Deadlock) as caught:
        run(send_first, 3)
    assert caught.value.cycle == [0, 1, 2]
    assert [(row.op, row.peers) for row in caught.value.rows] == [("send", (1,)), ("send", (2,)), ("send", (0,))]
    assert "dist.send(x, (rank + 1) % world_size)" in str(caught.value)


def test_the_table_says_since_when_only_where_a_rank_did_something_first():
    def busy_first(rank, world_size):
        time.sleep(rank / 4)
        send_first(rank, world_size)

    with pytest.raises(Deadlock) as at_once:
        run(send_first, 3)
    assert "since" not in str(at_once.value)
    assert "0.000 s" not in str(at_once.value)
    with pytest.raises(Deadlock, match=r"since +at\n0 +send +rank 1 +0.000 s .*\n1 +send +rank 2 +0.250 s "):
        run(busy_first, 3)


def test_eager_messages_let_the_same_ring_through():
    assert run(send_first, 3, eager_bytes=4).seconds == pytest.approx(1e-3 + 4e-6)
    with pytest.raises(Deadlock):
        run(send_first, 3, eager_bytes=3)


def late_receiver(rank, world_size):
    x = torch.ones(250)
    if rank == 0:
        dist.send(x, 1)
    else:
        time.sleep(1.0)
        dist.recv(x, 0)
    return time.perf_counter()


def test_a_send_waits_for_its_receive_unless_it_is_eager():
    assert run(late_receiver, 2).results == [pytest.approx(1.002)] * 2
    assert run(late_receiver, 2, eager_bytes=1000).results == [0, pytest.approx(1.0)]


def overlap(rank, world_size):
    x, y = torch.ones(1000), torch.ones(1000)
    request = dist.isend(x, 1) if rank == 0 else dist.irecv(y, 0)
    time.sleep(0.004)
    request.wait()
    return time.perf_counter()


def test_isend_and_irecv_overlap_with_compute():
    assert run(overlap, 2).results == [pytest.approx(5e-3)] * 2


def two_receivers(rank, world_size):
    x = torch.ones(1000)
    if rank == 0:
        for request in [dist.isend(x, 1), dist.isend(x, 2)]:
            request.wait()
    else:
        dist.recv(x, 0)
    return time.perf_counter()


def test_a_port_carries_one_message_at_a_time():
    assert run(two_receivers, 3).results == [pytest.approx(10e-3), pytest.approx(5e-3), pytest.approx(10e-3)]


def from_anybody(rank, world_size):
    if rank:
        time.sleep(0.01 * (world_size - rank))
        dist.send(torch.tensor([rank]), 0)
        return None
    x, senders = torch.zeros(1, dtype=torch.int64), []
    for _ in range(world_size - 1):
        senders.append((dist.recv(x), x.item()))
    return senders


def test_a_receive_from_anybody_takes_the_first_that_sends():
    assert run(from_anybody, 4)[0] == [(3, 3), (2, 2), (1, 1)]


def named_then_anybody(rank, world_size):
    """Rank 0 waits for rank 1 by name, then for anybody, before one of the messages is sent."""
    if rank == 1:
        time.sleep(1)
        dist.send(torch.tensor([1.0]), 0)
        dist.send(torch.tensor([2.0]), 0)
        return None
    x, y = torch.zeros(1), torch.zeros(1)
    requests = [dist.irecv(x, 1), dist.irecv(y)]
    for request in requests:
        request.wait()
    return x.item(), y.item()


def test_the_receive_that_was_posted_first_takes_the_first_message():
    assert run(named_then_anybody, 2)[0] == (1, 2)


def message_then_collective(rank, world_size):
    x = torch.ones(1)
    for _ in range(3):
        if rank < 2:
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.all_reduce(x)


def test_each_communication_has_a_number_of_its_own():
    by_number = {}
    for event in run(message_then_collective, 3).trace:
        by_number.setdefault(event.message, []).append(event.op)
    assert sorted(map(sorted, by_number.values())) == [["all_reduce"] * 3] * 3 + [["recv", "send"]] * 3


def noting(rank, world_size):
    """Ranks get to 1 s in falling order; after that each sleeps a second longer than the one before it."""
    early_s = 0.1 * (world_size - rank)
    time.sleep(early_s)
    time.sleep(1 - early_s)
    print(f"{time.perf_counter():.0f} s: {rank}")
    time.sleep(rank)
    print(f"{time.perf_counter():.0f} s: {rank} again")


def test_the_rank_that_is_furthest_behind_runs_first_of_equal_ones_the_lowest(capsys):
    run(noting, 3, echo=True)
    lines = [line.split("] ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["1 s: 0", "1 s: 0 again", "1 s: 1", "1 s: 2", "2 s: 1 again", "3 s: 2 again"]


def tagged(rank, world_size):
    x = torch.zeros(1)
    if rank == 0:
        requests = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (5, 6)]
        for request in requests:
            request.wait()
        return None
    got = []
    for tag in (6, 5):
        dist.recv(x, 0, tag=tag)
        got.append(x.item())
    return got


def test_tags_tell_messages_apart():
    assert run(tagged, 2)[1] == [6.0, 5.0]


def batch(rank, world_size):
    x, y = torch.tensor([float(rank)]), torch.zeros(1)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return y.item()


def test_a_batch_of_sends_and_receives_shows_as_isend_and_irecv():
    done = run(batch, 4)
    assert done.results == [3.0, 0.0, 1.0, 2.0]
    assert done.trace.ops == {"isend", "irecv"}
    assert done.trace.rounds == 1


def test_the_same_program_gives_the_same_ledger_every_time():
    records = [run(batch, 16).trace.records for _ in range(2)]
    assert records[0].tobytes() == records[1].tobytes()


def poll(rank, world_size):
    x = torch.ones(1)
    if rank == 0:
        time.sleep(0.1)
        dist.send(x, 1)
        return None
    request, n = dist.irecv(x, 0), 0
    while not request.is_completed():
        n += 1
    return time.perf_counter()


def test_polling_lets_time_pass():
    assert run(poll, 2)[1] == pytest.approx(0.101, rel=1e-2)


def read_before_wait(rank, world_size):
    x, y = torch.ones(1), torch.zeros(1)
    if rank == 0:
        dist.send(x, 1)
        return None
    request = dist.irecv(y, 0)
    time.sleep(1)
    early = y.item()
    request.wait()
    return early, y.item()


def test_a_receive_buffer_is_filled_at_the_wait():
    assert run(read_before_wait, 2)[1] == (0.0, 1.0)


def subgroups(rank, world_size):
    odd = dist.new_group([1, 3])
    x = torch.tensor([float(rank)])
    if rank % 2:
        dist.all_reduce(x, group=odd)
        peer = 1 - dist.get_rank(odd)
        if rank == 1:
            dist.send(x, group=odd, group_dst=peer)
        else:
            dist.recv(x, group=odd, group_src=peer)
    return x.item(), dist.get_rank(odd), dist.get_world_size(odd)


def test_subgroups_count_their_own_ranks():
    done = run(subgroups, 4)
    assert done.results == [(0.0, -1, -1), (4.0, 0, 2), (2.0, -1, -1), (4.0, 1, 2)]
    assert {e.group for e in done.trace} == {(1, 3)}
    assert {(e.rank, e.peer) for e in done.trace.of_op("send", "recv")} == {(1, 3), (3, 1)}


def half_a_new_group(rank, world_size):
    if rank == 0:
        dist.new_group([0, 1])


def test_a_group_that_not_all_members_make_is_a_deadlock():
    with pytest.raises(Deadlock) as caught:
        run(half_a_new_group, 2)
    assert caught.value.rows[0].op == "new_group"
    assert caught.value.rows[0].peers == (1,)


def test_a_message_sent_ahead_arrives_as_it_was_sent():
    def worker(rank, world_size):
        tensor = torch.full((2,), float(rank))
        if rank == 0:
            dist.isend(tensor.fill_(7), 1).wait()
            tensor.fill_(9)  # the handle says that the buffer is free again
        else:
            time.sleep(1)
            dist.recv(tensor, 0)
        return tensor.tolist()

    assert run(worker, 2, eager_bytes=64)[1] == [7, 7]


# What goes wrong


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
        with pytest.raises(WorkerFailed, match=f"RuntimeError: {name}: invalid root rank: {root}"):
            run(to_no_root, world_size, name, root)


def test_a_tensor_must_be_contiguous():
    with pytest.raises(WorkerFailed, match="has to be contiguous"):
        run(transposed, 2)
