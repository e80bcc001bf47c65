"""Hints: numbered from 1 under each task; what their titles quote is said by a failure."""

from __future__ import annotations

import pytest

from tests.checks.hints import hints_of
from tests.checks.planted_hints import HINTS, expected_hint
from tests.checks.wrong_answers import planted


@pytest.mark.parametrize("number", ["01", "02", "03", "04", "05", "06", "07", "08"])
def test_hints_are_numbered_from_one_under_each_task(number):
    for exercise, hints in hints_of(number).items():
        assert [hint.number for hint in hints] == list(range(1, len(hints) + 1)), exercise


@pytest.mark.parametrize("number", ["01", "02", "06"])
def test_somebody_has_said_for_each_planted_mistake_which_hint_is_about_it(number):
    unsaid = [
        f"{w.check}-{w.name}" for w in planted() if w.check.startswith(f"lesson_{number}") and expected_hint(w) is None
    ]
    assert not unsaid
    names = {(w.check, w.name) for w in planted()}
    said = {(check, n) for check, by in HINTS.items() for text in by.values() for n in text.split()}
    assert not said - names
