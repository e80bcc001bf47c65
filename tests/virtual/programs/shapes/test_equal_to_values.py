"""A run with shapes only has the ledger, the times and the books of memory of the run with values."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from hw_utils import simulate
from tests.virtual.programs.shapes.small_transformer import train
from tests.virtual.runs import run


def both(worker, world_size: int, *args, engine=run):
    return [engine(worker, world_size, *args, memory=True, values=values) for values in ("real", "shapes")]


def books(found, rank: int) -> list[tuple]:
    """What one rank held, and when; of one moment in an order that is always the same."""
    memory = found.memory
    return sorted(
        (float(r["time_s"]), int(r["n_bytes"]), int(r["owner"]), memory.sites[r["site"]]) for r in memory.of_rank(rank)
    )


def assert_equal(real, shapes) -> None:
    assert shapes.seconds == real.seconds
    assert np.array_equal(shapes.trace.records, real.trace.records)
    assert repr(shapes.memory) == repr(real.memory)
    for rank in range(len(real)):
        assert books(shapes, rank) == books(real, rank)


@pytest.mark.parametrize(
    "how",
    [
        "by hand", "by hand foreach", "by hand fused", "by hand recompute", "by hand autocast", "ddp", "ddp recompute",
        "fsdp2", "fsdp2 recompute",
    ],
)  # fmt: skip
def test_a_training_is_the_same_to_the_byte_and_the_last_digit(how: str):
    real, shapes = both(train, 2, how)
    assert_equal(real, shapes)
    assert len(books(real, 0)) > 1000
    assert not any(loss.is_meta for loss in real)
    assert all(loss.is_meta and loss.shape == () for loss in shapes)


@pytest.mark.parametrize("how", ["by hand", "by hand recompute", "ddp"])
def test_a_training_on_virtual_devices_is_the_same(how: str):
    on = {"cluster": "h100x2", "compute": "device", "memory": True, "echo": False}
    real, shapes = (simulate(train, 2, (how,), **on, values=values) for values in ("real", "shapes"))
    assert_equal(real, shapes)
    assert np.array_equal(shapes.trace.streams, real.trace.streams)
    assert len(real.trace.streams) > 1000


def pipeline(rank: int, world_size: int) -> None:
    stage = PipelineStage(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    batch = (torch.randn(8, 8),) if rank == 0 else ()
    schedule.step(*batch, **({"target": torch.randn(8, 8)} if rank == world_size - 1 else {}))


def test_a_pipeline_that_agrees_on_shapes_by_objects_is_the_same():
    assert_equal(*both(pipeline, 3))


def every_collective(rank: int, world_size: int) -> None:
    x, many = torch.randn(8), torch.randn(8 * world_size)
    parts = list(many.chunk(world_size))
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_gather(parts, x)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(many, x)
    dist.reduce_scatter(x, parts)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(x, many)
    dist.all_to_all_single(many, many.clone())
    dist.gather(x, parts if rank == 0 else None, 0)
    dist.scatter(x, parts if rank == 0 else None, 0)
    sent = dist.isend(x, (rank + 1) % world_size)
    dist.recv(many[:8], (rank - 1) % world_size)
    sent.wait()
    dist.barrier()


def test_every_collective_and_message_costs_the_same():
    assert_equal(*both(every_collective, 3))


def with_a_process_each(rank: int, world_size: int) -> torch.Tensor:
    os.chdir(os.getcwd())
    every_collective(rank, world_size)
    return train(rank, world_size, "by hand")


def test_it_is_the_same_with_a_process_a_rank():
    real, shapes = both(
        with_a_process_each, 2, engine=lambda w, n, **more: simulate(w, n, compute="free", echo=False, **more)
    )
    assert_equal(real, shapes)
    assert all(loss.is_meta for loss in shapes)


def larger_than_any_laptop(rank: int, world_size: int) -> int:
    model = nn.Sequential(*[nn.Linear(16_384, 16_384, bias=False) for _ in range(16)])
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(64, 16_384)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return 16 * 16_384**2 * 4


def test_a_model_that_no_laptop_holds_is_trained():
    found = simulate(larger_than_any_laptop, 4, compute="free", echo=False, memory=True, values="shapes")
    for rank, model_bytes in enumerate(found):  # 17 GB
        peak = found.memory.peak(rank)
        assert peak.by_owner["parameters"] == peak.by_owner["gradients"] == model_bytes
        assert peak.by_owner["optimizer"] == 2 * model_bytes + 16 * 4
        assert found.trace.bytes_sent(rank) == 2 * 3 * model_bytes // 4
