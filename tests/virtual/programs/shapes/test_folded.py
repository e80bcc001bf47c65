"""A folded run, where one rank stands for all that do the same, is the unfolded run to the last digit and byte."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hw_utils import Cluster, Fold, WorkerFailed, simulate
from hw_utils.commands.run_statistics import statistics
from hw_utils.virtual.engine import Engine
from tests.virtual.programs.shapes import gpt
from tests.virtual.programs.shapes.megatron import Shape
from tests.virtual.programs.shapes.test_equal_to_values import books

CLUSTER = Cluster.named("a100x8")
TWO_HOSTS = replace(CLUSTER, n_hosts=2, devices_per_host=4, cards_per_host=4)


def on(cluster, worker, *args, fold=None, n=8, compute="device"):
    return simulate(
        worker, n, args, cluster=cluster, compute=compute, values="shapes", memory=True, echo=False, isolate=False,
        fold=fold,
    )  # fmt: skip


def calls(found) -> list[tuple]:
    """Every call of every rank, whatever its group's number is."""
    return sorted(
        (e.rank, e.order, e.op, e.peer, e.n_bytes, e.start_s, e.end_s, e.line, e.group and tuple(e.group), e.waited,
         e.wait_start_s, e.wait_end_s, e.sent_bytes, e.sent_messages, e.rounds)
        for rank in range(len(found)) for e in found.trace.of_rank(rank)
    )  # fmt: skip


def who_communicated(found) -> set[frozenset]:
    sides: dict[int, set] = {}
    for row in found.trace.records:
        sides.setdefault(int(row["message"]), set()).add((int(row["rank"]), int(row["order"])))
    return set(map(frozenset, sides.values()))


def spans(found) -> list[tuple]:
    return sorted(map(tuple, found.trace.streams.tolist()))


def assert_equal(folded, whole, cluster: Cluster) -> None:
    assert folded.seconds == whole.seconds
    assert calls(folded) == calls(whole)
    assert who_communicated(folded) == who_communicated(whole)
    assert spans(folded) == spans(whole)
    assert statistics(folded, cluster) == statistics(whole, cluster)
    assert folded.summary() == whole.summary()
    assert folded.trace.calls == whole.trace.calls
    for rank in range(len(whole)):
        assert books(folded, rank) == books(whole, rank)


PLAN = gpt.Plan(Shape(16, 4, 1, 2, length=8), vocabulary=32, mesh=(2, 2, 2), micro_batches=3)


@pytest.mark.parametrize("cluster", [CLUSTER, TWO_HOSTS], ids=["one host", "two hosts"])
def test_stages_times_replicas_times_shards_are_run_a_stage_each(cluster):
    folded = on(cluster, gpt.train, PLAN, fold=Fold(PLAN.by_axis, ("dp", "tp")))
    whole = on(cluster, gpt.train, PLAN)
    assert folded.results == whole.results
    assert_equal(folded, whole, cluster)


def test_one_axis_may_be_folded_and_the_others_run():
    folded = on(TWO_HOSTS, gpt.train, replace(PLAN, micro_batches=1), fold=Fold(PLAN.by_axis, ("tp",)))
    assert_equal(folded, on(TWO_HOSTS, gpt.train, replace(PLAN, micro_batches=1)), TWO_HOSTS)


def sharded(rank: int, world_size: int) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=init_device_mesh("cuda", (world_size,)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_fully_sharded_ranks_are_one_class():
    folded = on(TWO_HOSTS, sharded, fold="all")
    assert_equal(folded, on(TWO_HOSTS, sharded), TWO_HOSTS)


def unequal_shards(rank: int, world_size: int) -> None:
    model = nn.Linear(16, 13)
    fully_shard(model, mesh=init_device_mesh("cuda", (world_size,)))
    model(torch.randn(4, 16)).sum().backward()
    torch.optim.SGD(model.parameters()).step()


def test_parameters_whose_shards_are_not_equal_are_named():
    with pytest.warns(UserWarning, match=r"got a parameter of shape \(13, 16\) over 8 of them, and 1 more"):
        on(CLUSTER, unequal_shards, fold="all")


IN_PAIRS = Fold({"pp": 4, "tp": 2}, ("tp",))


def sums_beside_messages(rank: int, world_size: int, n_sums: int) -> None:
    """Four stages of two ranks; each sends to the next stage, and has asked for what it gets long before it comes."""
    mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("pp", "tp"))
    x, got = torch.randn(100_000), torch.empty(100_000)
    received = dist.irecv(got, rank - 2) if rank > 1 else None
    for _ in range(n_sums):
        dist.all_reduce(x, group=mesh.get_group("tp"))
        x @ torch.randn(100_000, 100 * (1 + rank // 2))  # later stages take longer
    if rank + 2 < world_size:
        dist.send(x, rank + 2)
    if received is not None:
        received.wait()
    for _ in range(n_sums):
        dist.all_reduce(got, group=mesh.get_group("tp"))


@pytest.mark.parametrize("cluster", [CLUSTER, TWO_HOSTS], ids=["one host", "two hosts"])
def test_a_class_that_goes_ahead_takes_no_port_from_a_message_that_it_waits_for(cluster):
    folded, whole = (on(cluster, sums_beside_messages, 10, fold=fold) for fold in (IN_PAIRS, None))
    assert_equal(folded, whole, cluster)


def test_what_a_class_does_by_itself_takes_no_turns(monkeypatch):
    turns, original = [], Engine.let_the_past_run
    monkeypatch.setattr(Engine, "let_the_past_run", lambda engine, rank: (turns.append(rank), original(engine, rank)))
    on(CLUSTER, sums_beside_messages, 2, fold=IN_PAIRS)
    few = len(turns)
    on(CLUSTER, sums_beside_messages, 40, fold=IN_PAIRS)
    assert len(turns) - few < 2 * 4 * 40


def uneven(rank: int, world_size: int) -> None:
    dist.all_reduce(torch.randn(10))
    everybody = [torch.empty(3) for _ in range(world_size)]
    dist.all_gather(everybody, torch.randn(3))
    dist.barrier()


def test_a_ring_of_uneven_pieces_sends_on_each_rank_what_it_sends_unfolded():
    folded, whole = (on(CLUSTER, uneven, fold=fold, compute="free") for fold in ("all", None))
    sent = [folded.trace.bytes_sent(rank) for rank in range(8)]
    assert len(set(sent)) > 1
    assert sent == [whole.trace.bytes_sent(rank) for rank in range(8)]
    assert_equal(folded, whole, CLUSTER)


def rooted(rank: int, world_size: int) -> float:
    x = torch.randn(1000)
    dist.broadcast(x, 0)
    dist.scatter(x, [torch.randn(1000) for _ in range(world_size)] if rank == 0 else None, 0)
    dist.gather(x, [torch.empty(1000) for _ in range(world_size)] if rank == 0 else None, 0)
    dist.all_reduce(x)
    return time.perf_counter()


@pytest.mark.parametrize("cluster", [CLUSTER, TWO_HOSTS], ids=["one host", "two hosts"])
def test_after_a_broadcast_ranks_are_equal_again_once_they_all_meet(cluster):
    folded, whole = (on(cluster, rooted, fold=fold, compute="free") for fold in ("all", None))
    assert folded.results == whole.results
    assert [folded.trace.bytes_sent(r) for r in range(8)] == [whole.trace.bytes_sent(r) for r in range(8)]


def values(rank: int, world_size: int):
    x = torch.tensor([2.0])
    dist.all_reduce(x)
    mine, parts = torch.arange(8), torch.empty(1, dtype=torch.int64)
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(parts, mine)
    names = [None] * world_size
    dist.all_gather_object(names, "rank")
    told = [3] if rank == 0 else [None]
    dist.broadcast_object_list(told, 0)
    return x.item(), parts.item(), names, told, dist.get_rank(), dist.get_world_size()


def test_numbers_that_have_values_are_summed_over_all():
    assert on(CLUSTER, values, fold="all")[7] == (16.0, 0, ["rank"] * 8, [3], 0, 8)


def ring_of_messages(rank: int, world_size: int) -> None:
    sent = dist.isend(torch.randn(4), (rank + 1) % world_size)
    dist.recv(torch.empty(4), (rank - 1) % world_size)
    sent.wait()


def from_anybody(rank: int, world_size: int) -> None:
    dist.recv(torch.empty(4))


def pairs(rank: int, world_size: int) -> None:
    groups = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    dist.all_reduce(torch.randn(4), group=groups[rank // 2])


def unequal_parts(rank: int, world_size: int) -> None:
    sizes = [1 + place for place in range(world_size)]
    dist.all_to_all_single(
        torch.empty((1 + rank) * world_size), torch.randn(sum(sizes)), [1 + rank] * world_size, sizes
    )


@pytest.mark.parametrize(
    ("worker", "what", "next_step"),
    [
        (ring_of_messages, "got one from rank 0 to rank 1 in a mesh all=8", "leave the axis"),
        (from_anybody, "got a receive from anybody", "name the sender"),
        (pairs, r"got \[0, 1\] in a mesh all=8", "give the mesh an axis for this group"),
        (unequal_parts, "take equal parts, got all_to_all_single", "leave this group's axis unfolded"),
    ],
)
def test_what_ranks_of_one_class_cannot_all_do_is_refused_with_the_next_step(worker, what: str, next_step: str):
    with pytest.raises(WorkerFailed, match=f"{what}.*{next_step}"):
        on(CLUSTER, worker, fold="all", compute="free")


def test_pairs_are_fine_where_the_mesh_has_an_axis_for_them():
    fold = Fold({"pair": 4, "place": 2}, ("pair", "place"))
    assert_equal(on(TWO_HOSTS, pairs, fold=fold, compute="free"), on(TWO_HOSTS, pairs, compute="free"), TWO_HOSTS)


def by_columns(rank: int, world_size: int) -> None:
    groups = [dist.new_group([place, place + 4]) for place in range(4)]
    dist.all_reduce(torch.randn(4), group=groups[rank % 4])


def test_ranks_that_would_wait_for_each_other_at_a_shared_card_are_refused():
    shared = replace(TWO_HOSTS, cards_per_host=1)
    fold = Fold({"dp": 2, "tp": 4}, ("dp", "tp"))
    with pytest.raises(WorkerFailed, match="share a network card of a100x8"):
        on(shared, by_columns, fold=fold, compute="free")
    with pytest.raises(ValueError, match="must have equal shares of network cards"):
        on(replace(TWO_HOSTS, cards_per_host=2), by_columns, fold=fold, compute="free")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"values": "real"}, 'give values="shapes"'),
        ({"cluster": None}, 'give values="shapes" and cluster='),
        ({"fold": Fold({"dp": 4}, ("dp",))}, "the mesh must have 8 ranks, got 4"),
        ({"fold": "some"}, "fold must be a Fold, .* got 'some'"),
    ],
)
def test_a_fold_that_does_not_fit_is_told_before_anything_runs(options: dict, what: str):
    given = {"cluster": CLUSTER, "compute": "free", "values": "shapes", "fold": "all", **options}
    with pytest.raises(ValueError, match=what):
        simulate(uneven, 8, **given)


def test_a_mesh_knows_its_axes():
    with pytest.raises(ValueError, match="axes must be some of the mesh's, dp, got tp"):
        Fold({"dp": 4}, ("tp",))
    with pytest.raises(ValueError, match="at least 1, got dp=0"):
        Fold({"dp": 0}, ())


def waits_for_ever(rank: int, world_size: int) -> None:
    dist.recv(torch.empty(4), 4 if rank == 0 else 0)


def test_a_deadlock_names_the_ranks_that_run():
    with pytest.raises(WorkerFailed, match=r"rank 0.*rank 4"):
        on(CLUSTER, waits_for_ever, fold=Fold(PLAN.by_axis, ("dp", "tp")), compute="free")


def test_streams_are_written_out_for_the_ranks_that_did_not_run():
    folded = on(TWO_HOSTS, sharded, fold="all")
    first, last = (folded.trace.of_rank(rank).streams for rank in (0, 7))
    assert np.array_equal(first["end_s"], last["end_s"])
    assert set(last["rank"]) == {7}
