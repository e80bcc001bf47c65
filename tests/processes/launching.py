"""What the tests of `launch` share: which processes it has left, and a launch that must fail."""

from __future__ import annotations

import time

import psutil
import pytest

from hw_utils import WorkerFailed, launch
from hw_utils.processes import start_by_fork
from hw_utils.processes.spare_processes import SPARES


def processes_left() -> list[psutil.Process]:
    """Processes that the fork server has started and that do not belong to the workers standing by."""
    server = start_by_fork.connect()
    spare = SPARES.pids()
    return [p for p in psutil.Process(server.pid).children(recursive=True) if p.pid not in spare]


def require_no_process_left(within_s: float = 20.0) -> None:
    deadline = time.perf_counter() + within_s
    while processes_left():
        assert time.perf_counter() < deadline, f"still alive after {within_s} s: {processes_left()}"
        time.sleep(0.01)


def failing_launch(worker, world_size: int = 4, kind: type[WorkerFailed] = WorkerFailed, **options) -> WorkerFailed:
    """The error of a launch that must fail; afterwards no process is left and the next launch works."""
    with pytest.raises(kind) as caught:
        launch(worker, world_size, echo=False, **options)
    require_no_process_left()
    assert launch(lambda rank, world_size: rank, world_size, echo=False).results == list(range(world_size))
    return caught.value


def lines_of(error: WorkerFailed) -> dict[int, str]:
    """rank -> the text of the student's line that its failure names."""
    return {f.rank: f.where.source for f in error.failures if f.where is not None}
