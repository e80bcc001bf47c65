"""Every check against the reference, other right answers, the untouched starter and the planted mistakes."""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import lru_cache

import pytest

from hw_utils import CheckFailed, WorkerFailed, checks
from hw_utils.checks.check import Check
from hw_utils.core.errors import Deadlock, Waiting, WaitTable
from tests.checks.hints import require_its_hint
from tests.checks.planted_hints import expected_hint
from tests.checks.references import answers_of, lessons, namespace
from tests.checks.right_answers import Right, alternatives
from tests.checks.wrong_answers import Wrong, planted
from tools.lesson import Call, Lesson

POINTS = {"01": 15, "02": 50, "03": 35, "04": 40, "05": 40, "06": 70, "07": 55, "08": 60}
HAVE_THEIR_OWN = {"lesson_01.predictions", "lesson_01.read_a_hang"}  # programs, which hang on purpose
CALLS = [
    pytest.param(lesson, call, id=f"{call.check}-{'hidden' if call.hidden else 'visible'}-{cell.name}-{k}")
    for lesson in lessons()
    for cell in lesson.with_role("check")
    for k, call in enumerate(cell.calls)
]


@lru_cache
def _names(lesson_name: str, starter: bool) -> dict:
    lesson = next(lesson for lesson in lessons() if lesson.name == lesson_name)
    return namespace(lesson, starter=starter)


def _run(call: Call, names: dict, *, few_orders: bool = False) -> None:
    check = _check(call.check)
    cases = [_with_few_orders(case) for case in call.cases or check.cases] if few_orders else call.cases
    check(*answers_of(call, names), cases=cases)


def _check(name: str) -> Check:
    lesson, _, own = name.partition(".")
    return getattr(getattr(checks, lesson), own)


def _with_few_orders(case: dict) -> dict:
    """Of threads: all are made for the references; of many right answers each has the plain ones and some."""
    return {**case, "n_interleavings": min(case["n_interleavings"], 100)} if "n_interleavings" in case else case


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_a_lesson_has_the_points_of_the_curriculum(lesson: Lesson):
    assert lesson.points == POINTS[lesson.name[:2]]


@pytest.mark.parametrize(("lesson", "call"), CALLS)
def test_the_reference_passes_with_one_ok_line(lesson: Lesson, call: Call, capfd):
    names = _names(lesson.name, False)
    capfd.readouterr()
    _run(call, names)
    out, err = capfd.readouterr()
    assert re.fullmatch(r"ok: [^\n]+\n", out)
    assert err == ""


@pytest.mark.parametrize(("lesson", "call"), [c for c in CALLS if not c.values[1].hidden])
def test_an_answer_that_waits_for_ever_is_told_as_a_hang(lesson: Lesson, call: Call, monkeypatch):
    names, runs = _names(lesson.name, False), []

    def hangs(*_: object, **__: object) -> None:
        runs.append(1)
        raise Deadlock(WaitTable([Waiting(0, "a wait in its own process", (), 0.0)], sentence="rank 0 stands"))

    for name, module in list(sys.modules.items()):
        for engine in ("simulate", "launch"):
            if name.startswith("hw_utils.checks.") and callable(getattr(module, engine, None)):
                monkeypatch.setattr(module, engine, hangs)
    said = ""
    try:
        _run(call, names, few_orders=True)
    except (CheckFailed, WorkerFailed) as error:
        said = str(error)
    assert "rank 0 stands" in said or not runs or call.check in HAVE_THEIR_OWN


@pytest.mark.parametrize(("lesson", "call"), [c for c in CALLS if not c.values[1].hidden])
def test_the_untouched_starter_fails_kindly(lesson: Lesson, call: Call, capfd):
    names = _names(lesson.name, True)
    with pytest.raises(CheckFailed):
        _run(call, names)
    assert "ok:" not in capfd.readouterr().out


@pytest.mark.parametrize("wrong", planted(), ids=lambda wrong: f"{wrong.check}-{wrong.name}")
def test_a_planted_mistake_fails_in_the_check_meant_for_it(wrong: Wrong, capfd):
    with pytest.raises((CheckFailed, WorkerFailed)) as failed:
        _check(wrong.check)(*wrong.answers)
    assert re.search(wrong.says, str(failed.value), re.S), str(failed.value)
    require_its_hint(wrong.check, str(failed.value), expected_hint(wrong))
    assert "ok:" not in capfd.readouterr().out


def _calls_of(check: str) -> list[Call]:
    return [param.values[1] for param in CALLS if param.values[1].check == check]


@pytest.mark.parametrize("right", alternatives(), ids=lambda right: f"{right.check}-{right.name}")
def test_a_right_answer_of_another_kind_passes_visible_and_hidden_cases(right: Right, capfd):
    check, calls = _check(right.check), _calls_of(right.check)
    assert calls
    for call in calls:
        capfd.readouterr()
        check(*right.answers, cases=[_with_few_orders(case) for case in call.cases or check.cases])
        out, err = capfd.readouterr()
        assert re.fullmatch(r"ok: [^\n]+\n", out.splitlines(True)[-1])
        assert err == ""


def test_every_exercise_has_at_least_five_planted_mistakes():
    per_check = Counter(wrong.check for wrong in planted())
    few = {}
    for lesson in lessons():
        of_exercise: dict[str, set[str]] = {}
        for cell in lesson.with_role("check"):
            for call in cell.calls:
                for argument in call.arguments:
                    of_exercise.setdefault(argument, set()).add(call.check)
        for exercise, names in of_exercise.items():
            n = sum(per_check[name] for name in names)
            if n < 5:
                few[f"{lesson.name}: {exercise}"] = n
    assert not few
