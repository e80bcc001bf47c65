"""Groups whose members compare what they call, as torch has it at the debug level DETAIL: alike on both engines."""

from __future__ import annotations

import re
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils import Deadlock, launch, simulate

both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])

UNLIKE = {
    "operation": lambda group, rank, x: group.allreduce([x]) if rank else group.reduce([x], dist.ReduceOptions()),
    "shape": lambda group, rank, x: group.allreduce([torch.ones(3, rank + 1)]),
    "dtype": lambda group, rank, x: group.allgather([[x, x]], [x.double() if rank else x]),
}


def what_is_said(group, rank: int) -> list[str]:
    said = []
    for call in UNLIKE.values():
        with pytest.raises(RuntimeError) as error:
            call(group, rank, torch.ones(3, 2))
        said.append(str(error.value))
    return said


def by_hand(rank, world_size):
    """Around a group of its own, as a program may put torch's wrapper around any."""
    store = dist.PrefixStore("mine", c10d._get_default_store())
    group = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=60))
    group = c10d._create_process_group_wrapper(group, "mine", store, rank, world_size)
    said, x = what_is_said(group, rank), torch.ones(2)
    group.allreduce([x]).wait()
    return said, x.tolist()


def in_threads() -> list[list[str]]:
    """Torch's own words, of two of its wrappers in one process."""
    store, said = dist.HashStore(), [[], []]

    def run(rank: int) -> None:
        own, helper = (dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2) for name in ("own", "helper"))
        said[rank] = what_is_said(c10d._ProcessGroupWrapper(own, helper), rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_a_wrapper_made_by_hand_tells_every_rank_in_torchs_words_and_lets_the_group_go_on():
    real, virtual = launch(by_hand, 2, echo=False).results, simulate(by_hand, 2, echo=False).results
    assert real == virtual
    assert [x for _, x in real] == [[2.0, 2.0]] * 2
    devices, places = r"TensorOptions\(.*?device=cpu.*?\)\)\)", r" at test_compared_calls.py, line \d+"
    torchs = [[re.sub(devices, "cpu)", text) for text in texts] for texts in in_threads()]
    assert [[re.sub(places, "", text) for text in texts] for texts, _ in real] == torchs


def at_the_level(rank, world_size, what):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(timeout=timedelta(seconds=0.3) if what == "late" else None)
    x = torch.ones(2) + rank
    if what == "alike":
        dist.all_reduce(x, group=group)
        dist.broadcast_object_list([rank], src=1, group=group)
        return x.tolist()
    if rank == 1:
        return ""
    try:
        dist.all_reduce(x, group=group)
    except RuntimeError as error:
        return str(error)


@both
def test_at_the_debug_level_detail_every_group_compares_and_the_ledger_is_as_without(engine):
    run = engine(at_the_level, 3, ("alike",), echo=False)
    assert run.results == [[6.0, 6.0]] * 3
    assert [event.op for event in run.trace if event.rank == 0] == ["all_reduce", "broadcast_object_list"]


@both
def test_who_waits_longer_than_the_groups_time_hears_from_rank_0_who_is_late(engine):
    said = engine(at_the_level, 3, ("late",), echo=False).results
    assert "Ranks 1 failed to pass monitoredBarrier in 300 ms" in said[0]
    assert "OpType=ALLREDUCE, TensorShape=[2]" in said[0]
    assert "check rank 0 logs" in said[2]


@both
def test_who_would_wait_for_ever_is_a_row_of_the_table(engine):
    with pytest.raises(Deadlock) as error:
        engine(at_the_level, 3, ("without a time",), echo=False)
    assert [(row.rank, row.op) for row in error.value.table.rows] == [(0, "all_reduce"), (2, "all_reduce")]


def one_asks_for_detail(rank, world_size):
    """Under simulate rank 0 is the first to run: the others' groups of all ranks are made after its change."""
    if rank == 0:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    x = torch.ones(2)
    dist.all_reduce(x)
    return x.tolist(), dist.get_debug_level().name


@both
def test_a_level_that_one_rank_sets_is_no_other_ranks(engine):
    run = engine(one_asks_for_detail, 3, echo=False)
    assert run.results == [([3.0, 3.0], level) for level in ("DETAIL", "OFF", "OFF")]
