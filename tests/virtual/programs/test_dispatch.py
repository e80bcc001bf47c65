"""What torch's dispatcher adds to a collective, on both engines: modes see it, tensor classes unwrap."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from hw_utils import WorkerFailed, launch, simulate
from tests.virtual.programs.test_sharded import both

WORLD_SIZE = 2


class Names(TorchDispatchMode):
    """Writes down what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function.overloadpacket))
        return function(*args, **(kwargs or {}))


def under_a_mode(rank: int, world_size: int) -> list:
    mine, parts = torch.full((2,), float(rank)), [torch.zeros(2) for _ in range(world_size)]
    whole, piece = torch.zeros(2 * world_size), torch.zeros(1)
    with Names() as names:
        dist.all_reduce(mine)
        work = dist.all_gather(parts, mine, async_op=True)
        work.wait()
        dist.all_gather_into_tensor(whole, mine)
        dist.reduce_scatter_tensor(piece, mine)
        dist.broadcast(mine, 1)
        dist.barrier()
    own = [name for name in names.seen if name.startswith("aten.") and name not in ("aten.split", "aten.copy_")]
    return [mine, parts, whole, piece, [name for name in names.seen if name.startswith("c10d.")], own]


def test_a_mode_sees_the_calls_of_torch_distributed_and_nothing_of_ours():
    real, _ = both(under_a_mode, WORLD_SIZE)
    names = ["allreduce_", "allgather_", "_allgather_base_", "_reduce_scatter_base_", "broadcast_", "barrier"]
    assert real.results[0][-2] == [f"c10d.{name}" for name in names]


def counted(rank: int, world_size: int) -> list:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    with CommDebugMode() as forward:
        loss = model(torch.ones(2, 8) * (rank + 1)).sum()
    with CommDebugMode() as backward:
        loss.backward()
    mesh = init_device_mesh("cpu", (world_size,))
    with CommDebugMode() as spread:
        distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    return [
        loss.detach(),
        *[{str(op): n for op, n in mode.get_comm_counts().items()} for mode in (forward, backward, spread)],
    ]


def test_the_collectives_of_fsdp2_and_of_dtensor_are_counted():
    real, _ = both(counted, WORLD_SIZE)
    assert [sum(counts.values()) for counts in real.results[0][1:]] == [3, 6, 1]


class Pair(torch.Tensor):
    """Two tensors that are one: without memory of its own, as those of quantization are."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Pair:
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def pick(name: str):
            return torch.utils._pytree.tree_map(lambda x: getattr(x, name) if isinstance(x, Pair) else x, args)

        first, second = function(*pick("a"), **(kwargs or {})), function(*pick("b"), **(kwargs or {}))
        return cls(first, second) if isinstance(first, torch.Tensor) else first


def pairs(rank: int, world_size: int) -> list:
    pair = Pair(torch.full((3,), float(rank)), torch.full((3,), 10.0 * rank))
    dist.broadcast(pair, 1)
    return [pair.a]  # of the two works torch gives back this one: the other is not waited for, with bare gloo either


def test_a_tensor_without_memory_is_sent_by_its_parts():
    real = launch(pairs, WORLD_SIZE, echo=False)
    assert real.results[0][0].tolist() == [1.0] * 3
    assert real.trace.bytes_sent(1) == 2 * 3 * 4


class Boxed(torch.Tensor):
    """A tensor around another one, which does not say so."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Boxed:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = torch.utils._pytree.tree_map(lambda x: x.inner if isinstance(x, Boxed) else x, args)
        found = function(*inner, **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


def boxed(rank: int, world_size: int, in_a_process: bool = False) -> list:
    if in_a_process:
        os.chdir("/")
    summed, sent, asked = (Boxed(torch.full((3,), value)) for value in (1.0 + rank, 5.0 + rank, 7.0 + rank))
    gathered = [Boxed(torch.zeros(3)) for _ in range(world_size)]
    dist.all_reduce(summed)
    dist.all_gather(gathered, summed)
    for _ in range(2):  # like the one before it
        dist.send(sent, 1) if rank == 0 else dist.recv(sent, 0)
    (dist.isend(asked, 1) if rank == 0 else dist.irecv(asked, 0)).wait()
    return [x.inner for x in (summed, sent, asked, *gathered)]


@pytest.mark.parametrize("in_a_process", [False, True])
def test_a_tensor_around_another_one_travels_as_that(in_a_process: bool):
    real, _ = both(boxed, WORLD_SIZE, in_a_process)
    assert [x.tolist() for x in real.results[1]] == [[3.0] * 3, [5.0] * 3, [7.0] * 3, [3.0] * 3, [3.0] * 3]


def without_memory(rank: int, world_size: int, kind: str, call: str, in_a_process: bool) -> None:
    if in_a_process:
        os.chdir("/")
    x = torch.ones(3, device="meta" if kind == "meta" else "cpu")
    if kind == "freed":
        x.untyped_storage().resize_(0)
    elif kind == "DTensor":
        x = distribute_tensor(x, init_device_mesh("cpu", (world_size,)))
    if call == "send":
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    elif call == "isend":
        (dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)).wait()
    else:
        getattr(dist, call)(x, 0)


WHY = {
    "meta": "has no memory|unsupported device type meta",
    "freed": "has no memory",
    "DTensor": "does not have a shard|found no DeviceMesh",  # the second one until torch 2.10
}


@pytest.mark.parametrize("kind", list(WHY))
@pytest.mark.parametrize("call", ["send", "isend", "broadcast"])
@pytest.mark.parametrize("engine", ["greenlets", "processes", "launch"])
def test_a_tensor_without_memory_is_an_error_that_says_so(kind: str, call: str, engine: str):
    if call == "broadcast" and (kind, engine) == ("freed", "launch"):  # gloo crashes there
        return
    run = launch if engine == "launch" else simulate
    is_shape = kind == "meta" and call == "broadcast" and engine != "launch"  # takes its time and moves nothing
    with nullcontext() if is_shape else pytest.raises(WorkerFailed, match=WHY[kind]):
        run(without_memory, WORLD_SIZE, (kind, call, engine == "processes"), echo=False)


def awaited_by_type(rank: int, world_size: int) -> list:
    """As FSDP2 does: what is no Work is not waited for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4))
    fully_shard(model[0], reshard_after_forward=False)
    fully_shard(model)
    model[0].unshard(async_op=True)
    output = model(torch.ones(2, 512) * (rank + 1))
    other = torch.zeros(1)
    messages = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(other, 1 - rank)]
    works = [*messages, dist.all_reduce(torch.ones(1), async_op=True)]
    are_works = [isinstance(work, dist.Work) for work in works]
    for work in works:
        work.wait()
    return [output.detach(), other, are_works]


def test_what_is_waited_for_is_a_work():
    real, _ = both(awaited_by_type, WORLD_SIZE)
    assert all(real.results[0][-1])


def coalesced(rank: int, world_size: int) -> list:
    own = [torch.full((2,), rank + 1.0), torch.full((4,), 10.0 * rank)]
    wide = [torch.arange(4.0) + rank, torch.arange(2.0) * rank]
    group = dist.group.WORLD
    gathered = [x.clone() for x in funcol.all_gather_into_tensor_coalesced(own, group)]
    scattered = [x.clone() for x in funcol.reduce_scatter_tensor_coalesced(wide, "sum", [0, 0], group)]
    return [gathered, scattered]


def coalesced_in_a_process(rank: int, world_size: int) -> list:
    torch._C._distributed_c10d._register_process_group("theirs", dist.group.WORLD)
    mine = torch.ops._c10d_functional.all_reduce(torch.ones(2) * rank, "sum", "theirs")
    return [torch.ops._c10d_functional.wait_tensor(mine), *coalesced(rank, world_size)]


def test_coalesced_collectives_are_waited_for_as_one():
    both(coalesced, WORLD_SIZE)


def reduced_together(rank: int, world_size: int) -> list:
    generator = torch.Generator().manual_seed(rank)
    several = [torch.randn(n, generator=generator) for n in (1000, 333, 1)]
    dist.all_reduce_coalesced(several)
    twice = torch.full((2,), rank + 1.0)
    dist.all_reduce_coalesced([twice, twice])
    return [*several, twice]


def test_tensors_reduced_together_are_one_vector_whose_sums_have_gloos_order():
    both(reduced_together, 3)


def tagged(rank: int, world_size: int) -> list:
    """torch's own way to one group for a set of ranks and a tag; untagged ones are new each time."""
    mine = rank // 2
    pairs = [
        [c10d._new_group_with_tag(ranks, pg_tag=tag) for ranks in ([0, 1], [2, 3])][mine]
        for tag in ("mine", "mine", None)
    ]
    kind = c10d._get_group_tag(pairs[0]), c10d._get_group_tag(pairs[2]).startswith("ptd:")
    try:
        dist.all_to_all_single(torch.zeros(4, 4), torch.ones(4, 4).t())
        said = ""
    except ValueError as error:
        said = str(error)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return [pairs[0] is pairs[1], pairs[0] is pairs[2], *kind, said, callable(backend.create_device)]


def test_a_group_of_a_tag_is_found_again_and_gaps_are_refused_in_torchs_words():
    real, _ = both(tagged, 4)
    assert real.results[0] == [True, False, "mine", True, "Tensors must be contiguous", True]


def test_a_group_can_have_a_second_name():
    real, _ = both(coalesced_in_a_process, WORLD_SIZE)
    assert real.results[0][0].tolist() == [1.0, 1.0]


def in_pairs(rank: int, world_size: int) -> list:
    group = dist.new_group([0, 1], group_desc="neighbours")
    received = torch.zeros(5)
    ops = [
        dist.P2POp(dist.isend, torch.full((5,), float(rank)), 1 - rank, group),
        dist.P2POp(dist.irecv, received, 1 - rank, group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [received, group.group_desc]


def test_messages_of_a_batch_in_a_group_are_counted():
    for run in both(in_pairs, WORLD_SIZE):
        assert [run.trace.bytes_sent(rank) for rank in range(WORLD_SIZE)] == [20, 20]
        assert {event.op for event in run.trace} == {"isend", "irecv"}


def with_a_fake_group(rank: int, world_size: int) -> list:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
    size = dist.get_world_size()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    mine = torch.full((1,), float(rank))
    dist.all_reduce(mine)
    return [size, mine]


def test_a_group_that_only_pretends_is_torchs_own():
    real, _ = both(with_a_fake_group, WORLD_SIZE)
    assert real.results[1] == [64, torch.ones(1)]
