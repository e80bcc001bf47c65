"""Programs copy, pickle, move and empty what the books follow: these stay right, and nothing is freed twice."""

from __future__ import annotations

import copy
import io
import pickle
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hw_utils import launch, simulate
from hw_utils.checks.kept_bytes import moment

WIDTH, N_STEPS = 16, 12


class Program:
    """What a rank holds: models with an optimizer each, and tensors beside them."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.tensors: list[torch.Tensor] = []
        self.begin()

    def begin(self) -> None:
        self.models.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)))
        self.optimizers.append(torch.optim.Adam(self.models[-1].parameters(), foreach=False))

    def train(self) -> None:
        self.models[-1](torch.ones(3, WIDTH)).square().mean().backward()
        self.optimizers[-1].step()

    def all_tensors(self) -> list[torch.Tensor]:
        parameters = [p for model in self.models for p in model.parameters()]
        parameters += [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        states = [
            t for o in self.optimizers for s in o.state.values() for t in s.values() if isinstance(t, torch.Tensor)
        ]
        return [*self.tensors, *parameters, *(p.grad for p in parameters if p.grad is not None), *states]


def _saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _resize(program: Program) -> None:
    tensor = torch.ones(500)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(8000)
    program.tensors.append(tensor)


def _share_one_memory(program: Program) -> None:
    first, second = torch.ones(300), torch.zeros(700)
    first.set_(second.untyped_storage())
    program.tensors.append(first)


def _put_other_data(program: Program) -> None:
    for p in program.models[-1].parameters():
        p.data = p.data.clone()


def _copy_with_optimizer(program: Program) -> None:
    model, optimizer = copy.deepcopy((program.models[-1], program.optimizers[-1]))
    program.models.append(model)
    program.optimizers.append(optimizer)


def _forget(program: Program) -> None:
    del program.models[:-1], program.optimizers[:-1], program.tensors[:-1]


STEPS: dict[str, Callable[[Program], object]] = {
    "train": Program.train,
    "begin anew": Program.begin,
    "forget": _forget,
    "copy a module": lambda program: program.models.insert(0, copy.deepcopy(program.models[-1])),
    "copy and drop": lambda program: copy.deepcopy(program.models) and None,
    "copy an optimizer": lambda program: program.optimizers.insert(0, copy.deepcopy(program.optimizers[-1])),
    "copy both": _copy_with_optimizer,
    "copy a tensor": lambda program: program.tensors.append(copy.deepcopy(torch.ones(50, WIDTH)[3:])),
    "pickle a module": lambda program: program.models.insert(0, pickle.loads(pickle.dumps(program.models[-1]))),
    "save a module": lambda program: program.models.insert(0, _saved(program.models[-1])),
    "save a tensor": lambda program: program.tensors.append(_saved(torch.ones(90))),
    "another dtype": lambda program: program.models.insert(0, copy.deepcopy(program.models[-1]).to(torch.float64)),
    "resize": _resize,
    "set_": _share_one_memory,
    "data": _put_other_data,
    "share_memory_": lambda program: program.tensors.append(torch.ones(123).share_memory_()),
    "copy a storage": lambda program: program.tensors.append(
        torch.empty(0).set_(copy.deepcopy(torch.ones(60).untyped_storage()))
    ),
}


def worker(rank: int, world_size: int, steps: list[str]) -> tuple[float, int]:
    """The time in the end, and the bytes of all memory that the program holds then."""
    program = Program()
    for step in steps:
        STEPS[step](program)
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in program.all_tensors()}
    return moment(), sum(found.values())


def _is_right(run) -> None:
    ((now_s, n_bytes),) = run.results
    assert sum(run.memory.held_bytes(0, now_s).values()) == n_bytes


@pytest.mark.parametrize("step", STEPS)
def test_the_books_say_what_is_held_however_it_was_copied(step: str):
    run = simulate(worker, 1, (["train", step, step, "train", "forget"],), compute="free", echo=False, memory=True)
    _is_right(run)


@pytest.mark.parametrize("seed", range(8))
def test_so_they_do_after_any_steps_in_any_order(seed: int):
    steps = random.Random(seed).choices(list(STEPS), k=N_STEPS)
    _is_right(simulate(worker, 1, (steps,), compute="free", echo=False, memory=True))


def test_a_real_process_lives_through_all_of_them():
    run = launch(worker, 1, (list(STEPS),), echo=False, memory=True)
    ((_, n_bytes),) = run.results
    assert run.memory.peak_bytes(0) >= n_bytes > 0
