"""A host of toy devices, whose times one can work out by hand."""

from __future__ import annotations

from hw_utils import Cluster, Network, simulate
from hw_utils.core.hardware import Device

MATMUL_S = 2 * 100**3 / 1e9  # of two 100 x 100 matrices on the device below: 2 ms
LAUNCH_S = 1e-6


def cluster(n: int, link: Network = Network(0, 1e8), **changes) -> Cluster:  # noqa: B008 (frozen)
    """One host of toys: a GFLOP a second, memory that costs nothing."""
    amounts = {"memory_Bps": 1e18, "memory_bytes": 10**9, "launch_s": LAUNCH_S, **changes}
    toy = Device("toy", {"float32": 1e9}, {"float32": 1e9}, **amounts)
    return Cluster("toys", 1, n, toy, link, link, n)


def on_device(worker, n: int, args=(), **options):
    options = {"cluster": cluster(n), **options}
    return simulate(worker, n, args, compute="device", echo=False, **options)
