"""Whatever an answer returns is right or wrong: no judge fails on plain data, so nobody's 0 waits for a person."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hw_grader.driving.roles.judge import judge
from hw_utils.checks.check import REGISTRY
from hw_utils.core.plain_data import encode
from tests.checks.references import lessons

for _lesson in lessons():
    importlib.import_module(f"hw_utils.checks.lesson_{_lesson.name[:2]}")

KEYS = ("results", "trace", "deadlock", "output", "seconds", "waiting", "calls", "outcomes", "n", "losses", "weights",
        "loss", "accuracy", "test_loss", "iteration_s", "said", "run", "returned", "steps", "stages", "evidence", "got",
        "given", "own", "1", "2", "ratio", "speedup", "comm_s", "unknown", "kept_bytes")  # fmt: skip
ARRAYS = (np.zeros(0), np.float64(3.0).reshape(()), np.full((2, 3), np.nan), np.ones((1, 2), dtype="f4"), np.arange(25))
numbers = st.one_of(
    st.none(), st.booleans(), st.integers(-4, 4), st.just(10**400), st.just(-(10**400)), st.floats(), st.just("\ud83d"),
    st.text(max_size=3), st.sampled_from(ARRAYS),
)  # fmt: skip
anything = st.recursive(
    numbers,
    lambda part: st.one_of(
        st.lists(part, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), part, max_size=5),
        st.fixed_dictionaries({"deadlock": st.none(), "results": st.lists(part, max_size=4)}),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"lesson_04.calls"}))  # that one measures a large model first
@settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=anything)
def test_no_judge_fails_on_plain_data(name, data):
    case = json.dumps(dict(REGISTRY[name].cases[0])).encode()
    said = judge(name, case, encode(data))
    assert "fault" not in said, said


def test_a_mistake_of_ours_is_still_a_fault(monkeypatch):
    check = REGISTRY["lesson_01.hello"]

    def broken(data, **case):
        raise OSError("no such file")

    monkeypatch.setitem(check.__dict__, "judge", broken)
    assert "fault" in judge("lesson_01.hello", json.dumps(dict(check.cases[0])).encode(), encode([]))
