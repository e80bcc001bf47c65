"""Each of torch's registered operations that communicate gives under launch and simulate what bare gloo gives."""

from __future__ import annotations

import pytest
import torch

from tests.outside import operations
from tests.outside.warm import Warm

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def warm():
    with Warm("raw", operations.__name__) as raw, Warm("engines", operations.__name__) as engines:
        yield {"raw": raw, "launch": engines, "simulate": engines}


def ran(warm: dict[str, Warm], worker, *args) -> dict:
    size = operations.WORLD_SIZE
    return {engine: w.run(engine, worker, size, args, timeout_s=TIMEOUT_S) for engine, w in warm.items()}


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="other versions of torch have other operations")
def test_every_operation_that_torch_has_is_called_here():
    assert set(operations.registered()) == set(operations.CALLS)


@pytest.mark.parametrize("name", [n for n in operations.CALLS if n in operations.registered()])
def test_an_operation_gives_the_same_on_bare_gloo_and_under_both_engines(warm, name):
    found = ran(warm, operations.worker, name)
    assert found["raw"].passed, found["raw"].details
    for engine in ("launch", "simulate"):
        assert found[engine].results == found["raw"].results, (engine, found[engine].details)
    assert found["launch"].extra == found["simulate"].extra  # bytes in the ledgers


def test_a_functional_collective_takes_the_group_itself(warm):
    assert {engine: found.results for engine, found in ran(warm, operations.with_the_group_itself).items()} == (
        dict.fromkeys(warm, [[3.0] * 3] * 3)
    )
