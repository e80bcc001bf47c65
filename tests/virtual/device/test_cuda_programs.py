"""A program that says cuda finds a virtual device: its memory, its number, and what a run puts in place of torch's."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hw_utils import WorkerFailed, simulate
from hw_utils.core.memory import OutOfMemory
from tests.virtual.device.toys import cluster, on_device


def _too_much(rank, world_size):
    kept = torch.empty(150, device="cuda")
    return kept, torch.empty(150, device="cuda")


def test_a_device_that_is_full_is_out_of_memory_at_the_line_that_asked():
    with pytest.raises(WorkerFailed) as caught:
        on_device(_too_much, 1, cluster=cluster(1, memory_bytes=1000))
    failure = caught.value.failures[0]
    assert failure.kind == "out_of_memory"
    assert failure.where.source == 'return kept, torch.empty(150, device="cuda")'
    assert type(failure.exception) is OutOfMemory
    assert failure.exception.capacity_bytes == 1000


def test_a_virtual_device_needs_a_cluster():
    with pytest.raises(ValueError, match='give cluster=, as "h100x8"'):
        simulate(_asks_cuda, 1, compute="device")


def _asks_cuda(rank, world_size):
    assert torch.cuda.is_available()
    torch.cuda.set_device(rank)
    x = torch.zeros(250, device=torch.device("cuda", rank))
    y = x.to("cuda:1", non_blocking=True) + torch.zeros_like(x, device="cuda")
    del y
    torch.cuda.empty_cache()
    with torch.device("cuda"):
        z = torch.zeros(10)
    named = torch.cuda.get_device_name(), torch.cuda.device_count(), torch.cuda.current_device()
    return *named, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), z.sum().item()


def test_a_program_that_says_cuda_finds_the_virtual_device():
    results = on_device(_asks_cuda, 2).results
    assert results == [("toy", 2, rank, 1040, 3000, 0.0) for rank in range(2)]


def test_a_device_that_a_host_does_not_have_is_refused():
    def asks(rank, world_size):
        torch.cuda.set_device(2)

    with pytest.raises(WorkerFailed, match="toys has 0 to 1 in a host, got 2"):
        on_device(asks, 2)


def _functions() -> dict[tuple, object]:
    """(module or class, name) -> the function, class or property that stands there, of what torch and Python bring."""
    theirs = {name: module for name, module in sys.modules.items() if not name.startswith(("tests", "hw_utils"))}
    modules = {name: module for name, module in theirs.items() if hasattr(module, "__dict__")}  # None: not to be found
    classes = {
        kind: f"{kind.__module__}.{kind.__qualname__}"
        for module in modules.values()
        for kind in vars(module).values()
        if issubclass(type(kind), type)
    }
    kinds = (property, staticmethod, classmethod)
    return {
        (owner, name): value
        for owner, place in [*modules.items(), *((name, kind) for kind, name in classes.items())]
        for name, value in list(vars(place).items())
        if issubclass(type(value), kinds) or any("__call__" in vars(kind) for kind in type(value).__mro__)
    }


def _trains(rank, world_size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4, device="cuda"))
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    sharded = fully_shard(nn.Linear(4, 4, device="cuda"))
    sharded(torch.ones(2, 4, device="cuda")).sum().backward()
    torch.optim.AdamW(sharded.parameters()).step()


@pytest.mark.parametrize("values", ["real", "shapes"])
def test_what_a_run_in_this_process_replaces_stands_there_again(values: str):
    for name in ("hw_utils.virtual.simulation", "torch._dynamo"):  # which replaces some of torch's functions for good
        importlib.import_module(name)
    before = _functions()
    on_device(_trains, 2, isolate=False, memory=True, values=values)
    after = _functions()
    assert {place for place, value in before.items() if after.get(place) is not value} == set()
    on_host = simulate(_steps_on_host, 2, compute="free", echo=False, isolate=False)
    assert on_host.results == [1.0, 1.0]


def _steps_on_host(rank, world_size):
    """Asks for a group's backend, as torch's collectives of one tensor do."""
    model = fully_shard(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    return float(dist.get_backend() == "gloo")
