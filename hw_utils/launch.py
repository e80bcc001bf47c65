"""`launch`: a function from a notebook cell on real processes.

def worker(rank, world_size):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return tensor.item()

launch(worker, 4).results        # [6.0, 6.0, 6.0, 6.0]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hw_utils.core import pickling, versions
from hw_utils.core.errors import WorkerFailed, without_our_stack
from hw_utils.core.run_result import Run
from hw_utils.gloo import merged_trace
from hw_utils.processes.refused_arguments import check_capacity, check_world_size
from hw_utils.processes.spare_processes import SPARES
from hw_utils.processes.supervisor import busy_ranks, watch
from hw_utils.processes.worker_processes import WorkerProcesses
from hw_utils.scripts.torchrun_script import script_or_function


def launch(
    worker: Callable[..., Any] | str | os.PathLike,
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout_s: float = 60,
    echo: bool = True,
    memory: bool = False,
    capacity_bytes: int | None = None,
) -> Run:
    """Runs `worker(rank, world_size, *args)` on `world_size` fresh processes connected by gloo.

    The default process group is ready in each. They see no GPU and have one torch thread each. torch's random numbers
    begin with another seed on each rank, as torchrun's do, and with the same one in every run. echo: whether what they
    print is shown as they print it. `worker` may be the path of a script for torchrun, or "-m package.train"; it is run
    as it is, and `args` is its command line.
    memory: whether the run keeps the bytes that each rank holds, `run.memory`; an operation then takes some 15 us more.
    capacity_bytes: what a rank may hold before it gets an `OutOfMemory`; a run with it keeps memory.

    Raises:
        WorkerFailed: a rank did not return; names every one that failed, why, and the student's line.
        Deadlock: every rank that was left waited for another one, or for a lock of its own.
        TimedOut: a rank was still busy after `timeout_s`.
        ValueError, TypeError: `world_size` is not a whole number of at least 1; the worker is no function, or it or
            an argument cannot be sent to another process.
        KeyboardInterrupt: says where the ranks were.
    """
    with without_our_stack():
        check_world_size(world_size)
        check_capacity(capacity_bytes)
        worker, args = script_or_function(worker, args)
        if not callable(worker):
            raise TypeError(
                f"worker must be a function of (rank, world_size, *args) or a script's path, got {worker!r}"
            )
        call = pickling.dump_call(worker, args)
        versions.say_untried_once()
        workers = SPARES.take(world_size)
        try:
            workers.echo.enabled = echo
            options = {"memory": memory or capacity_bytes is not None, "capacity_bytes": capacity_bytes}
            workers.call(worker, args, call, **options)
            watch(workers, timeout_s)
            return _run_of(workers, **options)
        except KeyboardInterrupt:
            failures, note = busy_ranks(workers, "still busy")
            raise KeyboardInterrupt(WorkerFailed(failures, headline="launch was interrupted", note=note)) from None
        finally:
            workers.close()
            SPARES.prepare(world_size)


def _run_of(workers: WorkerProcesses, memory: bool, capacity_bytes: int | None) -> Run:
    members = workers.members
    start = min(m.meta["start"] for m in members)
    seconds = max(m.meta["end"] for m in members) - start
    trace = merged_trace.merge([m.meta["ledger"] for m in members], start, len(members))
    books = None
    if memory:
        from hw_utils.core.memory import Memory  # few runs need it

        parts = [part for m in members for part in m.meta["memory"]]
        for part in parts:
            part["records"]["time_s"] = np.maximum(part["records"]["time_s"] - start, 0.0)  # arguments come before it
        books = Memory.of(parts, len(members), capacity_bytes)
    return Run([m.result for m in members], seconds, [m.stdout.text for m in members], trace, kept_memory=books)
