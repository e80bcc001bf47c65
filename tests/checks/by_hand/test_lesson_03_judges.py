"""Lesson 03's judges see data from a process that a student's code ran in: whatever it is, it never passes."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from hw_utils import CheckFailed
from hw_utils.checks import lesson_03
from hw_utils.core.plain_data import plain
from tests.checks.references import lessons, namespace

ANSWERS = {
    "batches": "batches", "start_equal": "start_equal", "average": "average", "step_equal": "distributed_step",
    "step_follows": "distributed_step", "test_accuracy": "test_accuracy", "train": "train", "k_star": "k_star",
    "speedup": "speedup",
}  # fmt: skip
JUNK = [None, [], {}, "ok", 0, -1, float("nan"), float("inf"), True, np.full(3, np.nan), np.zeros((0,)), [[[]]]]


@pytest.fixture(scope="module")
def right():
    """check -> (case, plain data of the reference's answer to it), for the last case that is not the largest."""
    reference = namespace(next(lesson for lesson in lessons() if lesson.name.startswith("03")))
    found = {}
    for name, answer in ANSWERS.items():
        check = getattr(lesson_03, name)
        case = check.cases[1]
        found[name] = (case, plain(check.drive_one([reference[answer]], case)))
    return found


def refused(name, data, case):
    try:
        getattr(lesson_03, name).judge_one(data, case)
    except (CheckFailed, ValueError):
        return True
    return False


@pytest.mark.parametrize("name", ANSWERS)
def test_the_reference_is_judged_right(name, right):
    case, data = right[name]
    assert not refused(name, data, case)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_in_place_of_the_data_is_refused(name, junk, right):
    case, _ = right[name]
    assert refused(name, junk, case)
    wrapped = {"deadlock": None, "results": junk, "output": [], "seconds": 0.0, "trace": junk}
    assert refused(name, wrapped, case)


def places(data, path=()):
    """Every place in nested plain data where something may stand."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def put(data, path, value):
    changed = copy.deepcopy(data)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return changed


def graded(name, path) -> bool:
    """Whether a check grades what stands there: of a run only the results and how it ended."""
    if name in ("batches", "k_star", "speedup"):
        return True
    if path[0] not in ("deadlock", "results"):
        return False
    buffers = any("running" in str(key) or "num_batches" in str(key) for key in path)
    n_calls = name == "average" and len(path) == 3 and path[2] == 1
    return not (name == "average" and buffers) and not n_calls


@pytest.mark.parametrize("name", ANSWERS)
def test_a_nan_anywhere_in_the_results_is_refused(name, right):
    case, data = right[name]
    if name == "k_star":
        assert refused(name, float("nan"), case)
        return
    chosen = [path for path in places(data) if path and graded(name, path)]
    for path in random.Random(1).sample(chosen, min(40, len(chosen))):
        changed = put(data, path, float("nan"))
        assert refused(name, changed, case), path


@pytest.mark.parametrize("name", ["step_equal", "step_follows", "start_equal", "average"])
def test_one_wrong_number_in_one_array_is_refused(name, right):
    case, data = right[name]
    for path in [p for p in places(data["results"]) if p]:
        value = data["results"]
        for key in path:
            value = value[key]
        if not isinstance(value, np.ndarray) or (name == "average" and not graded(name, ("results", *path))):
            continue
        changed = np.array(value)
        changed[(-1,) * changed.ndim] += 1
        assert refused(name, {**data, "results": put(data["results"], path, changed)}, case), path
