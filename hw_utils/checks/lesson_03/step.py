"""Lesson 03: one iteration; models equal to the bit, on the path of one big batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hw_utils.checks.check import check, require_waits
from hw_utils.checks.lesson_03 import model_causes
from hw_utils.checks.lesson_03.small_trainings import (
    Problem,
    flat,
    on_ranks,
    owner,
    ranks_of,
    require_given,
    results_of,
)
from hw_utils.checks.lesson_04.collective_contents import note_inputs, require_together, take_out
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace


def _steps(step, problem: Problem):
    """Every rank's weights before the first and after every step, and how often it called the given all_reduce,
    and whether its model was in training mode after each."""

    def worker(rank, world_size):
        model, (x, y) = problem.model(), problem.examples()
        optimizer = problem.optimizer(model)
        for p in model.parameters() if problem.begun else ():
            p.grad = torch.full_like(p, problem.begun)
        states, calls, modes = [flat(model)], [], []
        carried = note_inputs() if problem.net == "small" else []

        def given(tensor):
            calls.append(tensor.numel())
            dist.all_reduce(tensor)

        for chunk in problem.chunks():
            mine = problem.shares(chunk)[rank]
            step(model, optimizer, x[mine], y[mine], len(chunk), given)
            states.append(flat(model))
            modes.append(all(part.training for part in model.modules()))
        return {"returned": (torch.stack(states), len(calls), all(modes)), "carried": carried}

    return take_out(on_ranks(problem.world_size, worker), [p.numel() for p in problem.model().parameters()])


def _read_steps(data: dict[str, Any], problem: Problem, what: str) -> list[np.ndarray]:
    hang = "a rank leaves early: also one with no examples in this iteration takes part in the all-reduce."
    results = results_of(data, problem.world_size, what, hang=hang)
    shape = (problem.n_steps + 1, flat(problem.model()).numel())
    if not all(isinstance(result, list) and len(result) == 3 and type(result[1]) is int for result in results):
        raise CheckFailed(f"{what}: expected weights and a number of calls from every rank.")
    states = [np.asarray(weights) for weights, *_ in results]
    if any(s.shape != shape or s.dtype.kind != "f" for s in states):
        raise CheckFailed(f"{what}: the weights have changed their shape or type.")
    for rank, mine in enumerate(states):
        bad = np.argwhere(~np.isfinite(mine))
        if len(bad):
            k, place = bad[0]
            raise CheckFailed(
                f"{what}: after step {k} {owner(problem.model(), place)} of rank {rank} is {mine[k, place]}.",
                cause="the mean over no examples is nan: sum the losses and divide by n_total."
                if problem.n_examples % (problem.world_size * problem.batch_size) else "the steps are too long.",
            )  # fmt: skip
    for rank, (*_, trains) in enumerate(results):
        if trains is not True:
            raise CheckFailed(
                f"{what}: the model of rank {rank} came in training mode, and is not in it after a step.",
                cause="model.eval() is for a look at the test set: a step in evaluation mode trains without dropout, "
                "and with a batch norm that learns nothing.",
            )
    return states


def _what_step(problem: Problem) -> str:
    momentum = f", momentum {problem.momentum:g}" if problem.momentum else ""
    decay = f", weight decay {problem.decay:g}" if problem.decay else ""
    net = "LeNet-5" if problem.net == "lenet" else "a small model"
    ranks = f"{ranks_of(problem.world_size)} of {problem.batch_size}"
    begun = ", gradients of something else in p.grad before" * bool(problem.begun)
    begun += ", long gradients" * (problem.stretch > 1)
    return f"distributed_step, {net}, {ranks}, {problem.n_examples} examples{momentum}{decay}{begun}"


def _judge_equal(data: dict[str, Any], **case) -> None:
    problem = Problem(**case)
    what = _what_step(problem)
    states = _read_steps(data, problem, what)
    for k in range(1, problem.n_steps + 1):
        for rank, mine in enumerate(states):
            differs = np.flatnonzero(mine[k] != states[0][k])
            if len(differs):
                name = owner(problem.model(), differs[0])
                raise CheckFailed(
                    f"{what}: after step {k} {name} of rank {rank} differs from rank 0's.",
                    cause=model_causes.unequal(problem, states, k, data["trace"]),
                )
        if np.array_equal(states[0][k], states[0][k - 1]):
            raise CheckFailed(
                f"{what}: step {k} changed nothing, on no rank.",
                cause="the models are equal because none of them moved: backward, then optimizer.step(), and no "
                "zero_grad() between the two.",
            )
    trace = Trace.from_plain(data["trace"])
    require_waits(trace, what)
    _require_together(what, data, problem, states[0])
    _require_one_averaging(what, data, problem, trace)
    for rank, (_, n_calls, _) in enumerate(data["results"] if problem.world_size > 1 else ()):
        sizes = [event.n_bytes for event in trace.of_rank(rank).of_op("all_reduce")]
        n = len(sizes)
        cause = (
            "hand it on: average(model, all_reduce), which calls what it is given, as its own check asks. Else your "
            "own ring never runs in its place."
        )
        if 0 < n - sum(size <= _ONE_NUMBER for size in sizes) <= n_calls:
            cause = "a single number is all-reduced beside the model: how many examples there are is given, n_total."
        require_given(n_calls, n, rank, f"{what}: every model", cause)


_SMALL = {"net": "small", "n_examples": 24, "batch_size": 3, "n_steps": 6}


@check(
    "lesson_03.step_equal",
    judge=_judge_equal,
    cases=[{**_SMALL, "world_size": w} for w in (1, 2, 4)] + [{**_SMALL, "world_size": 3, "momentum": 0.9}],
    ok="all ranks hold the same model after every step, to the bit.",
    hint="the hints of exercise 3.1d",
    look="print one weight before the step, after it and after the average, on every rank.",
    hints={
        "hint 2 of exercise 3.1d": "no rank can go on|leaves early|a rank leaves",
        "hint 1 of exercise 3.1d": "no examples",
        "hint 3 of exercise 3.1d": "last iteration",
    },
)
def step_equal(distributed_step, /, **case):
    """Every rank's weights after every step, from equal ones."""
    return _steps(distributed_step, Problem(**case))


def _judge_follow(data: dict[str, Any], **case) -> None:
    problem = Problem(**case)
    what = _what_step(problem)
    states = _read_steps(data, problem, what)
    expected = problem.in_one_process()
    tolerance = 1e-9 if problem.net == "small" else 2e-4
    for k, right in enumerate(expected):
        for rank, mine in enumerate(states):
            error = np.abs(mine[k] - right)
            if error.max() <= tolerance:
                continue
            name = owner(problem.model(), int(error.argmax()))
            raise CheckFailed(
                f"{what}: after step {k} {name} of rank {rank} is off by {error.max():.2g} from one worker with batch "
                f"{problem.world_size * problem.batch_size}.",
                cause=model_causes.strays(problem, states, k, rank),
            )
    _require_together(what, data, problem, expected, follows=True)


_FEW = 2  # counts, or a loss, of each rank and step
_ONE_NUMBER = 8  # bytes; the smallest parameter has 24


def _require_one_averaging(what: str, data: dict[str, Any], problem: Problem, trace: Trace) -> None:
    """Raises CheckFailed if the whole model travels more than once in an iteration."""
    n_times, n_steps = data["brought"].shape[1] if "brought" in data else 0, problem.n_steps
    if problem.world_size > 1 and n_times > n_steps:
        raise CheckFailed(
            f"{what}: the models are right, but the whole model goes through the collectives {n_times} times in "
            f"{n_steps} steps.",
            cause="one averaging an iteration: of the models after the step, or of the gradients before it. Either is "
            "enough, both send everything twice.",
        )
    if n_sent := len(trace.of_rank(problem.world_size - 1).of_op("broadcast", "recv", "irecv")):
        raise CheckFailed(
            f"{what}: the models are right, but rank {problem.world_size - 1} is sent {n_sent} tensors beside that in "
            f"{n_steps} steps.",
            cause="equal models that are averaged stay equal: start_equal comes once, before the first iteration, and "
            "only the averaging sends anything.",
        )


def _require_together(
    what: str, data: dict[str, Any], problem: Problem, states: Sequence[np.ndarray], *, follows: bool = False
) -> None:
    """Raises CheckFailed unless what leads from each of these states to the next has come of all ranks' messages."""
    if problem.net == "small" and problem.world_size > 1:
        made_of = problem.shares_at(states) if follows and not problem.momentum else ()
        require_together(what, data, list(_may_travel(problem, states)), made_of=made_of, at_most=problem.batch_size)
        if data["beside"] > _FEW * problem.n_steps * problem.world_size:
            raise CheckFailed(
                f"{what}: beside the models, {data['beside']} numbers of a rank travel in {problem.n_steps} steps.",
                cause="each rank keeps its examples: only the models are averaged.",
            )


def _may_travel(problem: Problem, states: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """For each step: the weights after it, how far it goes, and the gradient."""
    speed = np.zeros_like(states[0])
    for before, after in pairwise(states):
        new = (before - after) / problem.step
        yield [after, new, new - problem.momentum * speed - problem.decay * before]
        speed = new


@check(
    "lesson_03.step_follows",
    judge=_judge_follow,
    cases=[
        {**_SMALL, "world_size": 1},
        {**_SMALL, "world_size": 2},
        {**_SMALL, "world_size": 4, "momentum": 0.9},
        {**_SMALL, "world_size": 3, "n_examples": 22},  # the last batch: 2, 1 and 1 examples
        {**_SMALL, "world_size": 4, "n_examples": 26, "momentum": 0.9},  # two ranks have none
        {**_SMALL, "world_size": 4, "n_examples": 26, "decay": 0.1},
        {**_SMALL, "world_size": 2, "begun": 0.5},
        {**_SMALL, "world_size": 1, "n_steps": 1, "stretch": 3000.0},
        {"net": "lenet", "n_examples": 100, "batch_size": 4, "world_size": 4, "n_steps": 8},
    ],
    ok="N ranks of batch B follow one worker of batch N B, with momentum, weight decay and a short last batch too.",
    hint="the hints of exercise 3.1d",
    look="compare one weight after a step with weight - lr * gradient of the mean loss, with one rank, then with two.",
    hints={
        "hint 3 of exercise 3.1d": "last iteration|zero_grad",
        "hint 2 of exercise 3.1d": "no rank can go on|leaves early",
        "hint 1 of exercise 3.1d": "no examples|nan",
    },
)
def step_follows(distributed_step, /, **case):
    """Every rank's weights after every step, from equal ones."""
    return _steps(distributed_step, Problem(**case))
