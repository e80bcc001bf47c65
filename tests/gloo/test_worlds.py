"""Default groups that a program makes itself: of some of the ranks, in another order, with a store and a timeout."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils import WorkerFailed, launch, simulate

both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])


def in_two_worlds(rank, world_size, folder):
    """Odd ranks and even ones, each numbered from behind; then all of them."""
    rounds = []
    own, size = (world_size - 1 - rank) // 2, world_size // 2
    dist.init_process_group("gloo", init_method=f"file://{folder}/{rank % 2}", rank=own, world_size=size)
    assert (dist.get_rank(), dist.get_world_size()) == (own, size)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    rounds.append(total.item())
    if own == 0:
        dist.send(total + rank, 1)
    elif own == 1:
        rounds.append((dist.recv(total), total.item()))
    of_two = dist.new_group([0, size - 1])
    told = [None, None]
    if own in (0, size - 1):
        dist.all_gather_object(told, rank, group=of_two)
        dist.broadcast(total.fill_(rank), src=size - 1, group=of_two)
        rounds.append((told, total.item()))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.all_reduce(total.fill_(1))
    return [*rounds, dist.get_rank(), total.item()]


def test_ranks_that_meet_by_themselves_are_a_world_with_its_own_numbers(tmp_path):
    runs = []
    for engine in (launch, simulate):
        (folder := tmp_path / engine.__name__).mkdir()
        runs.append(engine(in_two_worlds, 6, (str(folder),), echo=False))
    real, virtual = runs
    assert real.results == virtual.results
    assert real[4] == [6.0, ([4, 0], 0.0), 4, 6.0]
    assert real[3] == [9.0, (0, 14.0), 3, 6.0]
    assert [real.trace.bytes_sent(r) for r in range(6)] == [virtual.trace.bytes_sent(r) for r in range(6)]


def of_too_many(rank, world_size, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size + 1)


@both
def test_a_world_of_more_ranks_than_there_are_is_refused(engine, tmp_path):
    with pytest.raises(WorkerFailed, match=r"world_size=3.* the ranks of a run are fixed"):
        engine(of_too_many, 2, (str(tmp_path),), echo=False)


def with_a_store(rank, world_size, init_method):
    dist.init_process_group("gloo", init_method=init_method, timeout=timedelta(seconds=0.3))
    store = below = c10d._get_default_store()
    while isinstance(below, dist.PrefixStore):
        below = below.underlying_store
    store.append("ranks", str(rank))
    dist.barrier()
    with pytest.raises(dist.DistStoreError):
        store.get("nobody sets it")
    late = ""
    if rank == 0:
        with pytest.raises(RuntimeError) as error:
            dist.all_reduce(torch.ones(1))
        late = str(error.value)
    return isinstance(below, dist.TCPStore) and below.libuvBackend, sorted(store.get("ranks")), late


@both
@pytest.mark.parametrize(("init_method", "is_uv"), [("tcp://10.0.0.1:2950?use_libuv=0", False), (None, True)])
def test_the_default_groups_store_and_timeout_are_those_asked_for_wherever_it_would_meet(engine, init_method, is_uv):
    results = engine(with_a_store, 2, (init_method,), echo=False).results
    assert [result[:2] for result in results] == [(is_uv, [ord("0"), ord("1")])] * 2
    assert "Timed out waiting 300ms" in results[0][2]


def by_hand_twice(rank, world_size):
    """Two groups of the last two ranks; on each of them other collectives."""
    if rank == 0:
        return None
    groups = []
    for name in ("one", "other"):
        store = dist.PrefixStore(name, c10d._get_default_store())
        groups.append(dist.ProcessGroupGloo(store, rank - 1, world_size - 1, timedelta(seconds=60)))
    one, other = groups
    x, y = torch.ones(1) * rank, torch.ones(2) * rank
    one.allreduce([x]).wait()
    other.allreduce([y]).wait()
    if rank == 1:
        one.send([x], 1, 0).wait()
    else:
        one.recv([x], 0, 0).wait()
    other.broadcast(y, root=1).wait()
    return x.item(), y.tolist()


def test_groups_made_by_hand_keep_the_ledger_with_the_runs_ranks():
    real, virtual = launch(by_hand_twice, 3, echo=False), simulate(by_hand_twice, 3, echo=False)
    assert real.results == virtual.results == [None, (3.0, [3.0, 3.0]), (3.0, [3.0, 3.0])]
    ledgers = [sorted((e.op, e.rank, e.peer, e.n_bytes) for e in run.trace) for run in (real, virtual)]
    assert ledgers[0] == ledgers[1]
    assert ("send", 1, 2, 4) in ledgers[0]


def with_many_groups(rank, world_size):
    """More than the board has places for; collectives of different sizes on the last ones."""
    groups = [dist.new_group() for _ in range(70)]
    total = 0.0
    for n, group in enumerate(groups[-8:], 1):
        dist.all_reduce(x := torch.ones(n), group=group)
        total += x.sum().item()
    return total


def test_groups_that_have_no_place_on_the_board_are_not_taken_for_each_other():
    assert launch(with_many_groups, 3, echo=False).results == [3 * 36.0] * 3
