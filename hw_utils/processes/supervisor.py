"""Watches the processes of one launch to their end: which failures are causes, who only waited, who is still busy."""

from __future__ import annotations

import time

from hw_utils.core.errors import Deadlock, Failure, TimedOut, WorkerFailed, ranks_text
from hw_utils.processes.worker_processes import Member, WorkerProcesses, wait_until

START_S = 120.0  # for processes to start, over and above timeout_s: a cold import of torch on a busy machine
LOST_S = 10.0  # for the death that made a rank lose its peer to be known here: on a busy machine it comes later
SETTLE_S = 0.2  # after a first failure, for others that fail too


def watch(workers: WorkerProcesses, timeout_s: float) -> None:
    """Until every rank has returned; raises what went wrong."""
    members = workers.members

    def ended() -> bool:
        return all(m.returned for m in members) or any(m.failure or _died(m) for m in members)

    if not wait_until(workers, lambda: all(m.started for m in members) or ended(), time.perf_counter() + START_S):
        late = [m for m in members if not m.started]
        raise WorkerFailed([Failure(m.rank, "kit", f"its process did not start in {START_S:.0f} s") for m in late])
    in_time = wait_until(workers, lambda: ended() or workers.deadlock(), time.perf_counter() + timeout_s)
    if all(m.returned for m in members):
        workers.drain()
    elif not in_time:
        _raise(_time_out(workers, timeout_s), workers)
    elif workers.table is not None:
        _raise(Deadlock(workers.table), workers)
    else:
        _raise_failures(workers)


def _raise_failures(workers: WorkerProcesses) -> None:
    """Raises WorkerFailed, a moment after the first failure: others may fail too."""
    wait_until(workers, lambda: not workers.is_moving(), time.perf_counter() + SETTLE_S)
    wait_until(workers, lambda: _has_a_cause(workers), time.perf_counter() + LOST_S)
    failures = failures_of(workers)
    _raise(WorkerFailed(failures, note=_who_waited(workers.blocked(), failures)), workers)


def _has_a_cause(workers: WorkerProcesses) -> bool:
    """Whether a rank failed by itself, or none is left that could: losing a peer is a consequence."""
    return all(m.is_over for m in workers.members) or any(f.kind != "wire" for f in failures_of(workers))


def _died(member: Member) -> bool:
    return member.status is not None and not member.returned


def failures_of(workers: WorkerProcesses) -> list[Failure]:
    """Every rank that failed by itself; those that only lost a peer are left out when there are others."""
    failures = [m.failure or workers.crash_of(m) for m in workers.members if m.failure or _died(m)]
    own = [f for f in failures if f.kind != "wire"]
    return own or failures


def _raise(error: WorkerFailed, workers: WorkerProcesses) -> None:
    workers.drain()
    causes = [f.exception for f in error.failures if f.exception is not None]
    raise error from (causes[0] if len(causes) == 1 else None)


def _time_out(workers: WorkerProcesses, timeout_s: float) -> TimedOut:
    failures, note = busy_ranks(workers, f"still busy after {timeout_s:g} s")
    return TimedOut(failures, headline=f"not done after {timeout_s:g} s", note=note)


def busy_ranks(workers: WorkerProcesses, reason: str) -> tuple[list[Failure], str]:
    """The busy ranks with the line that each is at, as failures; those that wait for them, as a note."""
    waiting = workers.blocked()
    left = [m for m in workers.members if not m.is_over]
    busy = [m for m in left if m.rank not in waiting] or left or workers.members
    workers.ask(busy)
    failures = [Failure(m.rank, "timeout", reason, workers.stack_of(m)) for m in busy]
    return failures, _who_waited(waiting, failures)


def _who_waited(waiting: list[int], failures: list[Failure]) -> str:
    failed = {f.rank for f in failures}
    waiting = [r for r in waiting if r not in failed]
    return f"{ranks_text(waiting)} waited for {ranks_text(failed)}" if waiting else ""
