"""Judges of lesson 04: the loop, its test and its batches; and what a number in plain data must look like."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.softmax import Softmax, cross_entropy, descend
from hw_utils.errors import CheckFailed

SINGLE = 1e-4  # relative: float32 sums of a few hundred numbers in any order


def number(value: Any, what: str) -> float:
    """The value as a finite float; an array of one element counts."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(()).item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckFailed(f"{what} must be a number, got {short(value)}.")
    return float(value)


def numbers(values: Any, what: str, n: int | None = None) -> list[float]:
    """The values as finite floats, `n` of them."""
    if not isinstance(values, list | np.ndarray):
        raise CheckFailed(f"{what} must be a list of numbers, got {short(values)}.")
    found = [number(value, f"{what}[{i}]") for i, value in enumerate(values)]
    if n is not None and len(found) != n:
        raise CheckFailed(f"{what} must hold {n} numbers, one an iteration; got {len(found)}.")
    return found


def short(value: Any) -> str:
    if isinstance(value, dict) and "unknown" in value:
        return f"a {value['unknown']}"
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def close(a, b, tolerance: float = SINGLE) -> bool:
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


def result(data: Any, rank: int = 0) -> Any:
    """What `rank` returned in an observed run."""
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list) or len(results) <= rank:
        raise CheckFailed(f"rank {rank} returned nothing.")
    return results[rank]


# 4.1 ---------------------------------------------------------------------------------------------------------


def examples(n: int, d_in: int = 4, n_classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """x float32 (n, d_in) and y int64 (n,): points around one centre a class, in a shuffled order."""
    random = np.random.RandomState(seed)
    y = random.randint(0, n_classes, n)
    x = random.randn(n_classes, d_in)[y] + 0.3 * random.randn(n, d_in)
    return x.astype("f4"), y.astype("i8")


def start(d_in: int = 4, n_classes: int = 3) -> Softmax:
    weight = np.linspace(-0.5, 0.5, n_classes * d_in, dtype="f4").reshape(n_classes, d_in)
    return Softmax(weight.astype("f8"), np.zeros(n_classes))


def pauses(n: int) -> list[float]:
    """Virtual seconds of each iteration: the first is slow, and so is what comes after the 40th."""
    return [8.0] + [1.0 + 0.001 * i * i for i in range(1, min(n, 40))] + [3.0] * max(n - 40, 0)


def judge_train(data: Any, n_iterations: int, momentum: float) -> None:
    require_no_deadlock(data, "train")
    got = result(data)
    losses = numbers(got.get("losses") if isinstance(got, dict) else None, "losses", n_iterations)
    _judge_descent(losses, got, n_iterations, momentum)
    _judge_seconds(number(got["iteration_s"], "iteration_s"), n_iterations)
    _judge_report(got["said"], losses)


def _batches(n_iterations: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = examples(6 * n_iterations)
    return [(x[i : i + 6].astype("f8"), y[i : i + 6]) for i in range(0, len(x), 6)]


def _judge_descent(losses: list[float], got: Mapping[str, Any], n: int, momentum: float) -> None:
    settings = {"lr": 0.1, "momentum": momentum}
    model = start()
    expected = descend(model, _batches(n), shrink=0.5, **settings)
    if close(losses, expected) and close(got["weight"], model.weight):
        return
    causes = {
        "sync was not called, or only after the step: it must change the gradients between backward and step.": {},
        "the gradients of the last step are still there: call optimizer.zero_grad() before backward.": {
            "shrink": 0.5,
            "keep": 1.0,
        },
        "no step is taken: optimizer.step() comes after sync, and optimizer.zero_grad() before backward.": {
            "shrink": 0.0
        },
        "the loss is the batch's own, before its step.": {"shrink": 0.5, "after": True},
    }
    for cause, change in causes.items():
        if close(losses, descend(start(), _batches(n), **{**settings, **change})):
            raise CheckFailed(first_difference(losses, expected), cause=cause)
    if close(losses, expected):
        raise CheckFailed("train: the losses are right, the weights after the last step are not.")
    raise CheckFailed(first_difference(losses, expected))


def first_difference(got: Sequence[float], expected: Sequence[float], who: str = "train") -> str:
    i = next((i for i, (a, b) in enumerate(zip(got, expected)) if not close(a, b)), 0)
    return f"{who}: the loss of iteration {i + 1} is {got[i]:.4f}, expected {expected[i]:.4f}."


def _judge_seconds(got_s: float, n: int) -> None:
    all_s = pauses(n)
    expected_s = float(np.mean(all_s[1:40]))
    if math.isclose(got_s, expected_s, rel_tol=1e-6):
        return
    causes = (
        (np.mean(all_s), "every iteration is in the mean: the first one, which warms up, must not be."),
        (np.mean(all_s[:40]), "the first iteration, which warms up, must not be in the mean."),
        (np.mean(all_s[1:]), "iterations after the 40th are in the mean."),
        (np.sum(all_s[1:40]), "this is a sum: divide by the number of iterations."),
        (expected_s * 1e3, "seconds are wanted, these are milliseconds."),
        (np.sum(all_s[1:40]) / 40, "the sum of 39 iterations is divided by 40."),
        (np.mean(all_s[2:41]), "iterations count from 1: the 2nd is `seconds[1]`."),
    )
    cause = next((text for value, text in causes if math.isclose(got_s, value, rel_tol=1e-6)), "")
    raise CheckFailed(
        f"train: iteration_s of {n} iterations is {got_s:.4g} s, expected {expected_s:.4g} s,"
        f" the mean of iterations 2 to {min(n, 40)}.",
        cause=cause,
    )


def _judge_report(said: Any, losses: list[float]) -> None:
    expected = [f"iteration {i}: loss {losses[i - 1]:.3f}" for i in range(20, len(losses) + 1, 20)]
    if said != expected:
        raise CheckFailed(
            f"train: reported {short(said)}, expected {short(expected)}.", cause=_why_report(said, expected)
        )


def _why_report(said: Any, expected: list[str]) -> str:
    if not said or not all(isinstance(text, str) for text in said):
        return "call report(text), not print, every 20 iterations." if expected else ""
    iterations = [re.findall(r"\d+", text)[:1] for text in said]
    if iterations == [re.findall(r"\d+", text)[:1] for text in expected]:
        if all(re.fullmatch(r"iteration \d+: loss \d+\.\d{3}", text) for text in said):
            return "the loss is that of this very iteration, not a mean."
        return 'the text is f"iteration {i}: loss {loss:.3f}", to the letter.'
    if expected and len(said) > len(expected) and set(expected) <= set(said):
        return "one report every 20 iterations, no more."
    return "iterations count from 1, so the first report is iteration 20's."


def judge_evaluate(data: Any, sizes: Sequence[int]) -> None:
    scores, y = evaluation(sizes)
    got_loss, got_share = number(data["loss"], "the test loss"), number(data["accuracy"], "the accuracy")
    if data["training"]:
        cause = "the model is still in training mode: model.eval() first, or dropout and batch norm do as in training."
        raise CheckFailed("evaluate: the model is called in training mode.", cause=cause)
    if data["graph"]:
        raise CheckFailed("evaluate: the forward pass records gradients.", cause="wrap it in `with torch.no_grad():`.")
    expected = cross_entropy(scores, y)
    if not close(got_loss, expected):
        parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
        means = [cross_entropy(scores[p], y[p]) for p in parts]
        causes = (
            (np.mean(means), "the mean of the batches' means: the last batch is smaller and must count less."),
            (np.sum(means), "this is the sum of the batches' losses."),
            (expected * len(y), "this is the sum over the examples: divide by their number."),
        )
        cause = next((text for value, text in causes if close(got_loss, value)), "")
        raise CheckFailed(f"evaluate: the test loss is {got_loss:.4f}, expected {expected:.4f}.", cause=cause)
    share = float((scores.argmax(1) == y).mean())
    if not close(got_share, share):
        percent = close(got_share, 100 * share)
        cause = "a share between 0 and 1 is wanted, these are percent." if percent else ""
        cause = "these are counts: divide by the number of examples." if close(got_share, share * len(y)) else cause
        raise CheckFailed(f"evaluate: the accuracy is {got_share:.4f}, expected {share:.4f}.", cause=cause)


def evaluation(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n, 3) and labels (n,) to evaluate; the last batch is harder than the others."""
    random = np.random.RandomState(1)
    n = sum(sizes)
    y = random.randint(0, 3, n)
    scores = random.randn(n, 3) + 2.0 * np.eye(3)[y]
    scores[n - sizes[-1] :] *= -1
    return scores, y


# 4.2 ---------------------------------------------------------------------------------------------------------


def judge_batches(data: Any, n_examples: int, world_size: int, total_batch: int) -> None:
    epochs = data["epochs"]
    size = total_batch // world_size
    for rank, part in enumerate(epochs[0]):
        wrong = [len(batch) for batch in part[:-1] if len(batch) != size]
        if not part or wrong or len(part[-1]) > size:
            got = wrong[0] if wrong else len(part[-1]) if part else 0
            cause = "total_batch counts all ranks: each takes total_batch / world_size." if got > size else ""
            raise CheckFailed(
                f"batches: rank {rank} of {world_size} gets {got} examples a batch; a total batch of {total_batch}"
                f" is {size} on each.",
                cause=cause,
            )
    _judge_cover(epochs[0], n_examples, world_size)
    if epochs[0] == epochs[1]:
        raise CheckFailed(
            "batches: epoch 1 has the same order as epoch 0.",
            cause="sampler.set_epoch(epoch) tells the sampler which order to use; without it every epoch is the same.",
        )
    if data["again"] != epochs[0]:
        raise CheckFailed("batches: the same epoch and seed give another order the second time.")
    if data["other_seed"] == epochs[0]:
        raise CheckFailed(
            "batches: another seed gives the same order.",
            cause="pass seed to the sampler, or every run of a course sees the examples in one order.",
        )


def _judge_cover(parts: list, n_examples: int, world_size: int) -> None:
    seen = [int(i) for part in parts for batch in part for i in batch]
    missing = sorted(set(range(n_examples)) - set(seen))
    repeated = len(seen) - len(set(seen))
    if missing:
        everyone = all(part == parts[0] for part in parts) and world_size > 1
        cause = "every rank takes the same part: pass rank to the sampler." if everyone else ""
        cause = "shards by position lose the last examples." if len(missing) < world_size and not everyone else cause
        raise CheckFailed(
            f"batches: {len(missing)} of {n_examples} examples are in no rank's part, such as number {missing[0]}.",
            cause=cause,
        )
    if repeated >= world_size:
        whole = all(len({int(i) for b in part for i in b}) == n_examples for part in parts)
        cause = (
            "every rank goes through the whole set: give the DataLoader the sampler."
            if whole
            else "ranks must share one order: the same seed on all of them."
        )
        raise CheckFailed(
            f"batches: {repeated} examples are handed out more than once; parts are disjoint, but for up to"
            f" {world_size - 1} that fill up the last round.",
            cause=cause,
        )
