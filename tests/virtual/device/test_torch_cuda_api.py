"""Every public name of torch.cuda and torch.accelerator has an answer on a virtual device."""

from __future__ import annotations

import time
import warnings
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from hw_utils import Cluster, WorkerFailed, simulate
from hw_utils.virtual.device import torch_cuda_api
from hw_utils.virtual.device.streams import TimeLines
from hw_utils.virtual.engine import Engine


def on_device(worker, n: int = 1, **options):
    return simulate(worker, n, cluster=f"h100x{n}", compute="device", echo=False, **options)


@pytest.fixture(scope="module")
def cuda():
    cluster = Cluster.named("h100x2")
    lines = TimeLines(Engine(2, cluster, "free", 0, [0]), cluster.device, 2)
    return lines, torch_cuda_api.of_cuda(lines, cluster, None)


def public_names(module) -> set[str]:
    """Without what the module has imported from Python's own library."""
    names = {name for name in dir(module) if not name.startswith("_")}

    def comes_from(name: str) -> str:
        found = getattr(module, name)
        return found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None) or "torch"

    return {name for name in names if comes_from(name).startswith("torch")}


def test_each_public_name_of_torch_cuda_is_modelled_or_refused_or_left(cuda):
    assert public_names(torch.cuda) - cuda[1].keys() - torch_cuda_api.LEFT == set()
    assert not cuda[1].keys() & torch_cuda_api.LEFT


def test_each_public_name_of_torch_accelerator_is_modelled(cuda):
    parts = {"graphs", "memory", "random", "torch"}
    assert public_names(torch.accelerator) - torch_cuda_api.of_accelerator(*cuda).keys() - parts == set()


@pytest.mark.parametrize("name", torch_cuda_api.REFUSED)
def test_what_a_virtual_device_has_not_is_refused_with_what_works(cuda, name):
    with pytest.raises(RuntimeError, match=f"no torch.cuda.{name}: "):
        cuda[1][name]()


def _accelerator(rank, world_size):
    kind = torch.accelerator.current_accelerator()
    torch.accelerator.set_device_index(rank)
    x = torch.ones(250, device=kind)
    begin, end = torch.Event(kind, enable_timing=True), torch.Event(kind, enable_timing=True)
    begin.record()
    with torch.Stream(device=kind):
        x.mul_(2)
    end.record()
    assert begin.elapsed_time(end) > 0
    torch.accelerator.synchronize()
    return kind.type, torch.accelerator.current_device_index(), torch.accelerator.memory_allocated()


def test_a_program_that_says_accelerator_finds_the_virtual_device():
    assert on_device(_accelerator, 2).results == [("cuda", rank, 1000) for rank in range(2)]


def _scaled(rank, world_size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    for _ in range(2):
        loss = model(torch.ones(2, 4, device=rank)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale(), model.module.weight.sum().item()


def test_a_scaler_of_gradients_steps_as_plain_sgd_does():
    torch.manual_seed(0)
    weight = nn.Linear(4, 4).weight.sum().item()
    scale, found = on_device(_scaled, 2)[0]
    assert scale == 256.0
    assert found == pytest.approx(weight - 2 * 0.1 * 2 * 16)


def test_a_setting_of_torch_is_each_ranks_own():
    def chooses(rank, world_size):
        torch.set_float32_matmul_precision("high" if rank else "medium")
        torch.distributed.barrier()
        return torch.get_float32_matmul_precision()

    assert on_device(chooses, 2).results == ["medium", "high"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_scaler_of_gradients_finds_them_finite_where_there_are_no_values():
    def scales(rank, world_size):
        return _scaled_without_values()

    assert on_device(scales, values="shapes")[0] == 256.0


def _scaled_without_values():
    model = nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    scaler.scale(model(torch.randn(2, 4, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


def _loss(rank, world_size):
    mesh = init_device_mesh("cuda", (world_size,))
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 8), torch.arange(4)
    with loss_parallel():
        of_shards = F.cross_entropy(distribute_tensor(logits, mesh, [Shard(1)]), targets, reduction="mean")
    return of_shards.full_tensor().item(), F.cross_entropy(logits, targets).item()


def test_each_rank_enters_and_leaves_loss_parallel_by_itself():
    for of_shards, whole in on_device(_loss, 4).results:
        assert of_shards == pytest.approx(whole)


def _says_much(rank, world_size):
    torch.cuda.nvtx.range_push("step")
    state = torch.cuda.get_rng_state(device="cuda")
    drawn = torch.randn(4, device=0)
    torch.cuda.set_rng_state(state)
    is_same = torch.equal(drawn, torch.randn(4, device="cuda"))
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    with torch.autocast("cuda"):
        halves = torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
    stats = torch.cuda.memory_stats(device=0)
    assert stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated(device=0)
    assert torch.compile(nn.Linear(2, 2).cuda(0))(halves.float()).shape == (2, 2)
    drawn.record_stream(torch.cuda.current_stream())
    return is_same, halves.dtype, torch.cuda.get_device_capability()


def test_spellings_of_training_programs_run():
    assert on_device(_says_much)[0] == (True, torch.float16, (9, 0))


def test_a_graph_is_refused_at_its_line():
    def captures(rank, world_size):
        torch.cuda.CUDAGraph()

    with pytest.raises(WorkerFailed, match="call what you would capture"):
        on_device(captures)


def _flex(rank: int, world_size: int):
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = torch.arange(256.0, device="cuda").view(1, 2, 8, 16) / 256
        begin_s = time.perf_counter()
        y = flex_attention(q, q, q)
        torch.cuda.synchronize()
        took_s = time.perf_counter() - begin_s
    return torch.allclose(y, F.scaled_dot_product_attention(q, q, q), atol=1e-6), took_s > 0


def test_an_operation_that_is_given_functions_is_what_it_is_made_of():
    assert on_device(_flex)[0] == (True, True)


def _synced_norm(rank: int, world_size: int, is_synced: bool):
    torch.manual_seed(0)
    make = nn.SyncBatchNorm if is_synced else nn.BatchNorm2d
    norm, head = make(3).cuda(), nn.Conv2d(3, 2, 1).cuda()
    x = torch.randn(6, 3, 4, 4, device="cuda", requires_grad=True)
    ends = [0, 1, 4, 6] if is_synced else [0, 6]  # ranks' batches differ
    y = norm(x[ends[rank] : ends[rank + 1]])
    (head(y) ** 3).sum().backward()
    dist.all_reduce(x.grad)
    for gradient in (norm.weight.grad, norm.bias.grad):
        dist.all_reduce(gradient)
    return x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var


def test_sync_batch_norm_is_the_norm_of_the_whole_batch():
    (one,) = on_device(_synced_norm, args=(False,))
    for found in on_device(_synced_norm, 3, args=(True,)):
        for ours, whole in zip(found, one, strict=True):
            assert torch.allclose(ours, whole, atol=1e-5)
    shapes = on_device(_synced_norm, 3, args=(True,), values="shapes")
    assert [t.shape for t in shapes[2]] == [t.shape for t in one]


def _asks_for(rank, world_size, asked):
    dist.destroy_process_group()
    dist.init_process_group(asked)
    groups = [None, dist.new_group([0, 1]), dist.new_group(backend="gloo")]
    names = [(dist.get_backend(group), dist.get_backend_config(group)) for group in groups]
    mesh = init_device_mesh("cuda", (2,))
    return names, dist.get_backend(mesh.get_group()), torch.equal(_sum(), torch.tensor([3.0]))


def _sum() -> torch.Tensor:
    x = torch.tensor([dist.get_rank() + 1.0], device="cuda")
    dist.all_reduce(x)
    return x


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    ("asked", "name", "config"),
    [
        ("nccl", "nccl", "cuda:nccl"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("gloo", "gloo", "cpu:gloo,cuda:gloo"),
        (None, "undefined", "cuda:nccl"),  # where torch sees an accelerator it takes its backend
    ],
)
def test_a_group_on_virtual_devices_is_of_the_backend_that_was_asked_for(asked, name, config, isolate):
    run = on_device(_asks_for, 2, args=(asked,), isolate=isolate)
    names, of_mesh, is_summed = run[0]
    assert run.results == [run[0]] * 2
    assert (names, is_summed) == ([(name, config)] * 2 + [("gloo", "cpu:gloo,cuda:gloo")], True)
    assert of_mesh in {name, "cpu:gloo,cuda:nccl"}  # torch 2.10 makes this one for a mesh of GPUs in a world of gloo
