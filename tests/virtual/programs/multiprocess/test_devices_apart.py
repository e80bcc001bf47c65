"""Ranks with virtual devices that need a process each: the same program, times, streams and books of memory."""

from __future__ import annotations

import json
import os
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from hw_utils import WorkerFailed, simulate
from tests.virtual.programs.shapes.small_transformer import train

ON = {"cluster": "h100x4", "compute": "device", "memory": True, "echo": False}


def _side_streams(rank: int, world_size: int):
    side, x = torch.cuda.Stream(), torch.ones(512, 512, device="cuda")
    y = x @ x
    done = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.default_stream())
        works = [dist.all_reduce(part, async_op=True) for part in y.chunk(4)]
    z = x @ x
    for work in works:
        work.wait()
        work.wait()
    with torch.cuda.stream(side):
        works[0].wait()
        z = z + y
        done.record()
    done.synchronize()
    dist.barrier()
    last = dist.all_reduce(z, async_op=True)
    while not last.is_completed():
        time.sleep(1e-5)
    last.wait()
    return z.sum(), time.perf_counter()


def _ring(rank: int, world_size: int):
    x, got = torch.full((1000,), float(rank), device="cuda"), torch.empty(1000, device="cuda")
    for _ in range(world_size - 1):
        ops = [
            dist.P2POp(dist.isend, x.clone(), (rank + 1) % world_size),
            dist.P2POp(dist.irecv, got, (rank - 1) % world_size),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        x = x + got
    if rank % 2:
        dist.send(x, rank - 1)
    else:
        dist.recv(got, rank + 1)
    half = dist.new_group([0, 2])
    if rank in (0, 2):
        dist.broadcast(x, 0, group=half)
    parts = [torch.empty(1000) for _ in range(world_size)]
    dist.all_gather(parts, x)
    return torch.stack(parts).sum(), time.perf_counter()


def _pipeline(rank: int, world_size: int):
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(world_size)]
    stage = PipelineStage(parts[rank], rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 6, loss_fn=lambda y, target: ((y - target) ** 2).mean())
    arguments = [torch.ones(12, 64)] if rank == 0 else []
    losses: list[torch.Tensor] = []
    schedule.step(*arguments, **({"target": torch.zeros(12, 64), "losses": losses} if rank == world_size - 1 else {}))
    return parts[rank][0].weight.grad.sum(), time.perf_counter()


def _training(how: str):
    def worker(rank: int, world_size: int):
        return train(rank, world_size, how)

    return worker


PROGRAMS = {
    "streams": _side_streams, "ring": _ring, "pipeline": _pipeline, "by hand": _training("by hand"),
    "ddp": _training("ddp"), "fsdp2": _training("fsdp2"),
}  # fmt: skip


def _with_a_process(worker):
    def call(rank: int, world_size: int):
        os.chdir(os.getcwd())
        return worker(rank, world_size)

    return call


def _books(found, rank: int) -> list[tuple]:
    return sorted((float(r["time_s"]), int(r["n_bytes"]), int(r["owner"])) for r in found.memory.of_rank(rank))


@pytest.mark.parametrize("values", ["real", "shapes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_a_rank_changes_neither_a_time_nor_a_byte(name: str, values: str):
    together = simulate(PROGRAMS[name], 4, **ON, values=values)
    apart = simulate(_with_a_process(PROGRAMS[name]), 4, **ON, values=values)
    assert apart.seconds == pytest.approx(together.seconds, rel=1e-12)
    if values == "real":
        assert str(apart.results) == str(together.results)
    for field in ("rank", "op", "peer", "n_bytes"):
        assert np.array_equal(apart.trace.records[field], together.trace.records[field]), field
    for field in ("start_s", "end_s"):
        assert np.allclose(apart.trace.records[field], together.trace.records[field], rtol=1e-12, atol=0), field
    order = [np.argsort(found.trace.streams, order=["rank", "stream", "start_s"]) for found in (apart, together)]
    streams = [found.trace.streams[i] for found, i in zip((apart, together), order)]
    for field in ("rank", "stream", "start_s", "end_s"):
        assert np.allclose(streams[0][field], streams[1][field], rtol=1e-12, atol=0), field
    for rank in range(4):
        assert np.allclose(_books(apart, rank), _books(together, rank), rtol=1e-12, atol=0)


def _profiled(rank: int, world_size: int):
    with torch.profiler.profile() as profile:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
    return x.sum().item() if any("ones" in event.key for event in profile.key_averages()) else None


def _with_a_thread(rank: int, world_size: int):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(4, device="cuda").mul(rank)))
    thread.start()
    thread.join()
    x = found[0]
    dist.all_reduce(x)
    return x.sum().item()


def _with_a_checkpoint(rank: int, world_size: int):
    x = torch.full((4,), float(rank + 1), device="cuda")
    paths = [os.path.join(os.environ["HERE"], f"{r}.pt") for r in range(world_size)]
    torch.save({"x": x}, paths[rank])
    dist.barrier()
    y = torch.load(paths[(rank + 1) % world_size])["x"]
    dist.all_reduce(y)
    return y.sum().item()


def _with_a_setting(rank: int, world_size: int):
    json.mine = rank
    torch.set_default_dtype(torch.float64 if rank else torch.float32)
    dist.barrier()
    return json.mine if torch.ones(1, device="cuda").itemsize == (8 if rank else 4) else None


@pytest.mark.parametrize("values", ["real", "shapes"])
@pytest.mark.parametrize(
    ("worker", "wanted"),
    [(_profiled, 16.0), (_with_a_thread, 24.0), (_with_a_checkpoint, 40.0), (_with_a_setting, None)],
)  # fmt: skip
def test_a_program_that_changes_its_process_runs_on_virtual_devices(worker, wanted, values, tmp_path, monkeypatch):
    monkeypatch.setenv("HERE", str(tmp_path))
    found = simulate(worker, 4, **ON, values=values).results
    assert found == (list(range(4)) if wanted is None else [wanted] * 4)


def _asks_for_too_much(rank: int, world_size: int):
    os.chdir(os.getcwd())
    return torch.empty(30 * 10**9, device="cuda") if rank == 2 else dist.barrier()


def test_a_process_with_a_device_has_the_devices_memory_and_no_more():
    with pytest.raises(WorkerFailed, match=r"rank 2: .*OutOfMemory: it holds 0 of 85"):
        simulate(_asks_for_too_much, 4, **ON, values="shapes")
