"""A machine with a GPU, as Colab's: a run without virtual devices is what it is on a laptop.

With `isolate=False` ranks are in the process that has the GPU; others are started in processes to which none is shown.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from hw_utils import WorkerFailed, simulate


@pytest.fixture
def gpu_in_sight(monkeypatch):
    """What torch's Python side says where there is a GPU."""
    for place, name, answer in (
        (torch.cuda, "is_available", True),
        (torch.cuda, "device_count", 1),
        (torch._C, "_get_accelerator", torch.device("cuda")),
        (torch._C, "_accelerator_getAccelerator", torch.device("cuda")),
    ):
        monkeypatch.setattr(place, name, lambda *_, answer=answer: answer)
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def _asks(rank, world_size):
    return (
        torch.cuda.is_available(), torch.cuda.device_count(), torch.accelerator.is_available(),
        torch.accelerator.current_accelerator(), torch.accelerator.device_count(), torch.backends.mps.is_available(),
    )  # fmt: skip


def _fsdp2(rank, world_size):
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    return model.weight.grad.to_local().tolist()


def test_virtual_ranks_see_no_gpu_and_the_caller_still_does(gpu_in_sight):
    assert simulate(_asks, 2, isolate=False).results == [(False, 0, False, None, 0, False)] * 2
    assert torch.cuda.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_fully_shard_without_a_mesh_shards_over_virtual_ranks(gpu_in_sight):
    assert simulate(_fsdp2, 2, isolate=False).results == [[[2.0] * 4] * 2] * 2


def _moves(rank, world_size):
    raise RuntimeError("No CUDA GPUs are available")


def test_who_asks_for_one_is_told_how_to_do_without(gpu_in_sight):
    with pytest.raises(WorkerFailed, match="ranks have no GPU"):
        simulate(_moves, 1, isolate=False)
