"""3.2a: the test accuracy, counted over all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, require_waits
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_03 import curve_causes
from hw_utils.checks.lesson_03.small_trainings import on_ranks, ranks_of, results_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.material.kept.watching import Notes


class _Looks(nn.Module):
    """Gives its input as scores, for other classes, and counts the examples that it was shown.

    With drawn numbers each example's classes are others: nobody knows the scores of what it was not shown.
    """

    def __init__(self, n_examples: int) -> None:
        super().__init__()
        self.n_seen, self.rolled = Notes(), torch.from_numpy(_ROLLED + drawn_numbers.digits([n_examples], "classes"))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_seen.append(len(x))
        numbers = ((x.amax(1) - 1) / _APART).round().long()  # what number i has by its scores
        return self.roll(x, -self.rolled[numbers]) * self.scale

    @staticmethod
    def roll(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        """Each row's scores, those of class c + by in the place of class c."""
        return x.gather(1, (torch.arange(10) + by[:, None]) % 10)

    def is_as_it_was(self) -> bool:
        """Whether it can be trained on as if nobody had looked."""
        return self.scale.item() == 1 and self.scale.requires_grad and torch.is_grad_enabled()


_ROLLED = 3  # classes, so that no example stands for its own scores
_APART = 1e-3  # between the scores of one example and the next


def _test_set(n_examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels: the first third is right, so that no rank's share speaks for all; of drawn ones more or less
    are, anywhere. The second highest is close to the highest, and that of the label where this is not."""
    labels = torch.arange(n_examples) % 10
    is_right = torch.arange(n_examples) < (n_examples + 2) // 3
    if drawn_numbers.are_salted():
        of_eight = 1 + drawn_numbers.digits([1], "share").item() % 6
        is_right = torch.from_numpy(drawn_numbers.digits([n_examples], "right") < of_eight)
    guesses = torch.where(is_right, labels, (labels + 1) % 10)
    seconds = torch.where(is_right, (labels + 5) % 10, labels)
    highest = 1 + _APART * torch.arange(n_examples)
    scores = -2 * highest[:, None].expand(n_examples, 10)  # so the highest is not that of the largest size
    scores = scores.scatter(1, seconds[:, None], highest[:, None] - _APART / 4)  # nor the only one above a threshold
    return scores.scatter(1, guesses[:, None], highest[:, None]), labels


def _shown(got: float, right: np.ndarray) -> str:
    """What came and what is so, with as many digits as show that it is another number."""
    counted, expected = f"{right.sum()} of {len(right)} are right", float(right.mean())
    return f"{got:.4g}, {counted}" if f"{got:.4g}" != f"{expected:.4g}" else f"{got!r}, {counted}: {expected!r}"


def _judge_accuracy(data: dict[str, Any], world_size: int, n_examples: int, mode: str = "training") -> None:
    what = f"test_accuracy of {n_examples} examples on {ranks_of(world_size)}"
    what += f", a model in {mode} mode" * (mode != "training")
    hang = "every rank must take part in the all-reduce, also one with no examples."
    results = results_of(data, world_size, what, hang=hang)
    if not all(isinstance(result, list) and len(result) == 4 for result in results):
        raise CheckFailed(f"{what}: expected an accuracy and a number of examples from every rank.")
    scores, labels = (t.numpy() for t in _test_set(n_examples))
    right = scores.argmax(1) == labels
    for rank, (got, *_) in enumerate(results):
        if type(got) not in (int, float):
            cause = "a tensor's number is tensor.item(); return needs it."
            if got is None:
                gave = [r for r, (other, *_) in enumerate(results) if other is not None]
                cause = "nothing comes back: is there a return on every way through the function?"
                if gave:
                    some = f"only rank {gave[0]} returns" if len(gave) == 1 else "only some ranks return"
                    cause = f"{some} the number: every rank has it after the all-reduce, and every rank returns it."
            raise CheckFailed(f"{what}: rank {rank} gave no float, but {came(got)}.", cause=cause)
        if math.isclose(got, right.mean(), rel_tol=1e-12):
            continue
        raise CheckFailed(
            f"{what}: rank {rank} says {_shown(got, right)}.",
            cause=curve_causes.accuracy(got, right, world_size, rank),
        )
    for rank, (got, *_) in enumerate(results):
        if got != results[0][0]:
            raise CheckFailed(
                f"{what}: rank {rank} says {got!r} and rank 0 {results[0][0]!r}.",
                cause="the ranks work it out in different ways, which round differently: the same division of the same "
                "two numbers on every rank.",
            )
    fair = -(-n_examples // world_size)
    for rank, (_, n_seen, is_as_it_was, trains) in enumerate(results):
        if type(n_seen) is not int or n_seen > fair:
            raise CheckFailed(
                f"{what}: the number is right, but rank {rank} looked at {n_seen} examples; its share is {fair}.",
                cause="every rank does the whole work: look at your own share and sum what is right over the ranks.",
            )
        if is_as_it_was is not True:
            raise CheckFailed(
                f"{what}: the number is right, but the model of rank {rank} is another one afterwards.",
                cause="training goes on after a look: parameters and their requires_grad stay; without gradients is "
                "`with torch.no_grad():`, which ends.",
            )
        if trains is not (mode == "training"):
            cause = "model.train() sets training mode whatever the mode was."
            if mode == "training":
                cause = (
                    "model.eval() stays: the steps after a look would train without dropout, and with a batch norm "
                    "that learns nothing."
                )
            raise CheckFailed(
                f"{what}: the number is right, but the model of rank {rank} was in {mode} mode before, and "
                "afterwards it is not.",
                cause=f"{cause} Put back the mode it had: was = model.training at the start, model.train(was) before "
                "the return.",
            )
    if n_lost := max(0, n_examples - sum(n_seen for _, n_seen, *_ in results)):
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
    cases=[{"world_size": w, "n_examples": n} for w, n in ((1, 6), (2, 9), (3, 1000), (5, 3), (2, 6303))]
    + [{"world_size": 2, "n_examples": 8, "mode": "evaluation"}],
    ok="every rank knows the accuracy on the whole test set and looked at its share only.",
    hint="the hints of exercise 3.2a",
    look="print how many examples each rank looks at, how many are right, and what the all-reduce makes of it.",
    hints={
        "hint 1 of exercise 3.2a": "all-reduce the number|the right|sum what is right|count what|divided",
        "hint 2 of exercise 3.2a": "own share|looked at|whole work",
    },
)
def test_accuracy(test_accuracy, /, world_size: int, n_examples: int, mode: str = "training"):  # noqa: PT028, no test
    """Each rank's answer, how many examples its model was shown, and how it is left."""

    def worker(rank, world_size):
        model, (scores, labels) = _Looks(n_examples).train(mode == "training"), _test_set(n_examples)
        test_set = TensorDataset(model.roll(scores, model.rolled), labels)
        return test_accuracy(model, test_set), sum(model.n_seen), model.is_as_it_was(), model.training

    return on_ranks(world_size, worker)


# 3.2 the training --------------------------------------------------------------------------------------------
