"""The virtual cluster: unmodified torch.distributed code on as many ranks as you like, exact times, in one process."""

from __future__ import annotations

import mmap
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hw_utils import payload, where
from hw_utils.errors import Deadlock, Failure, TimedOut, WorkerFailed
from hw_utils.launch import check_world_size, run_isolated
from hw_utils.network import Network
from hw_utils.run import Run
from hw_utils.trace import RECORD, Trace

GRACE_S = 3.0  # for the child to say itself which rank was still busy
MEMORY_BYTES = 12 * 2**30
MEMORY_FOLDER, MEMORY_FOLDER_BYTES = "/dev/shm", 2**30
BEACON_BYTES = 8  # says which rank runs; after it come the run's records


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
    """The `Run` of `worker(rank, world_size, *args)` on `world_size` virtual ranks, in one fresh process.

    The default process group is ready on each. Ranks run one at a time, the same way every time; `time.perf_counter`
    reads the rank's virtual clock and `time.sleep` advances it. Collectives take the time of the point-to-point
    algorithms that the docstring of `hw_utils.schedules` lists.

    network: what a message costs. compute: what computation costs: "measured" the CPU time that it took, "free"
    nothing, or a function of (rank, cpu seconds) that gives virtual seconds. eager_bytes: a message up to this size
    leaves before its receive is posted, as in MPI; with 0 every send waits for its receive, as with gloo.
    timeout_s: real seconds. isolate=False runs it in this process, for a debugger.

    Raises:
        Deadlock: no rank can go on. WorkerFailed: a rank raised, or two ends of a communication do not fit.
        TimedOut: a rank was still busy after `timeout_s`.
    """
    check_world_size(world_size)
    if compute not in ("measured", "free") and not callable(compute):
        raise ValueError(f'compute must be "measured", "free" or a function of (rank, cpu_s), got {compute!r}')
    call = bytes(payload.dump((worker, tuple(args)), ""))
    job = {"world_size": world_size, "network": network, "compute": compute, "eager_bytes": eager_bytes, "echo": echo}
    outcome = _isolated(call, job, timeout_s) if isolate else _here(call, job)
    return _run_of(outcome)


def _here(call: bytes, job: dict) -> dict:
    from hw_utils.cluster import simulation

    return simulation(call, job)


def _in_child(call: bytes, job: dict, timeout_s: float, cells: dict, beacon: str) -> dict:
    """What the child process runs."""
    from hw_utils.cluster import simulation

    where.know_cells(cells)
    outcome = simulation(call, job, timeout_s=timeout_s, beacon=beacon)
    records = outcome.get("records")
    if records is not None:
        with suppress(OSError), open(beacon, "ab") as file:  # else they go the way of the rest, copied seven times
            records.tofile(file)
            outcome["records"] = None
    return outcome


def stay_here() -> None:
    """From now on `simulate` runs in this process: for one that is itself thrown away, as a grader's."""
    global _isolated
    _isolated = _in_this_process


def _in_this_process(call: bytes, job: dict, timeout_s: float) -> dict:
    from hw_utils.cluster import simulation

    return simulation(call, job, timeout_s=timeout_s)


def _isolated(call: bytes, job: dict, timeout_s: float) -> dict:
    handle, beacon = tempfile.mkstemp(prefix="hw_utils-rank-", dir=_folder())
    os.write(handle, bytes(BEACON_BYTES))
    os.close(handle)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="each rank is sent")  # it is one process that is sent it
            done = run_isolated(
                _in_child,
                (call, job, timeout_s, where.cells(), beacon),
                timeout_s=timeout_s + GRACE_S,
                memory_bytes=MEMORY_BYTES,
                on_output=lambda text: print(text, end="", flush=True),
            )
        if done.failure is None:
            outcome = done.result
            if "records" in outcome and outcome["records"] is None:
                outcome["records"] = _records_in(beacon)
            return outcome
        with open(beacon, "rb") as file:
            rank = int.from_bytes(file.read(4), "little")
        f = done.failure
        return {"failures": [Failure(rank, f.kind, f.reason, f.frames)], "exceptions": [None], "ended_in": f.kind}
    finally:
        os.unlink(beacon)


def _folder() -> str | None:
    """Where Linux keeps files in memory, if there is room; else None, where temporary files are anyway."""
    try:
        free = os.statvfs(MEMORY_FOLDER)
    except (AttributeError, OSError):
        return None
    has_room = free.f_bavail * free.f_frsize >= MEMORY_FOLDER_BYTES and os.access(MEMORY_FOLDER, os.W_OK)
    return MEMORY_FOLDER if has_room else None


def _records_in(path: str) -> np.ndarray:
    """The records behind the beacon; not copied if they lie in memory."""
    if not path.startswith(MEMORY_FOLDER) or os.path.getsize(path) == BEACON_BYTES:
        return np.fromfile(path, RECORD, offset=BEACON_BYTES)
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), RECORD, offset=BEACON_BYTES)


def _run_of(outcome: dict) -> Run:
    """The run, or the error that it ended in."""
    if "table" in outcome:
        raise Deadlock(outcome["table"])
    if "failures" in outcome:
        raise _error_of(outcome)
    trace = Trace(outcome["records"], outcome["names"], outcome["groups"], outcome["world_size"])
    return Run(payload.load(outcome["results"]), outcome["seconds"], outcome["output"], trace, clock="virtual")


def _error_of(outcome: dict) -> WorkerFailed:
    failures = []
    for failure, sent in zip(outcome["failures"], outcome["exceptions"]):
        exception = None if sent is None else payload.load(sent)
        failures.append(Failure(failure.rank, failure.kind, failure.reason, failure.frames, exception))
    kind = TimedOut if outcome["ended_in"] == "timeout" else WorkerFailed
    error = kind(failures, headline=outcome.get("headline", ""), note=outcome.get("note", ""))
    causes = [f.exception for f in failures if f.exception is not None]
    error.__cause__ = causes[0] if causes else None
    return error
