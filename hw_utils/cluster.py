"""A run on the virtual cluster, from its first rank's first line to what comes of it, as plain parts."""

from __future__ import annotations

import gc
import mmap
import signal
import sys
import traceback
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils import blocked, payload, rank
from hw_utils.carriers import Greenlets, Threads
from hw_utils.copies import Copies
from hw_utils.engine import Engine, Stop
from hw_utils.errors import Failure, Frame
from hw_utils.point_to_point import ShortCuts
from hw_utils.random_states import own_random_states
from hw_utils.records import records_of
from hw_utils.streams import Streams
from hw_utils.subgroups import Groups
from hw_utils.virtual_clock import virtual_clock
from hw_utils.virtual_group import CurrentWorld, Members, VirtualGroup
from hw_utils.where import is_students, locate


def simulation(call: bytes, job: dict, *, timeout_s: float | None = None, beacon: str | None = None) -> dict:
    """Runs `call`, a pickled (worker, args), as `job` says: greenlets first, threads if the program needs them.

    timeout_s: ends it with the rank that is busy then. beacon: a file that always names the rank that runs.
    """
    shown: list[int] = []
    with _time_limit(timeout_s) as limit, _beacon(beacon) as lamp:
        for carrier in (Greenlets, Threads):
            cluster = _Cluster(call, job, lamp, shown)
            limit.append(cluster.engine)
            cluster.run(carrier)
            if not cluster.engine.wants_threads:
                break
            shown = cluster.streams.n_shown
    return cluster.outcome()


@contextmanager
def _time_limit(timeout_s: float | None):
    """Ends the last engine in the list that it gives, with the line that its rank is at, after `timeout_s`."""
    engines: list[Engine] = []
    if timeout_s is None or not hasattr(signal, "setitimer"):
        yield engines
        return

    def ring(_, frame) -> None:
        engine = engines[-1]
        busy = engine.rank if engine.rank < engine.world_size else 0
        frame = engine.carrier.frame_of(busy) or frame
        engine.ended_in = "timeout"
        engine.fail([Failure(busy, "timeout", f"still busy after {timeout_s:g} s", _frames_above(frame))])

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield engines
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _frames_above(frame) -> tuple[Frame, ...]:
    found = traceback.extract_stack(frame)
    return tuple(Frame(locate(f.filename, f.lineno), f.name) for f in found if is_students(f.filename))


@contextmanager
def _beacon(path: str | None):
    """Four bytes that another process can read: which rank runs."""
    if path is None:
        yield memoryview(bytearray(8)).cast("i")
        return
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        lamp = memoryview(memory).cast("i")
        try:
            yield lamp
        finally:
            lamp.release()


class _Cluster:
    """One attempt at a simulation."""

    def __init__(self, call: bytes, job: dict, lamp, shown: list[int]) -> None:
        self.world_size = job["world_size"]
        self.copies = Copies(call)
        self.engine = Engine(self.world_size, job["network"], job["compute"], job["eager_bytes"], lamp)
        self.results: list[Any] = [None] * self.world_size
        self.returned = [False] * self.world_size
        self.streams = Streams(self.engine, sys.stdout if job["echo"] else None, shown)
        self.engine.groups.append(Members(self.engine, 0, tuple(range(self.world_size))))
        self.engine.store = dist.HashStore()

    def run(self, carrier) -> None:
        """All ranks until nobody can go on; this process's own state is as before afterwards."""
        engine = self.engine
        before = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_num_threads(), gc.get_threshold()
        torch.set_num_threads(1)
        gc.set_threshold(500_000, 50, 100)  # a thousand ranks' objects take long to go through
        try:
            with ExitStack() as stack:
                for part in (
                    _world(engine),
                    ShortCuts(engine).installed(),
                    Groups(engine).installed(),
                    virtual_clock(engine),
                    own_random_states(engine),
                    redirect_stdout(self.streams.out),
                    redirect_stderr(self.streams.err),
                    torch.autograd.set_multithreading_enabled(False),
                ):
                    stack.enter_context(part)
                carrier(self.world_size, self.body, Stop).host(engine.run)
        finally:
            torch.set_rng_state(before[0])
            torch._C._set_grad_enabled(before[1])
            torch.set_num_threads(before[2])
            gc.set_threshold(*before[3])

    def body(self, rank: int) -> None:
        """One rank, from its first line to its last."""
        engine = self.engine
        try:
            if engine.is_over:
                return
            torch._C._set_grad_enabled(True)
            engine.random.enter(rank)
            worker, args = self.copies.take()
            self._join(rank)
            engine.resume_compute()
            self.results[rank] = worker(rank, self.world_size, *args)
            engine.now()
            self.returned[rank] = True
            engine.random.leave(rank)
        except Stop:
            return
        except BaseException as error:
            if not engine.is_over:
                engine.failures.append(_failure_of(rank, error))

    def _join(self, rank: int) -> None:
        """What init_process_group would have left behind."""
        everybody = self.engine.groups[0]
        group = VirtualGroup(everybody, rank, f"rank {rank} of all")
        world = c10d._world._current()
        world.add(group, everybody.place_of, self.engine.store)
        world.default_pg = group

    def outcome(self) -> dict:
        """The run's parts, or those of its error."""
        engine = self.engine
        failures = sorted(engine.failures, key=lambda f: f.rank)
        if not failures and any(engine.waiting):
            return {"table": blocked.table_of(engine, self.returned)}
        failures = failures or blocked.lost(engine)
        if not failures:
            try:
                return self._run()
            except payload.Unpicklable:
                failures = self._unpicklable()
        note = blocked.who_waited(engine)
        sent = [_sendable(f.exception) for f in failures]
        failures = [Failure(f.rank, f.kind, f.reason, f.frames) for f in failures]
        return {"failures": failures, "exceptions": sent, "note": note, "ended_in": engine.ended_in}

    def _run(self) -> dict:
        engine = self.engine
        return {
            "results": bytes(payload.dump(self.results, "")), "seconds": max(engine.clock),
            "output": self.streams.texts(), "world_size": self.world_size, **records_of(engine),
        }  # fmt: skip

    def _unpicklable(self) -> list[Failure]:
        failures = []
        for rank_, result in enumerate(self.results):
            try:
                payload.dump(result, "the value that the worker returned")
            except payload.Unpicklable as error:
                failures.append(Failure(rank_, "unpicklable", str(error)))
        return failures


@contextmanager
def _world(engine: Engine):
    before = c10d._world
    c10d._world = CurrentWorld(engine)
    try:
        yield
    finally:
        c10d._world = before


def _failure_of(rank_: int, error: BaseException) -> Failure:
    kind, reason = rank._kind_and_reason(error)
    frames = tuple(
        Frame(locate(f.filename, f.lineno or 0), f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    )
    return Failure(rank_, kind, reason, frames, error)


def _sendable(error: BaseException | None) -> bytes | None:
    """The exception as bytes that can be rebuilt, if it has such."""
    if error is None:
        return None
    try:
        data = bytes(payload.dump(error.with_traceback(None), ""))
        payload.load(data)
    except Exception:
        return None
    return data
