"""Answers in a process of their own, called from afar: right ones pass there too, and which checks need them beside."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator

import cloudpickle
import pytest

from hw_grader.driving import Apart, Rooms
from hw_grader.judging import judge_of
from hw_grader.sandbox import SHARED
from hw_utils import payload
from tests import algorithms, right_answers, wrong_answers
from tests.references import answers_of, lessons, namespace
from tests.right_answers import alternatives
from tests.test_judging import needs_sandbox
from tests.wrong_answers import planted

# Answers that are classes, or give back what has methods, or wrap a model in DistributedDataParallel; and a check that
# counts backward passes inside the answer's process. Those are driven beside their answers.
BESIDE = {
    "lesson_04.ddp", "lesson_05.overlap", "lesson_05.overlap_in_time", "lesson_05.profiled_training",
    "lesson_06.all_gather", "lesson_06.all_reduce", "lesson_06.column_forward", "lesson_06.column_backward",
    "lesson_06.row_forward", "lesson_06.row_backward", "lesson_06.parallelize",
}  # fmt: skip
# What shows only if tensors keep their memory and ranks their own variables on the way.
SUBTLE = (
    "tree_forgets_to_copy_back", "tree_sends_what_is_not_contiguous", "tree_keeps_the_last_sum", "tree_takes_a_view",
    "tree_changes_the_data_pointer", "ring_works_on_a_flat_copy", "ring_resizes_its_tensor",
    "ring_writes_beside_its_tensor",
)  # fmt: skip

pytestmark = needs_sandbox


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """The tests' own modules are not in the sandbox."""
    modules = [algorithms, right_answers, wrong_answers]
    for package in (right_answers, wrong_answers):
        modules += [
            importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)
        ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


def problem(check: str, answers: list, which: slice = slice(None)) -> str:
    """What is wrong with the answers, "" if nothing is: on some of the check's own cases."""
    judge, opened = judge_of(SHARED.get()), bytes(payload.dump(answers, "the answers"))
    try:
        with Rooms(SHARED.get()) as rooms, Apart(rooms, opened, {}, lambda: 75.0) as driving:
            reply = driving.open(check)
            for case in judge.cases(check)[which]:
                data = None
                if "opened" in reply or "data" in reply:
                    reply, data = driving.case(json.dumps(case).encode())
                if "data" not in reply:
                    return "\n".join(reply.get("lines", ())) or str(reply)
                said = judge.judge(check, case, data, 75)
                if said.get("right") is not True:
                    return said.get("wrong") or str(said)
            return ""
    finally:
        judge.forget_submission()


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_the_reference_is_right_from_afar_but_where_it_is_known_not_to_be(lesson):
    names = namespace(lesson)
    beside = set()
    calls = {call.check: call for cell in lesson.with_role("check") for call in cell.calls}
    for call in calls.values():
        if problem(call.check, answers_of(call, names), slice(1)):
            beside.add(call.check)
    assert beside == {check for check in BESIDE if check.startswith(f"lesson_{lesson.name[:2]}.")}


_RIGHT: dict[str, list] = {}
for one in alternatives():
    if one.check not in BESIDE:
        _RIGHT.setdefault(one.check, []).append(one)


@pytest.mark.parametrize("check", sorted(_RIGHT))
def test_right_answers_of_another_kind_are_right_from_afar(check):
    found = {one.name: problem(check, list(one.answers), slice(-1, None)) for one in _RIGHT[check]}
    assert found == dict.fromkeys(found, "")


@pytest.mark.parametrize("name", SUBTLE)
def test_what_depends_on_memory_is_seen_from_afar(name):
    (one,) = (one for one in planted() if one.name == name)
    assert re.search(one.says, problem(one.check, list(one.answers)), re.S)
