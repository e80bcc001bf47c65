"""Runs on the virtual cluster, as most of its tests make them."""

from __future__ import annotations

from hw_utils import Network, simulate

NETWORK = Network(latency_s=1e-3, bandwidth_Bps=1e6)


def run(worker, world_size: int, *args, **options):
    """On free compute, in this process: for what does not need a process of its own."""
    return simulate(
        worker, world_size, args, **{"network": NETWORK, "compute": "free", "echo": False, "isolate": False, **options}
    )
