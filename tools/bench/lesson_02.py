"""The reference ring of lesson 02 beside gloo's own all-reduce: 64 MB on 4 real ranks, in pairs.

Prints the seconds of both, the share of gloo's bandwidth that a ring in Python reaches, and the CPU time that both
take: four ranks on two cores are bound by it. Fails below 0.7. Other work on the machine hits the ring harder: it has
one message in flight where gloo has several, so a rank that does not get a core holds up all of them.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist

from hw_utils import launch
from tests.checks.references import lessons, namespace

N_RANKS, N_BYTES, PAIRS, WANTED = 4, 64_000_000, 12, 0.7


def paired(rank: int, world_size: int, ring, n_elements: int, pairs: int) -> list[tuple[float, ...]]:
    """(wall seconds of the ring, of gloo's own, CPU seconds of the ring, of gloo's own) of each pair, on this rank."""
    tensor = torch.ones(n_elements)
    measured = [[_seconds(f, tensor) for f in (ring, dist.all_reduce)] for _ in range(pairs)]
    return [(ring[0], gloo[0], ring[1], gloo[1]) for ring, gloo in measured]


def _seconds(all_reduce, tensor) -> tuple[float, float]:
    """(wall, CPU) seconds; the CPU time of a rank counts until everybody is done."""
    tensor.fill_(1.0)
    dist.barrier()
    start, cpu_start = time.perf_counter(), time.process_time()
    all_reduce(tensor)
    wall_s = time.perf_counter() - start
    dist.barrier()
    return wall_s, time.process_time() - cpu_start


def main() -> int:
    lesson = next(lesson for lesson in lessons() if lesson.name == "02_all_reduce")
    ring = namespace(lesson)["ring_all_reduce"]
    run = launch(paired, N_RANKS, (ring, N_BYTES // 4, PAIRS + 1), timeout_s=300, echo=False)
    rounds = [list(zip(*ranks)) for ranks in zip(*run.results)][1:]  # the first warms up
    pairs = [(max(ring), max(gloo)) for ring, gloo, *_ in rounds]  # of the slowest rank
    cpu = statistics.median(sum(gloo) / sum(ring) for *_, ring, gloo in rounds)  # of all ranks
    ours, theirs = (statistics.median(times) for times in zip(*pairs))
    share = statistics.median(gloo_s / ring_s for ring_s, gloo_s in pairs)
    print(f"{N_BYTES / 1e6:g} MB on {N_RANKS} ranks, median of {len(pairs)} pairs:")
    print(f"  reference ring {ours * 1e3:7.1f} ms\n  gloo's own     {theirs * 1e3:7.1f} ms")
    print(f"  gloo's own takes {cpu:.2f} times the ring's CPU time")
    print(f"  the ring reaches {share:.2f} of gloo's bandwidth (wanted: {WANTED})")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
