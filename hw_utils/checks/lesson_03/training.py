"""3.2b: the training to a target, beside that of one worker."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist

from hw_utils.checks.check import check, require_waits
from hw_utils.checks.lesson_03 import curve_causes
from hw_utils.checks.lesson_03.small_trainings import (
    curve_in_one_process,
    may_travel,
    on_ranks,
    ranks_of,
    require_given,
    results_of,
    shares_of,
    small_recipe,
)
from hw_utils.checks.lesson_04.collective_contents import note_inputs, require_together, take_out
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.material.recipe import Recipe


def _judge_train(data: dict[str, Any], world_size: int, own: bool = False, **settings) -> None:
    recipe = small_recipe(**settings)
    what = f"train on {ranks_of(world_size)}, seed {recipe.seed}"
    hang = "one rank stops and the others train on: all must come to the same decision at the same time."
    results = results_of(data, world_size, what, hang=hang)
    if own:
        results, called = _without_calls(results, what), [n for _, n in results]
    curves = [_read_curve(curve, rank, what, recipe.target) for rank, curve in enumerate(results)]
    for rank, curve in enumerate(curves):
        if curve != curves[0]:
            silent = [r for r, one in enumerate(curves) if not one]
            if silent:
                raise CheckFailed(
                    f"{what}: the curve of rank {silent[0]} is empty, that of another rank is not.",
                    cause="only some ranks have the looks in their curve: every rank appends and returns them, in no "
                    "`if rank == 0`.",
                )
            raise CheckFailed(
                f"{what}: rank {rank} tells another story than rank 0.",
                cause="each rank looks at its own model or its own share: start_equal first, test_accuracy on all.",
            )
    expected = curve_in_one_process(recipe, world_size)
    n_test = len(recipe.data().test)
    for i, (k, right) in enumerate(expected):
        if i >= len(curves[0]):
            end = curves[0][-1][0] if curves[0] else 0
            raise CheckFailed(
                f"{what}: the curve ends at iteration {end}, expected one to {expected[-1][0]}.",
                cause=curve_causes.too_short(curves[0], expected, recipe),
            )
        got_k, got = curves[0][i]
        if got_k != k:
            raise CheckFailed(
                f"{what}: entry {i} of the curve is iteration {got_k}, expected {k}.",
                cause="iterations count from 1, and every recipe.every of them is looked at, after its step.",
            )
        if not abs(got - right) <= 1.01 / n_test:
            raise CheckFailed(
                f"{what}: at iteration {k} the test accuracy is {got:.4f}, one worker with batch "
                f"{world_size * recipe.batch_size} has {right:.4f}.",
                cause=curve_causes.curve(curves[0], recipe, world_size),
            )
    if len(curves[0]) > len(expected):
        raise CheckFailed(
            f"{what}: training went on to iteration {curves[0][-1][0]}, it should end at {expected[-1][0]}.",
            cause=_why_not_reached(curves[0][len(expected) - 1][1], recipe.target)
            if math.isclose(expected[-1][1], recipe.target)
            else "only every recipe.every-th iteration is looked at, the last of all no exception."
            if curves[0][len(expected)][0] % recipe.every
            else "stop when recipe.target is reached, and after recipe.max_iterations in any case.",
        )
    require_waits(Trace.from_plain(data["trace"]), what)
    _require_an_end(data["brought"].shape[1], expected, recipe, what)
    _require_one_start(Trace.from_plain(data["trace"]), expected[-1][0], what)
    if world_size > 1:
        shares = {"made_of": shares_of(recipe, world_size), "at_most": recipe.batch_size}
        require_together(what, data, may_travel(recipe, world_size), at_least=expected[-1][0], **shares)
    for rank, n_calls in enumerate(called if own else ()):
        sizes = [event.n_bytes for event in Trace.from_plain(data["trace"]).of_rank(rank).of_op("all_reduce")]
        # A look at the test set has an all-reduce of its own, of a number or two; whoever looks more often has more.
        n = min(len(sizes) - len(curves[rank]), sum(size > _LARGEST_LOOK for size in sizes))
        cause = "hand it on in every iteration: distributed_step(..., all_reduce). Else 3.5 does not run your ring."
        require_given(n_calls, n, rank, f"{what}: the curve", cause)


def _why_not_reached(got: float, target: float) -> str:
    """Why a look that finds the target to the last digit does not end the training."""
    if got < target:
        return (
            f"the target is {target!r}, and the accuracy there {got!r}: it loses its last digits on the way, as in a "
            "float32. Leave it a number of Python's, made of whole numbers by one division."
        )
    return "reaching the target is enough: >=, not >, and of the accuracy that is noted."


_LARGEST_LOOK = 16  # bytes: how many are right, and of how many; the smallest parameter has 40


def _require_an_end(n_times: int, expected: list, recipe: Recipe, what: str) -> None:
    """Raises CheckFailed if the ranks went on after the target. n_times: that collectives carry the whole model, which
    is as often in every iteration."""
    end, accuracy = expected[-1]
    if accuracy >= recipe.target and n_times > end and n_times % end:
        raise CheckFailed(
            f"{what}: the curve ends at iteration {end}, as it should, but the training does not: the whole model goes "
            f"through the collectives {n_times} times.",
            cause="it ends when the target is reached: break or return there. Cutting the curve afterwards saves no "
            "iteration.",
        )


def _require_one_start(trace: Trace, n_iterations: int, what: str) -> None:
    """Raises CheckFailed if weights are sent in every iteration."""
    rank = trace.world_size - 1
    n_sent = len(trace.of_rank(rank).of_op("broadcast", "recv", "irecv"))
    if n_sent >= n_iterations > 2 * _N_TENSORS:
        raise CheckFailed(
            f"{what}: the curve is right, but rank {rank} is sent {n_sent} tensors in {n_iterations} iterations, "
            "beside what is all-reduced.",
            cause="start_equal comes once, before the loop: equal models that are averaged stay equal.",
        )


_N_TENSORS = 2  # of the model that is trained


def _without_calls(results: list[Any], what: str) -> list[Any]:
    if not all(isinstance(result, list) and len(result) == 2 and type(result[1]) is int for result in results):
        raise CheckFailed(f"{what}: expected a curve and a number of calls from every rank.")
    return [curve for curve, _ in results]


def _read_curve(curve: Any, rank: int, what: str, target: float) -> list[tuple[int, float]]:
    try:
        pairs = [(k, a) for k, a in curve]
        whole = all(type(k) is int and type(a) in (int, float) for k, a in pairs)
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise CheckFailed(
            f"{what}: rank {rank} gave no list of pairs (iteration, accuracy).",
            cause="swapped: the iteration first, then the accuracy."
            if isinstance(curve, list) and any(isinstance(p, list) and type(p[-1]) is int for p in curve if p)
            else f"no training reaches the target {target:g}, and nothing comes back then: return the curve behind the "
            "loop, too."
            if curve is None and target > 1
            else "return the curve, a list of (int, float), on every rank.",
        )
    return pairs


_TRAININGS = [
    {"world_size": 1, "seed": 1, "batch_size": 16, "every": 3, "max_iterations": 30, "target": 0.8},
    {"world_size": 2, "seed": 2, "batch_size": 8, "every": 4, "max_iterations": 60, "target": 0.8},
    {"world_size": 3, "seed": 3, "batch_size": 8, "every": 5, "max_iterations": 23, "target": 2.0},  # never
    {"world_size": 2, "seed": 4, "batch_size": 8, "every": 2, "max_iterations": 6, "target": 2.0, "own": True},
    # with momentum, and down after the second look
    {"world_size": 2, "seed": 1, "batch_size": 4, "every": 3, "max_iterations": 40, "target": 0.8, "momentum": 0.9},
    # reached exactly after 16 iterations, and that is enough
    {"world_size": 2, "seed": 5, "batch_size": 8, "every": 4, "max_iterations": 28, "target": 87 / 101},
]


@check(
    "lesson_03.train",
    follows_messages=True,
    judge=_judge_train,
    cases=_TRAININGS,
    ok="the curve is that of one worker with batch N B, on every rank, and it ends where it should.",
    hint="the hints of exercise 3.2b",
    look="print k, len(x) and n_total of the first iterations, and the accuracy, on every rank.",
    hints={
        "hint 2 of exercise 3.2b": "one rank stops",
        "hint 1 of exercise 3.2b": "count from 1|before the step|stop when|go on until|>=, not >",
    },
)
def train(train, /, world_size: int, own: bool = False, **settings):
    """Every rank's curve of a small training; `own`: with an all-reduce that counts its calls."""
    recipe = small_recipe(**settings)

    def worker(rank, world_size):
        calls = []

        def counted(tensor):
            calls.append(tensor.numel())
            dist.all_reduce(tensor)

        carried = note_inputs()
        curve = (train(rank, world_size, recipe, counted), len(calls)) if own else train(rank, world_size, recipe)
        return {"returned": curve, "carried": carried}

    return take_out(on_ranks(world_size, worker), [p.numel() for p in recipe.model().parameters()])


# 3.2 k* and speedup ------------------------------------------------------------------------------------------
