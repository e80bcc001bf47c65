"""Lesson 03: which known mistake gives these numbers. Each function names one, or says nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hw_utils.checks.lesson_03.problem import Problem, curve_in_one_process, owner
from hw_utils.checks.slips import slip
from hw_utils.core.trace import Trace
from hw_utils.material.recipe import Recipe

State = Mapping[str, np.ndarray]


def overlap(mine: Sequence[Sequence[int]]) -> str:
    """Why ranks share examples."""
    if len(mine) > 1 and all(sorted(part) == sorted(mine[0]) for part in mine):
        return "every rank takes the same data: the rank must decide which examples are its own."
    if any(len(set(part)) < len(part) for part in mine):
        return "a rank takes an example twice, perhaps to fill its last batch; leave the batch short instead."
    return "the shards overlap: start at rank and go on in strides of world_size, no other step."


def lost(mine: Sequence[Sequence[int]], order: Sequence[int]) -> str:
    """Why examples are in nobody's batches."""
    if not any(mine):
        return "no rank takes any example."
    taken = {i for part in mine for i in part}
    tail = [i not in taken for i in order]
    if tail == sorted(tail):
        return "the short end of the epoch is dropped: keep the last, smaller chunk."
    return "some ranks' shares are missing: the N shares of a chunk together are the chunk."


def start(states: Sequence[State], marks: Sequence[State], name: str, rank: int) -> str:
    """Why a rank does not begin with rank 0's numbers."""
    wrong = [n for n in marks[0] if not np.array_equal(states[rank][n], marks[0][n])]
    got = states[rank][name]
    same_as = [r for r, mark in enumerate(marks) if np.array_equal(got, mark[name])]
    if len(marks) > 1 and np.allclose(got, sum(m[name] for m in marks) / len(marks), rtol=1e-5):
        return "the mean of all ranks is equal too, but it is nobody's initial weights: broadcast, do not average."
    if not same_as and np.allclose(got, marks[0][name], rtol=1e-2):
        return "rank 0's numbers came rounded: send every tensor in its own dtype, not as float16 or float32."
    if not same_as and all(np.array_equal(s[name], got) for s in states):
        return "the ranks are equal but not rank 0's: no seed and no new weights, send what rank 0 has."
    if same_as == [rank] and len(wrong) < len(marks[0]):
        return _unsent(wrong)
    if same_as == [rank]:
        return "nothing was received: dist.broadcast(tensor, 0) for every tensor, and no copy of it in between."
    return f"rank {same_as[0]} was the root; the lesson asks for rank 0." if same_as else ""


def _unsent(names: Sequence[str]) -> str:
    buffers = [n for n in names if "running" in n or "num_batches" in n]
    if len(buffers) == len(names):
        return "parameters are sent, buffers are not: model.state_dict() has both."
    if all("bias" in n for n in names if n not in buffers):
        return "weights are sent, biases are not: go through every parameter."
    return "only some tensors are sent: go through all of them."


def average(states: Sequence[State], marks: Sequence[State], name: str, rank: int) -> str:
    """Why a parameter is not the mean."""
    n = len(marks)
    total = sum(m[name] for m in marks)
    got = states[rank][name]

    def is_(expected: np.ndarray) -> bool:
        return bool(np.allclose(got, expected, rtol=1e-5, atol=0))

    if n > 1 and all(np.array_equal(s[name], marks[0][name]) for s in states):
        return "rank 0's numbers were sent to all: that is a broadcast, not a mean."
    if is_(marks[rank][name]):
        some = [m for m in marks[0] if m != name and not np.array_equal(states[rank][m], marks[rank][m])]
        if some:
            return f"only some parameters are averaged ({some[0]} is, {name} is not): go through all of them."
        return "nothing changed: the parameters themselves must change in place, not their gradients or a copy."
    if is_(total):
        right = [r for r, s in enumerate(states) if np.allclose(s[name], total / n, rtol=1e-5, atol=0)]
        return f"only rank {right[0]} divides." if right else "the sum is not divided by the number of ranks."
    if is_(total / n**2):
        return "it is divided twice."
    if is_(marks[rank][name] / n):
        return "divided, but never summed."
    if is_(total // n):
        return "the mean is rounded down: divide with /, not with //."
    if any(is_(total / k) for k in range(1, 17) if k != n):
        return "the sum is divided by another number: the number of ranks is dist.get_world_size()."
    if np.allclose(got, total / n, rtol=2e-2, atol=0):
        return "the mean is right but rounded: add and divide in the parameter's own dtype."
    return ""


def _names(problem: Problem, mask: np.ndarray) -> list[str]:
    model = problem.model()
    return list(dict.fromkeys(owner(model, int(i)) for i in np.flatnonzero(mask)))


def _local(problem: Problem, before: np.ndarray, k: int) -> list[np.ndarray]:
    """Each rank's own gradient at step k (from 1), of the mean over its examples, times its weight N b_r / b."""
    chunk = list(problem.chunks())[k - 1]
    parts = problem.shares(chunk)
    return [
        problem.gradient(before[r], part) * len(part) * problem.world_size / len(chunk) for r, part in enumerate(parts)
    ]


def unequal(problem: Problem, states: Sequence[np.ndarray], k: int, trace: dict) -> str:
    """Why the ranks' models differ after step k."""
    after = np.stack([s[k] for s in states])
    before = np.stack([s[k - 1] for s in states])
    moved = [r for r in range(len(states)) if not np.array_equal(after[r], before[r])]
    if len(moved) < len(states):
        return f"only rank {moved[0]} steps: every rank computes, steps and takes part in the average."
    silent = not len(Trace.from_plain(trace))
    differs = (after != after[0]).any(0)
    if not differs.all():
        same = _names(problem, ~differs)
        whole = [name for name in same if name not in _names(problem, differs)]
        if whole:
            return f"only some parameters are averaged ({whole[0]} is): every one must be."
    if silent:
        return "nothing was sent: after the local step comes average(model, all_reduce)."
    local = before.mean(0) - problem.step * np.stack(_local(problem, before, k))
    if problem.momentum == 0 and _scaled(after, local):
        return "the average comes before the step: first x - alpha G, then the mean over the ranks."
    return "something that differs between ranks touches the model after the average."


def _scaled(after: np.ndarray, local: np.ndarray) -> bool:
    return bool(np.allclose(after, local, rtol=1e-5, atol=1e-6))


def strays(problem: Problem, states: Sequence[np.ndarray], k: int, rank: int) -> str:
    """Why a rank leaves the path of the one big batch at step k."""
    if k == 0:
        return "the weights were changed before the first step."
    gone = [r for r, part in enumerate(problem.shares(list(problem.chunks())[k - 1])) if not len(part)]
    if problem.momentum and gone:
        return (
            f"rank {gone[0]} has no examples at this step, but it has momentum: optimizer.step() there too, with a "
            "gradient of zeros, not without one."
        )
    if problem.momentum and k > 1:
        return "the optimizer's own momentum is enough: make no new optimizer, and no step by hand."
    n, a = problem.world_size, problem.step
    x = states[rank][k - 1].astype(float)
    chunk = list(problem.chunks())[k - 1]
    parts = problem.shares(chunk)
    whole = problem.gradient(states[rank][k - 1], chunk)
    own = [problem.gradient(states[rank][k - 1], part) for part in parts]
    own_sum = [g * len(part) for g, part in zip(own, parts)]
    candidates = [
        (n * (x - a * whole), "the models are summed and not divided by the number of ranks."),
        ((x - a * whole) / n, "it is divided twice by the number of ranks."),
        (x - a * n * whole, "the gradients are summed, not averaged: the step is N times too long."),
        (
            x - a * whole / n,
            "the loss lacks the factor N: sum of losses * N / n_total, because the average divides by N.",
        ),
        (x - a * own[0] / n, "only rank 0 steps: the others average in weights that did not move."),
        (
            x - a * own[rank],
            "only rank 0's examples count: its model was sent to all, or its gradient."
            if rank == 0 and all(np.array_equal(s[k], states[0][k]) for s in states)
            else "this rank's model follows its own examples alone: nothing was averaged, or before the step.",
        ),
        (x - a * own[0], "only rank 0's examples count: its model was sent to all, or its gradient."),
        (x - 2 * a * whole, "twice as far as it should: one optimizer.step() an iteration."),
        (x - a * sum(own) / n, "the mean of the ranks' means, but their batches differ in length: weigh by n_total."),
        (x - a * sum(own_sum) / n, "the losses are summed and never divided by the number of examples."),
        (x - a * whole * len(chunk), "the losses are summed and never divided by the number of examples."),
        (x + a * whole, "the step goes uphill: minus alpha G."),
        (x, "nothing moved: backward, then optimizer.step()."),
    ]
    error = np.abs(states[rank][k] - (x - a * whole)).max()
    if problem.net == "small" and error < 1e-6:
        return "right but for its last digits: somewhere float64 numbers become float32."
    for candidate, cause in candidates:
        if np.allclose(candidate, x - a * whole, rtol=1e-5, atol=1e-7):
            continue  # with these ranks this mistake is none
        if np.allclose(states[rank][k], candidate, rtol=1e-5, atol=1e-7):
            return cause
    return _strays_late(problem, states, k, rank, x, whole, own)


def _strays_late(problem: Problem, states, k: int, rank: int, x: np.ndarray, whole: np.ndarray, own) -> str:
    moved = states[rank][k] - states[rank][k - 1]
    if k > 1:
        earlier = list(problem.chunks())[k - 2]
        before = problem.gradient(states[rank][k - 2], earlier)
        if np.allclose(moved, -problem.step * (whole + before), rtol=1e-4, atol=1e-7):
            return "gradients of the last iteration are still there: optimizer.zero_grad() before backward."
    right = np.isclose(states[rank][k], x - problem.step * whole, rtol=1e-5, atol=1e-7)
    whole_names = [name for name in _names(problem, right) if name not in _names(problem, ~right)]
    if whole_names:
        return f"only some parameters are averaged ({whole_names[0]} is right): every one must be."
    times = float(moved @ whole) / float(-problem.step * whole @ whole)
    if np.allclose(moved, -times * problem.step * whole, rtol=1e-3, atol=1e-7):
        return (
            f"the direction is right, the step {times:.3g} times as long: step with `optimizer` (its lr here: "
            f"{problem.step:g}), and leave the gradient as long as it is."
        )
    if problem.world_size == 1 and k == 1:
        return (
            "one rank, first step: the loss is another one. cross_entropy takes the model's own scores and y, no more."
        )
    return ""


def accuracy(got: float, right: np.ndarray, world_size: int, rank: int) -> str:
    """Why an accuracy is not that of the whole test set."""
    n = len(right)
    shares = [right[r::world_size] for r in range(world_size)]
    means = [float(s.mean()) for s in shares if len(s)]

    def is_(value: float) -> bool:
        return math.isclose(got, value, abs_tol=1e-6)

    if got != got:
        return "the mean over no examples is nan: sum what is right, divide once by the size of the whole set."
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
    if is_(right.sum() / len(shares[rank])) if len(shares[rank]) else False:
        return "divided by the size of this rank's share: the counts are of the whole set, divide by its size."
    block = right[: per_share * world_size].sum()
    if is_(block / n) or (per_share and is_(block / (per_share * world_size))):
        return "the examples that do not divide evenly are left out: shares differ by one."
    if any(is_((right.sum() - wrapped) / n) for wrapped in (256, 512, 65536)):
        return "the count does not fit into its dtype: sum() of True and False gives int64, leave it so."
    if per_share and is_(sum(s[:per_share].sum() for s in shares) / (per_share * world_size)):
        return "the examples that do not divide evenly are left out."
    return slip(got, float(right.mean()))


def too_short(curve: Sequence[tuple[int, float]], recipe: Recipe) -> str:
    """Why a training ended early."""
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
    if got == usual and target != 0.97:
        return "that is the iteration for 0.97: the target is an argument."
    if got in [accuracy for _, accuracy in curve]:
        return "that is the accuracy: the iteration beside it is asked."
    if got in [i for i, (k, _) in enumerate(curve) if k == reached[0]]:
        return "this is the place in the list, not the iteration that stands there."
    if stays and got == stays[0] and stays[0] not in above[:1]:
        return "the first time counts, also if the accuracy drops again."
    if above and got == above[0]:
        return "reaching the target is enough: >=, not >."
    if got == reached[-1] or got == best:
        return "this is the last or the best iteration, not the first that reaches the target."
    return ""


def speedup(got: Sequence[float], right: Sequence[float], k_star: Mapping[str, Sequence[float]], n: str) -> str:
    """Why three numbers are not lowest, median and highest speedup."""
    values = list(k_star[n])

    def is_(three: Sequence[float]) -> bool:
        return all(math.isclose(g, t, rel_tol=1e-3) for g, t in zip(got, three))

    if all(g == round(r, digits) for g, r in zip(got, right) for digits in [_digits(got)]):
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
        if is_([by_seed[0], by_seed[len(by_seed) // 2], by_seed[-1]]) or is_(
            [by_seed[0], float(np.median(by_seed)), by_seed[-1]]
        ):
            return "seed by seed: the numerator is always the median of k*(1), not the same seed's."
    unsorted = base[len(base) // 2] / values[len(values) // 2] if values[len(values) // 2] else math.inf
    is_off = not math.isclose(got[1], right[1], rel_tol=1e-3)
    if len(values) > 2 and is_off and math.isclose(got[1], unsorted, rel_tol=1e-3):
        return "the middle of the list is not its median: sort it first, or statistics.median."
    over = [1 / r if r else math.inf for r in right]
    if is_(over) or is_(over[::-1]):
        return "turned over: more than 1 is faster, so k*(1) stands above."
    if is_([float(int(r)) for r in right]):
        return "whole numbers: / divides, // cuts."
    middle = [sorted(v)[(len(v) - 1) // 2] / sorted(w)[(len(w) - 1) // 2] for v, w in ((k_star["1"], values),)]
    if len(values) % 2 == 0 and math.isclose(got[1], middle[0], rel_tol=1e-3):
        return "the median of an even number of values is the mean of the middle two: statistics.median."
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
