"""Real ranks that wait for what will not come, and messages that do not fit: found, with both ends' lines."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from hw_utils import Deadlock, launch, simulate
from hw_utils.core.versions import torch_version
from hw_utils.gloo import deadlock
from tests.processes.launching import failing_launch, lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server and signals are Linux's")


def test_a_ring_of_blocking_sends_is_reported_as_a_deadlock():
    def worker(rank, world_size):
        dist.send(torch.ones(1), (rank + 1) % world_size)
        dist.recv(torch.ones(1), (rank - 1) % world_size)

    error = failing_launch(worker, kind=Deadlock)
    assert error.cycle == [0, 1, 2, 3]
    assert [(w.rank, w.op, w.peers) for w in error.rows] == [(r, "send", ((r + 1) % 4,)) for r in range(4)]
    assert {w.where.source for w in error.rows} == {"dist.send(torch.ones(1), (rank + 1) % world_size)"}
    assert all(0 <= w.since_s < 60 for w in error.rows)


def test_a_receive_without_a_sender_is_a_deadlock_that_says_who_has_returned():
    def worker(rank, world_size):
        if rank == 0:
            dist.recv(torch.ones(1), 1)

    error = failing_launch(worker, kind=Deadlock)
    assert [(w.rank, w.op, w.peers, w.note) for w in error.rows] == [(0, "recv", (1,), "rank 1 has returned")]
    assert error.cycle == []
    assert "rank 0 waits in recv for rank 1, which has returned" in str(error)


def test_a_receive_from_anybody_without_a_sender_is_a_deadlock():
    def worker(rank, world_size):
        if rank == 0:
            dist.recv(torch.ones(1))
        else:
            dist.barrier()

    error = failing_launch(worker, kind=Deadlock)
    assert error.rows[0].peers == (1, 2, 3)


def test_tags_that_differ_are_a_deadlock_that_names_the_other_tag():
    def worker(rank, world_size):
        if rank == 0:
            dist.recv(torch.ones(1), 1, tag=3)
        elif rank == 1:
            dist.send(torch.ones(1), 0, tag=7)

    error = failing_launch(worker, kind=Deadlock)
    assert [(w.tag, w.note) for w in error.rows] == [(3, "rank 1 sends with tag 7"), (7, "rank 0 receives with tag 3")]


def test_isends_that_nobody_receives_are_a_deadlock_of_waits():
    def worker(rank, world_size):
        requests = [dist.isend(torch.ones(1), (rank + i) % world_size) for i in (1, 2)]
        for request in requests:
            request.wait()

    error = failing_launch(worker, kind=Deadlock)
    assert {w.op for w in error.rows} == {"wait for isend"}


@pytest.mark.parametrize(("n_sent", "n_received"), [(4, 5), (5, 4)])
@pytest.mark.parametrize("late", [0, 1])
def test_a_message_longer_or_shorter_than_its_receive_names_both_ends(n_sent, n_received, late):
    def worker(rank, world_size):
        if rank == 0:
            go.wait() if late == 0 else None
            dist.send(torch.ones(n_sent), 1)
        elif rank == 1:
            go.wait() if late == 1 else None
            dist.recv(torch.ones(n_received), 0)

    class go:  # the other side has posted by then, or not: both orders are reported
        @staticmethod
        def wait():
            time.sleep(0.05)

    error = failing_launch(worker, 2)
    assert {f.kind for f in error.failures} == {"mismatch"}
    assert f"rank 0 sends {n_sent} float32 ({4 * n_sent} bytes) to rank 1" in error.reason
    assert f"rank 1 receives {n_received} float32 ({4 * n_received} bytes) from rank 0" in error.reason
    assert lines_of(error) == {0: "dist.send(torch.ones(n_sent), 1)", 1: "dist.recv(torch.ones(n_received), 0)"}


def test_equal_bytes_of_another_dtype_are_a_mismatch():
    def worker(rank, world_size):
        if rank == 0:
            dist.send(torch.ones(4), 1, tag=5)
        elif rank == 1:
            dist.recv(torch.ones(4, dtype=torch.int32), 0, tag=5)

    error = failing_launch(worker, 2)
    assert "rank 0 sends 4 float32 (16 bytes) to rank 1 with tag 5" in error.reason
    assert "rank 1 receives 4 int32 (16 bytes) from rank 0 with tag 5" in error.reason
    text = str(error)  # both ranks say it: it stands there once, with both lines
    assert text.count("must have the same dtype") == text.count("dist.send(") == text.count("dist.recv(") == 1


def test_one_rank_that_skips_a_collective_is_a_deadlock_that_names_it():
    def worker(rank, world_size):
        if rank != 1:
            dist.all_reduce(torch.ones(1))

    error = failing_launch(worker, kind=Deadlock)
    assert {(w.rank, w.op, w.peers) for w in error.rows} == {(r, "all_reduce", (1,)) for r in (0, 2, 3)}
    assert "rank 1, which has returned" in str(error)


def test_different_collectives_at_once_name_both_calls():
    def worker(rank, world_size):
        if rank == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    error = failing_launch(worker)
    assert 1 in [f.rank for f in error.failures]
    assert {f.kind for f in error.failures} == {"collective"}
    assert "calls barrier" in str(error)
    assert "calls all_reduce of 1 float32" in str(error)


def test_one_collective_with_two_sizes_names_both():
    def worker(rank, world_size):
        dist.all_reduce(torch.ones(5 if rank == 1 else 4))

    error = failing_launch(worker)
    assert "5 float32" in str(error)
    assert "4 float32" in str(error)


def test_roots_that_differ_are_a_mismatch():
    def worker(rank, world_size):
        dist.broadcast(torch.ones(1), 0 if rank < 3 else 3)

    assert "root 3" in str(failing_launch(worker))


def test_groups_made_in_another_order_are_a_mismatch():
    def worker(rank, world_size):
        orders = [[0, 1], [2, 3]] if rank != 3 else [[2, 3], [0, 1]]
        groups = [dist.new_group(ranks) for ranks in orders]
        for ranks, group in zip(orders, groups):
            if rank in ranks:
                dist.all_reduce(torch.ones(1), group=group)

    error = failing_launch(worker)
    assert "new_group" in str(error)


def test_waiting_on_a_rank_that_has_returned_is_a_deadlock():
    def worker(rank, world_size):
        if rank == 0:
            return
        dist.send(torch.ones(1), 0)

    error = failing_launch(worker, 3, kind=Deadlock)
    assert {w.note for w in error.rows} == {"rank 0 has returned"}


def test_a_backward_pass_of_ddp_that_one_rank_leaves_out_is_a_deadlock(monkeypatch):
    """And is as sure as any other one, though DDP waits in C++: it need not hold still for longer."""
    monkeypatch.setattr(deadlock, "UNSURE_STILL_S", 1000)

    def worker(rank, world_size):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        loss = model(torch.ones(1, 2)).sum()
        if rank != 1:
            loss.backward()

    error = failing_launch(worker, 2, kind=Deadlock)
    assert [(w.rank, w.op, w.peers) for w in error.rows] == [(0, "all_reduce", (1,))]
    assert error.rows[0].where.source == "loss.backward()"


@pytest.mark.parametrize("call", [dist.send, dist.recv, dist.isend, dist.irecv])
@pytest.mark.parametrize("peer", [-1, 3])
def test_a_peer_that_is_no_rank_is_an_error_at_once(call, peer):
    """gloo would wait for it for ever."""

    def worker(rank, world_size):
        if rank == 0:
            call(torch.ones(1), peer)
        dist.barrier()

    error = failing_launch(worker, 3)
    assert [f.rank for f in error.failures] == [0]
    assert f"there is no rank {peer}" in error.reason
    assert "ranks are 0 to 2" in error.reason
    assert lines_of(error) == {0: "call(torch.ones(1), peer)"}


def test_a_ranks_thread_that_still_posts_is_no_deadlock():
    def worker(rank, world_size):
        tensor = torch.ones(1)
        if rank == 0:
            later = threading.Timer(0.6, lambda: dist.send(tensor, 1))
            later.start()
            dist.recv(tensor, 1)
            later.join()
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    launch(worker, 2, echo=False)


NAMES_ITS_THREADS = (2, 13)  # torch; gloo's of an older one could be the program's: then nothing is said


def held_lock(rank, world_size):
    lock = threading.Lock()
    lock.acquire()
    if rank == 0:
        lock.acquire()
    dist.barrier()


def queue_of_a_thread_that_waits_too(rank, world_size):
    dist.all_reduce(torch.ones(1000, requires_grad=True).sum().detach())
    asked, answers = queue.Queue(), queue.Queue()
    threading.Thread(target=lambda: answers.put(asked.get()), daemon=True).start()
    if rank == 1:
        answers.get()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(("worker", "stuck"), [(held_lock, 0), (queue_of_a_thread_that_waits_too, 1)])
def test_a_rank_that_waits_for_a_lock_of_its_own_is_named_by_both_engines_alike(worker, stuck):
    tables = []
    for engine in (simulate, launch) if torch_version() >= NAMES_ITS_THREADS else (simulate,):
        with pytest.raises(Deadlock) as caught:
            engine(worker, 2, echo=False)
        tables.append([(row.rank, row.op, row.peers, row.where) for row in caught.value.rows])
        assert caught.value.table.sentence.startswith(f"rank {stuck} waits in its own process")
    assert tables[0] == tables[-1]
    assert any(source in tables[0][stuck][3].source for source in ("lock.acquire()", "answers.get()"))


def released_by_a_thread_that_sleeps(rank, world_size):
    lock = threading.Lock()
    lock.acquire()
    if rank == 0:
        threading.Timer(1.0, lock.release).start()
        lock.acquire()
    dist.barrier()
    return "released"


def ended_by_a_signal(rank, world_size):
    stop = threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: stop.set())
    if rank == 0:
        signal.alarm(1)
        stop.wait()
    dist.barrier()
    return "released"


def released_by_a_child(rank, world_size):
    if rank == 0:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
        waiting = threading.Thread(target=child.wait)
        waiting.start()
        waiting.join()
    dist.barrier()
    return "released"


@pytest.mark.parametrize("worker", [released_by_a_thread_that_sleeps, ended_by_a_signal, released_by_a_child])
def test_a_wait_of_its_own_that_somebody_ends_is_no_deadlock(worker, monkeypatch):
    monkeypatch.setattr(deadlock, "UNSURE_STILL_S", 0.0)
    assert launch(worker, 2, echo=False).results == ["released"] * 2
