"""Stores that a program makes, meets in and prefixes, and default groups that come and go."""

from __future__ import annotations

import gc
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hw_utils import launch, simulate

LONG_AGO = timedelta(milliseconds=20)


def in_a_prefix_of_the_rendezvous(rank: int, world_size: int) -> list:
    """Nobody but the prefix holds the store; the last rank's key is awaited through it."""
    dist.destroy_process_group()
    store, *_ = next(rendezvous("env://", rank, world_size))
    store = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    gc.collect()
    store.set(f"key {rank}", str(rank))
    store.wait([f"key {r}" for r in range(world_size)])
    found = [store.get(f"key {r}") for r in range(world_size)]
    found += [store.check(["key 0", "outer/key 0"]), "key 0" in store.list_keys()]
    store.add("seen", 1)
    while rank == 0 and store.add("seen", 0) < world_size:  # the real server ends with rank 0
        pass
    return found


def through_a_queue(rank: int, world_size: int) -> list:
    """Rank 0 hands out work; whoever is free takes it, and is told when there is none."""
    store = dist.PrefixStore("work", dist.distributed_c10d._get_default_store())
    if rank == 0:
        for k in range(world_size - 1):
            store.queue_push("jobs", str(k))
        return []
    mine = store.queue_pop("jobs")
    store.add("taken", 1)
    while store.add("taken", 0) < world_size - 1:
        pass
    store.set_timeout(LONG_AGO)
    said = []
    for block in (False, True):
        try:
            store.queue_pop("jobs", block)
        except (dist.QueueEmptyError, dist.DistStoreError) as error:
            said.append(type(error).__name__)
    return [int(mine), store.queue_len("jobs"), *said]


def nobody_sets_it(rank: int, world_size: int) -> list[str]:
    store, said = dist.distributed_c10d._get_default_store(), []
    store.set_timeout(LONG_AGO)
    for ask in (store.get, lambda key: store.wait([key]), lambda key: store.wait([key], LONG_AGO)):
        try:
            ask("nobody's key")
        except dist.DistStoreError as error:
            said.append("timeout" in str(error).lower())
    return said


def made_and_counted(rank: int, world_size: int, folder: str) -> list:
    """What stores of each kind say of themselves, of their keys and of one that does not come."""
    found = []
    for store in (
        dist.TCPStore("localhost", 0, 1, is_master=True), dist.TCPStore("localhost", 0, None, is_master=True),
        dist.FileStore(f"{folder}/{rank}", 1), dist.HashStore(),
    ):  # fmt: skip
        inner = dist.PrefixStore("inner", store)
        inner.set("a", "1")
        store.set("b", "2")
        found += [store.num_keys(), inner.num_keys(), store.delete_key("b"), store.num_keys(), store.check(["inner/a"])]
        if not hasattr(dist, "_StoreCollectives"):  # from torch 2.15 on
            continue
        try:
            dist._StoreCollectives(store, 1, 2).barrier("here", LONG_AGO, True)  # C++ code waits, for rank 0
        except RuntimeError as error:
            found += [str(error).split(", ")[0], "ait timeout" in str(error)]
    server = dist.TCPStore("localhost", 0, 3, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("localhost", server.port, 3)  # only a server waits for the others
    client.set("from", "a client")
    found.append(server.get("from"))
    for wrong in (lambda: dist.TCPStore("localhost", 0, 0), lambda: dist.PrefixStore("of none", None)):
        try:
            wrong()
        except ValueError:
            found.append("refused")
    try:
        dist.TCPStore("localhost", 0, 2, is_master=True, timeout=timedelta(seconds=1))
    except dist.DistStoreError as error:
        found.append(str(error))
    return found


def a_group_of_torchs_own_between(rank: int, world_size: int, path: str) -> list[str]:
    """C++ code forgets the name of a group that is destroyed: the next may have it."""
    dist.destroy_process_group()
    names = []
    for nth, backend in enumerate(("fake", "gloo", "fake")):
        dist.init_process_group(
            backend, store=dist.FileStore(f"{path}-{nth}", world_size), rank=rank, world_size=world_size
        )
        names.append(dist.get_backend())
        dist.destroy_process_group()
    return names


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_prefix_is_all_that_holds_a_store(engine):
    run = engine(in_a_prefix_of_the_rendezvous, 3, echo=False)
    assert run.results == [[b"0", b"1", b"2", False, True]] * 3


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_key_that_does_not_come_is_an_error_of_the_store(engine):
    assert engine(nobody_sets_it, 2, echo=False).results == [[True] * 3] * 2


def test_stores_count_their_keys_and_give_up_like_torchs(tmp_path):
    real, virtual = (engine(made_and_counted, 2, (str(tmp_path),), echo=False).results for engine in (launch, simulate))
    assert [result[:-1] for result in real] == [result[:-1] for result in virtual]
    assert all("1/2 clients joined" in result[-1] for result in real + virtual)


def of_files_and_ports(rank: int, world_size: int, folder: str) -> list:
    found: list = []
    if rank:
        return found
    one, other = (dist.FileStore(f"{folder}/store", 1) for _ in range(2))
    one.set("key", "value")
    del one
    found.append(other.check(["key"]))
    del other  # the last handle: the file is gone
    found.append(dist.FileStore(f"{folder}/store", 1).check(["key"]))
    server = dist.TCPStore("localhost", 0, 1, True)
    for is_shared in (False, True):
        with pytest.raises(dist.DistNetworkError, match=f"failed to listen on any local .*{server.port}"):
            dist.TCPStore("localhost", server.port, 1, True, multi_tenant=is_shared)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False)
    server.set("key", "value")
    found.append(client.get("key"))
    with pytest.raises(dist.DistNetworkError, match=r"client socket has timed out after 20ms .*localhost, 1"):
        dist.TCPStore("localhost", 1, is_master=False, timeout=LONG_AGO)
    return found


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_store_lives_as_long_as_its_handles_and_its_port_is_taken(engine, tmp_path):
    found = engine(of_files_and_ports, 2, (str(tmp_path),), echo=False).results[0]
    assert found == [True, False, b"value"]


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_store_that_a_cell_knows_by_a_name_of_its_own_is_one_of_the_run(engine):
    from torch.distributed import PrefixStore, TCPStore

    def worker(rank, world_size):
        shared = dist.distributed_c10d._get_default_store()
        if rank == 0:
            store = TCPStore("localhost", 0, world_size, True, wait_for_workers=False)
            shared.set("port", str(store.port))
        else:
            store = TCPStore("localhost", int(shared.get("port")), world_size, wait_for_workers=False)
        PrefixStore("of", store).set(str(rank), str(10 * rank))
        found = [PrefixStore("of", store).get(str(r)) for r in range(world_size)]
        dist.barrier()  # the real server ends with rank 0
        return found, isinstance(store, dist.TCPStore)

    assert engine(worker, 3, echo=False, timeout_s=30).results == [([b"0", b"10", b"20"], True)] * 3


@pytest.mark.parametrize("size", [3, 5])
def test_a_queue_gives_each_value_to_one_rank(size):
    run = simulate(through_a_queue, size, echo=False)
    assert sorted(result[0] for result in run.results[1:]) == list(range(size - 1))
    assert [result[1:] for result in run.results[1:]] == [[0, "QueueEmptyError", "DistStoreError"]] * (size - 1)


def test_groups_of_torchs_own_come_and_go(tmp_path):
    run = simulate(a_group_of_torchs_own_between, 2, args=(str(tmp_path / "store"),), echo=False)
    assert run.results == [["fake", "gloo", "fake"]] * 2


def set_and_get(rank: int, world_size: int) -> tuple[bytes, bytes, int]:
    store = dist.distributed_c10d._get_default_store()
    if rank == world_size - 1:
        store.set("key", "value")
    if rank == 0:
        own = dist.TCPStore("localhost", 0, world_size, is_master=True, wait_for_workers=False)
        store.set("port", str(own.port))
    else:
        own = dist.TCPStore("localhost", int(store.get("port")), world_size, wait_for_workers=False)
    alone = dist.TCPStore("localhost", 0, 1, is_master=True)  # of this rank, whatever the others make
    alone.set("n", "none of theirs")
    own.add("n", rank)
    own.barrier("added", world_size)
    return store.get("key"), own.get("n"), own.add("n", 0)


def test_a_get_lets_others_set():
    assert simulate(set_and_get, 3, compute="free", echo=False).results == [(b"value", b"3", 3)] * 3


def meets(rank: int, world_size: int) -> tuple[bytes, float]:
    dist.destroy_process_group()
    store, own, n = next(dist.rendezvous("env://", rank=rank, world_size=world_size))
    store.set(f"of {own}", f"{own} of {n}")
    dist.init_process_group("gloo", store=dist.PrefixStore("mine", store), rank=own, world_size=n)
    total = torch.ones(1)
    dist.all_reduce(total)
    return store.get(f"of {(rank + 1) % n}"), total.item()


def test_ranks_that_rendezvous_themselves_meet():
    assert simulate(meets, 2, compute="free", echo=False, timeout_s=30).results == [(b"1 of 2", 2.0), (b"0 of 2", 2.0)]


def late(rank: int, world_size: int) -> str:
    if rank == 1:
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=2))
    except RuntimeError as error:
        return str(error)
    return "nobody was late"


def test_a_monitored_barrier_names_who_is_late():
    run = simulate(late, 3, compute="free", echo=False)
    assert run[0] == "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"
    assert "please check rank 0" in run[2].lower()
    assert run.seconds == 2.0


def destroyed(rank: int, world_size: int) -> tuple[bool, float]:
    dist.init_process_group("gloo")
    dist.destroy_process_group()
    was_there = dist.is_initialized()
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    x = torch.ones(1)
    dist.all_reduce(x)
    return was_there, x.item()


def test_the_default_group_is_taken_over_destroyed_and_made_again():
    assert simulate(destroyed, 3, compute="free", echo=False).results == [(False, 3.0)] * 3


def meets_under_a_groups_name(rank: int, world_size: int) -> list:
    """Keys that members share are made of their group's name, as torch and other packages make them."""
    others = dist.new_group([0, 1, 2])  # were rank 0 not in it, torch itself would give the next one two names
    some = dist.new_group([0, 2], use_local_synchronization=True) if rank != 1 else None
    store, found = dist.distributed_c10d._get_default_store(), []
    for group in (dist.group.WORLD, some, others):
        if group is not None and (place := dist.get_rank(group)) >= 0:
            key = f"who is in {group.group_name}"
            if place == 0:
                store.set(key, f"{dist.get_process_group_ranks(group)}")
            found += [group.group_name, store.get(key)]
    return found


def test_a_group_has_one_name_on_all_its_members():
    virtual = simulate(meets_under_a_groups_name, 3, echo=False, timeout_s=60)
    assert virtual.results == launch(meets_under_a_groups_name, 3, echo=False).results
    assert virtual[1] == ["0", b"[0, 1, 2]", "1", b"[0, 1, 2]"]


def counts_groups(rank: int, world_size: int) -> int:
    if rank == 0:
        dist.new_group([0], use_local_synchronization=True)
    dist.new_group([1])
    return dist.get_pg_count()


def test_groups_are_counted_as_torch_counts_them():
    assert simulate(counts_groups, 2, echo=False).results == launch(counts_groups, 2, echo=False).results
