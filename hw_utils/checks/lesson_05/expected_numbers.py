"""A number that is expected, and the runs on the virtual network that say which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hw_utils.checks.common_mistakes import came, slip
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.simulate import simulate

Causes = Mapping[str, float | tuple[float, ...]]  # cause -> the wrong value, or values, that it leads to


def number_of(value: Any) -> float:
    """A plain number as a float; NaN for anything else, which no comparison lets pass."""
    if type(value) in (int, float):
        return float(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "if":
        return float(value.reshape(()))
    return math.nan


def require(what: str, data: Any, expected: float, causes: Causes, *, rel_tol: float = 1e-6) -> None:
    """Raises unless `data` is `expected`; a wrong value that stands in `causes` is named."""
    got = number_of(data)
    if math.isclose(got, expected, rel_tol=rel_tol, abs_tol=1e-12):
        return
    named = [
        cause
        for cause, values in causes.items()
        for value in (values if isinstance(values, tuple) else (values,))
        if math.isclose(got, value, rel_tol=rel_tol, abs_tol=1e-12)
        and not math.isclose(value, expected, rel_tol=rel_tol, abs_tol=1e-12)
    ]
    named = named or [slip(data if math.isnan(got) else got, expected)]
    shown = came(data) if math.isnan(got) else f"{got:g}"
    digits = "g" if shown != f"{expected:g}" else ".12g"
    shown = shown if digits == "g" else f"{got:.12g}"
    raise CheckFailed(f"{what} gave {shown}, expected {expected:{digits}}.", cause=named[0])


def free(worker, world_size: int, *args, network: Network | None = None):
    return simulate(worker, world_size, args, network=network or Network(), compute="free", echo=False)


@lru_cache(maxsize=128)
def known(worker, world_size: int, *args, network: Network | None = None):
    """A run of a worker of the check's own, which needs no process of its own; the same one for the same question."""
    options = {"network": network or Network(), "compute": "free", "echo": False, "isolate": False}
    return simulate(worker, world_size, args, **options)


def all_reduce_of(rank: int, world_size: int, n_bytes: int, n_calls: int = 1) -> None:
    for _ in range(n_calls):
        dist.all_reduce(torch.zeros(n_bytes, dtype=torch.uint8))
