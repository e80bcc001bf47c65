"""A run on the virtual cluster, from its first rank's first line to the `Run` or the error that it ends in."""

from __future__ import annotations

import io
import traceback
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.carriers import Greenlets, Threads
from hw_utils.engine import COLUMNS, Engine, Stop
from hw_utils.errors import Deadlock, Failure, Frame, WorkerFailed
from hw_utils.point_to_point import ShortCuts
from hw_utils.run import Run
from hw_utils.stuck import wait_table, who_waited
from hw_utils.trace import RECORD, SENDS, Trace
from hw_utils.virtual_clock import virtual_clock
from hw_utils.virtual_group import CurrentWorld, Members, VirtualGroup
from hw_utils.where import is_students, locate

SEED = 67280421310721  # torch's own default seed: every process starts with it


def run_here(worker, world_size: int, args: tuple, options: tuple) -> Run:
    """The run, in this process; greenlets first, threads if the program needs them."""
    cluster = _Cluster(worker, world_size, args, Greenlets, options)
    cluster.run()
    if cluster.engine.wants_threads:
        cluster = _Cluster(worker, world_size, args, Threads, options)
        cluster.run()
    return cluster.result()


class _Output(io.TextIOBase):
    """Standard output, one text a rank."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.parts: list[list[str]] = [[] for _ in range(engine.world_size + 1)]

    def write(self, text: str) -> int:
        self.parts[self.engine.rank].append(text)
        return len(text)

    def flush(self) -> None: ...


class _Cluster:
    """One attempt at a simulation."""

    def __init__(self, worker, world_size, args, carrier, options) -> None:
        self.worker, self.world_size, self.args, self.carrier = worker, world_size, args, carrier
        self.engine = Engine(world_size, *options)
        self.results: list[Any] = [None] * world_size
        self.returned = [False] * world_size
        self.output = _Output(self.engine)
        self.members = [Members(self.engine, 0, tuple(range(world_size)))]
        self.store = dist.HashStore()
        self.random_state = torch.Generator().manual_seed(SEED).get_state()

    def run(self) -> None:
        engine = self.engine
        carrier = self.carrier(self.world_size, self.body, Stop)
        state = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with (
                self._world(), ShortCuts(engine).installed(), virtual_clock(engine), redirect_stdout(self.output),
                torch.autograd.set_multithreading_enabled(False),
            ):  # fmt: skip
                engine.run(carrier)
                engine.is_over = True
                carrier.close()
        finally:
            torch.set_rng_state(state[0])
            torch._C._set_grad_enabled(state[1])
            torch.set_num_threads(state[2])

    @contextmanager
    def _world(self):
        before = c10d._world
        c10d._world = CurrentWorld(self.engine)
        try:
            yield
        finally:
            c10d._world = before

    def body(self, rank: int) -> None:
        """One rank, from its first line to its last."""
        engine = self.engine
        try:
            if engine.is_over:
                return
            torch._C._set_grad_enabled(True)
            torch.default_generator.set_state(self.random_state)
            self._join(rank)
            engine.resume_compute()
            self.results[rank] = self.worker(rank, self.world_size, *self.args)
            engine.now()
            self.returned[rank] = True
        except Stop:
            return
        except SystemExit as error:
            self._failed(rank, "exit", f"sys.exit({error.code!r})", error)
        except Exception as error:
            self._failed(rank, "exception", _one_line(error), error)

    def _join(self, rank: int) -> None:
        """What init_process_group would have left behind."""
        group = VirtualGroup(self.members[0], rank, f"rank {rank} of all")
        world = c10d._world._current()
        world.add(group, self.members[0].place_of, self.store)
        world.default_pg = group

    def _failed(self, rank: int, kind: str, reason: str, error: BaseException) -> None:
        frames = tuple(
            Frame(locate(f.filename, f.lineno), f.name)
            for f in traceback.extract_tb(error.__traceback__)
            if is_students(f.filename)
        )
        self.engine.failures.append(Failure(rank, kind, reason, frames, error))

    def result(self) -> Run:
        """The run, or its error."""
        engine = self.engine
        if engine.failures:
            failures = sorted(engine.failures, key=lambda f: f.rank)
            raise WorkerFailed(failures, note=who_waited(engine)) from failures[0].exception
        if engine.waiting:
            raise Deadlock(wait_table(engine, self.returned))
        lost = [q for queue in engine.queues.values() for q in queue]
        lost += [q for queue in engine.any_source.values() for q in queue]
        if lost:
            raise WorkerFailed([self._lost(q) for q in sorted(lost, key=lambda q: q.rank)])
        output = ["".join(parts) for parts in self.output.parts[:-1]]
        return Run(self.results, max(engine.clock), output, self.trace(), clock="virtual")

    def _lost(self, request) -> Failure:
        what = "nobody received it" if request.is_send else "nobody sent it"
        reason = f"{self.engine.describe(request)}, and {what}"
        return Failure(request.rank, "mismatch", reason, self.engine.frames_of(request))

    def trace(self) -> Trace:
        """The ledger."""
        engine = self.engine
        rows = np.frombuffer(engine.rows).reshape(-1, len(COLUMNS))
        records = np.zeros(len(rows), RECORD)
        column = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
        for name in ("rank", "op", "peer", "n_bytes", "start_s", "end_s", "tag", "group", "message", "order",
                     "waited", "wait_start_s", "wait_end_s"):  # fmt: skip
            records[name] = column[name]
        records["end_s"] = np.where(column["end_s"] < 0, column["start_s"], column["end_s"])
        names, sites = list(engine.names), engine.places.sites
        files = {file: i + len(names) for i, file in enumerate(dict.fromkeys(s[0] for s in sites))}
        names += files
        place = column["place"].astype(int)
        records["file"] = np.array([files[s[0]] for s in sites])[place]
        records["line"] = np.array([s[1] for s in sites])[place]
        sent = np.isin(records["op"], [i for i, n in enumerate(engine.names) if n in SENDS]) & (records["message"] >= 0)
        records["sent_bytes"], records["sent_messages"] = np.where(sent, records["n_bytes"], 0), sent
        records["rounds"] = 1
        for row, *cost in engine.costs:
            i = row // len(COLUMNS)
            records["sent_bytes"][i], records["sent_messages"][i], records["rounds"][i] = cost
        groups = [None, *(m.ranks for m in self.members[1:])]
        return Trace(records, names, groups, self.world_size)


def _one_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
