"""Programs written for GPUs, whose modules ask for more of a device than its streams."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from hw_utils import WorkerFailed, simulate


def _on_devices(worker, world_size: int, *args, cluster: str = "h100x2"):
    return simulate(worker, world_size, args, cluster=cluster, compute="device", echo=False)


def _normalised(rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda())
    model = DistributedDataParallel(model, device_ids=[rank])
    loss = model(_batch()[3 * rank : 3 * rank + 3].cuda()).pow(3).mean()
    loss.backward()
    return loss.detach(), model.module[0].weight.grad


def _batch() -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def test_batches_are_normalised_over_all_ranks_before_gradients_are_averaged():
    run = _on_devices(_normalised, 2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model(_batch()).pow(3).mean().backward()
    for _, gradient in run:
        torch.testing.assert_close(gradient, model[0].weight.grad)


def _built_on_meta(rank: int, world_size: int, device: str) -> list[torch.Size]:
    mesh = dist.init_device_mesh(device, (world_size,))
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
    plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel()}
    parallelize_module(model, mesh, plan)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    model(torch.zeros(2, dtype=torch.int64, device=device)).sum().backward()
    return [parameter.to_local().shape for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("device", "options"),
    [("cuda", {"cluster": "h100x2", "compute": "device"}), ("cpu", {"memory": True})],
    ids=["on devices", "on processors"],
)
def test_sharded_parameters_made_on_meta_get_their_memory(device, options):
    run = simulate(_built_on_meta, 2, (device,), echo=False, **options)
    assert run.results == [[(4, 4), (4, 4), (4,)]] * 2
    assert run.memory.peak_bytes(0, "parameters") == 4 * (16 + 16 + 4)


def _over_all_devices(rank: int, world_size: int, *device_ids: list[int]) -> tuple[torch.Size, list[str]]:
    model = nn.DataParallel(nn.Linear(4, 4), *device_ids).cuda()
    return model(torch.randn(8, 4, device="cuda")).shape, list(model.state_dict())


@pytest.mark.parametrize("by", ["to", "device_id"])
def test_sharded_modules_begin_with_the_first_ranks_weights(by):
    """FSDP1 asks whether a module's tensors are on a GPU before it sends them."""

    def worker(rank, world_size):
        torch.cuda.set_device(rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            for tensor in (*model.parameters(), model[1].running_mean):
                tensor.fill_(rank + 1.0)
        where = {"device_id": torch.cuda.current_device()} if by == "device_id" else {}
        model = FullyShardedDataParallel(model if where else model.to(rank), sync_module_states=True, **where)
        with FullyShardedDataParallel.summon_full_params(model):
            return [*(p.unique().tolist() for p in model.parameters()), model[1].running_mean.tolist()]

    run = simulate(worker, 2, cluster="h100x8", compute="device", echo=False)
    assert run.results == [[[1.0], [1.0], [1.0], [1.0], [1.0, 1.0]]] * 2


@pytest.mark.parametrize(("cluster", "device_ids"), [("h100x1", []), ("h100x2", [[0]])], ids=["one", "one of two"])
def test_data_parallel_over_one_device_calls_the_module(cluster, device_ids):
    run = _on_devices(_over_all_devices, 1, *device_ids, cluster=cluster)
    assert run[0] == ((8, 4), ["module.weight", "module.bias"])


def test_data_parallel_over_several_devices_says_what_to_do_instead():
    with pytest.raises(WorkerFailed, match=r"drive 2 GPUs .* DistributedDataParallel with a rank a GPU"):
        _on_devices(_over_all_devices, 2)


def _flags(rank: int, world_size: int, backend: str) -> list[torch.Tensor]:
    dist.init_process_group(backend)
    found = [torch.zeros(1, device="cuda") for _ in range(world_size)]
    dist.all_gather(found, torch.tensor(float(rank), device="cuda"))
    return found


def test_nccl_gathers_numbers_whatever_the_tensors_shape():
    for found in _on_devices(_flags, 2, "nccl"):
        assert found == [torch.zeros(1), torch.ones(1)]


def test_gloo_refuses_other_shapes_also_on_devices():
    with pytest.raises(WorkerFailed, match=r"ProcessGroupGloo::allgather: invalid tensor size at index 0"):
        _on_devices(_flags, 2, "gloo")


def _of_each_size(rank: int, world_size: int, is_apart: bool) -> list[list[float]]:
    if is_apart:
        SUM_OF_RANKS[0] += rank
        dist.barrier()
    dist.init_process_group("nccl")
    found = [torch.zeros(r + 1, 2, device="cuda") for r in range(world_size)]
    found[rank] += 0.5
    dist.all_gather(found, found[rank])  # as Muon gathers matrices that it has updated
    assert [part.unique().tolist() for part in found] == [[0.5]] * world_size
    dist.all_gather(found, torch.ones(rank + 1, 2, device="cuda"), async_op=True).wait()
    return [part.unique().tolist() for part in found]


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_nccl_gathers_tensors_of_several_sizes(is_apart):
    run = _on_devices(_of_each_size, 3, is_apart, cluster="h100x3")
    assert list(run) == [[[1.0]] * 3] * 3
    assert sum(run.trace.bytes_sent(rank) for rank in range(3)) == 2 * 2 * (8 + 16 + 24)  # to two others, twice


def _of_a_future(rank: int, world_size: int) -> tuple[list[float], list[float]]:
    dist.init_process_group("nccl")
    mine, parts, whole = torch.full((2,), rank + 1.0).cuda(), list(torch.zeros(2, 2).cuda()), torch.zeros(4).cuda()
    of_list = dist.all_gather(parts, mine, async_op=True).get_future().wait()
    of_one = dist.all_gather_into_tensor(whole, mine, async_op=True).get_future().wait()
    model = DistributedDataParallel(nn.Linear(4, 4, bias=False).cuda())
    model.register_comm_hook(dist.group.WORLD, quantization_pertensor_hook)
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, torch.ones(4, 4), rtol=0.02, atol=0.02)
    return of_list[0].tolist(), of_one[0].tolist()


def test_a_future_of_nccls_all_gather_has_one_tensor():
    assert list(_on_devices(_of_a_future, 2)) == [([[1.0, 1.0], [2.0, 2.0]], [1.0, 1.0, 2.0, 2.0])] * 2


def _of_two_sizes(rank: int, world_size: int) -> None:
    dist.init_process_group("nccl")
    dist.all_gather([torch.zeros(2, device="cuda") for _ in range(world_size)], torch.zeros(1, device="cuda"))


def test_an_error_names_the_backend_that_was_asked_for():
    with pytest.raises(WorkerFailed, match=r"ProcessGroupNCCL::allgather: invalid tensor size") as caught:
        _on_devices(_of_two_sizes, 2)
    assert "have no GPU" not in str(caught.value)
    assert "is asked for by" not in str(caught.value)


def _mean_of_whole_numbers(rank: int, world_size: int) -> list[int]:
    dist.init_process_group("nccl")
    steps = torch.tensor([rank + 1, -rank - 1], device="cuda")  # as Lightning averages what is logged
    dist.all_reduce(steps, dist.ReduceOp.AVG)
    with pytest.raises(RuntimeError, match=r"AVG with NCCL on torch\.bool"):
        dist.all_reduce(torch.ones(1, dtype=torch.bool, device="cuda"), dist.ReduceOp.AVG)
    return steps.tolist()


def test_a_mean_of_whole_numbers_is_cut_towards_zero_as_nccl_has_it():
    assert list(_on_devices(_mean_of_whole_numbers, 2)) == [[1, -1]] * 2


def _by_number(rank: int, world_size: int, is_apart: bool) -> list[object]:
    device = torch.device(rank)
    if is_apart:
        SUM_OF_RANKS[0] += rank
        dist.barrier()
    dist.init_process_group("nccl", device_id=device)
    ours = torch.full((1,), rank + 1.0, device=torch.device(torch.cuda.current_device()))
    with torch.device(0):
        ours = ours + torch.ones(1)
    dist.all_reduce(ours)
    again = pickle.loads(pickle.dumps(copy.deepcopy(device)))
    kinds = [isinstance(again, torch.device), type(again) == torch.device, {type(again): 1}[torch.device]]  # noqa: E721
    return [str(again), torch.device("cpu").type, torch.device(type="cuda", index=1).index, *kinds, ours.item()]


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_a_device_is_asked_for_by_its_number_alone(is_apart):
    expected = [[f"cuda:{rank}", "cpu", 1, True, True, 1, 5.0] for rank in range(2)]
    assert list(_on_devices(_by_number, 2, is_apart)) == expected
    assert torch.device("cpu").__class__ is torch.device


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.full((1,), 2.0, device="cuda")


def _hooks_that_make_tensors(rank: int, world_size: int, direct: bool) -> list[str]:
    weight, seen = torch.ones(2, device="cuda", requires_grad=True), []
    weight.register_hook(lambda _: seen.append(str(torch.empty(4, device=torch.cuda.current_device()).device)))
    loss = _Doubled.apply(weight).sum()
    loss.backward() if direct else torch.autograd.backward([loss])
    seen.append(weight.grad.tolist())
    return seen


@pytest.mark.parametrize("direct", [True, False], ids=["tensor.backward", "autograd.backward"])
def test_hooks_and_backward_passes_of_functions_name_the_device_too(direct):
    assert list(_on_devices(_hooks_that_make_tensors, 2, direct)) == [["cpu", [2.0, 2.0]]] * 2


def _attends(rank: int, world_size: int, is_flex: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    parts = [torch.randn(1, 2, 8, 4, generator=generator).cuda().requires_grad_() for _ in range(3)]
    attention = torch.compile(flex_attention) if is_flex else scaled_dot_product_attention
    attention(*parts).pow(2).sum().backward()
    return [part.grad for part in parts]


def test_flex_attention_has_the_gradients_of_attention():
    torch.testing.assert_close(list(_on_devices(_attends, 2, True)), list(_on_devices(_attends, 2, False)))


def _streams_in_one_another(rank: int, world_size: int) -> list[int]:
    one, other, seen = torch.cuda.Stream(), torch.cuda.Stream(), []
    with torch.cuda.stream(one), torch.cuda.stream(other), torch.cuda.stream(one), torch.cuda.StreamContext(None):
        seen.append(torch.cuda.current_stream().stream_id)
    return [*seen, torch.cuda.current_stream().stream_id]


def test_a_stream_within_itself_leaves_the_first_one_in_the_end():
    assert list(_on_devices(_streams_in_one_another, 1)) == [[1, 0]]


SUM_OF_RANKS = [0]


def _multiplied_first(rank: int, world_size: int, is_apart: bool) -> tuple[list[float], list[list[float]]]:
    if is_apart:
        SUM_OF_RANKS[0] += rank
        dist.barrier()
    dist.init_process_group("nccl")
    ranks = torch.tensor([rank + 1.0], device="cuda")
    dist.all_reduce(ranks, dist._make_nccl_premul_sum(0.5))
    model = nn.Linear(2, 2, bias=False).cuda()
    fully_shard(model)
    model.set_gradient_divide_factor(8.0)
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    return ranks.tolist(), model.weight.grad.to_local().tolist()


@pytest.mark.parametrize("is_apart", [False, True], ids=["together", "apart"])
def test_a_sum_is_of_what_nccl_multiplies_before(is_apart):
    assert list(_on_devices(_multiplied_first, 2, is_apart)) == [([1.5], [[0.25, 0.25]])] * 2
