"""Processes that stand by for the next launch, forked and connected while the student reads."""

from __future__ import annotations

import atexit
import os
import threading
import time

from hw_utils.processes import start_by_fork
from hw_utils.processes.supervisor import START_S
from hw_utils.processes.worker_processes import WorkerProcesses, wait_until

SPARE_RANKS = 16  # of no more ranks do processes stand by


class SpareProcesses:
    """The processes of one launch that has not come yet; used once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: WorkerProcesses | None = None

    def take(self, world_size: int) -> WorkerProcesses:
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None and workers.owner == os.getpid():
            if workers.world_size == world_size and workers.is_fresh:
                return workers
            workers.close()
        return WorkerProcesses(world_size)

    def prepare(self, world_size: int) -> None:
        """Starts the next workers; one of many ranks would take much memory (about 15 MB each) while nobody uses it."""
        if not start_by_fork.available():
            return  # the pool of interpreters fills itself
        workers = WorkerProcesses(world_size) if world_size <= SPARE_RANKS else None
        with self._lock:
            workers, self._workers = self._workers, workers
        if workers is not None:
            workers.close()

    def pids(self) -> set[int]:
        """The processes of the workers that stand by."""
        with self._lock:
            if self._workers is None:
                return set()
            wait_until(self._workers, lambda: all(m.pid for m in self._workers.members), time.perf_counter() + START_S)
            return {m.pid for m in self._workers.members}

    def drop(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None and workers.owner == os.getpid():
            workers.close()


SPARES = SpareProcesses()
atexit.register(SPARES.drop)
