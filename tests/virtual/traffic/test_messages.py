"""Sends and receives on the virtual cluster: who gets whose message, and when."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import batch_isend_irecv

from hw_utils import Deadlock
from tests.virtual.runs import run


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


def batch(rank, world_size, is_torchs_own=False):
    x, y = torch.tensor([float(rank)]), torch.zeros(1)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
    for request in (batch_isend_irecv if is_torchs_own else dist.batch_isend_irecv)(ops):
        request.wait()
    return y.item()


@pytest.mark.parametrize("is_torchs_own", [False, True], ids=["short cut", "a name that torch's own had before"])
def test_a_batch_of_sends_and_receives_shows_as_isend_and_irecv(is_torchs_own):
    done = run(batch, 4, is_torchs_own)
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
