"""Programs as others write them, as scripts for torchrun: every rank prints the same on both engines, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from hw_utils import launch, simulate

SCRIPTS = Path(__file__).parent / "scripts"


def results(run) -> list[str]:
    return [line for text in run.output for line in text.splitlines() if line.startswith("result")]


@pytest.mark.parametrize(("script", "world_size"), [("grid.py", 4), ("grid.py", 8), ("sharded.py", 4)])
def test_a_script_gives_the_same_on_real_processes_and_on_the_virtual_cluster(script, world_size):
    real = launch(SCRIPTS / script, world_size, echo=False, timeout_s=300)
    virtual = simulate(SCRIPTS / script, world_size, echo=False, timeout_s=300)
    assert len(results(real)) == world_size
    assert results(real) == results(virtual)
    ranks = range(world_size)
    assert [real.trace.bytes_sent(r) for r in ranks] == [virtual.trace.bytes_sent(r) for r in ranks]


def test_ranks_of_one_shard_end_with_one_weight_and_rows_of_one_stage_with_one_loss():
    lines = [line.split() for line in results(simulate(SCRIPTS / "grid.py", 8, echo=False))]
    weights = {(line[2], line[3], line[4]) for line in lines}  # stage, tensor parallel rank, sum of its shard
    losses = {(line[1], line[5]) for line in lines if len(line) > 5}  # data parallel row, loss of its last stage
    assert len(weights) == 4
    assert len(losses) == 2


def test_accelerate_prepares_trains_and_gathers():
    pytest.importorskip("accelerate")
    lines = results(launch(SCRIPTS / "accelerated.py", 2, echo=False, timeout_s=300))
    assert lines == results(simulate(SCRIPTS / "accelerated.py", 2, echo=False, timeout_s=300))
    assert len(lines) == 2
    assert len(set(lines)) == 1
    assert lines[0].endswith(" 2 2")
