"""A tensor that a program writes to between a collective with `async_op=True` and its `wait`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hw_utils import WorkerFailed
from tests.virtual.device.toys import on_device
from tests.virtual.runs import run

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Please use:FutureWarning")
CHANGES = "changes the tensor between the call and its wait"


def all_reduce(x, world_size):
    return dist.all_reduce(x, async_op=True)


def reduce_scatter(x, world_size):
    return dist.reduce_scatter_tensor(x.new_empty(len(x) // world_size), x, async_op=True)


def gathered(x, world_size):
    return dist.all_gather_into_tensor(x, x.new_ones(len(x) // world_size), async_op=True)


def broadcast(x, world_size):
    return dist.broadcast(x, 0, async_op=True)


def part(x, world_size):
    return dist.all_reduce(x[: len(x) // 2], async_op=True)


CALLS = {f.__name__: f for f in (all_reduce, reduce_scatter, gathered, broadcast, part)}


def writes(rank, world_size, name, guilty, is_apart=False, device="cpu"):
    if is_apart:
        torch.set_default_dtype(torch.float32)  # a process a rank
    x = torch.ones(6, device=device)
    work = CALLS[name](x, world_size)
    if rank == guilty:
        x += 5
    work.wait()


@pytest.mark.parametrize("guilty", [0, 2])  # who calls first and who calls last
@pytest.mark.parametrize("name", CALLS)
def test_a_write_before_the_wait_is_an_error_whoever_calls_first(name, guilty):
    with pytest.raises(WorkerFailed, match=rf"rank {guilty} calls \w+ .*, and {CHANGES}"):
        run(writes, 3, name, guilty)


@pytest.mark.parametrize("name", ["all_reduce", "gathered", "part"])
def test_so_it_is_of_ranks_with_a_process_each_and_of_virtual_gpus(name):
    with pytest.raises(WorkerFailed, match=rf"rank 1 calls \w+ .*, and {CHANGES}"):
        run(writes, 3, name, 1, True, isolate=True)
    if name != "part":  # of what lies on a device the bytes are not looked at
        with pytest.raises(WorkerFailed, match=rf"rank 1 calls \w+ .*, and {CHANGES}"):
            on_device(writes, 3, (name, 1, False, "cuda"))


def neighbours(rank, world_size):
    """Each part of one tensor is another call's, and written to when that one is over."""
    whole = torch.ones(6)
    parts = whole.split(2)
    works = [dist.all_reduce(part, async_op=True) for part in parts]
    for part, work in zip(parts, works):
        work.wait()
        part /= world_size
    again = [dist.all_reduce(whole, async_op=True) for _ in range(2)]  # one after the other, as NCCL does
    for work in again:
        work.wait()
        work.wait()
    whole += 1
    return whole.tolist()


def test_what_another_call_writes_and_what_lies_beside_it_is_no_change():
    assert run(neighbours, 3).results == [[10.0] * 6] * 3
    assert on_device(neighbours, 3).results == [[10.0] * 6] * 3


def polls(rank, world_size):
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        torch.ones(1)
    x += 1
    work.wait()
    return x.tolist()


def test_a_work_that_has_said_that_it_is_over_is_no_longer_watched():
    assert run(polls, 3).results == [[4.0] * 3] * 3


def hooked(rank, world_size):
    def mean(state, bucket):
        future = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True).get_future()
        return future.then(lambda done: done.value()[0].mul_(1.0))

    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), bucket_cap_mb=1e-4
    )
    model.register_comm_hook(None, mean)
    for _ in range(2):
        model(torch.full((2, 4), rank + 1.0)).sum().backward()
    return sum(p.grad.sum().item() for p in model.parameters())


def test_comm_hooks_may_change_what_their_future_gives():
    assert len(set(run(hooked, 3).results)) == 1


def forgotten(rank, world_size):
    x = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(x, async_op=True)
    dist.barrier()
    with torch.inference_mode():
        y = torch.ones(3)
        work = dist.all_reduce(y, async_op=True)
        y += 1  # such a tensor has no version
        work.wait()


def test_works_that_nobody_waits_for_and_tensors_without_a_version_are_not_watched():
    run(forgotten, 3)
