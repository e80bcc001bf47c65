"""Latency and bandwidth of this machine, fitted to a ping-pong between two real ranks.

found = measured_link.measure()
found.network                     # Network(latency_s=..., bandwidth_Bps=...), for simulate
found.plot()                      # measured points, the fit, its residuals in the title
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw_utils.core.hardware import Network
from hw_utils.launch import launch

SIZES_BYTES = tuple(4**k for k in range(1, 13))  # 4 B to 16 MB


@dataclass(frozen=True)
class Calibration:
    """A measured link: the model, and what it was fitted to."""

    network: Network
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]  # one way, one message

    @property
    def residuals(self) -> np.ndarray:
        """How far the model is off at each size: 0.1 means that it says 10 % more than was measured."""
        predicted = np.array([self.network.message_s(n) for n in self.sizes_bytes])
        return predicted / np.array(self.seconds) - 1

    def __str__(self) -> str:
        worst = np.abs(self.residuals).max()
        return (
            f"latency {self.network.latency_s * 1e6:.3g} us, bandwidth {self.network.bandwidth_Bps / 1e6:,.4g} MB/s; "
            f"the fit is off by {worst:.0%} at most, over {len(self.sizes_bytes)} sizes"
        )

    def plot(self, ax=None):
        """Time against size: what was measured, and the line of the model."""
        from hw_utils.pictures import plots

        return plots.plot_link(self.sizes_bytes, self.seconds, self.network, ax=ax)


def measure(sizes_bytes: Sequence[int] = SIZES_BYTES, *, repeats: int = 50, timeout_s: float = 120) -> Calibration:
    """Times a ping-pong of each size under `launch` and fits `latency_s + n / bandwidth_Bps`.

    Of the repeats the fastest counts: what else the machine does only ever adds time. The fit makes the relative
    errors small, so that short messages count as much as long ones.

    Raises:
        ValueError: fewer than two different sizes.
    """
    sizes_bytes = tuple(int(n) for n in sizes_bytes)
    if len(set(sizes_bytes)) < 2:
        raise ValueError(f"a line needs at least two different sizes, got {sizes_bytes}")
    run = launch(ping_pong, 2, (sizes_bytes, repeats), timeout_s=timeout_s, echo=False)
    return Calibration(fit(sizes_bytes, run[0]), sizes_bytes, tuple(run[0]))


def ping_pong(rank: int, world_size: int, sizes_bytes: Sequence[int], repeats: int) -> list[float]:
    """One-way seconds for each size: half a round trip, the fastest of `repeats`, sizes taken in turn."""
    import torch
    import torch.distributed as dist

    fastest = [float("inf")] * len(sizes_bytes)
    tensors = [torch.zeros(n, dtype=torch.uint8) for n in sizes_bytes]
    for _ in range(repeats + 1):  # the first one warms up
        for i, tensor in enumerate(tensors):
            before = time.perf_counter()
            if rank == 0:
                dist.send(tensor, 1)
                dist.recv(tensor, 1)
            else:
                dist.recv(tensor, 0)
                dist.send(tensor, 0)
            fastest[i] = min(fastest[i], (time.perf_counter() - before) / 2)
    return fastest


def fit(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> Network:
    """The latency and bandwidth with the smallest sum of relative errors; one slow outlier hardly moves them.

    >>> fit([1000, 2000, 5000, 7000], [0.002, 0.003, 0.006, 0.8])
    Network(latency_s=0.001, bandwidth_Bps=1000000.0, ranks_per_host=None, inside=None)
    """
    n, t = np.asarray(sizes_bytes, float), np.asarray(seconds, float)
    weight = np.ones(len(t))
    for _ in range(100):  # least squares, each time with less weight on what is far off
        latency_s, second_per_byte = _weighted(n, t, weight)
        error = np.abs((latency_s + n * second_per_byte) / t - 1)
        weight = 1 / np.maximum(error, 1e-9)
    return Network(latency_s=float(f"{latency_s:.6g}"), bandwidth_Bps=float(f"{1 / second_per_byte:.6g}"))


def _weighted(n: np.ndarray, t: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """(latency, seconds a byte) that make the weighted squares of the relative errors smallest."""
    root = np.sqrt(weight)
    design = np.stack([root / t, root * n / t], axis=1)
    scale = np.linalg.norm(design, axis=0)
    latency_s, second_per_byte = np.linalg.lstsq(design / scale, root, rcond=None)[0] / scale
    if latency_s < 0:
        per_byte = n / t
        return 0.0, float((weight * per_byte).sum() / (weight * per_byte**2).sum())
    return float(latency_s), float(second_per_byte)
