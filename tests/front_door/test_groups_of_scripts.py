"""Groups that scripts make, name, leave and make again, under both engines."""

from __future__ import annotations

import pytest

from hw_utils import WorkerFailed, launch, simulate

both = pytest.mark.parametrize("engine", [launch, simulate], ids=["launch", "simulate"])
REGISTERED = """
from types import SimpleNamespace
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
dist.Backend._plugins["GLOO"] = SimpleNamespace(creator_fn=c10d.is_initialized)  # torch's own, as from 2.14 on
dist.init_process_group("cpu:gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
"""


@both
def test_gloo_stays_ours_where_torch_has_registered_it(engine, tmp_path):
    (script := tmp_path / "registered.py").write_text(REGISTERED)
    run = engine(script, 2, echo=False, timeout_s=30)
    assert run.output == ["2.0\n"] * 2
    assert len(run.trace.of_op("all_reduce")) == 2


BY_HAND = """
import torch.distributed as dist
dist.init_process_group("gloo")
import torch
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
group = dist.ProcessGroupGloo(store, rank, size)
total, first, parts = torch.ones(2) * rank, torch.ones(1) * rank, [torch.zeros(1) for _ in range(size)]
group.allreduce(total).wait()
group.broadcast(first, root=1).wait()
group.allgather([parts], [torch.ones(1) * rank]).wait()
dist.barrier(group=group)
print(total.tolist(), first.item(), [p.item() for p in parts], group.rank(), group.size())
"""


@both
def test_a_group_made_by_hand_is_one_more(engine, tmp_path):
    (script := tmp_path / "by_hand.py").write_text(BY_HAND)
    run = engine(script, 3, echo=False)
    assert run.output == [f"[3.0, 3.0] 1.0 [0.0, 1.0, 2.0] {rank} 3\n" for rank in range(3)]


def again(rank, world_size):
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    total = torch.ones(1)
    dist.all_reduce(total)
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        half = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(total, group=half)
        dist.all_reduce(total)
    return total.item()


@both
def test_a_function_may_join_leave_and_join_again(engine):
    assert engine(again, 3, echo=False).results == engine(again, 3, echo=False).results == [75.0] * 3


def twice(rank, world_size):
    import torch.distributed as dist

    dist.init_process_group()
    dist.init_process_group()


def as_another(rank, world_size):
    import torch.distributed as dist

    dist.init_process_group(rank=0, world_size=1)


@both
@pytest.mark.parametrize(("worker", "message"), [(twice, "twice"), (as_another, "the ranks of a run are fixed")])
def test_a_second_group_of_all_or_one_of_other_ranks_is_refused(engine, worker, message):
    with pytest.raises(WorkerFailed, match=message):
        engine(worker, 2, echo=False)


NAMED = """\
import torch.distributed as dist
for options in {}, {"backend": "gloo"}, {"backend": "cpu:gloo"}:
    dist.init_process_group(**options)
    world, pair, all_again = dist.group.WORLD, dist.new_group([0, 1]), dist.new_group(backend="gloo")
    names = [group.group_name for group in (world, pair, all_again)]
    backends = [dist.get_backend(group) for group in (world, pair, all_again)]
    print(*backends, dist.get_backend_config(world), *names, world.group_desc, dist.get_process_group_ranks(pair))
    dist.all_reduce(dist.distributed_c10d.torch.ones(1), group=pair)
    dist.destroy_process_group()
"""


@both
def test_backends_and_groups_have_the_names_that_gloo_gives_them_each_time_they_are_made(engine, tmp_path):
    (tmp_path / "named.py").write_text(NAMED)
    assert engine(tmp_path / "named.py", 2, echo=False).output == 2 * [
        "undefined undefined gloo cpu:gloo 0 1 2 default_pg [0, 1]\n"
        "gloo gloo gloo cpu:gloo,cuda:gloo 0 1 2 default_pg [0, 1]\n"
        "cpu:gloo cpu:gloo gloo cpu:gloo 0 1 2 default_pg [0, 1]\n"
    ]


GROWS = """\
import os, torch, torch.distributed as dist
rank, files = int(os.environ["RANK"]), f"file://{os.getcwd()}/"

def world(name, ranks):
    if rank not in ranks:
        return
    dist.init_process_group("gloo", init_method=files + name, rank=ranks.index(rank), world_size=len(ranks))
    for group in dist.group.WORLD, dist.new_group([0, 1]), dist.new_group():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            total = torch.tensor([10.0**rank])
            dist.all_reduce(total, group=group)
            print(name, group.group_name, dist.get_process_group_ranks(group), int(total))
    dist.destroy_process_group()

world("three", [2, 1, 0])
world("two", [0, 1])
world("all", [0, 1, 2, 3])
"""


@both
def test_worlds_that_shrink_and_grow_have_groups_of_their_own(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grows.py").write_text(GROWS)
    three = ["three 0 [0, 1, 2] 111", "three 1 [0, 1] 110", "three 2 [0, 1, 2] 111"]
    two = ["two 0 [0, 1] 11", "two 1 [0, 1] 11", "two 2 [0, 1] 11"]
    four = ["all 0 [0, 1, 2, 3] 1111", "all 1 [0, 1] 11", "all 2 [0, 1, 2, 3] 1111"]
    assert [text.splitlines() for text in engine(tmp_path / "grows.py", 4, echo=False).output] == [
        [*three[::2], *two, *four],
        [*three, *two, *four],
        [*three, *four[::2]],
        four[::2],
    ]


GIVES_UP = """\
import torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=1.5))
rank, pair = dist.get_rank(), dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
calls = {
    0: lambda: dist.recv(torch.ones(1), 1, group=pair),
    1: lambda: dist.recv(torch.ones(1)),
    2: lambda: dist.irecv(torch.ones(1), 0).wait(),
    3: lambda: dist.isend(torch.ones(1), 0).wait(timedelta(seconds=0.5)),
}
try:
    calls[rank]()
except RuntimeError:
    print("gave up")
"""


@both
def test_a_message_that_does_not_come_in_its_groups_time_is_given_up_and_the_program_goes_on(engine, tmp_path):
    (tmp_path / "gives_up.py").write_text(GIVES_UP)
    assert engine(tmp_path / "gives_up.py", 4, echo=False).output == ["gave up\n"] * 4
