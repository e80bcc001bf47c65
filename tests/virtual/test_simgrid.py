"""The virtual cluster against SimGrid's SMPI, an independent simulator, on the same programs."""

from __future__ import annotations

import os

import pytest
import torch

from hw_utils import Network, simulate
from tests.virtual import algorithms
from tools.bench import simgrid

NETWORK = Network(latency_s=500e-6, bandwidth_Bps=125e6)
PROGRAMS = {"ring": algorithms.ring_all_reduce, "tree": algorithms.tree_all_reduce}


def test_simgrid_is_there_in_ci():
    assert simgrid.is_installed() or os.environ.get("CI") != "true", "install libsimgrid-dev"


@pytest.mark.skipif(not simgrid.is_installed(), reason="smpicc and smpirun (Debian: libsimgrid-dev) are not installed")
@pytest.mark.parametrize("world_size", [2, 5, 8, 32])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("n_bytes_a_rank", [16, 100_000])
def test_smpi_agrees_within_a_thousandth(program, world_size, n_bytes_a_rank, tmp_path):
    n_elements = n_bytes_a_rank // 4 * world_size
    theirs, _ = simgrid.run(tmp_path, program, world_size, n_elements, NETWORK)
    args = (PROGRAMS[program], n_elements)
    run = simulate(reduce_with, world_size, args, network=NETWORK, compute="free", echo=False, isolate=False)
    assert theirs == pytest.approx(run.seconds, rel=1e-3)


def reduce_with(rank: int, world_size: int, function, n_elements: int) -> None:
    function(torch.ones(n_elements))
