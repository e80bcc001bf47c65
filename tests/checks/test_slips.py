"""Slips that every lesson shares: a right number in another dress, and an exception in the words of the course."""

from __future__ import annotations

import math
import re
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from hw_utils import WorkerFailed, checks, simulate
from hw_utils.checks.common_mistakes import cause_of_error, slip


@pytest.mark.parametrize(
    ("got", "expected", "says"),
    [
        ("0.5", 0.5, "text"),
        (None, 0.5, "is there a return"),
        (True, 1.0, "True or False"),
        ([0.5], 0.5, "a list"),
        (math.nan, 0.5, "divided by zero"),
        (3, 10 / 3, "but for its fraction"),
        (3.33, 10 / 3, "rounded"),
        (330.0, 0.33, "1,000 times"),
        (2.64, 0.33, "bits for bytes"),
        (-0.33, 0.33, "sign"),
        (1 / 0.33, 0.33, "upside down"),
        (11, 10.0, "one too many"),
        (9, 10.0, "one too few"),
        (1.7, 0.5, "^$"),
        (0.0, 0.5, "but for its fraction"),
        (1.0, 0.0, "one too many"),
        (5.0, 0.0, "^$"),
    ],
)
def test_a_wrong_number_that_follows_from_the_right_one_is_explained(got, expected, says):

    assert re.search(says, slip(got, expected))


def _fails(how):
    def worker(rank, world_size):
        how()

    with pytest.raises(WorkerFailed) as failed:
        simulate(worker, 1, compute="free", echo=False)
    return str(failed.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda: torch.ones(2, requires_grad=True).add_(1), "outside torch.no_grad"),
        (lambda: torch.ones(3) + torch.ones(2), "different shapes"),
        (lambda: torch.ones(3) @ torch.ones(2, 2), "rows and columns"),
        (lambda: torch.ones(3).split([1, 1]), "do not add up"),
        (lambda: dist.send(1.0, 1), "a tensor is sent, no number"),
        (lambda: setattr(torch.ones(1, 2, requires_grad=True), "grad", torch.ones(2)), "the shape of its parameter"),
        (lambda: [1][1], "goes past the end"),
        (lambda: {}["a"], "no such key"),
        (lambda: 1 / 0, "divided by 0"),
        (lambda: torch.ones(3).item(), "a whole tensor came"),
        (lambda: len(), "not those of the function"),
        (lambda: None.grad, "something is None"),
        (lambda: torch.ones(1).backward(), "nothing to go back through"),
        (lambda: torch.ones(2).view(3), "different shapes"),
        (lambda: torch.ones(2, dtype=torch.int64).div_(2), "whole numbers is divided in place"),
        (lambda: (torch.ones(1, requires_grad=True) // 2).backward(), "rounds down"),
        (lambda: sys.exit(), "return ends the function"),
        (lambda: dist.broadcast(0, 0), "go on with the tensor"),
        (lambda: dist.gather(torch.ones(1)), "rank 0 is the root"),
        (lambda: dist.reduce_scatter(torch.ones(1), [torch.ones(1).double()]), "two dtypes meet"),
        (lambda: torch.autograd.backward(torch.ones(2, requires_grad=True) * 1, torch.ones(1)), "another forward pass"),
    ],
)
def test_an_exception_that_everybody_meets_is_put_into_words(how, says):
    assert says in cause_of_error(_fails(how))


def test_a_sampler_outside_a_run_has_to_be_told_how_many_ranks_there_are():
    with pytest.raises(ValueError, match="process group") as failed:
        DistributedSampler([1, 2])
    assert "hand it world_size and rank yourself" in cause_of_error(str(failed.value))


def test_a_loop_that_looks_at_a_clock_that_stands_still_is_put_into_words():
    def busy(rank, world_size):
        end_s = time.perf_counter() + 1
        while time.perf_counter() < end_s:
            pass

    with pytest.raises(WorkerFailed) as failed:
        simulate(busy, 1, compute="free", echo=False, timeout_s=3)
    assert "only time.sleep takes time" in cause_of_error(str(failed.value))


def _goes_round(rank, world_size):
    n = 0
    while n < 3:
        n = n * 1


def test_a_loop_without_an_end_is_told_wherever_it_runs():
    with pytest.raises(WorkerFailed) as failed:
        simulate(_goes_round, 1, timeout_s=2)
    assert "a loop whose end never comes" in cause_of_error(str(failed.value))
    assert "a loop whose end never comes" in cause_of_error("TimeoutError: still busy after 15 s")


def test_a_search_without_a_cut_to_take_is_put_into_words():
    def leaves_out_the_last_place(layer_s, n_stages):
        best = None
        for cut in range(1, len(layer_s) - 1) if n_stages == 2 else ():
            best = [cut, len(layer_s) - cut]
        return [best[0], best[1]] if n_stages > 1 else [len(layer_s)]

    with pytest.raises(TypeError) as failed:
        checks.lesson_08.balance(leaves_out_the_last_place)
    errors = checks.lesson_08.balance.errors
    assert "is no cut left to take" in cause_of_error(str(failed.value), errors)


def test_an_exception_of_the_students_own_has_no_words_of_ours():
    def fail():
        raise RuntimeError("my own")

    assert cause_of_error(_fails(fail)) == ""
