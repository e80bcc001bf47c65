"""What bare gloo runs of PyTorch's own tests, launch and simulate run too; what does not is listed with its reason."""

from __future__ import annotations

import pytest
import torch

from tests.outside import expected, suite

WORLD_SIZE = 4  # all sizes, and the control: python -m tests.outside
TIMEOUT_S = 120  # most take less than one; those that hang are in the list
LISTED_FOR = "2.13"  # other versions of torch have other tests


def test_every_line_of_the_list_names_a_test_and_gives_a_reason():
    lines = expected.read()
    assert {line.test for line in lines} <= set(suite.names()) or not torch.__version__.startswith(LISTED_FOR)
    assert all(len(line.reason.split()) >= 3 for line in lines)
    places = [(line.engine, line.worlds, line.test) for line in lines]
    assert len(set(places)) == len(places)


def test_a_failure_that_no_line_names_and_a_line_whose_test_passes_are_both_found():
    listed = [expected.Expected("launch", (2, 4), "test_a", "for a reason")]
    assert expected.surprises({("launch", 4, "test_a"): "it failed"}, listed) == []
    assert "stale" in expected.surprises({("launch", 2, "test_a"): ""}, listed)[0]
    assert "no line" in expected.surprises({("launch", 8, "test_a"): "it failed"}, listed)[0]
    assert "no line" in expected.surprises({("simulate", 4, "test_a"): "it failed"}, listed)[0]


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith(LISTED_FOR), reason=f"the list is for torch {LISTED_FOR}")
@pytest.mark.parametrize("engine", ["launch", "simulate"])
def test_pytorchs_own_tests_pass_but_for_those_listed(engine):
    lines = expected.read()

    def is_valid(_: str, world_size: int, test: str) -> bool:
        return not any(line.covers("raw", world_size, test) for line in lines)

    results = list(suite.run_tests([WORLD_SIZE], [engine], tests=is_valid, timeout_s=TIMEOUT_S))
    ran = {(r.engine, r.world_size, r.test): r.failure for r in results if r.status != "skipped"}
    assert expected.surprises(ran, lines) == []
    assert len(ran) >= 200
