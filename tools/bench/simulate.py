"""How fast the virtual cluster is: a student's ring of sends and receives, and the built-in all-reduce.

    python tools/bench/simulate.py [--quick]

Where SimGrid is installed, the same ring under its SMPI, computation off, in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hw_utils import Network, simulate
from tests.virtual.algorithms import ring_all_reduce
from tools.bench import simgrid

NETWORK = Network(latency_s=500e-6, bandwidth_Bps=125e6)
ELEMENTS_A_CHUNK = 4
RUNS = {512: 3, 1024: 1}


def memory_bytes() -> int:
    """The most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ring(rank: int, world_size: int) -> int:
    ring_all_reduce(torch.ones(ELEMENTS_A_CHUNK * world_size))
    return memory_bytes()


def built_in(rank: int, world_size: int, n_elements: int) -> int:
    dist.all_reduce(torch.ones(n_elements))
    return memory_bytes()


def timed(worker, world_size: int, *args):
    """(run, wall seconds from call to result)."""
    before = time.perf_counter()
    run = simulate(worker, world_size, args, network=NETWORK, compute="free", echo=False, timeout_s=3600)
    return run, time.perf_counter() - before


def bench_ring(sizes, folder: Path) -> None:
    """Medians of some runs of each, one of ours and one of SMPI's in turn: a virtual machine's speed varies."""
    idle = simulate(ring, 1, echo=False)[0]
    print(
        f"{'ranks':>6} {'messages':>10} {'runs':>5} {'wall s':>8} {'messages/s':>11} {'KB/rank':>8} {'SMPI s':>8} "
        f"{'SMPI/ours':>9}"
    )
    for n in sizes:
        pairs, differ = [], 0.0
        for _ in range(RUNS.get(n, 5)):
            run, wall_s = timed(ring, n)
            virtual_s, smpi_s = run.seconds, 0.0
            if simgrid.is_installed():
                virtual_s, smpi_s = simgrid.run(folder, "ring", n, ELEMENTS_A_CHUNK * n, NETWORK)
            pairs.append((wall_s, smpi_s, smpi_s / wall_s))
            differ = virtual_s / run.seconds - 1
        messages, memory = sum(run.trace.messages_sent(r) for r in range(n)), (max(run.results) - idle) / n / 1e3
        wall_s, smpi_s, ratio = (statistics.median(column) for column in zip(*pairs))
        line = f"{n:>6} {messages:>10,} {len(pairs):>5} {wall_s:>8.2f} {messages / wall_s:>11,.0f} {memory:>8.0f}"
        if simgrid.is_installed():
            line += f" {smpi_s:>8.2f} {ratio:>9.2f}   virtual times differ by {differ:+.1e}"
        print(line, flush=True)


def bench_built_in(sizes) -> None:
    print(f"{'ranks':>6} {'elements':>10} {'wall s':>8} {'KB/rank':>8}   built-in all_reduce")
    idle = simulate(built_in, 1, (1,), echo=False)[0]
    for n in sizes:
        for n_elements in (1, n):
            run, wall_s = timed(built_in, n, n_elements)
            print(f"{n:>6} {n_elements:>10,} {wall_s:>8.2f} {(max(run.results) - idle) / n / 1e3:>8.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 256 ranks")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        bench_ring((64, 256) if quick else (64, 256, 512, 1024), Path(name))
    bench_built_in((1_000,) if quick else (1_000, 10_000))
