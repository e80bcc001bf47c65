"""Bytes by owner against the formulas of the field, at moments that virtual time tells apart."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from hw_utils import launch, simulate
from hw_utils.core.memory import own
from hw_utils.core.versions import torch_version
from tests.virtual.runs import run

FLOAT = 4
WIDTH, BATCH, LAYERS = 16, 64, 5
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * FLOAT
BATCH_BYTES = BATCH * WIDTH * FLOAT


def kept(worker, world_size: int, *args):
    return run(worker, world_size, *args, memory=True).memory


def linear_step(rank: int, world_size: int, name: str) -> None:
    """A second after each part of a step: parameters, forward, backward, step, zero_grad."""
    model, x = nn.Linear(WIDTH, WIDTH), torch.ones(BATCH, WIDTH)
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    }[name](model.parameters())
    time.sleep(1)
    loss = model(x).sum()
    time.sleep(1)
    loss.backward()
    time.sleep(1)
    optimizer.step()
    time.sleep(1)
    optimizer.zero_grad()
    time.sleep(1)


# Adam: two moments, and a step count of one float a tensor.
@pytest.mark.parametrize(
    ("name", "state_bytes"), [("sgd", 0), ("momentum", LAYER_BYTES), ("adam", 2 * LAYER_BYTES + 2 * FLOAT)]
)
def test_a_linear_layer_holds_what_each_part_of_a_step_adds(name: str, state_bytes: int):
    memory = kept(linear_step, 2, name)
    for rank in range(2):
        start = {"parameters": LAYER_BYTES, "other": BATCH_BYTES}
        forward = {**start, "activations": FLOAT}  # a sum needs no value of what it adds up: only the loss is left
        backward = {**forward, "gradients": LAYER_BYTES}
        step = {**backward, **({"optimizer": state_bytes} if state_bytes else {})}
        freed = {owner: n for owner, n in step.items() if owner != "gradients"}
        held = [memory.held_bytes(rank, second + 0.5) for second in range(5)]
        assert held == [start, forward, backward, step, freed]


def deep(rank: int, world_size: int, kind: str) -> None:
    segments = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)
    ]
    h = torch.ones(BATCH, WIDTH, requires_grad=kind == "reentrant")
    for segment in segments:
        h = segment(h) if kind == "plain" else checkpoint(segment, h, use_reentrant=kind == "reentrant")
    loss = h.sum()
    del h
    time.sleep(1)
    loss.backward()


def test_activations_of_a_deep_network_are_the_outputs_that_its_backward_pass_needs():
    memory = kept(deep, 1, "plain")
    # A tanh needs its output, which the layer after it takes as its input: two a segment. The loss is a float.
    assert memory.held_bytes(0, 0.5)["activations"] == 2 * LAYERS * BATCH_BYTES + FLOAT
    assert memory.peak_bytes(0, "activations") == 2 * LAYERS * BATCH_BYTES + FLOAT


@pytest.mark.parametrize("kind", ["no reentrant", "reentrant"])
def test_recomputation_keeps_a_segments_borders_and_one_segment(kind: str):
    memory = kept(deep, 1, kind)
    held = memory.held_bytes(0, 0.5)
    # Reentrant: its last output, which nobody reads, and its input, a leaf. Torch 2.11 kept that in either kind.
    n_borders = {LAYERS} if kind == "reentrant" else {LAYERS - 1, LAYERS - (torch_version() >= (2, 12))}
    assert held["activations"] in {n * BATCH_BYTES + FLOAT for n in n_borders}
    inside = memory.peak_bytes(0, "activations") - held["activations"]
    assert inside == 3 * BATCH_BYTES
    assert memory.peak(0).n_bytes < kept(deep, 1, "plain").peak(0).n_bytes


def sharded_adam(rank: int, world_size: int) -> None:
    """ZeRO-1: each rank steps its own part of a flat parameter, then all parts are gathered into it."""
    n = WIDTH * WIDTH + WIDTH
    size = -(-n // world_size)  # the last part is padded
    flat = nn.Parameter(torch.zeros(size * world_size))
    model = nn.ParameterDict({"flat": flat})
    flat.grad = torch.ones_like(flat)
    shard = nn.Parameter(torch.zeros(size))
    shard.grad = flat.grad[rank * size : (rank + 1) * size]
    optimizer = torch.optim.Adam([shard], lr=0.1)
    time.sleep(1)
    optimizer.step()
    dist.all_gather(list(flat.data.chunk(world_size)), shard.data)
    time.sleep(1)
    del model


def with_buckets(rank: int, world_size: int, is_view: bool) -> int:
    """Bytes of the parameters."""
    model = nn.Sequential(*[nn.Linear(200, 200) for _ in range(20)])
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=is_view)
    wrapped(torch.ones(1, 200)).sum().backward()
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("engine", [launch, partial(simulate, compute="free")], ids=["launch", "simulate"])
@pytest.mark.parametrize(("is_view", "copies"), [(False, 3), (True, 2)], ids=["copied", "viewed"])
def test_data_parallel_holds_parameters_buckets_and_gradients(engine, is_view: bool, copies: int):
    # As PyTorch's ZeRO recipe measures on GPUs: 1.96 after the constructor, 2.96 before the step. What the constructor
    # broadcasts is a copy that is gone when the buckets are made.
    run = engine(with_buckets, 2, (is_view,), echo=False, memory=True)
    n_bytes = run[0]
    assert copies * n_bytes <= run.memory.peak_bytes(0) < (copies + 0.3) * n_bytes


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_zero_1_holds_one_shard_of_the_optimizers_state(world_size: int):
    size = -(-(WIDTH * WIDTH + WIDTH) // world_size)
    memory = kept(sharded_adam, world_size)
    for rank in range(world_size):
        held = memory.held_bytes(rank, 1.5)
        assert held["optimizer"] == 2 * size * FLOAT + FLOAT
        assert held["gradients"] == size * world_size * FLOAT
        assert held["parameters"] == size * world_size * FLOAT + size * FLOAT  # what it gathers into was there before


def fsdp2(rank: int, world_size: int, reshard: bool) -> None:
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    for layer in model:
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(BATCH, WIDTH)).sum()
        time.sleep(1)
        loss.backward()
        time.sleep(1)
        optimizer.step()
        time.sleep(1)
        optimizer.zero_grad()


@pytest.mark.parametrize("world_size", [2, 4])
def test_fsdp2_holds_shards_and_gathers_a_layer_ahead(world_size: int):
    memory = kept(fsdp2, world_size, True)
    shards = LAYERS * LAYER_BYTES // world_size
    for rank in range(world_size):
        after_forward, after_backward, after_step = (memory.held_bytes(rank, 3 + s + 0.5) for s in range(3))
        assert after_forward["parameters"] == after_step["parameters"] == shards
        assert after_backward["gradients"] == shards
        assert "gathered" not in after_backward
        assert after_step["optimizer"] == 2 * shards + 2 * LAYERS * FLOAT
        # A layer in use; of the one that is fetched meanwhile the gathered bytes, and the parameters copied from them:
        # torch 2.15 makes no copy.
        n_layers = {3} if torch_version() < (2, 14) else {2, 3}
        assert memory.peak_bytes(rank, "gathered") in {n * LAYER_BYTES for n in n_layers}
        # The whole gradients of a layer, beside the shards of those before it.
        assert memory.peak_bytes(rank, "gradients") <= shards + LAYER_BYTES


def test_fsdp2_without_resharding_keeps_every_layer_whole_until_its_backward():
    memory = kept(fsdp2, 2, False)
    assert memory.held_bytes(0, 0.5)["gathered"] >= LAYERS * LAYER_BYTES
    assert "gathered" not in memory.held_bytes(0, 1.5)


def own_optimizer(rank: int, world_size: int, is_named: bool) -> None:
    momentum = torch.zeros(100)
    if is_named:
        own("optimizer", [momentum])
    time.sleep(1)


def test_a_program_can_say_whose_its_tensors_are():
    assert kept(own_optimizer, 1, False).held_bytes(0, 0.5) == {"other": 400}
    assert kept(own_optimizer, 1, True).held_bytes(0, 0.5) == {"optimizer": 400}
    own("optimizer", torch.zeros(1))  # no run: nothing happens
    with pytest.raises(ValueError, match="owner must be one of parameters"):
        own("adam", torch.zeros(1))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        half = x.detach() + 0.0
        ctx.save_for_backward(half)
        return half + x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def own_function(rank: int, world_size: int) -> None:
    weight = nn.Parameter(torch.ones(100))
    loss = Doubled.apply(weight).sum()
    time.sleep(1)
    loss.backward()


def test_what_a_function_of_the_programs_own_saves_is_an_activation():
    assert kept(own_function, 1).held_bytes(0, 0.5)["activations"] == 400 + FLOAT


def comes_and_goes(rank: int, world_size: int) -> None:
    x = torch.zeros(100)
    time.sleep(1)
    x.untyped_storage().resize_(1000)
    time.sleep(1)
    x.untyped_storage().resize_(0)
    time.sleep(1)
    x.untyped_storage().resize_(80)
    view = x[:10]
    del x
    time.sleep(1)
    del view
    time.sleep(1)


def test_memory_is_freed_when_the_last_who_holds_it_lets_go():
    memory = kept(comes_and_goes, 1)
    assert [sum(memory.held_bytes(0, second + 0.5).values()) for second in range(5)] == [400, 1000, 0, 80, 0]
    assert memory.of_rank(0)["n_bytes"].tolist() == [400, 600, -1000, 80, -80]


def odd_tensors(rank: int, world_size: int) -> None:
    lazy, rows = nn.LazyLinear(3, bias=False), nn.Embedding(10, 4, sparse=True)
    torch.empty(10, device="meta")
    time.sleep(1)
    lazy(torch.ones(2, 5)).sum().backward()
    rows(torch.tensor([1, 2])).sum().backward()
    time.sleep(1)


def test_parameters_that_come_late_count_once_they_are_there_and_tensors_without_memory_never():
    memory = kept(odd_tensors, 1)
    assert memory.held_bytes(0, 0.5) == {"parameters": 10 * 4 * FLOAT}
    held = memory.held_bytes(0, 1.5)
    assert held["parameters"] == (10 * 4 + 3 * 5) * FLOAT
    assert held["gradients"] == 3 * 5 * FLOAT + 2 * 8 + 2 * 4 * FLOAT  # a sparse one: indices and values of two rows
