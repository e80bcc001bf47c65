"""What a rank frees is there for its next tensors, without a page of it from the kernel."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from hw_utils import launch, simulate

N_TENSORS, N_FLOATS = 10, 2_000_000
N_PAGES = N_TENSORS * N_FLOATS * 4 // resource.getpagesize()


def pages_a_round(rank: int, world_size: int) -> list[int]:
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        together = [torch.ones(N_FLOATS) for _ in range(N_TENSORS)]
        del together
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("engine", [launch, simulate])
def test_only_the_first_tensors_of_a_size_come_from_the_kernel(engine):
    first, *later = engine(pages_a_round, 1, echo=False)[0]
    assert first > 0.9 * N_PAGES
    assert sum(later) < N_PAGES  # four times as many where all goes back
