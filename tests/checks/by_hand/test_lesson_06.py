"""Lesson 06 beyond the generic tests: races told every time, judges that trust nothing, layers without autograd."""

from __future__ import annotations

import copy
import math
import queue
import re
from collections import defaultdict

import numpy as np
import pytest
import torch

from hw_utils import CheckFailed, WorkerFailed, checks
from hw_utils.checks.check import REGISTRY
from hw_utils.core.errors import Deadlock
from hw_utils.core.plain_data import decode, encode
from hw_utils.material.handwritten_layer import Handmade
from hw_utils.threads.rendezvous import run_in_turns
from tests.checks.references import lessons, namespace
from tests.checks.wrong_answers import PLANTED
from tests.checks.wrong_answers import lesson_06 as planted

NAMES = [name for name in dir(checks.lesson_06) if f"lesson_06.{name}" in REGISTRY]
RACES = [wrong for wrong in PLANTED if wrong.check in ("lesson_06.all_gather", "lesson_06.all_reduce")]


@pytest.fixture(scope="module")
def solution():
    return namespace(next(lesson for lesson in lessons() if lesson.name.startswith("06")))


def _answers(check, solution):
    names = list(check.__signature__.parameters)[:-1]
    return [solution[name] for name in names]


def _message(wrong):
    with pytest.raises((CheckFailed, WorkerFailed)) as failed:
        REGISTRY[wrong.check](*wrong.answers)
    return str(failed.value)


@pytest.mark.parametrize("wrong", [w for w in RACES if w.name.startswith(("Clears", "Makes", "AddsW", "AddsInP"))],
                         ids=lambda wrong: wrong.name)  # fmt: skip
def test_a_race_is_told_with_the_same_story_every_time(wrong):
    assert _message(wrong) == _message(wrong)


def test_a_story_says_who_removed_the_buffer_while_who_was_reading():
    message = _message(next(w for w in RACES if w.name == "ClearsTheBufferBeforeAllHaveRead"))
    assert re.search(r"rank (\d) removed the buffer .* while rank (?!\1)\d was still reading", message)


@pytest.mark.parametrize("check", sorted({w.check for w in PLANTED if w.check.startswith("lesson_06")}))
def test_mistakes_of_an_exercise_are_told_apart(check):
    says = [wrong.says for wrong in PLANTED if wrong.check == check]  # what each is told, see test_checks
    assert len(says) >= 6
    assert len(set(says)) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_a_judge_gets_plain_data_and_refuses_what_is_not_it(name, solution):
    check = REGISTRY[f"lesson_06.{name}"]
    case = {**check.cases[-1]}
    if "n_interleavings" in case:
        case["n_interleavings"] = 30
    data = check.drive_one(_answers(check, solution), case)
    check.judge_one(decode(encode(data)), case)
    for spoiled in _spoiled(data):
        with pytest.raises((CheckFailed, ValueError)):
            check.judge_one(spoiled, case)


def _spoiled(data):
    """The data with every number not a number, with nothing in it, and of another type."""
    if not (isinstance(data, dict) and "refused" in data):
        yield _map(data, lambda value: math.nan)
    yield [] if isinstance(data, dict) else {}
    yield None


def _map(data, change):
    if isinstance(data, dict):
        return {key: _map(value, change) for key, value in data.items()}
    if isinstance(data, list):
        return [_map(value, change) for value in data]
    if isinstance(data, np.ndarray):
        return np.full(data.shape, change(0.0))
    return change(data) if isinstance(data, float) else data


def test_too_few_interleavings_are_no_evidence(solution):
    check = REGISTRY["lesson_06.all_gather"]
    case = {"world_size": 2, "calls": 1, "n_interleavings": 20}
    data = check.drive_one([solution["DistributedContext"]], case)
    with pytest.raises(CheckFailed, match="20 of 500 interleavings"):
        check.judge_one(data, {**case, "n_interleavings": 500})


def test_other_right_layers_pass_too():
    """A condition in place of two barriers; without a lock a dictionary (one call looks and makes), and mailboxes."""
    import threading

    class WithACondition:
        def __init__(self, world_size):
            self.world_size, self.condition = world_size, threading.Condition()
            self.parts, self.result, self.n_left = {}, None, 0

        def all_gather(self, tensor, rank, group_id):
            with self.condition:
                self.condition.wait_for(lambda: not self.n_left)
                self.parts[rank] = tensor.clone()
                if len(self.parts) == self.world_size:
                    self.result, self.parts, self.n_left = self.parts, {}, self.world_size
                    self.condition.notify_all()
                self.condition.wait_for(lambda: self.n_left and rank in self.result)
                gathered = [self.result[r].clone() for r in range(self.world_size)]
                self.n_left -= 1
                self.condition.notify_all()
                while self.n_left:
                    self.condition.wait()
            return gathered

    class WithoutALock(planted._Context):
        def all_gather(self, tensor, rank, group_id):
            self.buffers.setdefault(group_id, {})[rank] = tensor.clone()
            self.barrier.wait()
            gathered = [self.buffers[group_id][r].clone() for r in range(self.world_size)]
            self.barrier.wait()
            return gathered

    class ByMailboxesOfC(planted._Context):
        """A SimpleQueue is made in one step."""

        def __init__(self, world_size):
            self.world_size, self.boxes = world_size, defaultdict(queue.SimpleQueue)

        def all_gather(self, tensor, rank, group_id):
            for to in range(self.world_size):
                self.boxes[group_id, rank, to].put(tensor.clone())
            return [self.boxes[group_id, source, rank].get() for source in range(self.world_size)]

    checks.lesson_06.all_gather(
        WithoutALock, cases=[{"world_size": n, "calls": 2, "n_interleavings": 300} for n in (2, 3)]
    )
    case = {"world_size": 2, "calls": 1, "n_interleavings": 300}
    checks.lesson_06.all_gather(ByMailboxesOfC, cases=[case])
    checks.lesson_06.all_gather(WithACondition, cases=[case])


def test_a_sum_in_order_of_arrival_passes_though_its_last_bit_differs():
    class Thirds(planted._Totals):
        def all_reduce(self, tensor, rank, group_id, op="sum"):
            if op not in ("sum", "mean"):
                raise ValueError(op)
            self.add(tensor / self.world_size if op == "mean" else tensor, group_id)
            self.barrier.wait()
            result = self.total[group_id].clone()
            self.finish(group_id, rank)
            return result

    case = {"world_size": 3, "calls": 2, "n_interleavings": 300, "ops": ["mean", "sum"]}
    checks.lesson_06.all_reduce(Thirds, cases=[case])


def test_an_error_with_one_rank_is_the_students_own():
    class Misspelt(planted._Context):
        def all_gather(self, tensor, rank, group_id):
            return self.bufers[group_id]

    with pytest.raises(AttributeError, match="bufers"):
        checks.lesson_06.all_gather(Misspelt)


def test_layers_need_no_autograd(solution):
    for name in ("ColumnParallelLinear", "RowParallelLinear"):
        with torch.no_grad():
            for direction in ("forward", "backward"):
                prefix = "column" if name.startswith("Column") else "row"
                getattr(checks.lesson_06, f"{prefix}_{direction}")(solution[name])


@pytest.mark.parametrize("name", ["ColumnParallelLinear", "RowParallelLinear"])
def test_a_size_that_n_does_not_divide_is_refused_by_the_layer(name, solution):
    class Three:
        world_size = 3

    with pytest.raises(ValueError, match="divisible"):
        solution[name](torch.ones(4, 4), 0, Three(), "w")


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_cut_model_trains_like_the_plain_one(world_size, solution):
    base = copy.deepcopy(solution["models"].SimpleMLP(2, 16, 1)).double()
    x, y = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2), torch.ones(12, 1, dtype=torch.float64)
    plan = {"lin1": solution["ColumnParallelLinear"], "lin2": solution["RowParallelLinear"]}
    models = []
    losses, calls = run_in_turns(
        lambda rank, context: solution["train"](models[rank], x, y, 5),
        world_size,
        lambda context: models.extend(solution["parallelize"](base, plan, context)),
    )
    plain = solution["train"](copy.deepcopy(base), x, y, 5)
    assert torch.allclose(torch.tensor(losses), torch.tensor(plain), atol=1e-12)
    assert len(calls) == 4 * 5 * world_size  # two forward and two backward, a step and rank


def test_ranks_that_call_different_collectives_are_named_on_both_sides():
    def worker(rank, context):
        if rank == 0:
            return context.all_gather(torch.ones(2), rank, "a")
        return context.all_reduce(torch.ones(2), rank, "a", "sum")

    with pytest.raises(
        WorkerFailed, match=r"rank 0 calls all_gather\('a'\).*while rank 1 calls all_reduce\('a', 'sum'"
    ):
        run_in_turns(worker, 2)


def test_a_rank_that_returns_early_is_a_deadlock_at_once():
    def worker(rank, context):
        if rank:
            context.all_reduce(torch.ones(2), rank, "a", "sum")

    with pytest.raises(Deadlock, match="rank 0 has returned") as failed:
        run_in_turns(worker, 3)
    assert [row.rank for row in failed.value.rows] == [1, 2]


def test_a_handmade_layer_gives_its_gradients_to_autograd():
    class Double:
        def __init__(self):
            self.weight = torch.tensor([[2.0]])

        def forward(self, x):
            self.x = x
            return x @ self.weight

        def backward(self, grad):
            self.weight_grad = self.x.T @ grad
            return grad @ self.weight.T

    layer = Double()
    module = Handmade(layer)
    module(torch.tensor([[3.0]])).sum().backward()
    assert module.weight.grad.item() == 3.0
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert layer.weight.item() == -1.0  # the same memory
