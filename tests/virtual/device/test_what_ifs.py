"""What a change of a training does to its time and memory on virtual devices: each in the direction that one knows."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from hw_utils import Network
from tests.virtual.device.toys import MATMUL_S, cluster, on_device


def _elapsed_s(begin_s: float) -> float:
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def _blocks(rank, world_size, recomputes):
    model = nn.ModuleList(
        [nn.Sequential(nn.Linear(100, 100), nn.GELU(), nn.Linear(100, 100), nn.GELU()) for _ in range(6)]
    )
    x = torch.ones(1000, 100, requires_grad=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin_s = time.perf_counter()
    for block in model:
        x = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
    x.sum().backward()
    return _elapsed_s(begin_s), torch.cuda.max_memory_allocated()


def test_recomputation_takes_one_more_forward_pass_and_less_memory():
    kept_s, kept_bytes = on_device(_blocks, 1, (False,))[0]
    again_s, again_bytes = on_device(_blocks, 1, (True,))[0]
    forward_s = 6 * 2 * 10 * MATMUL_S
    assert abs(again_s - kept_s - forward_s) < 0.05 * forward_s
    assert again_bytes < 0.6 * kept_bytes


def _pipeline(rank, world_size, schedule, n_chunks, n_micro):
    """Four layers on two ranks, cut in two or in four stages."""
    from torch.distributed import pipelining

    per_stage, stages = 4 // (world_size * n_chunks), []
    for number in range(rank, world_size * n_chunks, world_size):
        layers = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(per_stage)])
        stages.append(pipelining.PipelineStage(layers, number, world_size * n_chunks, torch.device("cpu")))
    run = getattr(pipelining, schedule)(
        stages[0] if n_chunks == 1 else stages, n_micro, loss_fn=lambda out, target: (out - target).square().mean()
    )
    inputs = (torch.ones(100 * n_micro, 100),) if rank == 0 else ()
    target = torch.zeros(100 * n_micro, 100) if rank == world_size - 1 else None
    for _ in range(2):  # the first step exchanges shapes
        torch.cuda.synchronize()
        dist.barrier()
        begin_s = time.perf_counter()
        run.step(*inputs, target=target)
    return _elapsed_s(begin_s)


def test_interleaved_stages_and_more_micro_batches_make_the_bubble_smaller():
    fast = {"cluster": cluster(2, Network(0, 1e12))}
    ideal_s = 4 * 4 * 3 * MATMUL_S / 2  # four micro-batches through four layers, forward and backward, on two ranks
    plain_s = max(on_device(_pipeline, 2, ("Schedule1F1B", 1, 4), **fast))
    interleaved_s = max(on_device(_pipeline, 2, ("ScheduleInterleaved1F1B", 2, 4), **fast))
    assert ideal_s < interleaved_s < plain_s
    longer_s = max(on_device(_pipeline, 2, ("Schedule1F1B", 1, 8), **fast))
    assert longer_s / 2 < plain_s


def _tensor_parallel(rank, world_size, places):
    """A feed-forward block on tensor-parallel groups whose members are `places` apart."""
    groups = torch.arange(world_size).view(-1, 2) if places == 1 else torch.arange(world_size).view(2, -1).T
    mesh = DeviceMesh("cuda", groups, mesh_dim_names=("data", "tensor"))["tensor"]
    model = nn.Sequential(nn.Linear(100, 200), nn.GELU(), nn.Linear(200, 100)).cuda()
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for _ in range(2):
        torch.cuda.synchronize()
        dist.barrier()
        begin_s = time.perf_counter()
        model(torch.ones(100, 100, requires_grad=True)).sum().backward()
    return _elapsed_s(begin_s)


def test_tensor_parallelism_across_hosts_is_slower_than_inside_one():
    two_hosts = replace(cluster(2), n_hosts=2, inside=Network(0, 1e9), between=Network(0, 1e7))
    times_s = [max(on_device(_tensor_parallel, 4, (places,), cluster=two_hosts)) for places in (1, 2)]
    assert times_s[0] < 0.8 * times_s[1]
