"""States and activations of four models on up to 512 A100, as published, by running their layers without values.

Korthikanti et al. 2022 (arXiv 2205.05198), figures 1 and 7 and table 3, as transcribed in calculon-ai/calculon. Its
figures are those of the layers of the first pipeline stage, without embedding and output; so is what runs here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from hw_utils import simulate
from tests.virtual.programs.shapes.megatron import MixedAdam, Shape, Stage

GiB = 2**30
FEWER = 8  # of the layers of a model in one stage, once it was run whole: 48 that are alike take half a minute
TENSOR_PARALLEL = 8


@dataclass(frozen=True)
class Row:
    """A model of the table; activations in percent are of those with neither sequence parallelism nor recomputation."""

    width: int
    heads: int
    layers: int
    stages: int
    chunks: int  # of a rank: interleaved stages
    micro_batch: int
    states_GiB: float
    activations_GiB: float
    sequence_selective_GiB: float
    percent: dict[tuple[bool, str], float]


def percents(sequence: float, selective: float, both: float, full: float) -> dict[tuple[bool, str], float]:
    return {(True, "none"): sequence, (False, "selective"): selective, (True, "selective"): both, (False, "full"): full}


ROWS = {
    "22B": Row(6144, 64, 48, 1, 1, 4, 45.56, 59.25, 9.56, percents(66.84, 49.42, 16.18, 7.64)),
    "175B": Row(12288, 96, 96, 8, 3, 1, 45.56, 66.84, 12.35, percents(62.04, 56.53, 18.49, 8.71)),
    "530B": Row(20480, 128, 105, 35, 3, 1, 31.64, 114.02, 23.08, percents(58.31, 62.04, 20.27, 9.42)),
    "1T": Row(25600, 160, 128, 64, 1, 1, 32.96, 131.25, 26.56, percents(58.31, 62.04, 20.27, 9.42)),
}


def forwards_before_the_first_backward(row: Row) -> list[int]:
    """The chunk of each forward pass that the first stage makes until a backward pass is due, as in Megatron-LM."""
    if row.chunks == 1:
        return [0] * row.stages
    n = 2 * (row.stages - 1) + (row.chunks - 1) * row.stages + 1
    return [k // row.stages % row.chunks for k in range(n)]


def first_stage(rank: int, world_size: int, row: Row, shape: Shape) -> float:
    """Forward passes of the first stage, the first backward pass, a step of the optimizer; when the second begins."""
    with torch.inference_mode():
        dist.barrier()  # so ranks are threads from the start, as backward passes that communicate need them
    chunks = [Stage(shape) for _ in range(row.chunks)]
    optimizer = MixedAdam(p for chunk in chunks for p in chunk.parameters())
    outputs = []
    for k in forwards_before_the_first_backward(row):
        outputs.append(chunks[k](chunks[k].input()).sum())  # a number stands for what goes to the next stage
    between_s = time.perf_counter()
    time.sleep(1)
    outputs[0].backward()
    outputs.clear()
    optimizer.step()
    return between_s


def books(name: str, *, sequence_parallel: bool, recompute: str, of_layers: int = 1, fold: str | None = None):
    """of_layers: one layer of so many runs; they are alike, and each keeps the same. So does each rank: see `fold`."""
    row = ROWS[name]
    shape = Shape(
        row.width, row.heads, row.layers // row.stages // row.chunks // of_layers, row.micro_batch,
        sequence_parallel=sequence_parallel, recompute=recompute,
    )  # fmt: skip
    return simulate(
        first_stage, TENSOR_PARALLEL, (row, shape), cluster="a100x8", compute="free", values="shapes", memory=True,
        timeout_s=600, echo=False, isolate=False, fold=fold,
    )  # fmt: skip


def activations_GiB(found, rank: int = 0) -> float:
    """What a rank holds when it has made its forward passes."""
    return found.memory.held_bytes(rank, found[rank])["activations"] / GiB


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_states_and_activations_are_those_that_were_published(name: str):
    row = ROWS[name]
    plain = books(name, sequence_parallel=False, recompute="none", fold="all")
    assert activations_GiB(plain) == pytest.approx(row.activations_GiB, rel=0.01)
    at_the_end = plain.memory.held_bytes(0)
    states = sum(at_the_end[owner] for owner in ("parameters", "gradients", "optimizer")) / GiB
    assert states == pytest.approx(row.states_GiB, rel=0.01)
    fewer = FEWER if row.stages == 1 else 1
    both = books(name, sequence_parallel=True, recompute="selective", of_layers=fewer, fold="all")
    assert fewer * activations_GiB(both) == pytest.approx(row.sequence_selective_GiB, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("sequence_parallel", "recompute"), [(True, "none"), (False, "selective"), (False, "full")])
def test_what_each_way_to_save_activations_leaves_is_what_was_published(sequence_parallel: bool, recompute: str):
    row = ROWS["22B"]
    books_of_some = books("22B", sequence_parallel=sequence_parallel, recompute=recompute, of_layers=FEWER)
    found = FEWER * activations_GiB(books_of_some)
    assert 100 * found / row.activations_GiB == pytest.approx(row.percent[sequence_parallel, recompute], rel=0.01)
