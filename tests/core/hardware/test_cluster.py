"""A cluster as data: presets by name, what does not fit together, and simulations on one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from hw_utils import Cluster, Network, simulate
from hw_utils.core.hardware.datasheets import A100, ETHERNET_1, INFINIBAND_400, NVLINK_4, PRESETS


def test_a_preset_has_full_hosts_with_the_links_of_its_machines():
    cluster = Cluster.named("h100x64")
    assert (cluster.world_size, cluster.n_hosts, cluster.devices_per_host) == (64, 8, 8)
    assert (cluster.inside, cluster.between) == (NVLINK_4, INFINIBAND_400)
    assert cluster.device.memory_bytes == 81_559 * 2**20


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_one_device_if_its_name_says_no_number(name):
    assert Cluster.named(name).world_size == 1


@pytest.mark.parametrize("name", ["h100 x 64", "h900x8", "x8", "", "h100x", "H100x8"])
def test_an_unknown_name_is_answered_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"a100, h100, h200, laptop.*\"h100x64\""):
        Cluster.named(name)


def test_a_host_that_would_not_be_full_is_refused():
    with pytest.raises(ValueError, match=r"hosts of 8 devices are full.*got 12"):
        Cluster.named("h100x12")


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ValueError, match="a100x8 has 8 devices, one a rank, got 9 ranks"):
        simulate(print, 9, cluster="a100x8")


def test_a_network_beside_a_cluster_is_refused():
    with pytest.raises(ValueError, match="network= or cluster=, not both"):
        simulate(print, 2, cluster="a100x8", network=Network(0, 1e9))


def test_a_cluster_that_is_none_is_refused():
    with pytest.raises(ValueError, match="must be a Cluster or the name of a preset"):
        simulate(print, 2, cluster=8)


def test_cards_are_shared_evenly_among_the_devices_of_a_host():
    cluster = replace(Cluster.named("h100x16"), cards_per_host=2)
    assert [cluster.card_of(rank) for rank in range(16)] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_more_cards_than_devices_are_refused():
    with pytest.raises(ValueError, match="cards_per_host must be at most devices_per_host, 1"):
        replace(Cluster.named("laptopx2"), cards_per_host=2)


def test_a_link_with_two_levels_is_no_link_of_a_cluster():
    two_level = Network.two_level(2, NVLINK_4, ETHERNET_1)
    with pytest.raises(ValueError, match="one link each"):
        replace(Cluster.named("laptopx2"), between=two_level)


def test_an_operation_takes_the_larger_of_its_work_and_its_bytes():
    assert A100.operation_s(271e12, 0, "bfloat16") == pytest.approx(1.0)
    assert A100.operation_s(1, 2.039e12, "bfloat16") == pytest.approx(1.0)
    assert A100.operation_s(1e12, 0, "int64") == A100.operation_s(1e12, 0, "float32")


def test_a_device_that_achieves_more_than_its_peak_is_refused():
    with pytest.raises(ValueError, match="at most its peak"):
        replace(A100, achieved_FLOPps={"float32": 1e15})
    with pytest.raises(ValueError, match="needs at least float32"):
        replace(A100, achieved_FLOPps={})


def _to_the_next_and_the_other_host(rank, world_size):
    tensor = torch.zeros(1000)  # 4,000 bytes
    for peer in (1, 8):
        if rank == 0:
            dist.send(tensor, peer)
        elif rank == peer:
            dist.recv(tensor, 0)


def test_a_message_inside_a_host_takes_another_link_than_one_between_hosts():
    run = simulate(_to_the_next_and_the_other_host, 9, cluster="h100x16", compute="free", echo=False)
    inside_s, between_s = NVLINK_4.message_s(4000), INFINIBAND_400.message_s(4000)
    ends_s = [event.end_s for event in run.trace if event.is_send]
    assert ends_s == pytest.approx([inside_s, inside_s + between_s], rel=1e-12)
