"""The search for cases: it finds the change of a solution that the visible cases let pass, and a case that does not."""

from __future__ import annotations

import pytest

from hw_utils import CheckFailed
from hw_utils.checks.check import REGISTRY, Check
from tools.search_cases import search as search_cases


def _judge(data, n):
    if data != n // 2:
        raise CheckFailed(f"{data}")


@pytest.fixture
def halves():
    """A check of n // 2 whose visible cases are all even."""
    yield Check("lesson_00.half", lambda half, /, n: half(n), _judge, [{"n": 4}, {"n": 10}])
    del REGISTRY["lesson_00.half"]


def _made(source):
    names = {}
    exec(source, names)
    return names["half"]


def test_a_change_that_every_visible_case_lets_pass_is_found_with_a_case_that_does_not(halves):
    right, rounded_up = _made("half = lambda n: n // 2"), _made("half = lambda n: -(-n // 2)")
    assert not any(search_cases.refused(halves, [rounded_up], case) for case in halves.cases)
    case = search_cases._differs(halves, [right], [rounded_up], search_cases.near(halves), 40)
    assert case["n"] % 2 == 1


def test_a_change_that_is_right_as_well_has_no_such_case(halves):
    right, other = _made("half = lambda n: n // 2"), _made("half = lambda n: n >> 1")
    assert search_cases._differs(halves, [right], [other], search_cases.near(halves), 40) is None


def test_a_planted_mistake_is_tried_on_every_visible_case_of_its_check():
    ((check, lesson, call),) = search_cases.checks_called("lesson_05.calls_per_epoch")
    found = search_cases.search(check, lesson, call, 1)
    assert any(line.startswith("alone_too") for line in found.one_case)
    assert found.n_wrong > 20


def test_it_says_how_it_is_used(capsys):
    with pytest.raises(SystemExit) as end:
        search_cases.main(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "hole" in told
    assert "lesson_02.ring_all_reduce_s" in told
    with pytest.raises(SystemExit, match="no check is called"):
        search_cases.main(["lesson_99"])
