"""Interleavings on purpose: what is found, that it is found again, and that nothing of it stays behind."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest
import torch

from hw_utils.threads.interleavings.explorer import explore
from hw_utils.threads.interleavings.story import tell


class Counter:
    def __init__(self, lock):
        self.value, self.lock = 0, lock

    def add(self):
        self.value += 1

    def add_safely(self):
        with self.lock:
            self.value += 1


def add(counter, rank, note):
    counter.add()
    return counter.value


def add_safely(counter, rank, note):
    counter.add_safely()


def values(explored):
    return [outcome.results for outcome in explored.outcomes]


def test_a_lost_update_is_found_between_the_read_and_the_write():
    explored = explore(lambda: Counter(None), add, 2, n_interleavings=100)
    assert [1, 1] in values(explored)


class Total:
    def __init__(self):
        self.sum, self.lock = torch.zeros(2), threading.Lock()

    def add(self, share):
        self.sum += share

    def add_to_a_part(self, share):
        self.sum[:1].add_(share[:1])

    def add_into(self, share):
        torch.add(self.sum, share, out=self.sum)

    def add_at_indices(self, share):
        self.sum.index_add_(0, torch.arange(2), share)

    def add_scattered(self, share):
        self.sum.scatter_add_(0, torch.arange(2), share)

    def add_a_product(self, share):
        self.sum.view(1, 2).addmm_(share.view(2, 1)[:1], torch.ones(1, 2))

    def add_a_product_into(self, share):
        total = self.sum.view(1, 2)
        torch.addmm(total, share.view(2, 1)[:1], torch.ones(1, 2), out=total)

    def add_lists(self, share):
        torch._foreach_add_([self.sum], [share])

    def put(self, share):
        self.sum.index_put_((torch.arange(2),), share, accumulate=True)

    def write_at_indices(self, share):
        self.sum.index_copy_(0, torch.arange(2), share)

    def write_lists(self, share):
        torch._foreach_copy_([self.sum], [share])

    def add_safely(self, share):
        with self.lock:
            self.sum += share

    def add_to_its_own(self, share):
        mine = self.sum.clone()
        mine += share
        return mine

    def write(self, share):
        self.sum.copy_(share)

    def add_arrays(self, share):
        total = self.sum.numpy()
        total += share.numpy()

    def add_to_a_part_of_an_array(self, share):
        self.sum.detach().numpy()[:1] += 10.0 ** (share[0].item() > 1)

    def add_into_an_array(self, share):
        total = self.sum.numpy()
        np.add(total, share.numpy(), out=total)

    def add_at(self, share):
        np.add.at(self.sum.numpy(), [0], share[:1].numpy())

    def add_to_an_array_of_its_own(self, share):
        mine = self.sum.numpy().copy()
        mine += share.numpy()
        return mine

    def write_an_array(self, share):
        np.multiply(share.numpy(), 1, out=self.sum.numpy())


@pytest.mark.parametrize(
    ("name", "sums"),
    [("add", {1, 10, 11}), ("add_to_a_part", {1, 10, 11}), ("add_into", {1, 10, 11}), ("add_safely", {11}),
     ("add_to_its_own", {0}), ("write", {1, 10}),
     ("add_at_indices", {1, 10, 11}), ("add_scattered", {1, 10, 11}), ("add_a_product", {1, 10, 11}),
     ("add_a_product_into", {1, 10, 11}), ("add_lists", {1, 10, 11}), ("put", {1, 10, 11}),
     ("write_at_indices", {1, 10}), ("write_lists", {1, 10}),
     ("add_arrays", {1, 10, 11}), ("add_to_a_part_of_an_array", {1, 10, 11}), ("add_into_an_array", {1, 10, 11}),
     ("add_at", {1, 10, 11}), ("add_to_an_array_of_its_own", {0}), ("write_an_array", {1, 10})],
)  # fmt: skip
def test_between_what_torch_reads_in_place_and_what_it_writes_another_rank_may_add(name, sums):
    totals = []

    def make():
        totals.append(Total())
        return totals[-1]

    def program(total, rank, note):
        getattr(total, name)(torch.full((2,), 10.0**rank))

    explore(make, program, 2, n_interleavings=100)
    assert {total.sum[0].item() for total in totals} == sums


@pytest.mark.parametrize("into", ["index_add_", "index_put_", "scatter_add_", "masked_fill_"])
def test_ranks_that_change_rows_of_their_own_lose_nothing(into):
    tables = []

    def make():
        tables.append(torch.zeros(2, 2))
        return tables[-1]

    explore(make, lambda table, rank, note: change_row(table, into, torch.tensor([rank])), 2, n_interleavings=100)
    assert len(tables) > 2
    assert all(table.tolist() == [[1, 1], [2, 2]] for table in tables)


def change_row(table, into, row):
    row_of_ones = torch.ones(1, 2)
    if into == "index_add_":
        table.index_add_(0, row, row_of_ones * (row + 1))
    elif into == "index_put_":
        table.index_put_((row,), row_of_ones * (row + 1), accumulate=True)
    elif into == "scatter_add_":
        table.scatter_add_(0, row.expand(1, 2), row_of_ones * (row + 1))
    else:
        table.masked_fill_(torch.arange(2).eq(row).view(2, 1), float(row + 1))


def test_ranks_that_sleep_until_all_have_come_let_every_other_one_come():
    class Room:
        def __init__(self):
            self.come = []

        def wait_for(self, n):
            while len(self.come) < n:
                time.sleep(0.001)

    def program(room, rank, note):
        room.come.append(rank)
        room.wait_for(4)

    assert [o.kind for o in explore(Room, program, 4, n_interleavings=50).outcomes] == ["returned"]


def test_the_same_interleavings_are_run_every_time():
    def run():
        return [
            (o.results, o.number, o.count, o.story) for o in explore(lambda: Counter(None), add, 3, seed=4).outcomes
        ]

    assert run() == run()


def test_another_seed_gives_other_interleavings():
    def counts(seed):
        return [o.count for o in explore(lambda: Counter(None), add, 3, n_interleavings=400, seed=seed).outcomes]

    assert counts(1) != counts(2)


def test_a_lock_makes_every_interleaving_end_alike():
    def last(counter, rank, note):
        counter.add_safely()
        counter.barrier.wait()
        return counter.value

    def make():
        counter = Counter(threading.Lock())
        counter.barrier = threading.Barrier(3)
        return counter

    explored = explore(make, last, 3, n_interleavings=300)
    assert values(explored) == [[3, 3, 3]]
    assert explored.n_interleavings == 300
    assert explored.n_points > 10


def test_locks_that_wait_for_each_other_hang_in_some_order_and_are_told():
    class Two:
        def __init__(self):
            self.a, self.b = threading.Lock(), threading.Lock()

        def both(self, first, second):
            with first, second:
                return True

    def program(two, rank, note):
        return two.both(two.a, two.b) if rank == 0 else two.both(two.b, two.a)

    explored = explore(Two, program, 2, n_interleavings=200)
    assert explored.outcomes[0].results == [True, True]
    assert explored.outcomes[-1].kind == "hung"
    assert "with first, second" in explored.outcomes[-1].text
    assert any("rank 1" in step for step in explored.outcomes[-1].story)


def test_a_rank_that_raises_is_named_with_its_line():
    class Half:
        def __init__(self):
            self.buffer = {}

        def take(self, rank):
            self.buffer.setdefault("x", 1)
            return self.buffer.pop("x")

    explored = explore(Half, lambda half, rank, note: half.take(rank), 2, n_interleavings=200)
    found = explored.outcomes[-1]
    assert found.kind == "raised"
    assert found.text == "KeyError: 'x'"
    assert found.line == 'return self.buffer.pop("x")'
    assert found.story[-1] == f"rank {found.rank} raises KeyError: 'x'"


def test_a_rank_that_looks_again_and_again_is_endless_not_waited_for():
    class Spin:
        def __init__(self):
            self.ready = False

        def wait(self):
            while not self.ready:
                pass

    explored = explore(Spin, lambda spin, rank, note: spin.wait(), 2, n_interleavings=5)
    assert [outcome.kind for outcome in explored.outcomes] == ["endless"]


def test_a_loop_that_touches_nothing_is_ended_at_the_time_limit():
    def forever():
        while True:
            pass

    explored = explore(lambda: None, lambda shared, rank, note: forever(), 2, n_interleavings=5, timeout_s=0.2)
    assert [outcome.kind for outcome in explored.outcomes] == ["endless"]
    assert re.search(r"test_interleavings.py, line \d+: (while True:|pass)", explored.outcomes[0].text)


def test_a_wait_with_a_limit_ends_when_nobody_else_can_go_on():
    class Late:
        def __init__(self):
            self.barrier = threading.Barrier(3)

        def wait(self):
            try:
                self.barrier.wait(timeout=5)
            except threading.BrokenBarrierError:
                return "late"

    explored = explore(Late, lambda late, rank, note: late.wait(), 2, n_interleavings=3)
    assert values(explored) == [["late", "late"]]


def test_sleeping_takes_no_time_and_orders_nothing():
    class Hopeful:
        def __init__(self):
            self.written = False

        def read(self, rank):
            if rank == 0:
                self.written = True
                return True
            time.sleep(1000)
            return self.written

    explored = explore(Hopeful, lambda hopeful, rank, note: hopeful.read(rank), 2, n_interleavings=100)
    assert sorted(values(explored)) == [[True, False], [True, True]]


def test_a_story_ends_with_the_step_that_is_asked_for():
    lines = [(0, "starts", 0), (1, "reads", 0), (0, "writes", 0), (1, "fails", 0), (0, "goes on", 0)]
    assert tell(lines, upto_rank=1, upto_text="fails") == [
        "rank 0 starts",
        "rank 1 reads",
        "rank 0 writes",
        "rank 1 fails",
    ]
    assert tell(lines, n_lines=2) == ["(3 steps before)", "rank 1 fails", "rank 0 goes on"]


def test_a_write_of_the_next_call_is_told_again(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("slot[rank] = tensor\nbarrier.wait()\n")
    write, wait = (1, str(mine), 1), (1, str(mine), 2)
    told = tell([write, write, wait, (1, "has returned from call 1", 0), write, wait])
    assert told == [
        "rank 1, line 1: slot[rank] = tensor",
        "rank 1 has returned from call 1",
        "rank 1, line 1: slot[rank] = tensor",
        "rank 1, line 2: barrier.wait()",
    ]
