"""Lesson 03: accuracy, the whole training, k* and the speedup."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from hw_utils.checks import draws
from hw_utils.checks.check import check, require_waits
from hw_utils.checks.lesson_03 import curve_causes
from hw_utils.checks.lesson_03.problem import (
    curve_in_one_process,
    may_travel,
    on_ranks,
    ranks_of,
    require_given,
    results_of,
    small_recipe,
)
from hw_utils.checks.lesson_04.carried import note_inputs, require_together, take_out
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace


class _Looks(nn.Module):
    """Gives its input back as scores, and counts the examples that it was shown.

    With drawn numbers each example's classes are others: nobody knows the scores of what it was not shown.
    """

    def __init__(self, n_examples: int) -> None:
        super().__init__()
        self.n_seen, self.rolled = 0, torch.from_numpy(draws.digits([n_examples], "classes"))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_seen += len(x)
        numbers = ((x.amax(1) - 1) / _APART).round().long()  # what number i has by its scores
        return self.roll(x, -self.rolled[numbers]) * self.scale

    @staticmethod
    def roll(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        """Each row's scores, those of class c + by in the place of class c."""
        return x.gather(1, (torch.arange(10) + by[:, None]) % 10)

    def is_as_it_was(self) -> bool:
        """Whether it can be trained on as if nobody had looked."""
        return self.scale.item() == 1 and self.scale.requires_grad


_APART = 1e-3  # between the scores of one example and the next


def _test_set(n_examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels: the first third is right, so that no rank's share speaks for all."""
    labels = torch.arange(n_examples) % 10
    guesses = torch.where(torch.arange(n_examples) < (n_examples + 2) // 3, labels, (labels + 1) % 10)
    scores = 1 + _APART * torch.arange(n_examples)
    return nn.functional.one_hot(guesses, 10).float() * scores[:, None], labels


def _judge_accuracy(data: dict[str, Any], world_size: int, n_examples: int) -> None:
    what = f"test_accuracy of {n_examples} examples on {ranks_of(world_size)}"
    hang = "every rank must take part in the all-reduce, also one with no examples."
    results = results_of(data, world_size, what, hang=hang)
    if not all(isinstance(result, list) and len(result) == 3 for result in results):
        raise CheckFailed(f"{what}: expected an accuracy and a number of examples from every rank.")
    scores, labels = (t.numpy() for t in _test_set(n_examples))
    right = scores.argmax(1) == labels
    for rank, (got, *_) in enumerate(results):
        if type(got) not in (int, float):
            raise CheckFailed(
                f"{what}: rank {rank} gave no float.", cause="a tensor's number is tensor.item(); return needs it."
            )
        if math.isclose(got, right.mean(), abs_tol=1e-6):
            continue
        raise CheckFailed(
            f"{what}: rank {rank} says {got:.4g}, {right.sum()} of {n_examples} are right.",
            cause=curve_causes.accuracy(got, right, world_size, rank),
        )
    fair = -(-n_examples // world_size)
    for rank, (_, n_seen, is_as_it_was) in enumerate(results):
        if type(n_seen) is not int or n_seen > fair:
            raise CheckFailed(
                f"{what}: the number is right, but rank {rank} looked at {n_seen} examples; its share is {fair}.",
                cause="every rank does the whole work: look at your own share and sum what is right over the ranks.",
            )
        if is_as_it_was is not True:
            raise CheckFailed(
                f"{what}: the number is right, but the model of rank {rank} is another one afterwards.",
                cause="training goes on after a look: parameters and their requires_grad stay; without gradients is "
                "torch.no_grad().",
            )
    if n_lost := max(0, n_examples - sum(n_seen for _, n_seen, _ in results)):
        raise CheckFailed(
            f"{what}: the number is right, but nobody's model was shown {n_lost} of the examples.",
            cause="the examples that do not divide evenly are left out: shares differ by one."
            if n_lost == n_examples % world_size
            else "what the model says counts: model(x) of the rank's own share.",
        )
    trace = Trace.from_plain(data["trace"])
    for rank in range(world_size if world_size > 1 else 0):
        calls = [(e.op, e.n_bytes) for e in trace.of_rank(rank)]
        if len(calls) != 1 or calls[0][0] != "all_reduce" or calls[0][1] > 8:
            shown = ", ".join(f"{op} of {n_bytes} bytes" for op, n_bytes in calls[:4])
            raise CheckFailed(
                f"{what}: the number is right, but rank {rank} calls {shown or 'nothing'}; one number all-reduced is "
                "enough.",
                cause="count what is right on this rank first, and all-reduce that count alone.",
            )
    require_waits(trace, what)


@check(
    "lesson_03.test_accuracy",
    judge=_judge_accuracy,
    # 2,101 of 6,303 are right, which no float16 holds
    cases=[{"world_size": w, "n_examples": n} for w, n in ((1, 6), (2, 9), (3, 10), (5, 3), (2, 6303))],
    ok="every rank knows the accuracy on the whole test set and looked at its share only.",
    hint="the hints of exercise 3.2a",
    look="print how many examples each rank looks at, how many are right, and what the all-reduce makes of it.",
    hints={
        "hint 1 of exercise 3.2a": "all-reduce the number|the right|sum what is right|count what|divided",
        "hint 2 of exercise 3.2a": "own share|looked at|whole work",
    },
)
def test_accuracy(test_accuracy, /, world_size: int, n_examples: int):
    """Each rank's answer, and how many examples its model was shown."""

    def worker(rank, world_size):
        model, (scores, labels) = _Looks(n_examples), _test_set(n_examples)
        test_set = TensorDataset(model.roll(scores, model.rolled), labels)
        return test_accuracy(model, test_set), model.n_seen, model.is_as_it_was()

    return on_ranks(world_size, worker)


# 3.2 the training --------------------------------------------------------------------------------------------


def _judge_train(data: dict[str, Any], world_size: int, own: bool = False, **settings) -> None:
    recipe = small_recipe(**settings)
    what = f"train on {ranks_of(world_size)}, seed {recipe.seed}"
    hang = "one rank stops and the others train on: all must come to the same decision at the same time."
    results = results_of(data, world_size, what, hang=hang)
    if own:
        results, called = _without_calls(results, what), [n for _, n in results]
    curves = [_read_curve(curve, rank, what) for rank, curve in enumerate(results)]
    for rank, curve in enumerate(curves):
        if curve != curves[0]:
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
            cause="reaching the target is enough: >=, not >."
            if math.isclose(expected[-1][1], recipe.target)
            else "only every recipe.every-th iteration is looked at, the last of all no exception."
            if curves[0][len(expected)][0] % recipe.every
            else "stop when recipe.target is reached, and after recipe.max_iterations in any case.",
        )
    require_waits(Trace.from_plain(data["trace"]), what)
    if world_size > 1:
        require_together(what, data, may_travel(recipe, world_size), at_least=expected[-1][0])
    for rank, n_calls in enumerate(called if own else ()):
        # A look at the test set has an all-reduce of its own.
        n = len(Trace.from_plain(data["trace"]).of_rank(rank).of_op("all_reduce")) - len(curves[rank])
        cause = "hand it on in every iteration: distributed_step(..., all_reduce). Else 3.5 does not run your ring."
        require_given(n_calls, n, rank, f"{what}: the curve", cause)


def _without_calls(results: list[Any], what: str) -> list[Any]:
    if not all(isinstance(result, list) and len(result) == 2 and type(result[1]) is int for result in results):
        raise CheckFailed(f"{what}: expected a curve and a number of calls from every rank.")
    return [curve for curve, _ in results]


def _read_curve(curve: Any, rank: int, what: str) -> list[tuple[int, float]]:
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


def _judge_first(data: Any, curve: list, target: float, expected: float) -> None:
    if type(data) in (int, float) and data == expected:
        return
    text = "math.inf, because it is never reached" if expected == math.inf else str(expected)
    got = repr(data) if type(data) in (int, float, str, bool, type(None)) else f"a {type(data).__name__}"
    raise CheckFailed(
        f"k_star of {curve} at {target}: got {got}, expected {text}.", cause=curve_causes.first(data, curve, target)
    )


_RISING = [[5, 0.90], [10, 0.968], [15, 0.98], [20, 0.99]]
_DIPPING = [[4, 0.95], [8, 0.965], [12, 0.95], [16, 0.965], [20, 0.98]]
_EXACT = [[2, 0.9], [4, 0.97], [6, 0.98]]


@check(
    "lesson_03.k_star",
    judge=_judge_first,
    is_formula=True,
    cases=[
        {"curve": _RISING, "target": 0.97, "expected": 15},
        {"curve": _EXACT, "target": 0.97, "expected": 4},
        {"curve": _DIPPING, "target": 0.96, "expected": 8},
        {"curve": [[5, 0.5]], "target": 0.9, "expected": math.inf},
    ],
    ok="the first iteration that reaches the target, and infinity if none does.",
    hint="the hints of exercise 3.2c",
    hints={"hint 1 of exercise 3.2c": "first|infinity|math.inf|place in the list|enough"},
)
def k_star(k_star, /, curve: list, target: float, expected: float):
    """The answer itself; the expected one is the judge's."""
    return k_star([tuple(pair) for pair in curve], target)


def _judge_speedup(data: Any, k_star: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    what = f"speedup of {k_star}"
    if not isinstance(data, dict) or data.keys() != k_star.keys():
        lacks = sorted(set(k_star) - set(data)) if isinstance(data, dict) else []
        raise CheckFailed(
            f"{what}: expected a dictionary with an entry for each of N = {', '.join(k_star)}.",
            cause=f"N = {lacks[0]} is missing: every N of k_star has its three numbers, 1 too."
            if lacks
            else "the answer is a dictionary, N -> (lowest, median, highest), with the keys of k_star and no others.",
        )
    for n, right in expected.items():
        got = data[n]
        if not isinstance(got, list) or len(got) != 3 or any(type(v) not in (int, float) for v in got):
            raise CheckFailed(
                f"{what}: N = {n} needs three numbers, (lowest, median, highest).",
                cause="three speedups an N, as a tuple: over the largest, the median and the smallest k*(N).",
            )
        if all(math.isclose(g, r, rel_tol=1e-3) for g, r in zip(got, right)):
            continue
        shown = [f"({', '.join(f'{v:.4g}' for v in three)})" for three in (got, right)]
        raise CheckFailed(
            f"{what}: N = {n} gives {shown[0]}, expected {shown[1]}.", cause=curve_causes.speedup(got, right, k_star, n)
        )


@check(
    "lesson_03.speedup",
    judge=_judge_speedup,
    is_formula=True,
    cases=[
        {  # first, middle, smallest, largest and median are five different ones
            "k_star": {"1": [500, 300, 350, 900, 400], "4": [160, 100, 110, 120, 800]},
            "expected": {"1": [0.44444, 1, 1.33333], "4": [0.5, 3.33333, 4]},
        },
        {
            "k_star": {"1": [100, 120, 110], "2": [50, 40, 60]},
            "expected": {"1": [0.91667, 1, 1.1], "2": [1.83333, 2.2, 2.75]},
        },
        {
            "k_star": {"1": [400, 420, 440], "8": [100, 210, math.inf]},
            "expected": {"1": [0.95455, 1, 1.05], "8": [0, 2, 4.2]},
        },
        {
            "k_star": {"1": [300, 180, 120, 240], "2": [100, 140]},
            "expected": {"1": [0.7, 1, 1.75], "2": [1.5, 1.75, 2.1]},
        },
    ],
    ok="median and spread of k*(1)/k*(N), a run that never arrives included.",
    hint="the hints of exercise 3.2c",
    look="work the row of the largest N out by hand.",
    hints={"hint 2 of exercise 3.2c": "swapped"},
)
def speedup(speedup, /, k_star: dict[str, list[float]], expected: dict[str, list[float]]):
    """N -> (lowest, median, highest); the case writes N as text, and what is expected is the judge's."""
    return speedup({int(n): list(values) for n, values in k_star.items()})
