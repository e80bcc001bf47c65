"""Communication on a cluster of hosts: ports a level, and collectives as NCCL chooses them."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
import torch
import torch.distributed as dist

from hw_utils import Cluster, Network, simulate
from hw_utils.core.hardware.nccl_costs import Layout, price

MiB = 2**20
# Microseconds of nccl-tests' all-reduce of 1 MiB, 2 MiB, ... 1 GiB, on 2, 4 and 8 A100 of one host: measured by
# VIA-Research/vTrain (trace/a100). Beside them one latency a step and one bandwidth, fitted to the eleven points of a
# row for the smallest mean relative error.
MEASURED_US = {
    2: (44.21, 53.43, 61.18, 86.9, 131.9, 230.0, 404.7, 763.6, 1455.8, 2838.4, 5442.8),
    4: (51.4, 55.74, 77.32, 116.8, 179.6, 284.2, 543.8, 998.6, 1929.0, 3720.0, 7259.4),
    8: (92.79, 93.25, 95.8, 134.3, 232.4, 358.1, 579.9, 1162.0, 2162.3, 4191.5, 8193.0),
}
FITTED = {2: Network(21e-6, 187e9), 4: Network(7.3e-6, 211e9), 8: Network(5.5e-6, 228e9)}


def _all_reduces(rank, world_size, sizes):
    """Seconds of one all-reduce of each size, on tensors without data."""
    seconds = []
    for n_bytes in sizes:
        dist.barrier()
        begin_s = dist.group.WORLD.engine.clock[rank]
        dist.all_reduce(torch.empty(n_bytes // 4, device="meta"))
        seconds.append(dist.group.WORLD.engine.clock[rank] - begin_s)
    return seconds


@pytest.mark.parametrize("n", MEASURED_US)
def test_an_all_reduce_of_a100s_takes_what_was_measured(n):
    cluster = replace(Cluster.named(f"a100x{n}"), inside=FITTED[n])
    sizes = [MiB * 2**i for i in range(11)]
    found = simulate(_all_reduces, n, (sizes,), cluster=cluster, compute="free", echo=False)[0]
    errors = [abs(s * 1e6 - us) / us for s, us in zip(found, MEASURED_US[n])]
    assert mean(errors) < 0.1


def _inside_and_between(rank, world_size, together):
    """Two hosts of two: an all-reduce inside each, and one between hosts; one after the other or at once."""
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    between = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    a, b = torch.ones(25_000), torch.ones(25_000)
    dist.barrier()
    begin_s = dist.group.WORLD.engine.clock[rank]
    work = dist.all_reduce(a, group=inside, async_op=True)
    if not together:
        work.wait()
    dist.all_reduce(b, group=between)
    work.wait()
    return dist.group.WORLD.engine.clock[rank] - begin_s


def _two_hosts(**changes):
    device = Cluster.named("a100").device
    return Cluster("two hosts", 2, 2, device, Network(0, 1e9), Network(0, 1e8), **{"cards_per_host": 2, **changes})


def test_traffic_inside_a_host_and_between_hosts_does_not_queue():
    options = {"cluster": _two_hosts(), "compute": "free", "echo": False}
    assert simulate(_inside_and_between, 4, (False,), **options)[0] == pytest.approx(1e-4 + 1e-3)
    assert simulate(_inside_and_between, 4, (True,), **options)[0] == pytest.approx(1e-3)


def test_ranks_that_share_a_card_wait_for_each_other():
    options = {"cluster": _two_hosts(cards_per_host=1), "compute": "free", "echo": False}
    assert max(simulate(_inside_and_between, 4, (True,), **options)) == pytest.approx(2e-3)


def _messages(rank, world_size):
    """Rank 0 sends to its neighbour and to the other host at once."""
    if rank == 0:
        for work in [dist.isend(torch.ones(25_000), 1), dist.isend(torch.ones(25_000), 2)]:
            work.wait()
    elif rank < 3:
        dist.recv(torch.empty(25_000), 0)


def test_messages_to_a_neighbour_and_to_another_host_leave_at_once():
    run = simulate(_messages, 4, cluster=_two_hosts(), compute="free", echo=False)
    assert sorted({event.end_s for event in run.trace}) == pytest.approx([1e-4, 1e-3])


def _algorithm(name, ranks, n_bytes):
    cluster = Cluster.named(name)
    return price(Layout.of(cluster, tuple(ranks)), "all_reduce", n_bytes, 4).algorithm


def test_short_all_reduces_between_hosts_take_the_tree_and_long_ones_the_ring():
    assert _algorithm("h100x64", range(64), 4096) == "tree"
    assert _algorithm("h100x64", range(64), 2**30) == "ring"
    assert {_algorithm("h100x8", range(8), 2**i) for i in range(12, 31)} == {"ring"}


def test_an_all_reduce_goes_by_hosts_where_that_is_fastest():
    slow = replace(Cluster.named("h100x64"), cards_per_host=1, inside=Network(1e-6, 450e9), between=Network(1e-4, 1e9))
    layout = Layout.of(slow, tuple(range(64)))
    assert "hierarchical" in {price(layout, "all_reduce", 2**i, 4).algorithm for i in range(10, 31)}


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce", "barrier"])
def test_more_bytes_or_slower_cards_never_make_a_collective_faster(kind):
    cluster = Cluster.named("h100x16")
    slower = replace(cluster, between=replace(cluster.between, bandwidth_Bps=1e9))
    everybody = tuple(range(16))
    seconds = [price(Layout.of(c, everybody), kind, 2**i, 4).seconds for c in (cluster, slower) for i in range(6, 28)]
    assert seconds[:22] == sorted(seconds[:22])
    assert all(a <= b for a, b in zip(seconds[:22], seconds[22:]))


def test_a_tensor_parallel_group_across_hosts_is_slower_than_inside_one():
    cluster = Cluster.named("h100x16")
    inside, across = tuple(range(8)), (*range(4), *range(8, 12))
    times_s = [price(Layout.of(cluster, ranks), "all_reduce", 64 * MiB, 2).seconds for ranks in (inside, across)]
    assert times_s[0] < times_s[1]


def _values(rank, world_size):
    tensor = torch.arange(5.0) + rank
    dist.all_reduce(tensor)
    parts = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    out, mine = torch.empty(1), torch.arange(float(world_size))
    dist.reduce_scatter_tensor(out, mine)
    dist.all_to_all_single(shuffled := torch.empty(world_size), mine + 10 * rank)
    return tensor.tolist(), torch.cat(parts).tolist(), out.item(), shuffled.tolist()


def test_values_do_not_depend_on_the_cluster():
    on_cluster = simulate(_values, 16, cluster="h100x16", compute="free", echo=False)
    on_network = simulate(_values, 16, compute="free", echo=False)
    assert on_cluster.results == on_network.results
    assert on_cluster.seconds < on_network.seconds
    assert [on_cluster.trace.bytes_sent(r) for r in range(16)] == [on_network.trace.bytes_sent(r) for r in range(16)]
