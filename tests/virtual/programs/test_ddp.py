"""DistributedDataParallel with each of its options: both engines give the same numbers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.virtual.programs.test_sharded import both

WIDTH = 12
CHAINED = ("power", "batched power", "chain", "post local")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))


def then_hook(group, bucket):
    future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / group.size())


def chained_hook(group, bucket):
    """Two collectives, the second called when the first is done, as PowerSGD's."""
    first = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()

    def again(done):
        tensor = done.value()[0] / group.size()
        return dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()[0] / group.size()

    return first.then(again).then(lambda done: done.value() * 1.0)


def waiting_hook(group, bucket):
    dist.all_reduce(bucket.buffer(), group=group)
    future = torch.futures.Future()
    future.set_result(bucket.buffer() / group.size())
    return future


def add_hook(model, kind: str) -> None:
    if kind == "power":
        model.register_comm_hook(
            powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook
        )
    elif kind == "post local":
        subgroup, _ = dist.new_subgroups(2)
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    elif kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "wrapped":
        model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    elif kind == "allreduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    else:
        model.register_comm_hook(
            dist.group.WORLD, {"then": then_hook, "chain": chained_hook, "wait": waiting_hook}[kind]
        )


def train(rank: int, world_size: int, options: dict, hook: str | None = None, n_steps: int = 3):
    # gloo's threads run the callbacks of several buckets in any order: a hook that communicates again gets one bucket
    bucket_cap_mb = 25 if hook in CHAINED else 0.0005
    model = DistributedDataParallel(mlp(), bucket_cap_mb=bucket_cap_mb, **options)
    if hook:
        add_hook(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(n_steps):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "wrapped", "power", "post local", "then", "chain", "wait"])
def test_communication_hooks_are_alike_on_both_engines(hook: str):
    both(train, 4, {}, hook)


@pytest.mark.parametrize(
    "options",
    [
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"broadcast_buffers": False},
    ],
    ids=str,
)
def test_options_are_alike_on_both_engines(options: dict):
    both(train, 4, options)


def uneven(rank: int, world_size: int):
    model = DistributedDataParallel(mlp())
    torch.manual_seed(rank)
    losses = []
    with model.join():
        for _ in range(2 + rank):
            loss = model(torch.randn(4, WIDTH)).square().mean()
            loss.backward()
            losses.append(loss.item())
    return losses, [p.grad.clone() for p in model.parameters()]


def test_ranks_with_different_numbers_of_batches_join():
    both(uneven, 3)


def uneven_by_those_left(rank: int, world_size: int):
    model = DistributedDataParallel(mlp())
    grads = []
    with model.join(divide_by_initial_world_size=False):
        for _ in range(2 + rank):
            model(torch.ones(4, WIDTH)).sum().backward()
            grads += [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
    return grads


def test_gradients_are_divided_by_the_ranks_that_are_left():
    both(uneven_by_those_left, 3)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("broken")


def trained_after_an_error(rank: int, world_size: int):
    model, x = mlp(), torch.ones(4, WIDTH, requires_grad=True)
    first = DistributedDataParallel(model)
    with pytest.raises(RuntimeError, match="broken"):
        first(Broken.apply(x)).sum().backward()
    first._remove_autograd_hooks()
    DistributedDataParallel(model)(x).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def test_a_backward_pass_that_failed_leaves_nothing_to_the_next():
    both(trained_after_an_error, 2)


def uneven_with_join(rank: int, world_size: int):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit

    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    torch.manual_seed(rank)
    with Join([model, optimizer]):
        for _ in range(2 + rank):
            model(torch.randn(4, WIDTH)).square().mean().backward()
            optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_ddp_and_a_sharded_optimizer_join_together():
    both(uneven_with_join, 3)


def futures(rank: int, world_size: int):
    x = torch.full((3,), float(rank))
    waited = dist.all_reduce(x, async_op=True).get_future().wait()[0].clone()
    y = torch.full((3,), float(rank))
    chained = (
        dist.all_reduce(y, async_op=True).get_future().then(lambda f: f.value()[0] + 1).then(lambda f: f.wait() * 2)
    )
    collected = torch.futures.collect_all(
        [dist.all_reduce(torch.ones(2), async_op=True).get_future() for _ in range(2)]
    )
    return waited, chained.wait(), [f.value()[0] for f in collected.wait()]


def test_futures_are_waited_for_alike_on_both_engines():
    both(futures, 3)


def compiled(rank: int, world_size: int):
    model = torch.compile(DistributedDataParallel(mlp()), backend="eager")
    torch.manual_seed(rank)
    for _ in range(2):  # the second time it is torch that asks for the buckets of the first
        loss = model(torch.randn(4, WIDTH)).square().mean()
        loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters()]


def test_a_compiled_model_trains():
    both(compiled, 2)
