"""Which ranks are asked again, alone, and what counts as the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hw_grader.driving import tapes
from hw_grader.driving.tapes import RANKS, Tapes, TooLong, is_close


def test_a_case_with_one_rank_is_never_drawn():
    kept = Tapes()
    kept.begin()
    kept.of("alone")
    kept.end()
    assert kept.drawn == []


def test_no_more_ranks_than_asked_for_are_kept_and_each_may_be():
    seen = set()
    for _ in range(200):
        kept = Tapes()
        names = {id(kept.of(str(rank))): rank for rank in range(5)}
        assert len(kept.now) == RANKS
        seen |= {names[id(tape)] for tape in kept.now.values() if id(tape) in names}
    assert seen == set(range(5))


def test_every_case_may_be_the_one_that_is_drawn():
    seen = set()
    for _ in range(100):
        kept = Tapes()
        for case in range(3):
            kept.begin()
            for rank in range(2):
                kept.add(kept.of(str(rank)), 0, True, {"case": case}, b"")
            kept.end()
        seen.add(kept.drawn[0].heard[0][2]["case"])
    assert seen == {0, 1, 2}


def test_large_messages_leave_fewer_ranks_and_one_that_is_too_large_is_said(monkeypatch):
    monkeypatch.setattr(tapes, "MOST_BYTES", 100)
    kept = Tapes()
    for rank in range(3):
        kept.add(kept.of(str(rank)), 0, True, {}, bytes(40))
    assert len(kept.now) == 2
    kept.add(next(iter(kept.now.values())), 0, True, {}, bytes(21))
    assert len(kept.now) == 1
    with pytest.raises(TooLong, match="one rank's messages"):
        kept.add(next(iter(kept.now.values())), 0, True, {}, bytes(101))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0 + 1e-6, float("nan")]), True),
        (torch.tensor([1.0]), torch.tensor([1.1]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-9, "x"]}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
        ((1, 2), [1, 2], False),
        (np.float64(2), np.float64(2), True),
        (True, 1, False),
        (float("nan"), float("nan"), True),
    ],
)
def test_values_are_the_same_but_for_rounding(a, b, same):
    assert is_close(a, b) is same
