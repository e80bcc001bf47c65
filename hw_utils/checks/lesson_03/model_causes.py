"""Lesson 03: which known mistake gives these models. Each function names one, or says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hw_utils.checks.lesson_03.small_trainings import Problem, owner, ranks_of
from hw_utils.core.trace import Trace

State = Mapping[str, np.ndarray]


_UNDIVIDED = (
    "the sum is not divided by the number of ranks, or the quotient is a new tensor: the parameter itself is to change."
)


def start(states: Sequence[State], marks: Sequence[State], name: str, rank: int, unsaved: str) -> str:
    """Why a rank does not begin with rank 0's numbers; unsaved: the buffer that no `state_dict()` has."""
    wrong = [n for n in marks[0] if not np.array_equal(states[rank][n], marks[0][n])]
    if wrong == [unsaved] and np.array_equal(states[rank][unsaved], marks[rank][unsaved]):
        return (
            "state_dict() leaves out buffers that are registered with persistent=False; model.parameters() and "
            "model.buffers() leave out none."
        )
    saved = [n for n in marks[0] if n != unsaved]
    wrong = [n for n in wrong if n != unsaved]
    got = states[rank][name]
    same_as = [r for r, mark in enumerate(marks) if np.array_equal(got, mark[name])]
    if len(marks) > 1 and np.allclose(got, sum(m[name] for m in marks) / len(marks), rtol=1e-5):
        return "the mean of all ranks is equal too, but it is nobody's initial weights: broadcast, do not average."
    if not same_as and np.allclose(got, marks[0][name], rtol=1e-2):
        return (
            "rank 0's numbers came rounded: send every tensor in its own dtype, not as float16 or float32, which a "
            "quotient of whole numbers is, too: broadcast, do not average."
        )
    if not same_as and all(np.array_equal(s[name], got) for s in states):
        return "the ranks are equal but not rank 0's: no seed and no new weights, send what rank 0 has."
    if same_as == [rank] and len(wrong) < len(saved):
        return _unsent(wrong, [n for n in saved if n not in wrong])
    if same_as == [rank]:
        return "nothing was received: dist.broadcast(tensor, 0) for every tensor, and no copy of it in between."
    return f"rank {same_as[0]} was the root; the lesson asks for rank 0." if same_as else ""


def _unsent(names: Sequence[str], sent: Sequence[str]) -> str:
    buffers = [n for n in names if "running" in n or "num_batches" in n]
    if len(buffers) == len(names):
        if any("running" in n for n in sent):
            return f"only some buffers are sent, {names[0]} is not: all of them, whole numbers as well."
        return "parameters are sent, buffers are not: model.buffers() has them."
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
        return (
            "rank 0's numbers are on every rank: that is a broadcast, not a mean, or the smallest of all "
            "(ReduceOp.MIN, a median): sum, and divide."
        )
    if n > 1 and all(np.array_equal(s[name], np.maximum.reduce([m[name] for m in marks])) for s in states):
        return "that is the largest of all ranks' numbers (ReduceOp.MAX): an all_reduce without an op sums."
    if n > 2 and any(is_((marks[rank][name] + marks[other % n][name]) / 2) for other in (rank - 1, rank + 1)):
        return "that is the mean with one neighbour: an exchange brings one rank's numbers, the mean needs everybody's."
    if is_(marks[rank][name]):
        some = [m for m in marks[0] if m != name and not np.array_equal(states[rank][m], marks[rank][m])]
        if some:
            return f"only some parameters are averaged ({some[0]} is, {name} is not): go through all of them."
        return "nothing changed: the parameters themselves must change in place, not their gradients or a copy."
    if is_(total):
        right = [r for r, s in enumerate(states) if np.allclose(s[name], total / n, rtol=1e-5, atol=0)]
        return f"only rank {right[0]} divides." if right else _UNDIVIDED
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
        return (
            "the average comes before the step, or changes nothing: first x - alpha G, then the mean over the ranks, "
            "in the parameters themselves."
        )
    return (
        "after the average all ranks have one model: it comes last, in every iteration, and changes the parameters "
        "themselves, not copies of them."
    )


def _scaled(after: np.ndarray, local: np.ndarray) -> bool:
    return bool(np.allclose(after, local, rtol=1e-5, atol=1e-6))


def strays(problem: Problem, states: Sequence[np.ndarray], k: int, rank: int) -> str:
    """Why a rank leaves the path of the one big batch at step k."""
    if k == 0:
        return "the weights were changed before the first step."
    gone = [r for r, part in enumerate(problem.shares(list(problem.chunks())[k - 1])) if not len(part)]
    if gone and (problem.momentum or problem.decay):
        what = "momentum" if problem.momentum else "weight decay"
        return (
            f"rank {gone[0]} has no examples at this step, but it has {what}: optimizer.step() there too, with a "
            "gradient of zeros, not without one."
        )
    if problem.momentum and k > 1:
        return "the optimizer's own momentum is enough: make no new optimizer, and no step by hand."
    n, a = problem.world_size, problem.step
    x = states[rank][k - 1].astype(float)
    chunk = list(problem.chunks())[k - 1]
    parts = problem.shares(chunk)
    whole, *own = (problem.gradient(states[rank][k - 1], part) + problem.decay * x for part in (chunk, *parts))
    own_sum = [g * len(part) for g, part in zip(own, parts)]
    candidates = [
        (n * (x - a * whole), "the models are summed and not divided by the number of ranks."),
        (
            n * x - a * whole,
            "the models are summed and not divided by the number of ranks (average's own check says more), and the "
            "loss lacks the factor N.",
        ),
        ((x - a * whole) / n, "it is divided twice by the number of ranks."),
        (x - a * n * whole, "the gradients are summed, not averaged: the step is N times too long."),
        (
            x - a * whole / n,
            "the loss lacks the factor N: sum of losses * N / n_total, because the average divides by N.",
        ),
        (
            x - a * own[0] / n,
            "only rank 0 steps: the others average in weights that did not move."
            if all(np.array_equal(s[k], states[0][k]) for s in states)
            else "each rank's model follows its own examples alone, and the loss lacks the factor N.",
        ),
        (
            x - a * own[rank],
            "only rank 0's examples count: its model was sent to all, or its gradient."
            if rank == 0 and all(np.array_equal(s[k], states[0][k]) for s in states)
            else "this rank's model follows its own examples alone: nothing was averaged, or before the step.",
        ),
        (x - a * own[0], "only rank 0's examples count: its model was sent to all, or its gradient."),
        (x - 2 * a * whole, "twice as far as it should: one optimizer.step() an iteration."),
        (x - a * sum(own) / n, "the mean of the ranks' means, but their batches differ in length: weigh by n_total."),
        (
            x - a * sum(own) / len(chunk),
            'a mean is divided by the number of examples once more: n_total divides the sum, reduction="sum".',
        ),
        (
            x - a * whole * len(chunk) / (n * max(1, len(chunk) // n)),
            "n_total is divided by N in whole numbers: / divides, // cuts.",
        ),
        (x - a * sum(own_sum) / n, "the losses are summed and never divided by the number of examples."),
        (x - a * whole * len(chunk), "that is the sum over the examples, not divided by their number in the end."),
        (
            x - a * (whole - problem.decay * x),
            "the weight decay is missing: the optimizer has it, so step with the optimizer that is given.",
        ),
        (np.floor(x - a * whole), "the models' mean is rounded down: / divides, // cuts."),
        (x + a * whole, "the step goes uphill: minus alpha G."),
        (
            x - a * (whole + (n - 1) * problem.decay * x),
            "the learning rate is N times as long, so the weight decay is, too: the factor N belongs to the loss, and "
            "the optimizer steps as it is.",
        ),
        *(
            (
                (x - a * whole) * n / k,
                f"the weights are the ranks' sum over {k}, and there {'are' if n > 1 else 'is'} {ranks_of(n)}: average "
                "divides by dist.get_world_size(), as its own check asks.",
            )
            for k in range(2, 17)
        ),
        (
            x - a * (whole + problem.begun * (k == 1)),
            "gradients that stood there before the first step are in it: optimizer.zero_grad() before backward, not "
            "only after the step.",
        ),
        (x, "nothing moved: backward, then optimizer.step(), and no zero_grad() between the two."),
    ]
    error = np.abs(states[rank][k] - (x - a * whole)).max()
    if problem.net == "small" and error < 1e-6:
        return "right but for its last digits: somewhere float64 numbers become float32."
    if problem.net == "small" and np.allclose(states[rank][k], x - a * whole, rtol=2**-8, atol=1e-7):
        return "right but rounded: somewhere float64 numbers become float16 or bfloat16."
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
