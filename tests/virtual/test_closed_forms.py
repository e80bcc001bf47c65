"""The virtual clock against the closed forms, to 1e-9, on free compute."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hw_utils import Network, simulate
from tests.virtual import algorithms, closed_forms

NETWORK = Network(latency_s=37e-6, bandwidth_Bps=1.1e9)
SIZES = range(1, 65)
POWERS = [1, 2, 4, 8, 16, 32, 64]
EXACT = 1e-9


def seconds(worker, world_size: int, *args, network: Network = NETWORK) -> float:
    return simulate(worker, world_size, args, network=network, compute="free", echo=False, isolate=False).seconds


def reduce_with(rank: int, world_size: int, function, n_elements: int, is_sum: bool = True) -> None:
    tensor = torch.full((n_elements,), float(rank))
    function(tensor)
    if is_sum:
        assert (tensor == sum(range(world_size))).all()


def test_one_message_takes_latency_and_bytes_over_bandwidth():
    for n_elements in (0, 1, 1000):
        form = closed_forms.point_to_point_s(4 * n_elements, NETWORK)
        assert seconds(reduce_with, 2, algorithms.gather_to_root, n_elements, False) == pytest.approx(form, rel=EXACT)


@pytest.mark.parametrize("world_size", SIZES)
def test_a_tree_takes_two_ceil_log_n_messages(world_size):
    form = closed_forms.tree_all_reduce_s(world_size, 4 * 1000, NETWORK)
    assert seconds(reduce_with, world_size, algorithms.tree_all_reduce, 1000) == pytest.approx(form, rel=EXACT)


@pytest.mark.parametrize("world_size", SIZES)
def test_a_ring_takes_two_n_minus_one_chunks(world_size):
    form = closed_forms.ring_all_reduce_s(world_size, 4 * 3 * world_size, NETWORK)
    measured = seconds(reduce_with, world_size, algorithms.ring_all_reduce, 3 * world_size)
    assert measured == pytest.approx(form, rel=EXACT)


@pytest.mark.parametrize("world_size", POWERS)
def test_halving_and_doubling_has_the_bytes_of_a_ring_and_the_rounds_of_a_tree(world_size):
    form = closed_forms.halving_doubling_s(world_size, 4 * 256, NETWORK)
    assert seconds(reduce_with, world_size, algorithms.halving_doubling, 256) == pytest.approx(form, rel=EXACT)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 16, 33, 64])
@pytest.mark.parametrize("function", [algorithms.gather_to_root, algorithms.scatter_from_root])
def test_a_root_takes_one_message_after_another(function, world_size):
    form = closed_forms.at_root_s(world_size, 400, NETWORK)
    assert seconds(reduce_with, world_size, function, 100, False) == pytest.approx(form, rel=EXACT)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8, 31])
def test_a_parameter_server_takes_two_messages_a_worker(n_workers):
    form = closed_forms.parameter_server_s(n_workers, 400, NETWORK)
    measured = seconds(reduce_with, n_workers + 1, algorithms.parameter_server, 100, False)
    assert measured == pytest.approx(form, rel=EXACT)


def late_ring(rank: int, world_size: int, late_rank: int, delay_s: float) -> None:
    if rank == late_rank:
        time.sleep(delay_s)
    algorithms.ring_all_reduce(torch.ones(4 * world_size))


@pytest.mark.parametrize("world_size", [2, 3, 5, 8, 64])
def test_a_straggler_delays_a_ring_by_its_own_delay(world_size):
    delay_s = 0.5
    form = delay_s + closed_forms.ring_all_reduce_s(world_size, 16 * world_size, NETWORK)
    for late_rank in (0, world_size - 1):
        assert seconds(late_ring, world_size, late_rank, delay_s) == pytest.approx(form, rel=EXACT)


def collective(rank: int, world_size: int, name: str, n: int) -> None:
    x, all_of_them = torch.ones(n), torch.ones(n * world_size)
    calls = {
        "all_reduce": lambda: dist.all_reduce(all_of_them),
        "broadcast": lambda: dist.broadcast(x, world_size // 2),
        "reduce": lambda: dist.reduce(x, world_size // 2),
        "gather": lambda: dist.gather(x, list(all_of_them.chunk(world_size)) if rank == 0 else None),
        "scatter": lambda: dist.scatter(x, list(all_of_them.chunk(world_size)) if rank == 0 else None),
        "all_gather": lambda: dist.all_gather(list(all_of_them.chunk(world_size)), x),
        "reduce_scatter": lambda: dist.reduce_scatter(x, list(all_of_them.chunk(world_size))),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(all_of_them), all_of_them),
        "barrier": dist.barrier,
    }
    calls[name]()


FORMS = {
    "all_reduce": lambda n, m: closed_forms.ring_all_reduce_s(n, n * m, NETWORK),
    "broadcast": lambda n, m: closed_forms.tree_s(n, m, NETWORK),
    "reduce": lambda n, m: closed_forms.tree_s(n, m, NETWORK),
    "gather": lambda n, m: closed_forms.at_root_s(n, m, NETWORK),
    "scatter": lambda n, m: closed_forms.at_root_s(n, m, NETWORK),
    "all_gather": lambda n, m: closed_forms.ring_half_s(n, n * m, NETWORK),
    "reduce_scatter": lambda n, m: closed_forms.ring_half_s(n, n * m, NETWORK),
    "all_to_all": lambda n, m: closed_forms.pairwise_all_to_all_s(n, n * m, NETWORK),
    "barrier": lambda n, m: closed_forms.barrier_s(n, NETWORK),
}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 13, 64])
@pytest.mark.parametrize("name", FORMS)
def test_a_collective_takes_what_its_algorithm_takes(name, world_size):
    assert seconds(collective, world_size, name, 50) == pytest.approx(FORMS[name](world_size, 200), rel=EXACT)


def late_all_reduce(rank: int, world_size: int, delay_s: float) -> None:
    time.sleep(delay_s if rank == 1 else 0)
    dist.all_reduce(torch.ones(4 * world_size))


def test_a_straggler_delays_the_built_in_all_reduce_by_its_own_delay():
    form = 0.25 + closed_forms.ring_all_reduce_s(6, 16 * 6, NETWORK)
    assert seconds(late_all_reduce, 6, 0.25) == pytest.approx(form, rel=EXACT)


def test_links_inside_a_host_and_between_hosts_are_told_apart():
    inside, between = Network(1e-6, 1e10), Network(1e-3, 1e8)
    network = Network.two_level(2, inside, between)
    # a ring over two hosts of two ranks waits for its slowest link in every step
    form = closed_forms.ring_all_reduce_s(4, 4 * 40, between)
    assert seconds(reduce_with, 4, algorithms.ring_all_reduce, 40, network=network) == pytest.approx(form, rel=EXACT)
    form = closed_forms.ring_all_reduce_s(2, 4 * 40, inside)
    assert seconds(reduce_with, 2, algorithms.ring_all_reduce, 40, network=network) == pytest.approx(form, rel=EXACT)


def overlapping(rank: int, world_size: int, backward_s: float, n_buckets: int, n_elements: int) -> None:
    works = []
    for _ in range(n_buckets):
        time.sleep(backward_s / n_buckets)
        works.append(dist.all_reduce(torch.ones(n_elements), async_op=True))
    for work in works:
        work.wait()


@pytest.mark.parametrize("n_buckets", [1, 2, 5, 10])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_buckets_that_overlap_with_a_backward_pass_follow_the_recurrence(ratio, n_buckets):
    world_size, n_elements = 4, 4000
    bucket_s = closed_forms.ring_all_reduce_s(world_size, 4 * n_elements, NETWORK)
    total_s = bucket_s * n_buckets
    backward_s = total_s / ratio
    ready_s = [backward_s * (i + 1) / n_buckets for i in range(n_buckets)]
    form = closed_forms.overlapped_s(ready_s, [bucket_s] * n_buckets)
    short = backward_s + total_s / n_buckets if total_s <= backward_s else backward_s / n_buckets + total_s
    assert form == pytest.approx(short, rel=EXACT)
    measured = seconds(overlapping, world_size, backward_s, n_buckets, n_elements)
    assert measured == pytest.approx(form, rel=EXACT)


class Slow(torch.autograd.Function):
    """A layer's backward pass takes a given virtual time."""

    @staticmethod
    def forward(ctx, x, seconds_):
        ctx.seconds = seconds_
        return x

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class SlowLayers(torch.nn.Module):
    def __init__(self, n_layers: int, width: int, layer_s: float) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(width) for _ in range(n_layers))
        self.layer_s = layer_s

    def forward(self, x):
        for weight in self.weights:
            x = Slow.apply(x * weight, self.layer_s)
        return x.sum()


def train_with_ddp(rank: int, world_size: int, n_layers: int, width: int, layer_s: float) -> list[float]:
    model = DistributedDataParallel(SlowLayers(n_layers, width, layer_s), bucket_cap_mb=4 * width / 2**20)
    step_s = []
    for _ in range(3):
        loss = model(torch.ones(width))
        before = time.perf_counter()
        loss.backward()
        step_s.append(time.perf_counter() - before)
    return step_s


@pytest.mark.parametrize("layer_s", [1e-4, 5e-3])
def test_ddp_follows_the_recurrence_of_overlap(layer_s):
    world_size, n_layers, width = 4, 4, 40_000
    bucket_s = closed_forms.ring_all_reduce_s(world_size, 4 * width, NETWORK)
    run = simulate(train_with_ddp, world_size, (n_layers, width, layer_s), network=NETWORK, compute="free", echo=False)
    n_bytes = [e.n_bytes for e in run.trace.of_rank(0).of_op("all_reduce")][-n_layers:]
    assert n_bytes == [4 * width] * n_layers
    ready_s = [layer_s * (i + 1) for i in range(n_layers)]
    form = closed_forms.overlapped_s(ready_s, [bucket_s] * n_layers)
    assert run[0][-1] == pytest.approx(form, rel=EXACT)
