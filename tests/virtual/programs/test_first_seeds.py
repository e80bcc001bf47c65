"""A rank that sets no seed draws numbers of its own, as a process would; a run begins again for that if it must."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hw_utils import launch, simulate
from hw_utils.virtual.ranks.per_rank_state.random_states import SEED
from tests.virtual import runs

ROOT = Path(__file__).parents[3]


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


ATTEMPTS = """
import sys
from hw_utils import simulate
from hw_utils.virtual import simulation
from tests.virtual.programs import test_first_seeds

class Noted(simulation.Attempt):
    def run(self, carrier):
        print(carrier, self.job.get("own_seeds", False))
        super().run(carrier)

simulation.Attempt = Noted
run = simulate(getattr(test_first_seeds, sys.argv[1]), 4, echo=False, isolate=False)
print(len({str(result) for result in run.results}), "different")
"""


@pytest.mark.parametrize(
    ("worker", "attempts", "different"),
    [
        (seeded_first, ["greenlets False"], "1 different"),
        (only_the_first_draws, ["greenlets False"], "1 different"),
        (draws_later, ["greenlets False", "greenlets True"], "4 different"),
    ],
)
def test_a_run_begins_again_only_where_another_rank_than_the_first_draws_unseeded(worker, attempts, different):
    """In a process of its own: what other tests have left in this one would count as the program's."""
    command = [sys.executable, "-c", ATTEMPTS, worker.__name__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*attempts, different]


def test_nobody_sees_a_number_of_the_attempt_that_was_given_up(capfd):
    run = simulate(prints_what_it_draws, 3)
    shown = capfd.readouterr().out.splitlines()
    assert shown == [f"[rank {rank}] {text.strip()}" for rank, text in enumerate(run.output)]
    assert len(set(run.output)) == 3
