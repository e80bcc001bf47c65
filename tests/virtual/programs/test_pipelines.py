"""Pipelines and sharded checkpoints as torch.distributed makes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hw_utils import simulate
from tests.virtual.programs.test_sharded import both


def pipeline(rank: int, world_size: int, schedule: str, n_chunks: int):
    from torch.distributed import pipelining

    stages = []
    for number in range(rank, world_size * n_chunks, world_size):
        torch.manual_seed(number)
        layer = nn.Linear(8, 8)
        stages.append(pipelining.PipelineStage(layer, number, world_size * n_chunks, torch.device("cpu")))
    kind = getattr(pipelining, schedule)
    run = kind(stages[0] if n_chunks == 1 else stages, 8, loss_fn=lambda out, target: (out - target).square().mean())
    losses: list = []
    inputs = (torch.arange(128.0).view(16, 8) / 128,) if rank == 0 else ()
    target = torch.zeros(16, 8) if rank == world_size - 1 else None
    run.step(*inputs, target=target, losses=losses)
    return [p.grad.clone() for stage in stages for p in stage.submod.parameters()], [loss.item() for loss in losses]


@pytest.mark.parametrize(
    ("schedule", "n_chunks"),
    [
        ("ScheduleGPipe", 1),
        ("Schedule1F1B", 1),
        ("ScheduleInterleaved1F1B", 2),
        ("ScheduleLoopedBFS", 2),
        ("ScheduleInterleavedZeroBubble", 2),
    ],
)
def test_a_schedule_is_alike_on_both_engines(schedule: str, n_chunks: int):
    both(pipeline, 2, schedule, n_chunks)


def checkpoint(rank: int, world_size: int, folder: str, how: str) -> list[float]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    state = {"x": distribute_tensor(torch.arange(16.0).view(8, 2), mesh, [Shard(0)])}
    if how == "async_save":
        dcp.async_save(state, checkpoint_id=folder).result()
    else:
        dcp.save(state, checkpoint_id=folder)
    other = {"x": distribute_tensor(torch.zeros(8, 2), mesh, [Shard(1)])}
    dcp.load(other, checkpoint_id=folder)
    return other["x"].full_tensor()[-1].tolist()


@pytest.mark.parametrize("how", ["save", "async_save"])
def test_a_sharded_checkpoint_is_read_in_other_shards(how: str, tmp_path):
    run = simulate(checkpoint, 2, (str(tmp_path / "saved"), how), compute="free", echo=False)
    assert run.results == [[14.0, 15.0]] * 2
