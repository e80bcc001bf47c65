"""Virtual devices: operations on streams, what waits for them, and overlap that comes out of the program."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hw_utils import Network, WorkerFailed
from tests.virtual.device.toys import LAUNCH_S, MATMUL_S, cluster, on_device


def _waits(rank, world_size):
    x = torch.ones(100, 100, device="cuda")  # two operations: memory, then ones
    begin_s = time.perf_counter()
    y = x @ x
    launched_s = time.perf_counter()
    value = y[0, 0].item()
    return value, launched_s - begin_s, time.perf_counter() - begin_s


def test_a_product_is_launched_at_once_and_its_value_waited_for():
    value, launched_s, waited_s = on_device(_waits, 1)[0]
    assert (value, launched_s) == (100.0, pytest.approx(LAUNCH_S))
    assert waited_s == pytest.approx(LAUNCH_S + MATMUL_S, rel=1e-2)


def _without_memory(rank, world_size):
    begin_s = time.perf_counter()
    with FakeTensorMode():
        torch.ones(100, 100) @ torch.ones(100, 100)
    torch.ones(100, 100, device="meta") @ torch.ones(100, 100, device="meta")
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


@pytest.mark.parametrize("values", ["real", "shapes"])
def test_what_is_worked_out_on_tensors_without_memory_takes_the_device_no_time(values):
    assert on_device(_without_memory, 1, values=values)[0] == 0


READS = {
    "cpu": lambda y: y.cpu(),
    "tolist": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy(),
    "to": lambda y: y.to("cpu"),
    "if": lambda y: bool((y > 0).all()),
    "nonzero": lambda y: y.nonzero(),
    "mask": lambda y: y[y > 0],
    "synchronize": lambda y: torch.cuda.synchronize(),
    "stream": lambda y: torch.cuda.current_stream().synchronize(),
}


def _reads(rank, world_size, name):
    x = torch.ones(100, 100)
    begin_s = time.perf_counter()
    READS[name](x @ x)
    return time.perf_counter() - begin_s


@pytest.mark.parametrize("name", READS)
def test_whatever_reads_a_value_waits_for_it(name):
    assert on_device(_reads, 1, (name,))[0] >= MATMUL_S


def _streams(rank, world_size, way):
    x, side = torch.ones(100, 100), torch.cuda.Stream()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    first = x @ x
    if way == "ordered":
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first @ x
        done = side.record_event()
    torch.cuda.current_stream().wait_event(done)
    end.record()
    return begin.elapsed_time(end) / 1000


def test_two_streams_run_at_once_and_one_that_waits_after_the_other():
    assert on_device(_streams, 1, ("at once",))[0] == pytest.approx(MATMUL_S, rel=1e-2)
    assert on_device(_streams, 1, ("ordered",))[0] == pytest.approx(2 * MATMUL_S, rel=1e-2)


def _side_stream_before_all(rank, world_size):
    side = torch.cuda.Stream()
    assert side is not torch.cuda.current_stream()
    x = torch.ones(100, 100)
    torch.cuda.synchronize()
    x @ x
    with torch.cuda.stream(side):
        x @ x


def test_a_stream_that_is_made_before_anything_else_is_not_the_default_one():
    run = on_device(_side_stream_before_all, 1)
    spans = {stream: run.trace.streams[run.trace.streams["stream"] == stream] for stream in (0, 1)}
    assert len(spans[1]) == 1
    assert spans[1]["start_s"][0] < spans[0]["end_s"].max()


def test_each_stream_has_its_rows_in_the_trace():
    streams = on_device(_streams, 1, ("at once",)).trace.streams
    assert set(streams["stream"].tolist()) == {0, 1}
    assert (streams["end_s"] - streams["start_s"]).sum() == pytest.approx(2 * MATMUL_S, rel=1e-2)


def test_the_time_between_events_that_were_not_recorded_is_an_error():
    def asks(rank, world_size):
        return torch.cuda.Event().elapsed_time(torch.cuda.Event())

    with pytest.raises(WorkerFailed, match=r"call record\(\) first"):
        on_device(asks, 1)


def _all_reduce(rank, world_size, is_async):
    x, y = torch.ones(100, 100), torch.ones(100_000)  # 400,000 bytes: 4 ms among two
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    work = dist.all_reduce(y, async_op=is_async)
    x @ x
    if is_async:
        work.wait()
    launched_s = time.perf_counter() - begin_s
    torch.cuda.synchronize()
    return launched_s, time.perf_counter() - begin_s, y[0].item()


def test_a_collective_is_ordered_on_the_current_stream_and_never_holds_the_host():
    launched_s, blocking_s, value = on_device(_all_reduce, 2, (False,))[0]
    assert (launched_s, value) == (pytest.approx(2 * LAUNCH_S), 2.0)
    assert blocking_s == pytest.approx(4e-3 + MATMUL_S, rel=1e-2)


def test_an_asynchronous_collective_runs_beside_the_current_stream():
    launched_s, overlapped_s, _ = on_device(_all_reduce, 2, (True,))[0]
    assert launched_s == pytest.approx(2 * LAUNCH_S)
    assert overlapped_s == pytest.approx(4e-3, rel=1e-2)


def _straggler(rank, world_size):
    x = torch.ones(100, 100)
    for _ in range(1 + rank):
        x @ x
    dist.all_reduce(torch.ones(4))
    torch.cuda.synchronize()
    return time.perf_counter()


def test_a_collective_begins_when_the_last_stream_gets_there():
    assert on_device(_straggler, 3).results == pytest.approx([3 * MATMUL_S] * 3, rel=1e-2)


def _step_s(model, x, **options):
    """Virtual seconds of the second step."""
    for _ in range(2):
        torch.cuda.synchronize()
        dist.barrier()
        begin_s = time.perf_counter()
        model(x).sum().backward()
        torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def _data_parallel(rank, world_size, bucket_cap_mb):
    model = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(6)]).cuda()
    model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=bucket_cap_mb)
    return _step_s(model, torch.ones(100, 100, device="cuda"))


def test_buckets_of_ddp_travel_while_the_backward_pass_goes_on():
    link = cluster(2, Network(0, 2e7))  # a layer's gradient takes 2 ms, a layer's backward pass 4 ms
    bucketed, at_the_end = (on_device(_data_parallel, 2, (mb,), cluster=link)[0] for mb in (0.01, 100))
    forward_and_backward_s = 17 * MATMUL_S  # the first layer's input needs no gradient
    assert at_the_end == pytest.approx(forward_and_backward_s + 6 * 2e-3, rel=2e-2)
    assert bucketed == pytest.approx(forward_and_backward_s + 2e-3, rel=5e-2)


def _fsdp(rank, world_size, prefetches, device):
    mesh = init_device_mesh(device, (world_size,))
    model = nn.Sequential(*[nn.Linear(100, 100, bias=False) for _ in range(6)]).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for layer in model:
        if not prefetches:
            layer.set_modules_to_backward_prefetch([layer])  # itself: nobody ahead
    return _step_s(model, torch.ones(100, 100, device=device))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_prefetch_of_fsdp2_hides_its_all_gathers(device):
    link = cluster(2, Network(0, 2e7))  # all-gather and reduce-scatter of a layer take 1 ms each
    with_s, without_s = (on_device(_fsdp, 2, (is_on, device), cluster=link)[0] for is_on in (True, False))
    computing_s = 17 * MATMUL_S
    assert computing_s < with_s < without_s < computing_s + 6 * 3e-3


def _pipeline(rank, world_size, n_micro, is_overlapped):
    """Two stages; the second receives ahead of its computation, or only when it needs the next one."""
    w, sent = torch.ones(100, 100), []
    torch.cuda.synchronize()
    dist.barrier()
    begin_s = time.perf_counter()
    if rank == 0:
        for _ in range(n_micro):
            sent.append(dist.isend(w @ w, 1))
    else:
        buffers = [torch.empty(100, 100) for _ in range(n_micro)]
        ahead = [dist.irecv(b, 0) for b in buffers] if is_overlapped else [None] * n_micro
        for work, buffer in zip(ahead, buffers):
            (work or dist.irecv(buffer, 0)).wait()
            buffer @ w
    for work in sent:
        work.wait()
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def test_a_pipeline_that_receives_ahead_hides_its_messages():
    link = cluster(2, Network(0, 2e7))  # a message of 40,000 bytes takes 2 ms, as a stage does
    ahead_s = on_device(_pipeline, 2, (8, True), cluster=link)[1]
    assert ahead_s == pytest.approx(MATMUL_S + 2e-3 + 8 * MATMUL_S, rel=2e-2)
    assert on_device(_pipeline, 2, (8, False), cluster=link)[1] == pytest.approx(MATMUL_S + 8 * 4e-3, rel=2e-2)


def test_the_same_program_takes_the_same_time_every_time():
    runs = [on_device(_fsdp, 2, (True, "cuda")) for _ in range(2)]
    assert runs[0].results == runs[1].results
    assert runs[0].trace.streams.tolist() == runs[1].trace.streams.tolist()


def _host_bound(rank, world_size):
    x = torch.ones(2, 2)
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    for _ in range(50):
        x = x + 1
    torch.cuda.synchronize()
    return time.perf_counter() - begin_s


def test_many_small_operations_take_as_long_as_their_launches():
    assert on_device(_host_bound, 1)[0] == pytest.approx(50 * LAUNCH_S, rel=1e-3)
