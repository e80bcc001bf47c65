"""The virtual cluster: what it means, what it records, what it says when a program is wrong."""

from __future__ import annotations

import importlib
import os
import random
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hw_utils import Deadlock, Network, TimedOut, WorkerFailed, simulate
from hw_utils.random_states import SEED

NETWORK = Network(latency_s=1e-3, bandwidth_Bps=1e6)


def run(worker, world_size: int, *args, **options):
    """On free compute, in this process: for what does not need a process of its own."""
    return simulate(
        worker, world_size, args, **{"network": NETWORK, "compute": "free", "echo": False, "isolate": False, **options}
    )


# What a rank is


def who_am_i(rank, world_size):
    return rank, world_size, dist.get_rank(), dist.get_world_size(), dist.get_backend(), dist.is_initialized()


def test_a_rank_finds_its_process_group_ready():
    assert run(who_am_i, 3).results == [(r, 3, r, 3, "gloo", True) for r in range(3)]


def test_simulate_and_launch_take_the_same_world_sizes():
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        simulate(who_am_i, 0)
    with pytest.raises(ValueError, match='compute must be "measured", "free"'):
        simulate(who_am_i, 1, compute="fast")


def ping(rank, world_size):
    x = torch.full((250,), float(rank))
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x[0].item(), time.perf_counter(), time.time(), time.perf_counter_ns()


def test_a_message_moves_values_and_the_clocks_of_both_ranks():
    done = run(ping, 2)
    assert done.clock == "virtual"
    assert done.seconds == pytest.approx(2e-3)
    assert done.results == [(0.0, pytest.approx(2e-3), pytest.approx(2e-3), 2_000_000)] * 2


def test_the_ledger_has_both_sides_of_a_message():
    send, recv = sorted(run(ping, 2).trace, key=lambda e: e.rank)
    assert (send.op, send.peer, send.n_bytes, send.sent_bytes, send.sent_messages) == ("send", 1, 1000, 1000, 1)
    assert (recv.op, recv.peer, recv.n_bytes, recv.sent_bytes, recv.message) == ("recv", 0, 1000, 0, send.message)
    assert (send.start_s, send.end_s) == (0, pytest.approx(2e-3))
    assert send.file.endswith("test_simulate.py")
    assert send.line < recv.line


def sleepy(rank, world_size):
    time.sleep(0.5 * (rank + 1))
    return time.monotonic()


def test_sleep_takes_virtual_seconds_only():
    before = time.perf_counter()
    done = run(sleepy, 2)
    assert done.results == [0.5, 1.0]
    assert done.seconds == 1.0
    assert time.perf_counter() - before < 60  # a wall clock again


def busy(rank, world_size):
    total = 0
    for i in range(200_000 * (rank + 1)):
        total += i
    return time.perf_counter()


def test_compute_is_measured_free_or_given():
    measured = run(busy, 2, compute="measured").results
    assert 0 < measured[0] < measured[1]
    assert run(busy, 2, compute="free").results == [0, 0]
    assert run(busy, 2, compute=lambda rank, cpu_s: 1.0 + rank).seconds >= 2.0


def random_numbers(rank, world_size):
    torch.manual_seed(rank)
    random.seed(rank)
    mine = []
    for _ in range(3):
        mine.append((torch.rand(1).item(), torch.is_grad_enabled()))
        with torch.no_grad():
            dist.barrier()
        dist.barrier()
    return mine


DRAWS = [
    *((torch.rand, size, torch.float32) for size in (1, 623, 624, 1248, 5)),
    *((torch.randn, 1, dtype) for dtype in (torch.float32, torch.float64) for _ in range(3)),
    (torch.randn, 1, torch.float32),
    (torch.rand, 1, torch.float64),
]


def draw_between_barriers(rank, world_size, draws, seed):
    if seed is not None:
        torch.manual_seed(seed * (rank + 1))
    mine = []
    for function, size, dtype in draws:
        mine.append(function(size, dtype=dtype).sum().item())
        dist.barrier()
    return mine


@pytest.mark.parametrize("seed", [None, 7, 2**32])
def test_a_draw_between_communications_never_repeats_or_reaches_another_rank(seed):
    """A generator's 624 words turn over, and every second normal number is one that was kept."""
    expected = []
    for rank in range(3):
        generator = torch.Generator().manual_seed(SEED if seed is None else seed * (rank + 1))
        expected.append([f(size, dtype=dtype, generator=generator).sum().item() for f, size, dtype in DRAWS])
    assert run(draw_between_barriers, 3, DRAWS, seed).results == expected


def test_random_state_and_grad_mode_belong_to_a_rank():
    generator = torch.Generator()
    expected = []
    for rank in range(3):
        generator.manual_seed(rank)
        expected.append([(torch.rand(1, generator=generator).item(), True) for _ in range(3)])
    assert run(random_numbers, 3).results == expected


def no_grad_on_even_ranks(rank, world_size):
    seen = []
    with torch.set_grad_enabled(rank % 2 == 1):
        for _ in range(3):
            dist.barrier()
            seen.append(torch.is_grad_enabled())
    return seen


def test_a_no_grad_block_of_one_rank_is_not_another_ranks():
    assert run(no_grad_on_even_ranks, 3).results == [[False] * 3, [True] * 3, [False] * 3]


def python_and_numpy_numbers(rank, world_size):
    random.seed(rank)
    np.random.seed(rank)
    mine = []
    for _ in range(3):
        mine.append((random.random(), float(np.random.rand())))
        dist.barrier()
    return mine


def test_pythons_and_numpys_random_state_belong_to_a_rank():
    expected = []
    for rank in range(3):
        python, numpy = random.Random(rank), np.random.RandomState(rank)
        expected.append([(python.random(), float(numpy.rand())) for _ in range(3)])
    assert run(python_and_numpy_numbers, 3).results == expected


def change_argument(rank, world_size, tensor, found):
    tensor += rank
    found.append(rank)
    dist.barrier()
    return tensor.tolist(), found


def test_every_rank_has_its_own_copy_of_the_arguments():
    tensor, found = torch.zeros(1), []
    assert run(change_argument, 3, tensor, found).results == [([float(r)], [r]) for r in range(3)]
    assert tensor.item() == 0
    assert found == []


def test_closures_of_a_notebook_run():
    factor = torch.tensor([2.0])

    def worker(rank, world_size):
        factor.mul_(rank + 1)
        dist.barrier()
        return factor.item()

    assert simulate(worker, 3, echo=False).results == [2.0, 4.0, 6.0]
    assert factor.item() == 2.0


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


def test_a_tensor_must_be_contiguous():
    with pytest.raises(WorkerFailed, match="has to be contiguous"):
        run(transposed, 2)


# What is shown and returned


def printing(rank, world_size):
    for i in range(2):
        print("line", i, "of", rank)
        dist.barrier()
    print("end", end="")


def test_what_a_rank_prints_is_kept_and_shown_with_its_rank(capsys):
    done = run(printing, 2, echo=True)
    assert done.output == [f"line 0 of {r}\nline 1 of {r}\nend" for r in range(2)]
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == [
        f"[rank {r}] {text}" for r in range(2) for text in ("end", f"line 0 of {r}", f"line 1 of {r}")
    ]


def test_the_same_program_gives_the_same_ledger_every_time():
    records = [run(batch, 16).trace.records for _ in range(2)]
    assert records[0].tobytes() == records[1].tobytes()


# A process of its own


def endless(rank, world_size):
    while rank == 1:
        pass
    dist.barrier()


def test_an_endless_loop_ends_with_the_rank_and_its_line():
    with pytest.raises(TimedOut) as caught:
        simulate(endless, 2, timeout_s=2, echo=False)
    assert caught.value.rank == 1
    assert caught.value.failures[0].where.source in ("while rank == 1:", "pass")


def stubborn(rank, world_size):
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue


def test_a_loop_that_catches_everything_ends_too():
    with pytest.raises(TimedOut):
        simulate(stubborn, 2, timeout_s=0.3, echo=False)


def recurse(rank, world_size):
    return recurse(rank, world_size)


def test_an_infinite_recursion_is_an_error_of_its_rank():
    with pytest.raises(WorkerFailed, match="RecursionError"):
        simulate(recurse, 2, echo=False)


def exit_now(rank, world_size):
    if rank == 1:
        os._exit(3)
    dist.barrier()


def test_os_exit_is_reported_with_its_rank():
    with pytest.raises(WorkerFailed) as caught:
        simulate(exit_now, 2, echo=False)
    assert (caught.value.rank, caught.value.failures[0].kind) == (1, "os_exit")


def segfault(rank, world_size):
    import ctypes

    ctypes.string_at(0)


def test_a_segmentation_fault_is_reported():
    with pytest.raises(WorkerFailed) as caught:
        simulate(segfault, 2, echo=False)
    assert (caught.value.rank, caught.value.failures[0].kind) == (0, "signal")


def allocate(rank, world_size):
    return torch.ones(5 * 2**30).sum().item()


def test_twenty_gigabytes_are_refused():
    with pytest.raises(WorkerFailed, match=r"(?i)memory"):
        simulate(allocate, 2, echo=False)


def unpicklable(rank, world_size):
    return (i for i in range(rank))


def test_a_result_that_cannot_be_sent_names_its_rank():
    with pytest.raises(WorkerFailed) as caught:
        simulate(unpicklable, 2, echo=False)
    assert {f.kind for f in caught.value.failures} == {"unpicklable"}


def test_ten_thousand_ranks_all_reduce():
    done = run(big_all_reduce, 10_000)
    assert set(done.results) == {10_000.0}
    assert done.trace.rounds == 2 * 9_999


def big_all_reduce(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def count(rank, world_size, data):
    return data.numel()


def test_large_arguments_travel_without_a_warning():
    assert simulate(count, 2, (torch.zeros(500_000),), echo=False).results == [500_000] * 2


def test_ten_thousand_ranks_all_reduce_more_than_one_table_holds():
    done = run(wide_all_reduce, 10_000)
    assert set(done.results) == {10_000.0}


def wide_all_reduce(rank, world_size):
    x = torch.ones(2_000)
    dist.all_reduce(x)
    return x[-1].item()


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

    assert simulate(worker, 2, compute="free", eager_bytes=64, isolate=False, echo=False)[1] == [7, 7]


# Where records travel


def one_message(rank, world_size, fails):
    if rank == 0:
        dist.send(torch.ones(3), 1)
    else:
        dist.recv(torch.empty(3), 0)
        if fails:
            os._exit(3)


@pytest.mark.parametrize("bytes_wanted", [0, 2**62], ids=["in memory", "on disk"])
def test_records_come_back_and_leave_no_file_behind(monkeypatch, tmp_path, bytes_wanted):
    module = importlib.import_module("hw_utils.simulate")
    monkeypatch.setattr(module, "MEMORY_FOLDER", str(tmp_path))
    monkeypatch.setattr(module, "MEMORY_FOLDER_BYTES", bytes_wanted)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    trace = simulate(one_message, 2, (False,), compute="free", echo=False).trace
    assert [(e.rank, e.op, e.n_bytes) for e in trace] == [(0, "send", 12), (1, "recv", 12)]
    assert len(simulate(who_am_i, 2, echo=False).trace) == 0
    with pytest.raises(WorkerFailed, match="exit"):
        simulate(one_message, 2, (True,), echo=False)
    assert list(tmp_path.glob("hw_utils-rank-*")) == []
