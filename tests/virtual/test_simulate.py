"""The virtual cluster: what a rank is, what is shown and returned."""

from __future__ import annotations

import importlib
import os
import random
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hw_utils import Deadlock, WorkerFailed, simulate
from hw_utils.virtual.ranks.per_rank_state.random_states import SEED
from tests.virtual.runs import run

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


def sleeps_for_ages(rank, world_size):
    time.sleep(1e9)
    try:
        time.sleep(1.0)
    except OverflowError as error:
        return time.perf_counter(), str(error)


def test_a_clock_stays_where_it_still_counts_seconds():
    assert (
        run(sleeps_for_ages, 2).results
        == [(1e9, "sleep: a rank's clock goes up to 1,000,000,000 s, this would end at 1e+09 s")] * 2
    )


def waits_for_ages(rank, world_size):
    group = dist.new_group(timeout=timedelta(days=36_500))
    if rank == 0:
        dist.recv(torch.zeros(1), 1, group=group)


def test_a_limit_that_no_clock_reaches_is_none():
    with pytest.raises(Deadlock, match="rank 0 waits in recv for rank 1"):
        run(waits_for_ages, 2)


def reads_processor_seconds(rank, world_size):
    """What three clocks of computation say of a sleep, a wait for the other rank, and of a loop."""
    said = []
    for clock in (time.process_time, time.thread_time, lambda: time.process_time_ns() / 1e9):
        start = clock()
        time.sleep(0.5 * rank)
        dist.barrier()
        waited = clock() - start
        sum(range(300_000))
        said.append((waited, clock() - start - waited))
    return said


@pytest.mark.parametrize("isolate", [True, False])
def test_processor_seconds_stand_still_while_a_rank_waits_or_sleeps(isolate):
    for rank in simulate(reads_processor_seconds, 2, compute="free", echo=False, isolate=isolate):
        assert rank == [(0, 0)] * 3
    measured = simulate(reads_processor_seconds, 2, compute="measured", echo=False, isolate=isolate)
    assert measured.seconds > 1.5
    for rank in measured:
        for waited, computed in rank:
            assert waited < 0.5  # of the two ranks' waits and sleeps none is in it
            assert computed > 0


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
        generator = torch.Generator().manual_seed(SEED + rank if seed is None else seed * (rank + 1))
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


def test_a_global_name_and_an_attribute_of_a_function_are_a_ranks_own():
    def by_name(rank, world_size):
        globals().setdefault("_made_in_the_run", []).append(rank)
        dist.barrier()
        return globals()["_made_in_the_run"]

    def by_attribute(rank, world_size):
        by_attribute.ranks = [*getattr(by_attribute, "ranks", []), rank]
        dist.barrier()
        return by_attribute.ranks

    for worker in (by_name, by_attribute):
        worker.__module__ = "__main__"  # as in a notebook
        assert simulate(worker, 3, echo=False).results == [[0], [1], [2]]


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
