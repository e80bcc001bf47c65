"""What programs do with groups and works under launch, as with bare gloo: values, bytes, gloo's own texts."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import autograd, rpc
from torch.distributed.nn.functional import all_gather

from hw_utils import WorkerFailed, launch, simulate
from hw_utils.core.versions import torch_version


def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Of two ranks; gloo takes lists from torch 2.12 on, before it is a gather of what rank 1 gets."""
    if torch_version() >= (2, 12):
        dist.all_to_all(outputs, inputs)
    else:
        dist.all_gather(outputs, inputs[1])


def sums(rank: int) -> torch.Tensor:
    return torch.arange(4.0) + 10 * rank


def destroy_a_subgroup(rank, world_size):
    group = dist.new_group([0, 1])
    mine = sums(rank)
    if rank < 2:
        dist.all_reduce(mine, group=group)
        dist.destroy_process_group(group)
    dist.all_reduce(mine)
    return mine.tolist()


def destroy_all(rank, world_size):
    mine = sums(rank)
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine.tolist(), dist.is_initialized()


def groups_of_groups(rank, world_size):
    half, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    alone, _ = dist.new_subgroups(1, group=half)
    mine = sums(rank)
    dist.all_reduce(mine, group=alone)
    dist.all_reduce(mine, group=half)
    return mine.tolist()


def coalesced(rank, world_size):
    parts = [sums(rank), 2 * sums(rank)]
    with dist._coalescing_manager():
        for part in parts:
            dist.all_reduce(part)
    return [part.tolist() for part in parts]


def uneven(rank, world_size):
    to, of = [i + 1 + rank for i in range(world_size)], [rank + 1 + i for i in range(world_size)]
    got = torch.zeros(sum(of))
    dist.all_to_all_single(got, torch.arange(float(sum(to))), of, to)
    return got.tolist()


@pytest.mark.parametrize("program", [destroy_a_subgroup, destroy_all, groups_of_groups, coalesced, uneven])
def test_values_and_bytes_are_those_of_the_virtual_ranks(program):
    real, virtual = launch(program, 4), simulate(program, 4)
    assert real.results == virtual.results
    sent = [real.trace.bytes_sent(r) for r in range(4)]
    assert sent == [virtual.trace.bytes_sent(r) for r in range(4)]
    if program is coalesced:
        assert sent == [2 * 3 * 2 * 16 // 4] * 4  # two all-reduces of 16 bytes


def test_groups_that_share_a_rank_must_be_the_same():
    def worker(rank, world_size):
        dist.new_group([0, 1] if rank == 0 else [1, 2])

    with pytest.raises(WorkerFailed, match=r"calls new_group for ranks .* calls new_group for ranks"):
        launch(worker, 3)


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_mismatch_that_a_rank_catches_names_the_lines(engine):
    def worker(rank, world_size):
        try:
            dist.all_reduce(torch.ones(1 + rank))
        except RuntimeError as error:
            raise ValueError(ascii(str(error))) from None  # a mark for the kernel would be seen

    with pytest.raises(
        WorkerFailed, match=r"at test_groups\.py, line \d+, but rank \d .*at test_groups\.py, line \d+: "
    ):
        engine(worker, 2, echo=False)


@pytest.mark.parametrize("engine", [launch, simulate])
@pytest.mark.parametrize("operation", ["all_reduce", "scatter"])
def test_a_view_with_gaps_is_refused_where_gloo_takes_what_lies_in_them(engine, operation):
    def worker(rank, world_size):
        columns = torch.arange(12.0).reshape(3, 4)[:, ::2]
        if operation == "all_reduce":
            dist.all_reduce(columns)
        else:
            dist.scatter(torch.zeros(3, 2), [columns] * world_size if rank == 0 else None, 0)

    with pytest.raises(WorkerFailed, match="must be non-overlapping and dense"):
        engine(worker, 2)


def test_a_view_with_gaps_is_taken_where_gloo_makes_one_piece_of_its_inputs():
    def worker(rank, world_size):
        pieces = [(torch.arange(6.0) + 10 * rank + 100 * k).view(3, 2)[:, 0] for k in range(world_size)]
        got = [torch.zeros(3) for _ in range(3 * world_size + 1)]
        dist.all_gather(got[:2], pieces[1])
        all_to_all(got[2:4], pieces)
        dist.reduce_scatter(got[4], pieces)
        dist.gather(pieces[0], got[5:] if rank == 0 else None, 0)
        mine = torch.ones(3, requires_grad=True)
        sum(piece.sum() * (rank + 1) for piece in all_gather(mine)).backward()  # its gradients are one number, expanded
        return [t.tolist() for t in got], mine.grad.tolist()

    real, virtual = launch(worker, 2), simulate(worker, 2)
    assert real.results == virtual.results
    all_of_1, summed, none = [[100, 102, 104], [110, 112, 114]], [210, 214, 218], [0] * 3
    assert virtual[1] == ([*all_of_1, *all_of_1, summed, none, none], [3] * 3)
    assert [real.trace.bytes_sent(r) for r in range(2)] == [virtual.trace.bytes_sent(r) for r in range(2)]


def into(rank: int, world_size: int, like: str, is_apart: bool = False) -> list[list]:
    """Each collective that gloo ends by copying to its outputs, whatever lies in their memory."""
    if is_apart:
        threading.Thread(target=int).start()  # that makes it a program whose ranks have processes

    def made(rows: int, order: str, start: float = 0.0) -> torch.Tensor:
        x = torch.arange(rows * 3.0).view(rows, 3) + start
        if order == "rows":
            return x
        memory = torch.zeros(rows, 6)[:, ::2] if order == "gaps" else torch.zeros(3, rows).t()
        return memory.copy_(x)

    found = []
    for order in ("rows", "columns", "gaps"):
        pieces = [made(2, order, 10 * rank + 100 * k) for k in range(world_size)]
        got = [made(2, like, -50.0) for _ in range(world_size)]
        dist.all_gather(got, pieces[0])
        found += [t.tolist() for t in got]
        dist.gather(pieces[1], got if rank == 1 else None, 1)
        found += [t.tolist() for t in got]
        all_to_all(got, pieces)
        found += [t.tolist() for t in got]
        whole, mine = made(2 * world_size, like), made(2, like)
        dist.all_gather_into_tensor(whole, pieces[0])
        dist.reduce_scatter_tensor(mine, made(2 * world_size, order, rank))
        found += [whole.tolist(), mine.tolist()]
        with dist._coalescing_manager(async_ops=True) as several:
            for tensor in (whole, made(2 * world_size, like)):
                dist.all_gather_into_tensor(tensor, pieces[1])
        several.wait()
        found.append(whole.tolist())
    return found


@pytest.mark.parametrize("like", ["columns", "gaps"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_outputs_of_any_order_in_memory_get_their_elements_by_shape(like, is_apart):
    real, virtual = launch(into, 2, ("rows",)), simulate(into, 2, (like, is_apart))
    assert real.results == virtual.results == launch(into, 2, (like,)).results
    assert [real.trace.bytes_sent(r) for r in range(2)] == [virtual.trace.bytes_sent(r) for r in range(2)]


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_reduce_scatter_that_would_mix_elements_up_is_refused(engine):
    def worker(rank, world_size):
        pieces = [torch.arange(6.0).view(3, 2).t() for _ in range(world_size)]
        fits = torch.zeros(3, 2).t()
        dist.reduce_scatter(fits, pieces)
        with pytest.raises(RuntimeError, match="mixes up elements"):
            dist.reduce_scatter(torch.zeros(2, 3), pieces)
        return fits.tolist()

    assert engine(worker, 2).results == [[[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]] * 2


def into_any_order(rank, world_size):
    rows = torch.arange(8.0).reshape(4, 2) + 10 * rank
    found = []
    for out in (torch.zeros(2, 4).t(), torch.zeros(4, 4)[:, ::2]):
        dist.all_to_all_single(out, rows)
        found.append(out.tolist())
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_to_all_single(rows, torch.zeros(2, 4).t())
    return found


def test_all_to_all_single_fills_its_outputs_memory_as_gloo_does():
    real, virtual = launch(into_any_order, 2, echo=False).results, simulate(into_any_order, 2, echo=False).results
    assert real == virtual
    assert real[0] == [[[k, k + 10.0] for k in range(4)], [[0.0, 2.0], [10.0, 12.0], [0.0, 0.0], [0.0, 0.0]]]


def test_a_view_without_gaps_is_summed():
    def worker(rank, world_size):
        mine = torch.arange(12.0).reshape(3, 4).t()
        dist.all_reduce(mine)
        return mine.tolist()

    assert launch(worker, 2).results == [(2 * torch.arange(12.0).reshape(3, 4).t()).tolist()] * 2


def test_sparse_tensors_are_summed_and_their_indices_and_values_counted():
    def worker(rank, world_size):
        mine = torch.sparse_coo_tensor(torch.tensor([[rank, rank + 1]]), torch.tensor([1.0, 2.0]), (world_size + 1,))
        dist.all_reduce(mine)
        return mine.to_dense().tolist()

    run = launch(worker, 3)
    assert run.results == [[1.0, 3.0, 3.0, 2.0]] * 3
    assert [run.trace.bytes_sent(r) for r in range(3)] == [2 * (2 * 8 + 2 * 4)] * 3  # an all-gather: 2 steps


def test_a_monitored_barrier_that_fails_says_it_in_its_own_words():
    def worker(rank, world_size):
        if rank != 1:
            dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        else:
            dist.recv(torch.zeros(1), 0)

    with pytest.raises(WorkerFailed, match="Rank 1 failed to pass monitoredBarrier in 200 ms"):
        launch(worker, 2)


@pytest.mark.parametrize("call", ["barrier", "recv", "wait"])
def test_a_group_with_a_short_timeout_runs_into_it(call):
    def worker(rank, world_size, call):
        group = dist.new_group(timeout=timedelta(seconds=0.5))
        if rank:
            return ""
        try:
            if call == "barrier":
                dist.barrier(group)
            elif call == "recv":
                dist.recv(torch.ones(1), 1, group=group)
            else:
                dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
        except RuntimeError as error:
            return str(error)

    assert "Timed out waiting 500ms" in launch(worker, 2, (call,)).results[0]


def test_ranks_with_uneven_inputs_join_in_ddp():
    def worker(rank, world_size):
        model = torch.nn.Linear(4, 2)
        torch.nn.init.ones_(model.weight)
        replica = torch.nn.parallel.DistributedDataParallel(model)
        with replica.join():
            for _ in range(2 + rank):
                model.zero_grad()
                replica(torch.ones(1, 4)).sum().backward()
        return model.weight.grad.tolist()

    first, second = launch(worker, 2).results
    assert second == [[0.5] * 4] * 2  # the last step is rank 1's alone, and is divided by both
    assert first == [[1.0] * 4] * 2


def carries(rank, world_size, how):
    short = torch.zeros(2, dtype=torch.int16)
    if how == "gather":
        dist.gather(torch.zeros(2, dtype=torch.complex64), None if rank else [torch.zeros(2) + 0j] * world_size, 0)
    elif how == "broadcast":
        dist.broadcast(short, 0)
    elif how == "all_gather":
        dist.all_gather([short.clone() for _ in range(world_size)], short)
    else:
        dist.all_to_all_single(short.clone(), short)


@pytest.mark.parametrize("how", ["broadcast", "all_gather", "all_to_all_single", "gather"])
def test_a_type_that_gloo_does_not_carry_is_refused_by_both(how):
    for engine in (launch, simulate):
        with pytest.raises(WorkerFailed, match="Invalid scalar type"):
            engine(carries, 2, (how,), echo=False)


def asks_another(rank, world_size, path):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    answer = rpc.rpc_sync(f"rank{1 - rank}", torch.add, args=(torch.ones(1), rank)).item()
    dist.all_reduce(total := torch.ones(1))
    kept = rpc.remote(f"rank{1 - rank}", torch.mul, args=(total, 3.0))
    rpc.shutdown(graceful=kept.to_here().item() == 6.0)
    return answer


def through_another(rank, world_size, path):
    """The backward pass of a model in DDP, in a thread that C++ code has begun."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    with autograd.context() as context:
        y = rpc.rpc_sync(f"rank{1 - rank}", torch.mul, args=(model(torch.ones(1, 2) * rank), 2.0))
        autograd.backward(context, [y.sum()])
        gradients = autograd.get_gradients(context)
        found = [gradients[parameter].tolist() for parameter in model.parameters()]
    rpc.shutdown()
    return found


@pytest.mark.parametrize("engine", [launch, simulate])
def test_a_collective_of_a_thread_without_a_python_frame_is_one_of_the_ranks(engine, tmp_path):
    run = engine(through_another, 2, (str(tmp_path / "meet"),), echo=False)
    assert run.results == [[[[1.0, 1.0]], [2.0]]] * 2


@pytest.mark.parametrize("engine", [launch, simulate])
def test_remote_procedure_calls_run_beside_collectives(engine, tmp_path):
    run = engine(asks_another, 2, (str(tmp_path / "meet"),), echo=False)
    assert run.results == [1.0, 2.0]
    assert [event.op for event in run.trace.of_op("all_reduce")] == ["all_reduce"] * 2


def exchanges_that_do_not_fit(rank: int, world_size: int) -> list[str]:
    said = []
    for outputs, inputs in (
        ([1, 1], [1, 1]), ([1, 1], [1, 2]), ([1, 2], [3, 3]), ([1], [1, 1]), ([1, 1], [1]), ([(2, 3)] * 2, [(3, 2)] * 2)
    ):  # fmt: skip
        try:
            dist.all_to_all([torch.zeros(s) for s in outputs], [torch.zeros(s) for s in inputs])
            said.append("")
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])
    return said


def test_an_all_to_all_of_lists_is_what_the_installed_gloo_makes_of_it_on_both_engines():
    real, virtual = (engine(exchanges_that_do_not_fit, 2, echo=False).results for engine in (launch, simulate))
    assert real == virtual
    has_lists = torch_version() >= (2, 12)
    assert [bool(text) for text in real[0]] == [not has_lists, True, True, True, True, True]
    assert has_lists or real[0][0] == "Backend gloo does not support alltoall"
