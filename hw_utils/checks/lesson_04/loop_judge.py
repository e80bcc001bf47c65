"""Judges of lesson 04: the loop, its test and its batches; and what a number in plain data must look like."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_04.seconds import judge_seconds
from hw_utils.checks.lesson_04.softmax import Softmax, cross_entropy, descend
from hw_utils.core.errors import CheckFailed

SINGLE = 1e-4  # relative: float32 sums of a few hundred numbers in any order
STEP_SIZE, SYNC_FACTOR = 0.1, 3.0  # the gradients after `sync` are long, so that one who clips them shows


def number(value: Any, what: str) -> float:
    """The value as a finite float; an array of one element counts."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(()).item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckFailed(f"{what} must be a number, got {came(value)}.", cause=_why_no_number(value))
    return float(value)


def numbers(values: Any, what: str, n: int | None = None) -> list[float]:
    """The values as finite floats, `n` of them."""
    if not isinstance(values, list | np.ndarray):
        raise CheckFailed(f"{what} must be a list of numbers, got {came(values)}.", cause=_EACH_LOSS)
    found = [number(value, f"{what}[{i}]") for i, value in enumerate(values)]
    if n is not None and len(found) != n:
        cause = _EACH_LOSS if len(found) < n else _TOO_MANY
        if len(found) == 40 < n:
            cause = "the training goes on to the last batch: 40 is where the mean of the seconds ends, nothing else."
        raise CheckFailed(f"{what} must hold {n} numbers, one an iteration; got {len(found)}.", cause=cause)
    return found


_EACH_LOSS = "a loss is appended in every iteration, on every rank, and the list of all of them comes back."
_TOO_MANY = (
    "one loss an iteration, in a list that each call makes anew: what stands beside the function keeps its losses."
)


def _why_no_number(value: Any) -> str:
    if value is None:
        return "nothing came back: is there a return for this case?"
    if isinstance(value, str):
        return "that is text: leave the formatting to whoever prints it."
    return "one number is asked, not all that it is made of." if isinstance(value, list) else ""


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


def pair(returned: Any, what: str, names: str) -> list[Any]:
    """The two things that were returned, as `names` says them."""
    if not isinstance(returned, list) or len(returned) != 2:
        values = f"{len(returned)} values" if isinstance(returned, list) else came(returned)
        raise CheckFailed(f"{what} returned {values}.", cause=f"return exactly two: {names}.")
    return returned


def judge_train(data: Any, n_iterations: int, momentum: float) -> None:
    require_no_deadlock(data, "train")
    got = result(data)
    losses, iteration_s = pair(got["returned"], "train", "the list of losses, then the mean seconds")
    if isinstance(losses, float | int) and isinstance(iteration_s, list):
        raise CheckFailed("train returned a number and a list.", cause="the losses come first, then the seconds.")
    if got["graphs"]:
        cause = "a loss that is a tensor keeps its whole graph in memory: loss.item()."
        raise CheckFailed("train: the losses are tensors that autograd still follows, not numbers.", cause=cause)
    if got["tensors"]:
        cause = "a tensor's number is tensor.item(), a list of them tensor.tolist()."
        raise CheckFailed("train: what comes back has tensors in it, numbers are asked.", cause=cause)
    losses = numbers(losses, "losses", n_iterations)
    _judge_descent(losses, got, n_iterations, momentum)
    if not got["always_trains"]:
        cause = "model.eval() is for evaluate; here dropout and batch norm are to do what training does."
        raise CheckFailed("train: the model is not in training mode.", cause=cause)
    n_reports = len(got["said"]) if isinstance(got["said"], list) else 0
    judge_seconds(number(iteration_s, "iteration_s"), n_iterations, got["run_s"], n_reports)
    _judge_report(got["said"], losses)
    if got["said_at"] != list(range(20, n_iterations + 1, 20)):
        raise CheckFailed(
            f"train: reports came after {came(got['said_at'])} iterations, expected after every 20.",
            cause="whoever waits wants to see it: report in the loop, not behind it.",
        )


def _batches(n_iterations: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = examples(6 * n_iterations)
    return [(x[i : i + 6].astype("f8"), y[i : i + 6]) for i in range(0, len(x), 6)]


def _judge_descent(losses: list[float], got: Mapping[str, Any], n: int, momentum: float) -> None:
    settings = {"lr": STEP_SIZE, "momentum": momentum}
    model, times = start(), SYNC_FACTOR
    expected = descend(model, _batches(n), shrink=times, **settings)
    if close(losses, expected) and close(got["weight"], model.weight):
        return
    causes = {
        "sync was not called, or only after the step: it must change the gradients between backward and step.": {},
        "the gradients of the last step are still there: call optimizer.zero_grad() before backward.": {
            "shrink": times,
            "keep": 1.0,
        },
        "no step is taken: optimizer.step() comes after sync, and optimizer.zero_grad() before backward.": {
            "shrink": 0.0
        },
        "the loss is the batch's own, before its step.": {"shrink": times, "after": True},
    }
    for cause, change in causes.items():
        if close(losses, descend(start(), _batches(n), **{**settings, **change})):
            raise CheckFailed(first_difference(losses, expected), cause=cause)
    if close(losses, expected):
        cause = "the last batch too has a backward, a sync and a step."
        raise CheckFailed("train: the losses are right, the weights after the last step are not.", cause=cause)
    raise CheckFailed(first_difference(losses, expected), cause=_why_loss(losses, expected, *_batches(n)[0]))


def _why_loss(losses: list[float], expected: list[float], x: np.ndarray, y: np.ndarray) -> str:
    scores = x @ start().weight.T
    share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    causes = {
        "the loss is the mean over the batch, not a sum.": expected[0] * len(y),
        "cross_entropy takes the scores as they are, and does the softmax itself.": cross_entropy(share, y),
    }
    first = next((cause for cause, value in causes.items() if close(losses[0], value)), "")
    if not first and np.allclose(losses, expected, rtol=0, atol=6e-3):
        return "right to two digits or three, so rounded: keep loss.item() as it is."
    if not first and close(losses[1], np.mean(expected[:2])):
        return "that is the mean of the losses so far: each iteration's own is kept."
    if not first and close(losses[0], expected[0]):
        return (
            "the first loss is right, its step is not: between backward and optimizer.step() nothing but sync may"
            " touch the gradients."
        )
    return first


def first_difference(
    got: Sequence[float], expected: Sequence[float], who: str = "train", tolerance: float = SINGLE
) -> str:
    i = next((i for i, (a, b) in enumerate(zip(got, expected)) if not close(a, b, tolerance)), 0)
    n_digits = 4 if abs(got[i] - expected[i]) > 1e-4 else 6
    return f"{who}: the loss of iteration {i + 1} is {got[i]:.{n_digits}f}, expected {expected[i]:.{n_digits}f}."


def _judge_report(said: Any, losses: list[float]) -> None:
    expected = [f"iteration {i}: loss {losses[i - 1]:.3f}" for i in range(20, len(losses) + 1, 20)]
    if said != expected:
        raise CheckFailed(
            f"train: reported {came(said)}, expected {came(expected)}.", cause=_why_report(said, expected, losses)
        )


def _why_report(said: Any, expected: list[str], losses: list[float]) -> str:
    if not said or not all(isinstance(text, str) for text in said):
        return "call report(text), not print, every 20 iterations." if expected else ""
    iterations = [re.findall(r"\d+", text)[:1] for text in said]
    if iterations == [re.findall(r"\d+", text)[:1] for text in expected]:
        if all(re.fullmatch(r"iteration \d+: loss \d+\.\d{3}", text) for text in said):
            numbers_said = [text.split()[-1] for text in said]
            if {f"{loss:.3f}" for loss in losses}.issuperset(numbers_said):
                return "that is another iteration's loss: report once this one's is kept, and count them from 1."
            if all(abs(float(a) - float(b.split()[-1])) < 1.5e-3 for a, b in zip(numbers_said, expected)):
                return "the loss that is reported and the one that is returned are the same number, loss.item()."
            return "the loss is that of this very iteration, not a mean."
        return 'the text is f"iteration {i}: loss {loss:.3f}", to the letter.'
    if expected and len(said) > len(expected) and set(expected) <= set(said):
        return "one report every 20 iterations, no more."
    return "iterations count from 1, so the first report is iteration 20's."


def judge_evaluate(data: Any, sizes: Sequence[int]) -> None:
    x, weight, y = evaluation(sizes)
    scores = x.astype("f8") @ weight.astype("f8").T
    if data["training"]:
        cause = "the model is still in training mode: model.eval() first, or dropout and batch norm do as in training."
        raise CheckFailed("evaluate: the model is called in training mode.", cause=cause)
    if data["graph"]:
        raise CheckFailed("evaluate: the forward pass records gradients.", cause="wrap it in `with torch.no_grad():`.")
    if not data["follows"] or not np.array_equal(data["weight"], weight):
        raise CheckFailed(
            "evaluate: afterwards the model's parameters are not what they were.",
            cause="a test changes nothing: torch.no_grad() around the forward pass, no requires_grad_() and no step.",
        )
    returned = pair(data["returned"], "evaluate", "the mean loss, then the share of right answers")
    if data["tensors"]:
        cause = "a tensor's number is tensor.item()."
        raise CheckFailed("evaluate: what comes back has tensors in it, two floats are asked.", cause=cause)
    loss, share = number(returned[0], "the test loss"), number(returned[1], "the accuracy")
    expected_loss, expected_share = cross_entropy(scores, y), float((scores.argmax(1) == y).mean())
    if close(loss, expected_share) and close(share, expected_loss):
        raise CheckFailed(
            "evaluate returned (accuracy, loss).", cause="the other way round: the mean loss comes first."
        )
    n_shown = len({*map(tuple, x.tolist())}.intersection(map(tuple, data["shown"])))
    if n_shown < len(y):
        raise CheckFailed(
            f"evaluate: the model was shown {n_shown} of {len(y)} examples.",
            cause="model(x) gives the scores of a batch, and all batches count.",
        )
    parts = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    _require_mean(f"the test loss of {len(y)} examples", loss, expected_loss, {
        "the mean of the batches' means: the last batch is smaller and must count less.": np.mean(
            means := [cross_entropy(scores[p], y[p]) for p in parts]),
        "this is the sum of the batches' losses.": np.sum(means),
        "this is the sum over the examples: divide by their number, which is not that of the batches.": (
            expected_loss * len(y)
        ),
        "that is the last batch's alone: add up over the batches.": means[-1],
        "each batch takes the place of the one before: add up (+=).": means[-1] * sizes[-1] / len(y),
        "that is the first batch's alone: add up over the batches.": means[0],
        "the last, smaller batch is missing.": cross_entropy(scores[:last], y[:last]) if (last := int(sum(sizes[:-1])))
        else math.nan,
        "the batches' means are added and divided by the number of examples: reduction=\"sum\" adds up.": np.sum(means)
        / len(y),
        "not every batch has as many examples as the first one.": np.sum(means) * sizes[0] / len(y),
        "these are the scores themselves: cross_entropy does the softmax and the logarithm.": -scores[
            np.arange(len(y)), y].mean(),
        "the sum is divided by the size of the last batch: count all examples.": expected_loss * len(y) / sizes[-1],
        "not every batch has as many examples as the last one: count them (len(y)).": expected_loss * len(y)
        / (sizes[-1] * len(sizes)),
        "not every batch has as many examples as the first one: count them (len(y)).": expected_loss * len(y)
        / (sizes[0] * len(sizes)),
        "cross_entropy takes the scores as they are, and does the softmax itself.": cross_entropy(_shares(scores), y),
        "the sum is divided by the number of batches: count the examples.": expected_loss * len(y) / len(sizes),
        "that is the loss of the examples themselves: model(x) gives the scores.": cross_entropy(x, y),
    })  # fmt: skip
    if type(returned[1]) is int and share == int(expected_share):
        raise CheckFailed(
            f"evaluate: the accuracy on {len(y)} examples is {share:g}, expected {expected_share:.4f}.",
            cause="right but for its fraction: / and not //, and nothing rounded.",
        )
    rights = [float((scores[p].argmax(1) == y[p]).mean()) for p in parts]
    n_right = expected_share * len(y)
    _require_mean(f"the accuracy on {len(y)} examples", share, expected_share, {
        "a share between 0 and 1 is wanted, these are percent.": 100 * expected_share,
        "these are counts: divide by the number of examples.": n_right,
        "that is the share of wrong answers.": 1 - expected_share,
        "the mean of the batches' shares: the last batch is smaller and must count less.": np.mean(rights),
        "that is the last batch's alone: add up over the batches.": rights[-1],
        "the count is divided by the size of the last batch.": n_right / sizes[-1],
        "the count is divided by the number of batches.": n_right / len(sizes),
        "not every batch has as many examples as the first one: count them (len(y)).": n_right
        / (sizes[0] * len(sizes)),
        "not every batch has as many examples as the last one: count them (len(y)).": n_right
        / (sizes[-1] * len(sizes)),
        "that is how sure the model is of the right class: count where it is the largest.": _shares(scores)[
            np.arange(len(y)), y].mean(),
        "nobody is right: the answer is scores.argmax(1), the class with the largest score of each row, not the"
        " smallest, and each is compared with its own label.": 0.0,
        "the answer is the class with the largest score (argmax), not the smallest.": (scores.argmin(1) == y).mean(),
        "the answer is the class with the largest score, however sure the model is of it.": (
            (_shares(scores) > 0.5).argmax(1) == y)[_shares(scores).max(1) > 0.5].sum() / len(y),
    })  # fmt: skip


def _shares(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores) / np.exp(scores).sum(1, keepdims=True)


def _require_mean(what: str, got: float, expected: float, causes: Mapping[str, float]) -> None:
    if not close(got, expected):
        cause = next((text for text, value in causes.items() if close(got, value)), "")
        if not cause and abs(got - expected) < 6e-3:
            cause = "right to two digits, so rounded: return it as it is."
        raise CheckFailed(f"evaluate: {what} is {got:.4f}, expected {expected:.4f}.", cause=cause)


def evaluation(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Examples float32 (n, 3), a model's weight (3, 3) that makes scores of them, and labels (n,) to evaluate; the last
    batch of several is harder than the others."""
    random = np.random.RandomState(drawn_numbers.seed(43, "scores") % 2**32)  # 43: usual mistakes all differ
    n = sum(sizes)
    y = random.randint(0, 3, n)
    scores = random.randn(n, 3) + 1.2 * np.eye(3)[y]
    if len(sizes) > 1:
        scores[n - sizes[-1] + 1 :] *= -1  # all but one of them
    weight = np.linalg.qr(random.randn(3, 3))[0]  # its inverse is its transpose
    return (scores @ weight).astype("f4"), weight.astype("f4"), y
