"""FSDP2, DTensor and tensor parallelism as others write them: both engines give the same numbers and bytes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from hw_utils import launch, simulate

LAYERS, WIDTH = 3, 16


def both(worker, world_size: int, *args):
    """The run on real processes and the one on the virtual cluster, equal in values and bytes."""
    real = launch(worker, world_size, args, echo=False)
    virtual = simulate(worker, world_size, args, compute="free", echo=False, timeout_s=30)
    for ours, theirs in zip(virtual.results, real.results):
        assert_equal(ours, theirs)
    for rank in range(world_size):
        assert virtual.trace.bytes_sent(rank) == real.trace.bytes_sent(rank)
    return real, virtual


def assert_equal(ours, theirs) -> None:
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            assert_equal(a, b)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal(ours[key], theirs[key])
    else:
        assert ours == theirs


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def whole(parameters) -> list[torch.Tensor]:
    return [p.full_tensor().detach().clone() if isinstance(p, DTensor) else p.detach().clone() for p in parameters]


def train_fsdp2(rank: int, world_size: int, kind: str, n_steps: int):
    model, options = mlp(), {}
    if kind == "hsdp":
        options["mesh"] = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    elif kind == "mesh":
        options["mesh"] = init_device_mesh("cpu", (world_size,))
    elif kind == "mixed":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    elif kind == "no reshard":
        options["reshard_after_forward"] = False
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    norms = []
    for _ in range(n_steps):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return whole(model.parameters()), norms, full


@pytest.mark.parametrize("kind", ["default", "mesh", "hsdp", "mixed", "no reshard"])
def test_fsdp2_trains_alike_on_both_engines(kind: str):
    both(train_fsdp2, 4, kind, 2)


def fsdp2_steps(rank: int, world_size: int, n_steps: int) -> None:
    model = mlp()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(n_steps):
        model(torch.ones(2, WIDTH)).sum().backward()


def test_fsdp2_moves_three_quarters_of_the_parameters_three_times_a_step():
    n_bytes = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    _, virtual = both(fsdp2_steps, 4, 2)
    # all-gather in forward, again in backward (the last layer's stays: the root group has no parameters of its own)
    gathered, scattered = (
        virtual.trace.of_op(op).bytes_sent(0) for op in ("all_gather_into_tensor", "reduce_scatter_tensor")
    )
    assert scattered == 2 * n_bytes * 3 // 4
    assert gathered == 2 * 2 * n_bytes * 3 // 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def tensor_parallel(rank: int, world_size: int, with_sequence: bool):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world_size,))
    block = Block(WIDTH)
    if with_sequence:
        plan = {
            "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, mesh, plan)
        x = distribute_tensor(torch.randn(2, 8, WIDTH), mesh, [Shard(1)])
        y = block.norm(x)
        loss = block.down(torch.relu(block.up(y))).square().sum()
    else:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        loss = block(torch.randn(2, 8, WIDTH)).square().sum()
    loss.backward()
    if isinstance(loss, DTensor):
        loss = loss.full_tensor()
    return loss.detach(), whole(p.grad for p in block.parameters())


@pytest.mark.parametrize("with_sequence", [False, True])
def test_tensor_parallel_blocks_are_alike_on_both_engines(with_sequence: bool):
    both(tensor_parallel, 4, with_sequence)


def losses_in_parallel(rank: int, world_size: int):
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(0)
    logits = distribute_tensor(torch.randn(4, 16), mesh, [Shard(1)]).requires_grad_()
    target = torch.tensor([1, 5, 9, 15])
    odd = dist.new_group([1, 3])
    with loss_parallel():
        if rank % 2:
            dist.barrier(odd)
        loss = nn.functional.cross_entropy(logits, target)
        loss.backward()
    return loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()


def test_ranks_leave_loss_parallel_at_different_times():
    both(losses_in_parallel, 4)


def redistributed(rank: int, world_size: int):
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(0)
    x = torch.arange(32.0).view(8, 4)
    found = []
    d = distribute_tensor(x, mesh, [Shard(0), Replicate()])
    for placements in ([Replicate(), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Shard(1)], [Replicate(), Replicate()]):
        d = d.redistribute(mesh, placements)
        found.append(d.to_local().clone())
    p = DTensor.from_local(x * (rank + 1), mesh, [Partial(), Partial()])
    found.append(p.redistribute(mesh, [Shard(0), Replicate()]).to_local().clone())
    found.append((d @ d.t()).full_tensor())
    found.append(mesh["a"].get_local_rank())
    found.append(mesh.get_coordinate())
    found.append(hash(mesh) == hash(mesh["a", "b"]))
    return found


def test_dtensors_are_redistributed_alike_on_both_engines():
    both(redistributed, 4)


def functional(rank: int, world_size: int):
    group = dist.group.WORLD
    x = torch.arange(8.0) + rank
    found = [
        funcol.all_reduce(x, "sum", group),
        funcol.all_gather_tensor(x, 0, group),
        funcol.reduce_scatter_tensor(x, "sum", 0, group),
        funcol.all_to_all_single(x, None, None, group),
        funcol.broadcast(x, 1, group),
        funcol.all_gather_tensor_autograd(x.clone().requires_grad_(), 0, group),
        *funcol.all_gather_into_tensor_coalesced([x, x * 2], group),
        *funcol.reduce_scatter_tensor_coalesced([x, x * 2], "sum", [0, 0], group),
        *funcol.all_reduce_coalesced([x, x * 3], "sum", group),
    ]
    return [f.detach().clone() for f in map(funcol.wait_tensor, found)]


def test_functional_collectives_are_alike_on_both_engines():
    both(functional, 4)


def uneven(rank: int, world_size: int):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    rows = distribute_tensor(torch.arange(35.0).reshape(5, 7), mesh["model"], [Shard(0)])  # 3 rows and 2
    words = distribute_tensor(torch.arange(22.0).reshape(11, 2), mesh["model"], [Shard(0)])  # a mask a rank
    asked = distribute_tensor(torch.tensor([0, 5, 6, 10]), mesh["model"], [Replicate()])
    found = nn.functional.embedding(asked, words).redistribute(placements=[Replicate()])
    results = [rows * 2 + 1, rows.sum(0), rows.reshape(5, 7, 1), rows.new_zeros(5, 7), rows.t() @ rows, found]
    if rank % 2:
        torch.set_default_dtype(torch.float64)
    counts = distribute_tensor(torch.arange(6), mesh["data"], [Shard(0)])
    results.append(counts / 4)
    coordinates = [result.device_mesh.get_coordinate() for result in results]
    placements = [str(result.placements) for result in results]
    return [result.to_local().clone() for result in results], placements, coordinates


def test_what_one_rank_finds_about_a_sharding_is_on_the_mesh_of_each():
    both(uneven, 4)


def hash_of_a_mesh(rank: int, world_size: int) -> int:
    return hash(init_device_mesh("cpu", (world_size,)))


def test_no_attempt_takes_what_torch_kept_for_the_mesh_of_another():
    runs = [simulate(hash_of_a_mesh, 2, isolate=False, echo=False) for _ in range(2)]
    assert len({found for run in runs for found in run.results}) == 4


def one_step_of_adam(rank: int, world_size: int) -> None:
    model = fully_shard(mlp())
    model(torch.ones(2, WIDTH)).sum().backward()
    torch.optim.AdamW(model.parameters()).step()


def test_a_sharding_is_worked_out_once_for_all_ranks(monkeypatch):
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    worked_out = []
    original = ShardingPropagator._propagate_tensor_meta_non_cached
    counted = lambda self, schema: worked_out.append(schema.op) or original(self, schema)  # noqa: E731
    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", counted)
    simulate(one_step_of_adam, 2, compute="free", isolate=False)
    with_two = len(worked_out)
    simulate(one_step_of_adam, 5, compute="free", isolate=False)
    assert 0 < len(worked_out) - with_two <= with_two
