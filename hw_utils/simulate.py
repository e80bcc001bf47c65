"""The virtual cluster: unmodified torch.distributed code on as many ranks as you like, exact times, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hw_utils.network import Network
from hw_utils.run import Run


def simulate(
    worker: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    network: Network = Network(),  # noqa: B008 (frozen)
    compute: str | Callable[[int, float], float] = "measured",
    eager_bytes: int = 0,
    timeout_s: float = 60,
    echo: bool = True,
    isolate: bool = True,
) -> Run:
    """The `Run` of `worker(rank, world_size, *args)` on `world_size` virtual ranks.

    network: what a message costs. compute: what computation costs: "measured" the CPU time it took, "free" nothing,
    or a function of (rank, cpu seconds) that gives virtual seconds. eager_bytes: a message up to this size leaves
    before its receive is posted, as in MPI; 0 is gloo, where every send waits for its receive.

    Raises:
        Deadlock: no rank can go on. WorkerFailed: a rank raised, or two ends of a communication do not fit.
        TimedOut: a rank was still busy after `timeout_s` of real time.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    if compute not in ("measured", "free") and not callable(compute):
        raise ValueError(f'compute must be "measured", "free" or a function, got {compute!r}')
    from hw_utils.cluster import run_here

    run = run_here(worker, world_size, tuple(args), (network, compute, eager_bytes))
    if echo:
        for rank, text in enumerate(run.output):
            for line in text.splitlines():
                print(f"[rank {rank}] {line}")
    return run
