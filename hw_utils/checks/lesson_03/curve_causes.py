"""Lesson 03: which known mistake gives these accuracies, curves and speedups. Each function names one, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch.optim import SGD, Adam

from hw_utils.checks.common_mistakes import slip
from hw_utils.checks.lesson_03.small_trainings import curve_in_one_process
from hw_utils.material.recipe import Recipe


def accuracy(got: float, right: np.ndarray, world_size: int, rank: int) -> str:
    """Why an accuracy is not that of the whole test set."""
    n = len(right)
    shares = [right[r::world_size] for r in range(world_size)]
    means = [float(s.mean()) for s in shares if len(s)]

    def is_(value: float) -> bool:
        return math.isclose(got, value, abs_tol=1e-6)

    if got != got:
        return "the mean over no examples is nan: sum what is right, divide once by the size of the whole set."
    if is_(right.mean()):
        return slip(got, float(right.mean()))
    if len(shares[rank]) and is_(shares[rank].mean()):
        return "this is the rank's own share of the test set: all-reduce the number of right answers."
    if is_(shares[rank].sum() / n):
        return "only the rank's own right answers are counted: all-reduce the number."
    if means and is_(float(np.mean(means))):
        return "the mean of the shares' accuracies, but the shares differ in size: sum the right answers, divide once."
    if is_(right.sum()):
        return "the number of right answers, not divided by the size of the test set."
    if is_(world_size * right.mean()):
        return "every rank counts the whole test set and the counts are added up."
    if is_(1 - right.mean()):
        return "these are the wrong answers."
    if is_(right.mean() / world_size):
        return "divided by the number of ranks as well: the sum of all right answers over the whole set is enough."
    per_share = n // world_size
    if len(shares[rank]) and is_(right.sum() / (len(shares[rank]) * world_size)):
        return "divided by N times the rank's own share, but the shares differ by one: divide by the whole set's size."
    if is_(right.sum() / len(shares[rank])) if len(shares[rank]) else False:
        return "divided by the size of this rank's share: the counts are of the whole set, divide by its size."
    block = right[: per_share * world_size].sum()
    if is_(block / n) or (per_share and is_(block / (per_share * world_size))):
        return "the examples that do not divide evenly are left out: shares differ by one."
    wraps = round((right.sum() - got * n) / 256) if math.isfinite(got) else 0
    if wraps and is_((right.sum() - 256 * wraps) / n):
        return "the count does not fit into its dtype: sum() of True and False gives int64, leave it so."
    if right.sum() > 256 and 0 < abs(got * n - right.sum()) <= right.sum() / 128 and is_(_rounded(got * n) / n):
        return "the count is rounded: float16 holds whole numbers to 2,048, bfloat16 to 256; leave it the int64 it is."
    if per_share and is_(sum(s[:per_share].sum() for s in shares) / (per_share * world_size)):
        return "the examples that do not divide evenly are left out."
    return slip(got, float(right.mean()))


def _rounded(count: float) -> float:
    """The nearest number of so few digits that a float16 holds it."""
    return float(np.float16(count))


def too_short(curve: Sequence[tuple[int, float]], expected: Sequence[Sequence[float]], recipe: Recipe) -> str:
    """Why a training ended early, or noted less than it saw."""
    if not curve:
        return (
            "nothing was noted, or the curve was thrown away because it never reaches the target: append (iteration, "
            "test_accuracy(...)) every recipe.every iterations, and return the curve in any case."
        )
    _, train_set, test_set = (None, *recipe.start(0)[2:])
    sizes = {len(train_set): "training", len(test_set): "test"}
    for size, name in sizes.items():
        if name == "training" and all(abs(a * size - round(a * size)) < 1e-4 for _, a in curve):
            return "k* is read off the training set; only the test set counts."
    if len(curve) + 1 == len(expected) and expected[-1][1] >= recipe.target:
        return "the look that reaches the target is missing alone: append it first, and end then."
    if len(curve) > 1 and curve[-1][1] < min(curve[-2][1], recipe.target):
        return "a worse look than the one before is no end: accuracy goes up and down, and recipe.target decides."
    if len(curve) == 1 and curve[0][1] < recipe.target:
        return (
            "it ends at the first look, below the target: a return inside the loop, or an epoch that is the only one."
        )
    if curve[-1][1] < recipe.target:
        return "training ended after one epoch, or too early by one: go on until recipe.max_iterations."
    return "it stopped at an accuracy that is not the test set's."


def curve(got: Sequence[tuple[int, float]], recipe: Recipe, world_size: int) -> str:
    """Why a learning curve is another one."""

    def follows(other: Sequence[Sequence[float]], n: int) -> bool:
        pairs = list(zip(got, other))
        return bool(pairs) and all(g[0] == o[0] and abs(g[1] - o[1]) <= 1.01 / n for g, o in pairs)

    _, _, train_set, test_set = recipe.start(0)
    if follows(curve_in_one_process(recipe, world_size, on="train"), len(train_set)):
        return "k* is read off the training set; only the test set counts."
    if world_size > 1 and follows(curve_in_one_process(recipe, world_size, starts="mean"), len(test_set)):
        return "the ranks begin from different weights: start_equal(model) before the first step."
    deals = (
        lambda batch: [batch[r::world_size] for r in range(world_size)],
        lambda batch: batch.tensor_split(world_size),
    )
    if world_size > 1 and any(
        follows(curve_in_one_process(recipe, world_size, shares=d), len(test_set)) for d in deals
    ):
        return (
            "the steps are those of the mean of the ranks' means, but their batches differ in length: that is "
            "distributed_step's, which weighs by n_total."
        )
    best = np.maximum.accumulate([a for _, a in curve_in_one_process(recipe, world_size)])
    if all(abs(g[1] - b) <= 1.01 / len(test_set) for g, b in zip(got, best)):
        return "the best accuracy so far is noted: note that of this iteration, also where it is lower."
    if recipe.momentum and follows(curve_in_one_process(replace(recipe, momentum=0.0), world_size), len(test_set)):
        return "momentum is lost: step with the optimizer of recipe.start, the same one in every iteration."
    each = curve_in_one_process(replace(recipe, every=1, target=2.0), world_size)
    early = [[k, dict(map(tuple, each)).get(k - 1, -1)] for k, _ in got]
    if follows(early, len(test_set)) and got[0][0] > 1:
        return "the accuracy is looked at before the step of that iteration: first distributed_step, then look."
    if (
        world_size > 1
        and recipe.batch_size >= world_size
        and follows(
            curve_in_one_process(replace(recipe, batch_size=recipe.batch_size // world_size), world_size), len(test_set)
        )
    ):
        return "the batch is divided by the number of workers: recipe.batch_size is already one worker's."
    if follows(curve_in_one_process(recipe, 1), len(test_set)):
        return "every rank trains on the batches of one worker: give batches this rank and world_size."
    hundred = [[k, a / 100] for k, a in got]
    if all(
        abs(a - b) <= 1.01 / len(test_set) for (_, a), (_, b) in zip(hundred, curve_in_one_process(recipe, world_size))
    ):
        return "in percent: an accuracy of 1 means that all are right."
    return _stepped_otherwise(got, recipe, world_size, follows) if len(got) > 2 else ""


class _StartsOver(SGD):
    """Each step is the first one: the weights are set back before it."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.first = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for p, first in self.first:
            p.copy_(first)


def _stepped_otherwise(
    got: Sequence[tuple[int, float]], recipe: Recipe, world_size: int, follows: Callable[[list, int], bool]
) -> str:
    """Why a curve is that of another optimizer, or of none."""
    test_set = recipe.start(0)[-1]
    if len({accuracy for _, accuracy in got}) == 1:
        return (
            "every look finds the same accuracy, so no step moves this model: the optimizer of recipe.start steps the "
            "model that came with it; take both, once, before the loop."
        )
    usual = [(step, momentum) for step in (recipe.step, 0.1, 0.01, 0.001) for momentum in (0.0, 0.9)]
    by_hand = [partial(SGD, lr=step, momentum=momentum) for step, momentum in usual]
    steps = {
        "every iteration starts from the first weights: take model and optimizer from recipe.start once, before the "
        "loop.": [partial(_StartsOver, lr=recipe.step)],
        f"the step is {world_size} times too long: recipe.step is the same for every N.": [
            partial(SGD, lr=world_size * recipe.step, momentum=recipe.momentum)
        ][: world_size - 1],
        "another optimizer steps: take the one that recipe.start gives, with its step and its momentum.": [
            *by_hand, Adam, partial(Adam, lr=recipe.step)
        ],
    }  # fmt: skip
    for cause, makers in steps.items():
        if any(follows(curve_in_one_process(recipe, world_size, steps=one), len(test_set)) for one in makers):
            return cause
    return ""


def first(got: object, curve: Sequence[Sequence[float]], target: float) -> str:
    """Why an iteration is not the first that reaches the target."""
    reached = [k for k, accuracy in curve if accuracy >= target]
    if not reached:
        return "a run that never gets there is an outcome, not an error: say math.inf."
    above = [k for k, accuracy in curve if accuracy > target]
    stays = [k for i, (k, _) in enumerate(curve) if all(accuracy >= target for _, accuracy in curve[i:])]
    best = max(curve, key=lambda pair: pair[1])[0]
    if isinstance(got, list | tuple):
        return "the iteration alone is asked, no pair."
    usual = next((k for k, accuracy in curve if accuracy >= 0.97), math.inf)
    if got == usual != math.inf and target != 0.97:
        return "that is the iteration for 0.97: the target is an argument."
    if got in [accuracy for _, accuracy in curve]:
        return "that is the accuracy: the iteration beside it is asked."
    if got in [i + start for i, (k, _) in enumerate(curve) if k == reached[0] for start in (0, 1)]:
        return "this is the place in the list, not the iteration that stands there."
    if stays and got == stays[0] and stays[0] not in above[:1]:
        return "the first time counts, also if the accuracy drops again."
    if above and got == above[0]:
        return "reaching the target is enough: >=, not >."
    if got in [k for k, accuracy in curve if target - 0.01 < accuracy < target]:
        return "close to the target is not there: accuracy >= target, with nothing added."
    if reached[0] == curve[0][0] and got in [*reached[1:2], math.inf]:
        return "the first entry of the curve counts, too."
    if got == math.inf:
        return "an entry below the target says nothing of those behind it: math.inf is for the end of the list."
    if got == reached[-1] or got == best:
        return "this is the last or the best iteration, not the first that reaches the target."
    return ""


def speedup(got: Sequence[float], right: Sequence[float], k_star: Mapping[str, Sequence[float]], n: str) -> str:
    """Why three numbers are not lowest, median and highest speedup."""
    values = list(k_star[n])

    def is_(three: Sequence[float]) -> bool:
        return all(math.isclose(g, t, rel_tol=1e-3) for g, t in zip(got, three))

    if all(g == round(r, digits) for g, r in zip(got, right) for digits in [_digits(got)]):
        if _digits(got) == 0:
            return "whole numbers: three digits are asked. / divides, // and int() cut, round() goes to the next one."
        return "right but rounded: three digits are asked, leave the numbers as they are."
    if is_(right[::-1]):
        return "lowest and highest are swapped: the largest k* is the smallest speedup."
    if right[0] == 0 and got[0] > 0:
        return "a run that never arrived was left out: its k* is infinite, its speedup 0."
    if is_([r / int(n) for r in right]):
        return "this is the efficiency: do not divide by N."
    if int(n) > 1 and is_([r * int(n) for r in right]):
        return "N times too much: fewer iterations are the speedup, nothing is multiplied by N."
    if sorted(got) == sorted(right) or is_([right[1], right[0], right[2]]):
        return "another order: (lowest, median, highest)."
    base = list(k_star["1"])
    if is_([max(base) / max(values), right[1], min(base) / min(values)]) or is_(
        [min(base) / max(values), right[1], max(base) / min(values)]
    ):
        return "the numerator is always the median of k*(1): only k*(N) is the largest, the median, the smallest."
    if len(base) == len(values):
        by_seed = sorted(b / v for b, v in zip(base, values))
        middle = float(np.median(by_seed))
        ends = ([by_seed[0], by_seed[-1]], [right[0], right[2]])
        if any(is_([low, mid, high]) for low, high in ends for mid in (by_seed[len(by_seed) // 2], middle)):
            return "seed by seed: the numerator is always the median of k*(1), not the same seed's."
    unsorted = base[len(base) // 2] / values[len(values) // 2] if values[len(values) // 2] else math.inf
    is_off = not math.isclose(got[1], right[1], rel_tol=1e-3)
    if len(values) > 2 and is_off and math.isclose(got[1], unsorted, rel_tol=1e-3):
        return "the middle of the list is not its median: sort it first, or statistics.median."
    each = [float(np.median(base)) / v if v else math.inf for v in values]
    if is_off and math.isclose(got[1], float(np.median(each)), rel_tol=1e-3):
        return "that is the median of the speedups: asked is the median k*(1) over the median k*(N)."
    over = [1 / r if r else math.inf for r in right]
    if is_(over) or is_(over[::-1]):
        return "turned over: more than 1 is faster, so k*(1) stands above."
    if is_([float(int(r)) for r in right]):
        return "whole numbers: / divides, // cuts."
    halves = [(sorted(v)[(len(v) - 1) // 2], sorted(v)[len(v) // 2], float(np.median(v))) for v in (base, values)]
    ends_right = is_([right[0], got[1], right[2]])
    if (
        is_off
        and ends_right
        and any(w and math.isclose(got[1], v / w, rel_tol=1e-3) for v in halves[0] for w in halves[1])
    ):
        return "the median of an even number of values is the mean of the middle two: statistics.median."
    if is_off and math.isclose(got[1] * int(n), right[1], rel_tol=1e-3):
        return "this is the efficiency: do not divide by N."
    means = [float(np.mean(base)), float(np.median(base))]
    if is_off and any(math.isclose(got[1] * float(np.mean(values)), b, rel_tol=1e-3) for b in means):
        return "the mean instead of the median: one slow seed moves it."
    sorted_base, used = sorted(base), got[2] * min(values)
    if math.isclose(got[0] * max(values), used, rel_tol=1e-3):
        for value, which in (
            (sorted_base[(len(base) - 1) // 2], "the lower of its middle two"),
            (sorted_base[len(base) // 2], "the upper of its middle two"),
            (base[len(base) // 2], "the middle of the list, unsorted"),
            (base[0], "its first seed"), (means[0], "its mean"),
            (min(base), "its smallest"), (max(base), "its largest"),
        ):  # fmt: skip
            if math.isclose(used, value, rel_tol=1e-3) and not math.isclose(value, means[1], rel_tol=1e-3):
                if value == means[0]:
                    return "the mean instead of the median: one slow seed moves it."
                return f"k*(1) stands there with {which}: the numerator is its median, statistics.median."
    if is_off and values and math.isclose(got[1] * values[len(values) // 2], float(np.median(base)), rel_tol=1e-3):
        return "the middle of the list is not its median: sort it first, or statistics.median."
    low = sorted(values)[(len(values) - 1) // 2]
    if is_off and math.isclose(got[1] * low, float(np.median(base)), rel_tol=1e-3):
        return "the median of an even number of values is the mean of the middle two: statistics.median."
    return ""


def _digits(numbers: Sequence[float]) -> int:
    """How many digits after the point the numbers have, at most 2."""
    return next((n for n in range(3) if all(math.isclose(g, round(g, n)) for g in numbers if math.isfinite(g))), 9)
