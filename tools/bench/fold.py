"""How soon a large training is predicted on this machine: folded runs of real PyTorch programs, one rank a class.

    python -m tools.bench.fold [--quick]

GPT-175B on 512 A100: tensor x data x pipeline parallelism 8 x 4 x 16, full recomputation, one step of 1,536 sequences
in 96 micro-batches a replica. Llama 7B under fully_shard on 64 H100: two steps of a sequence of 4,096 a device.
"""

from __future__ import annotations

import argparse
import sys
import time

from hw_utils import Fold, simulate
from hw_utils.commands.run_statistics import statistics
from hw_utils.core.hardware import Cluster
from tests.virtual.programs.shapes import gpt, llama
from tests.virtual.programs.shapes.megatron import Shape

GPT_175B = gpt.Plan(
    Shape(width=12_288, heads=96, layers=6, micro_batch=4, recompute="full"), 51_200, (16, 4, 8), micro_batches=96
)
WANTED_S = {"GPT-175B on 512 A100": 120.0, "Llama 7B on 64 H100": 30.0}


def with_cost(rank: int, world_size: int, worker, args: tuple):
    """(what the worker gives, CPU seconds of this process so far, the most bytes that it has had)."""
    import resource

    result = worker(rank, world_size, *args)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return result, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def predicted(name: str, worker, args: tuple, cluster: str, fold: Fold | str):
    """The run; prints what it took and what it says."""
    before_s = time.perf_counter()
    on = Cluster.named(cluster)
    run = simulate(
        with_cost, on.world_size, (worker, args), cluster=on, compute="device", values="shapes", fold=fold, echo=False,
        timeout_s=3600,
    )  # fmt: skip
    wall_s = time.perf_counter() - before_s
    cpu_s, n_bytes = (max(result[i] for result in run) for i in (1, 2))
    wanted = f"wanted on two idle cores: {WANTED_S[name]:g} s"
    print(f"{name}: {wall_s:.1f} s here, {cpu_s:.1f} s of CPU time, {n_bytes / 1e9:.2f} GB ({wanted})")
    print(*(f"  {line}" for line in [run.summary(), *statistics(run, on)]), sep="\n", flush=True)
    return run


def main() -> int:
    """Runs both, the small one first."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="the smaller of the two only")
    chosen = options.parse_args()
    run = predicted("Llama 7B on 64 H100", llama.train, (llama.Size(), 1), "h100x64", "all")
    (n_parameters, step_s), *_ = run[0]
    print(f"  {n_parameters:,} parameters, a step takes {step_s:.3f} s")
    if not chosen.quick:
        fold = Fold(GPT_175B.by_axis, ("dp", "tp"))
        run = predicted("GPT-175B on 512 A100", gpt.train, (GPT_175B,), "a100x512", fold)
        (begin_s, end_s), *_ = run[0]
        print(f"  a step takes {end_s - begin_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
