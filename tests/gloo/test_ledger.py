"""The ledger of real ranks: every operation, by its public name, with the student's line."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from hw_utils import launch
from hw_utils.core.versions import torch_version


def ops_of(run, rank=0):
    return [(e.op, e.peer, e.n_bytes) for e in run.trace.of_rank(rank)]


def test_sends_and_receives_are_told_apart_from_their_asynchronous_twins():
    def worker(rank, world_size):
        tensor = torch.ones(4)
        if rank == 0:
            dist.send(tensor, 1)
            dist.isend(tensor, 1, tag=5).wait()
        else:
            dist.recv(tensor, 0)
            dist.irecv(tensor, 0, tag=5).wait()

    run = launch(worker, 2)
    assert ops_of(run, 0) == [("send", 1, 16), ("isend", 1, 16)]
    assert ops_of(run, 1) == [("recv", 0, 16), ("irecv", 0, 16)]
    assert [run.trace.bytes_sent(r) for r in range(2)] == [32, 0]
    assert [run.trace.messages_sent(r) for r in range(2)] == [2, 0]
    assert run.trace.rounds == 2
    assert {e.tag for e in run.trace.of_op("irecv")} == {5}
    sends = run.trace.of_op("send", "recv")
    assert {e.message for e in sends} == {sends[0].message}


def test_events_name_the_students_line_and_lie_within_the_run():
    def worker(rank, world_size):
        dist.barrier()
        dist.all_reduce(torch.ones(1))  # two lines below the first of the function

    run = launch(worker, 2)
    first = worker.__code__.co_firstlineno
    assert [(e.op, e.line - first) for e in run.trace.of_rank(0)] == [("barrier", 1), ("all_reduce", 2)]
    assert {e.file for e in run.trace} == {__file__}
    for e in run.trace:
        assert 0 <= e.start_s <= e.wait_start_s <= e.wait_end_s <= run.seconds
        assert e.start_s <= e.end_s <= run.seconds


GLOO_HAS_ALL_TO_ALL = torch_version() > (2, 11)  # of lists
COLLECTIVES = {
    "all_reduce": lambda rank, n: dist.all_reduce(torch.ones(8)),
    "broadcast": lambda rank, n: dist.broadcast(torch.ones(8), 1),
    "reduce": lambda rank, n: dist.reduce(torch.ones(8), 0),
    "all_gather": lambda rank, n: dist.all_gather([torch.ones(8) for _ in range(n)], torch.ones(8)),
    "all_gather_into_tensor": lambda rank, n: dist.all_gather_into_tensor(torch.ones(8 * n), torch.ones(8)),
    "gather": lambda rank, n: dist.gather(torch.ones(8), [torch.ones(8) for _ in range(n)] if rank == 0 else None, 0),
    "scatter": lambda rank, n: dist.scatter(torch.ones(8), [torch.ones(8) for _ in range(n)] if rank == 0 else None, 0),
    "reduce_scatter": lambda rank, n: dist.reduce_scatter(torch.ones(8), [torch.ones(8) for _ in range(n)]),
    "reduce_scatter_tensor": lambda rank, n: dist.reduce_scatter_tensor(torch.ones(8), torch.ones(8 * n)),
    "all_to_all": lambda rank, n: dist.all_to_all([torch.ones(8) for _ in range(n)], [torch.ones(8) for _ in range(n)]),
    "all_to_all_single": lambda rank, n: dist.all_to_all_single(torch.ones(8 * n), torch.ones(8 * n)),
    "barrier": lambda rank, n: dist.barrier(),
    "monitored_barrier": lambda rank, n: dist.monitored_barrier(),
    "all_gather_object": lambda rank, n: dist.all_gather_object([None] * n, {"rank": rank}),
    "gather_object": lambda rank, n: dist.gather_object(rank, [None] * n if rank == 0 else None),
    "broadcast_object_list": lambda rank, n: dist.broadcast_object_list([rank]),
    "scatter_object_list": lambda rank, n: dist.scatter_object_list([None], list(range(n)) if rank == 0 else None),
}


def test_collectives_are_recorded_once_by_their_public_names():
    names = [name for name in COLLECTIVES if name != "all_to_all" or GLOO_HAS_ALL_TO_ALL]
    calls = [COLLECTIVES[name] for name in names]

    def worker(rank, world_size):
        for call in calls:
            call(rank, world_size)

    run = launch(worker, 4)
    for rank in range(4):
        assert [e.op for e in run.trace.of_rank(rank)] == names
    assert all(e.peer is None and e.is_collective and e.waited is not None for e in run.trace)
    assert len({e.message for e in run.trace}) == len(names)


def test_collectives_cost_what_their_algorithm_sends():
    def worker(rank, world_size):
        dist.all_reduce(torch.ones(100))
        dist.gather(torch.ones(100), [torch.ones(100) for _ in range(4)] if rank == 0 else None, 0)

    run = launch(worker, 4)
    assert [e.sent_bytes for e in run.trace.of_op("all_reduce")] == [600] * 4  # 2 (N - 1) pieces of a quarter
    assert [e.sent_bytes for e in sorted(run.trace.of_op("gather"), key=lambda e: e.rank)] == [0, 400, 400, 400]
    assert {e.rounds for e in run.trace.of_op("all_reduce")} == {6}


def test_a_subgroups_calls_have_its_global_ranks():
    def worker(rank, world_size):
        evens, odds = dist.new_group([0, 2]), dist.new_group([1, 3])
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=evens if rank % 2 == 0 else odds)
        if rank == 1:
            dist.send(tensor, 3, group=odds)
        if rank == 3:
            dist.recv(tensor, 1, group=odds)
        return tensor.item()

    run = launch(worker, 4)
    assert run.results == [2.0, 4.0, 2.0, 4.0]
    assert {(e.rank, e.group) for e in run.trace.of_op("all_reduce")} == {
        (r, (r % 2, r % 2 + 2)) for r in range(4)
    }  # fmt: skip
    assert [(e.rank, e.peer, e.group) for e in run.trace.of_op("send")] == [(1, 3, (1, 3))]
    assert len({e.message for e in run.trace.of_op("all_reduce")}) == 2


def test_ddp_is_recorded_and_keeps_replicas_equal():
    def worker(rank, world_size):
        torch.manual_seed(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(4, 10)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    run = launch(worker, 2)
    for a, b in zip(*run.results):
        assert torch.equal(a, b)
    reductions = run.trace.of_op("all_reduce").of_rank(0)
    assert sum(e.n_bytes for e in reductions) == 2 * 110 * 4
    assert all(e.end_s > e.start_s for e in reductions)
    assert all(e.waited is not None for e in run.trace)


def test_waits_of_ddp_are_those_of_a_rank_that_comes_early():
    def worker(rank, world_size):
        layers = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
        model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.01)
        model(torch.ones(1, 100)).sum().backward()  # DDP makes its buckets after the first pass
        loss = model(torch.ones(1, 100)).sum()
        if rank == 1:
            time.sleep(0.3)
        loss.backward()

    trace = launch(worker, 2).trace.of_op("all_reduce")
    waited_s = [sum(e.wait_end_s - e.wait_start_s for e in trace.of_rank(r)) for r in range(2)]
    assert waited_s[0] > waited_s[1]
    for e in trace:
        assert e.start_s <= e.wait_start_s <= e.wait_end_s
    _, first, *_, last = trace.of_rank(0)
    assert first is not last
    assert first.waited > last.order  # all buckets are under way before the first wait


def test_ddp_gives_the_bits_that_it_gives_without_the_ledger():
    def worker(rank, world_size):
        import torch.distributed.distributed_c10d as c10d

        from hw_utils.gloo.group import LedgerGroup

        c10d.ProcessGroupGloo = type(dist.group.WORLD._inner)
        groups = [dist.new_group(), dist.group.WORLD]
        gradients = []
        for group in groups:
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64))
            replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)
            for _ in range(2):
                replica(torch.randn(8, 64) + rank).square().sum().backward()
            gradients.append([p.grad for p in model.parameters()])
        assert [isinstance(group, LedgerGroup) for group in groups] == [False, True]
        return all(torch.equal(a, b) for a, b in zip(*gradients))

    assert launch(worker, 2).results == [True, True]


def test_a_receive_from_anybody_knows_its_sender_afterwards():
    def worker(rank, world_size):
        if rank:
            dist.send(torch.tensor([float(rank)]), 0)
            return None
        found = []
        for _ in range(world_size - 1):
            tensor = torch.empty(1)
            found.append((dist.recv(tensor), tensor.item()))
        return found

    run = launch(worker, 4)
    assert sorted(run[0]) == [(r, float(r)) for r in (1, 2, 3)]
    assert sorted(e.peer for e in run.trace.of_op("recv")) == [1, 2, 3]
    assert all(e.message >= 0 for e in run.trace)


def test_order_and_waits_are_those_of_the_program():
    def worker(rank, world_size):
        a, b = torch.ones(1), torch.ones(1)
        sending = dist.isend(a, 1 - rank)
        receiving = dist.irecv(b, 1 - rank)
        receiving.wait()
        sending.wait()

    run = launch(worker, 2)
    assert [(e.op, e.order, e.waited) for e in run.trace.of_rank(0)] == [("isend", 0, 3), ("irecv", 1, 2)]


def test_a_message_that_nobody_waits_for_is_recorded():
    def worker(rank, world_size):
        if rank == 0:
            dist.isend(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)

    (event,) = launch(worker, 2).trace.of_op("isend")
    assert event.waited is None
    assert event.message >= 0


def test_tens_of_thousands_operations_are_all_recorded():
    n = 20_000

    def worker(rank, world_size):
        tensor = torch.ones(1)
        for _ in range(n):
            if rank == 0:
                dist.send(tensor, 1)
            else:
                dist.recv(tensor, 0)

    run = launch(worker, 2)
    assert len(run.trace) == 2 * n
    assert run.trace.messages_sent(0) == n
    assert len(set(run.trace.records["message"].tolist())) == n


def test_slow_ranks_are_never_taken_for_deadlocked():
    def worker(rank, world_size):
        tensor = torch.ones(1)
        if rank == 0:
            time.sleep(0.6)  # more than twice what a deadlock must hold still
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
        dist.barrier()
        end = time.perf_counter() + 0.4 * (rank == 2)
        while time.perf_counter() < end:
            pass
        dist.all_reduce(tensor)

    assert statistics.fmean(launch(worker, 3).seconds for _ in range(3)) > 1


def test_thousands_of_sizes_in_a_row_are_never_taken_for_different_calls():
    def worker(rank, world_size):
        small, large = torch.ones(1), torch.ones(3)
        for i in range(3_000):
            dist.all_reduce(small if i % 2 else large)
        sends = [dist.isend(small if i % 3 else large, 1 - rank) for i in range(200)]
        receives = [dist.irecv(torch.ones(1 if i % 3 else 3), 1 - rank) for i in range(200)]
        for request in sends + receives:
            request.wait()

    run = launch(worker, 2)
    assert run.trace.calls["all_reduce"] == 6_000
    assert run.trace.calls["isend"] == 400
