"""The books of one program are the same on real processes and whatever carries a virtual rank."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from hw_utils import launch, simulate
from hw_utils.core.memory.allocation_sites import NETWORK_FILES
from hw_utils.core.memory.storage_tracker import current
from hw_utils.virtual.ranks.greenlets_or_threads import Greenlets, Threads
from tests.virtual.runs import run

WIDTH = 8


def train(rank: int, world_size: int, kind: str) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    if kind == "fsdp2":
        for layer in (model[0], model[3]):
            fully_shard(layer)
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        if kind == "by hand":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


def asks_for_a_process(rank: int, world_size: int) -> str:
    x = torch.ones(1000)
    dist.all_reduce(x)
    return dist.group.WORLD.group_name  # a key that members share: torch's own, in a process a rank


def books(run, rank: int) -> list[tuple]:
    """What one rank did, without when."""
    memory = run.memory
    return [(int(r["n_bytes"]), int(r["owner"]), memory.sites[r["site"]]) for r in memory.of_rank(rank)]


@pytest.mark.parametrize("kind", ["by hand", "fsdp2", "ddp"])
def test_a_training_keeps_the_same_books_on_both_engines(kind: str):
    real = launch(train, 2, (kind,), echo=False, memory=True)
    virtual = simulate(train, 2, (kind,), compute="free", echo=False, memory=True)
    for rank in range(2):
        # What was handed to gloo is freed when gloo's own thread lets go of it, sooner or later.
        asked = [[entry for entry in books(found, rank) if entry[0] > 0] for found in (real, virtual)]
        assert asked[0] == asked[1]
        assert len(asked[0]) > 80
        times_s, _ = real.memory.series(rank)
        assert (times_s[1:] >= times_s[:-1]).all()
        assert 0 <= times_s[0] <= times_s[-1] <= real.seconds


def converted(rank: int, world_size: int) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(torch.bfloat16)
    model(torch.randn(400, WIDTH, dtype=torch.bfloat16))  # the peak: more than both kinds of parameters at once


def test_parameters_that_change_their_type_are_parameters_still():
    peak = simulate(converted, 1, compute="free", echo=False, memory=True).memory.peak(0)
    assert peak.by_owner["parameters"] == 2 * (WIDTH * WIDTH + WIDTH) * 2


def carried(rank: int, world_size: int, carrier: str) -> None:
    if carrier == "threads":
        with torch.inference_mode():
            dist.barrier()
    elif carrier == "processes":
        os.chdir(os.getcwd())
    train(rank, world_size, "by hand")


def test_the_books_are_the_same_whatever_carries_a_rank(monkeypatch):
    hosted = []
    for carrier in (Greenlets, Threads):
        host = carrier.host
        monkeypatch.setattr(
            carrier, "host", lambda self, *more, _h=host, _c=carrier: (hosted.append(_c), _h(self, *more))[1]
        )
    found = {}
    for carrier in ("greenlets", "threads"):
        hosted.clear()
        found[carrier] = run(carried, 3, carrier, memory=True)
        assert hosted[-1] is {"greenlets": Greenlets, "threads": Threads}[carrier]
    found["processes"] = simulate(carried, 3, ("processes",), compute="free", echo=False, memory=True)
    for rank in range(3):
        assert len(books(found["greenlets"], rank)) > 100
        assert books(found["threads"], rank) == books(found["greenlets"], rank)
        assert books(found["processes"], rank) == books(found["greenlets"], rank)


def imports(rank: int, world_size: int, folder: str, carrier: str) -> None:
    sys.path.insert(0, folder)
    if carrier == "processes":
        os.chdir(os.getcwd())
    import a_package_with_tensors

    a_package_with_tensors.MASK.numel()


@pytest.mark.parametrize("carrier", ["real", "greenlets", "processes"])
def test_what_a_package_makes_while_it_is_imported_is_no_ranks(tmp_path: Path, carrier: str):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "a_package_with_tensors.py").write_text("import torch\nMASK = torch.ones(3)\n")
    engine = launch if carrier == "real" else partial(simulate, compute="free")
    found = engine(imports, 2, (str(installed), carrier), echo=False, memory=True)
    assert [found.memory.peak_bytes(rank) for rank in range(2)] == [0, 0]


def everything(rank: int, world_size: int) -> int:
    x, many = torch.ones(100), torch.ones(100 * world_size)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather(list(many.chunk(world_size)), x)
    dist.reduce_scatter(x, list(many.chunk(world_size)))
    dist.all_to_all_single(many, many.clone())
    dist.gather(x, list(many.chunk(world_size)) if rank == 0 else None, 0)
    dist.scatter(x, list(many.chunk(world_size)) if rank == 0 else None, 0)
    dist.reduce(x, 1)
    left = dist.isend(x, (rank + 1) % world_size)
    dist.recv(many[:100], (rank - 1) % world_size)
    left.wait()
    return 400 * (1 + 2 * world_size)


def test_what_the_network_itself_holds_of_a_message_is_no_ranks():
    found = run(everything, 3, memory=True)
    for rank in range(3):
        assert found.memory.peak_bytes(rank) == found[rank]


def test_every_file_that_counts_as_the_networks_is_there():
    assert [file for file in NETWORK_FILES if not Path(file).exists()] == []


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_run_that_was_not_asked_keeps_no_memory_and_says_how_to_ask(engine):
    found = engine(train, 1, ("alone",), echo=False)
    with pytest.raises(ValueError, match="memory=True"):
        _ = found.memory
    assert "memory" not in repr(found)


def test_nothing_of_the_books_is_left_behind():
    from torch.nn.modules import module
    from torch.optim import optimizer

    def hooks() -> list[int]:
        tables = [t for n, t in {**vars(module), **vars(optimizer)}.items() if n.startswith("_global_")]
        return [len(t) for t in tables if isinstance(t, dict)]

    before = hooks(), torch.autograd._engine_run_backward, torch.autograd._make_grads
    run(train, 2, "by hand", memory=True)
    assert (hooks(), torch.autograd._engine_run_backward, torch.autograd._make_grads) == before
    assert "resize_" not in vars(torch.UntypedStorage)
    assert torch._C._len_torch_dispatch_stack() == 0


def slow_compute(rank: int, cpu_s: float) -> float:
    return 1.0 if cpu_s > 0 else 0.0


def waits_and_computes(rank: int, world_size: int) -> None:
    for _ in range(3):
        torch.ones(10) + 1
        dist.barrier()


def test_the_books_do_not_ask_a_given_compute_function_more_often():
    plain, watched = (run(waits_and_computes, 2, compute=slow_compute, memory=kept) for kept in (False, True))
    assert watched.seconds == plain.seconds


def lets_go(rank: int, world_size: int, kind: str) -> list[int]:
    """The bytes that a rank holds after it has used and forgotten a tensor."""
    held = []
    for _ in range(3):
        x = torch.ones(100)
        if kind == "broadcast":
            dist.broadcast(x, 0)
        elif kind == "gather":
            dist.gather(x, [torch.ones(100) for _ in range(world_size)] if rank == 0 else None, 0)
        elif kind == "messages":
            left = dist.isend(x, (rank + 1) % world_size)
            dist.recv(x.clone(), (rank - 1) % world_size)
            left.wait()
            del left
        elif kind == "posted":
            both = [dist.irecv(x.clone(), (rank - 1) % world_size), dist.isend(x, (rank + 1) % world_size)]
            while both:
                both.pop().wait()
        elif kind == "sends":
            dist.send(x, rank ^ 1) if rank % 2 else dist.recv(x, rank ^ 1)
        else:
            dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()).wait()
        del x
        dist.barrier()
        held.append(current().books[rank].n_bytes)
    return held


@pytest.mark.parametrize("kind", ["broadcast", "gather", "future", "messages", "posted", "sends"])
def test_a_virtual_collective_lets_go_of_its_tensors(kind: str):
    assert run(lets_go, 4, kind, memory=True).results == [[0, 0, 0]] * 4


def transformed(rank: int, world_size: int) -> torch.Tensor:
    model = torch.nn.Linear(3, 3)
    call = lambda weights, x: torch.func.functional_call(model, weights, (x,))  # noqa: E731
    y, back = torch.func.vjp(call, dict(model.named_parameters()), torch.ones(2, 3))
    return back(torch.ones_like(y))[1] + torch.func.vmap(model)(torch.ones(2, 3))


def test_a_program_of_torch_func_has_books():
    run = simulate(transformed, 1, compute="free", memory=True)
    assert run.memory.peak_bytes(0) > 4 * (9 + 3)


@pytest.mark.parametrize("compute", ["measured", "free", lambda rank, cpu_s: 2 * cpu_s])
def test_ranks_with_a_process_each_keep_books_whatever_their_computation_costs(compute):
    found = simulate(asks_for_a_process, 2, echo=False, memory=True, compute=compute)
    for rank in range(2):
        times_s, n_bytes = found.memory.series(rank)
        assert (times_s[1:] >= times_s[:-1]).all()
        assert n_bytes.max() >= 4000
