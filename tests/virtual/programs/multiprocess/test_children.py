"""Processes that a rank starts itself: workers of a DataLoader, forks, programs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from hw_utils import launch, simulate
from hw_utils.virtual.stuck_threads import LOOK_S, LOOKS_OUTSIDE

COUNTED = [0]


def loads(rank, world_size, counts):
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    batches = DataLoader(TensorDataset(torch.arange(8.0) + rank), batch_size=2, num_workers=2)
    found = [batch[0].tolist() for batch in batches]
    total = torch.tensor(found).sum()
    dist.all_reduce(total)
    return found, total.item()


@pytest.mark.parametrize("counts", [False, True])
def test_a_loader_with_workers_gives_the_same_batches(counts):
    assert simulate(loads, 2, (counts,)).results == launch(loads, 2, (counts,)).results


def trains_beside_sleeping_workers(rank, world_size, counts):
    """join waits in C++ code for what other ranks have yet to call; workers sleep until the next epoch."""
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    batches = DataLoader(torch.arange(4.0) + rank, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(nn.Linear(1, 1))
    with model.join():
        for x in list(batches)[rank:]:
            model(x[:, None]).sum().backward()
    return model.module.weight.grad.item(), next(iter(batches)).item()


@pytest.mark.parametrize("counts", [False, True])
def test_workers_that_sleep_between_epochs_keep_no_rank_from_its_turn(counts):
    virtual = simulate(trains_beside_sleeping_workers, 2, (counts,), timeout_s=60)
    assert virtual.results == launch(trains_beside_sleeping_workers, 2, (counts,)).results


def waits_for_its_child(rank, world_size, counts):
    """Longer than a rank that stands is let alone."""
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    fork = multiprocessing.get_context("fork")
    done, free = fork.Event(), fork.Event()
    child = fork.Process(target=lambda: (free.wait(2 * LOOK_S * LOOKS_OUTSIDE), done.set()))
    child.start()
    total = torch.ones(1)
    if rank == 0:
        done.wait()
    dist.all_reduce(total)
    child.join()
    return total.item()


@pytest.mark.parametrize("counts", [False, True])
def test_a_child_that_sleeps_may_end_its_ranks_wait(counts):
    assert simulate(waits_for_its_child, 2, (counts,), compute="free", timeout_s=60).results == [2.0, 2.0]


def forks(rank, world_size, ends, real_s):
    """What a child of a rank's own finds: real time, which is past `real_s`, and the rank's variables."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        start = time.monotonic()
        os.write(write, f"{os.environ['RANK']} {start >= real_s}".encode())
        if ends == "raises":
            raise RuntimeError("the child's own")
        if ends == "returns":
            return "never seen"
        os._exit(7)
    _, status = os.waitpid(child, 0)
    dist.barrier()
    return os.read(read, 100).decode(), os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("ends", "code"), [("exits", 7), ("returns", 0), ("raises", 1)])
def test_a_child_that_a_rank_forks_is_no_part_of_the_simulation(ends, code):
    found = simulate(forks, 2, (ends, time.monotonic()))
    assert found.results == [("0 True", code), ("1 True", code)]


def starts_programs(rank, world_size, counts):
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    os.environ["MINE"] = str(rank)
    if rank == 1:
        os.environ["ITS"] = "own"
    dist.barrier()
    command = "echo $RANK $WORLD_SIZE $MINE $ITS"
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    return said, os.waitstatus_to_exitcode(os.system(f"exit $((10 + {rank} * 2 + MINE))"))


@pytest.mark.parametrize("counts", [False, True])
def test_a_program_that_a_rank_starts_inherits_the_ranks_variables(counts):
    run = simulate(starts_programs, 3, (counts,), echo=False)
    said = ["0 3 0\n", "1 3 1 own\n", "2 3 2\n"]
    assert run.results == [(said[r], 10 + 3 * r) for r in range(3)]


def test_the_variables_of_ranks_end_with_the_run():
    simulate(starts_programs, 2, (False,), echo=False, isolate=False)
    assert subprocess.run(["sh", "-c", "echo $MINE $ITS $RANK"], capture_output=True, text=True).stdout == "\n"


class Stream(IterableDataset):
    """Every rank's every worker has its own part, as it finds by itself."""

    def __init__(self, group):
        self.group = group

    def __iter__(self):
        worker, of = get_worker_info(), dist.get_world_size()
        here = dist.get_rank() * worker.num_workers + worker.id
        for number in range(here, 16, of * worker.num_workers):
            yield number, dist.get_rank(self.group), dist.get_backend(self.group), dist.is_initialized()


def streams(rank, world_size, counts):
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    group = [dist.new_group([0, 2]), dist.new_group([1])][rank % 2]
    batches = DataLoader(Stream(group), batch_size=None, num_workers=2, multiprocessing_context="fork")
    found = [[tuple(item) for item in batches] for _ in range(2)]
    dist.barrier(group)
    return found


@pytest.mark.parametrize("counts", [False, True])
def test_a_worker_of_a_loader_knows_its_ranks_groups(counts):
    run = simulate(streams, 3, (counts,))
    assert run.results == launch(streams, 3, (counts,)).results
    assert run.results[2][0][:2] == [(4, 1, "gloo", True), (5, 1, "gloo", True)]


def talks(rank, world_size, counts, speak):
    if counts:
        COUNTED[0] += 1  # so that each rank is a process
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            speak(torch.ones(1))
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    dist.barrier()
    return os.read(read, 1000).decode()


SPEAK = [
    dist.all_reduce, lambda t: dist.send(t, 1 - dist.get_rank()), lambda t: dist.irecv(t, 1 - dist.get_rank()),
    lambda _: dist.barrier(),
]  # fmt: skip


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("speak", SPEAK, ids=["all_reduce", "send", "irecv", "barrier"])
def test_a_child_of_a_virtual_rank_that_communicates_is_told_who_can(speak, counts):
    assert all("only the rank itself" in text for text in simulate(talks, 2, (counts, speak)).results)
