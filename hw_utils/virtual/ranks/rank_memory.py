"""The books of virtual ranks' memory, on their virtual clocks; opened before the clock of the process is theirs."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


def books_of_all(engine, job: dict, mode=None) -> AbstractContextManager:
    """Those of ranks that are all in this process; mode: one that sees their operations anyway."""
    from hw_utils.core.memory.attribution import watched
    from hw_utils.core.memory.storage_tracker import Watch

    clock, compute = engine.clock, engine.compute

    def time_s(rank: int) -> float:
        return clock[rank] + (compute.unnoted_s() if rank == engine.rank else 0.0)

    watch = Watch(
        engine.running, lambda: engine.rank, time_s, capacity_bytes=job.get("capacity_bytes"),
        forgive=None if compute.is_free else compute.forgive,
    )  # fmt: skip
    return watched(watch, engine, mode)


def books_of_one(proxy, job: dict, mode=None) -> AbstractContextManager:
    """Those of a rank that has this process to itself; mode: one that sees its operations anyway."""
    from hw_utils.core.memory.attribution import watched
    from hw_utils.core.memory.storage_tracker import Watch

    def is_first_thread() -> bool:
        return threading.current_thread() is threading.main_thread()

    def time_s(_: int) -> float:
        return proxy.clock_s + (proxy.compute.unnoted_s() if is_first_thread() else 0.0)

    def forgive(cpu_s: float) -> None:
        if is_first_thread():
            proxy.compute.forgive(cpu_s)

    watch = Watch(
        [proxy.rank], lambda: proxy.rank, time_s, capacity_bytes=job.get("capacity_bytes"),
        forgive=None if proxy.compute.is_free else forgive,
    )  # fmt: skip
    return watched(watch, proxy, mode)
