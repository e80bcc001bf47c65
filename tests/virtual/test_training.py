"""Training on virtual ranks: unmodified autograd, optimizers and DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hw_utils import Network, WorkerFailed, launch, simulate


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def train(rank: int, world_size: int, with_ddp: bool, n_steps: int) -> list[torch.Tensor]:
    net = model()
    wrapped = DistributedDataParallel(net, bucket_cap_mb=25) if with_ddp else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for step in range(n_steps):
        wrapped(torch.randn(4, 8)).square().mean().backward()
        if not with_ddp:
            # DDP's one bucket: parameters in order at first, then as their gradients were ready
            average_gradients(list(net.parameters())[:: -1 if step else 1], world_size)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()]


def average_gradients(parameters: list[torch.nn.Parameter], world_size: int) -> None:
    """Divided first, then summed in one piece: in a ring the order of additions depends on the place in it."""
    flat = torch.cat([p.grad.flatten() for p in parameters]) * (1 / world_size)
    dist.all_reduce(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(part.view_as(p))


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_ddp_gives_the_weights_of_a_manual_all_reduce_to_the_bit(world_size):
    manual, wrapped = (
        simulate(train, world_size, (with_ddp, 3), compute="free", echo=False) for with_ddp in (False, True)
    )
    assert all(equal(manual[0], weights) for run in (manual, wrapped) for weights in run)
    assert "all_reduce" in wrapped.trace.ops


def test_training_gives_the_weights_of_real_processes_to_the_bit():
    virtual = simulate(train, 3, (False, 3), compute="free", echo=False)
    assert equal(virtual[0], launch(train, 3, (False, 3), echo=False)[0])


def test_sixty_four_ranks_train():
    run = simulate(train, 64, (True, 2), network=Network(), echo=False)
    assert all(equal(run[0], weights) for weights in run)
    assert run.seconds > 0


def hook_that_waits(rank: int, world_size: int) -> tuple[list[float], bool]:
    weight = torch.ones(3, requires_grad=True)

    def reduce(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad

    weight.register_hook(reduce)
    with torch.no_grad():
        dist.barrier()
    (weight * (rank + 1)).sum().backward()
    return weight.grad.tolist(), torch.is_grad_enabled()


def test_a_hook_may_wait_for_other_ranks_inside_backward():
    assert simulate(hook_that_waits, 4, echo=False).results == [([10.0] * 3, True)] * 4


def prints_then_hooks(rank: int, world_size: int) -> None:
    print("before", rank)
    hook_that_waits(rank, world_size)
    print("after", rank)


def test_what_is_printed_before_the_threads_is_shown_once(capsys):
    run = simulate(prints_then_hooks, 2)
    assert run.output == ["before 0\nafter 0\n", "before 1\nafter 1\n"]
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"[rank {rank}] {when} {rank}" for rank in range(2) for when in ("after", "before")
    ]


def raises_inside_backward(rank: int, world_size: int) -> None:
    weight = torch.ones(1, requires_grad=True)

    def hook(grad):
        dist.barrier()
        if rank == 1:
            raise ValueError("no gradient")
        dist.barrier()

    weight.register_hook(hook)
    weight.sum().backward()


def test_an_error_inside_backward_is_its_ranks():
    with pytest.raises(WorkerFailed) as caught:
        simulate(raises_inside_backward, 3, echo=False)
    assert [(f.rank, type(f.exception)) for f in caught.value.failures] == [(1, ValueError)]
    assert "ranks 0, 2 waited for rank 1" in str(caught.value)


def in_inference_mode(rank: int, world_size: int) -> list[bool]:
    seen = []
    with torch.inference_mode(rank == 0):
        for _ in range(2):
            dist.barrier()
            seen.append(torch.is_inference_mode_enabled())
    return seen


def test_inference_mode_belongs_to_a_rank():
    assert simulate(in_inference_mode, 3, echo=False).results == [[True] * 2, [False] * 2, [False] * 2]


def a_parameter(rank: int, world_size: int) -> tuple[list[float], bool]:
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    if rank == 0:
        dist.send(weight, 1)
    elif rank == 1:
        dist.recv(weight, 0)
    dist.broadcast(weight, 1)
    return weight.tolist(), weight.is_leaf


def test_parameters_travel_beside_autograd():
    assert simulate(a_parameter, 3, echo=False).results == [([0.0, 0.0], True)] * 3


def test_dropout_masks_differ_between_ranks_and_repeat():
    runs = [simulate(masks, 3, compute="free", echo=False, isolate=False).results for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({tuple(mask) for mask in runs[0]}) == 3


def masks(rank: int, world_size: int) -> list[bool]:
    torch.manual_seed(rank)
    mask = []
    for _ in range(4):
        mask += (torch.nn.functional.dropout(torch.ones(4), 0.5) > 0).tolist()
        mask.append(torch.randn(1).item() > 0)  # one of the two normal numbers that are made at a time
        dist.barrier()
    return mask
