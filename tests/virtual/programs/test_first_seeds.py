"""A rank that sets no seed draws numbers of its own, as a process would; a run begins again for that if it must."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hw_utils import launch, simulate
from hw_utils.virtual import simulation
from hw_utils.virtual.ranks.per_rank_state.random_states import SEED
from tests.virtual import runs


def draws_at_once(rank, world_size):
    return torch.rand(2).tolist()


def draws_later(rank, world_size):
    mine = torch.full((1,), float(rank))
    dist.all_reduce(mine)
    nn.Dropout()(torch.ones(4))  # four numbers, of no use to anybody
    dist.barrier()
    return torch.randn(2).tolist()


def changes_a_module_too(rank, world_size):
    before = torch.rand(2).tolist()
    runs.own_number = rank  # each rank gets a process
    dist.barrier()
    return before, runs.own_number


def seeded_first(rank, world_size):
    torch.manual_seed(7)
    first = torch.rand(1)
    dist.all_reduce(first)
    return first.item(), torch.rand(1).item()


def only_the_first_draws(rank, world_size):
    weight = torch.rand(2) if rank == 0 else torch.zeros(2)
    dist.broadcast(weight, 0)
    return weight.tolist()


def prints_what_it_draws(rank, world_size):
    print(f"{torch.rand(1).item():.6f}")
    dist.barrier()


def drawn(rank: int, *draws) -> list:
    generator = torch.Generator().manual_seed(SEED + rank)
    return [draw(generator) for draw in draws][-1].tolist()


def two_numbers(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(2, generator=generator)


@pytest.mark.parametrize("engine", [simulate, launch])
def test_each_rank_draws_its_own_and_the_same_ones_in_each_run(engine):
    expected = [drawn(rank, two_numbers) for rank in range(3)]
    assert engine(draws_at_once, 3, echo=False).results == expected
    assert engine(draws_at_once, 3, echo=False).results == expected
    assert len({tuple(numbers) for numbers in expected}) == 3


@pytest.mark.parametrize("engine", [simulate, launch])
def test_also_where_the_first_draw_comes_late(engine):
    expected = [
        drawn(r, lambda g: torch.empty(4).bernoulli_(0.5, generator=g), lambda g: torch.randn(2, generator=g))
        for r in range(4)
    ]
    assert engine(draws_later, 4, echo=False).results == expected


def test_ranks_with_a_process_each_draw_the_same():
    run = simulate(changes_a_module_too, 3, echo=False)
    assert run.results == [(drawn(rank, two_numbers), rank) for rank in range(3)]


def test_ranks_that_are_threads_draw_the_same():
    def waits_in_a_backward_pass(rank, world_size):
        numbers = torch.rand(2).requires_grad_()
        numbers.register_hook(lambda g: dist.barrier())
        numbers.sum().backward()
        return numbers.tolist()

    run = simulate(waits_in_a_backward_pass, 3, echo=False)
    assert run.results == [drawn(rank, two_numbers) for rank in range(3)]


@pytest.fixture
def attempts(monkeypatch):
    """What each attempt at a run in this process was to begin with."""
    found = []

    class Noted(simulation.Attempt):
        def run(self, carrier):
            found.append((carrier, self.job.get("own_seeds", False)))
            super().run(carrier)

    monkeypatch.setattr(simulation, "Attempt", Noted)
    return found


@pytest.mark.parametrize("worker", [seeded_first, only_the_first_draws])
def test_who_sets_a_seed_or_draws_as_the_first_rank_alone_has_one_attempt(attempts, worker):
    run = simulate(worker, 3, echo=False, isolate=False)
    assert attempts == [("greenlets", False)]
    assert len({str(result) for result in run.results}) == 1


def test_another_rank_that_draws_has_the_run_begin_again_once(attempts):
    run = simulate(draws_later, 4, echo=False, isolate=False)
    assert attempts == [("greenlets", False), ("greenlets", True)]
    assert len({str(result) for result in run.results}) == 4


def test_nobody_sees_a_number_of_the_attempt_that_was_given_up(capfd):
    run = simulate(prints_what_it_draws, 3)
    shown = capfd.readouterr().out.splitlines()
    assert shown == [f"[rank {rank}] {text.strip()}" for rank, text in enumerate(run.output)]
    assert len(set(run.output)) == 3
