"""The engine of ranks that are processes, and what makes their calls on it for them, one rank at a time."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hw_utils.core.errors import Failure
from hw_utils.virtual.engine import Engine
from hw_utils.virtual.multiprocess import packed_tensors
from hw_utils.virtual.multiprocess.compute_time import ToldHostTime, ToldTime
from hw_utils.virtual.multiprocess.rank_processes import RankProcesses
from hw_utils.virtual.multiprocess.rank_requests import Standing, Stuck, ThreadRequests
from hw_utils.virtual.multiprocess.rank_threads import Lane, LaneAgenda, LaneGreenlets
from hw_utils.virtual.ranks.turns import Stop
from hw_utils.virtual.traffic import collectives
from hw_utils.virtual.traffic.collectives import Post
from hw_utils.virtual.traffic.messages.queues import Queues
from hw_utils.virtual.traffic.work import VirtualWork

MOST_BEATS = 2_000
MOST_BEATS_AWAITED = 100 * MOST_BEATS  # where a rank's first thread waits in its own process


class ServedEngine(Engine):
    """Its ranks compute elsewhere."""

    Agenda, Carrier, ComputeTime = LaneAgenda, LaneGreenlets, ToldTime


class QueuesInTurn(Queues):
    """A send or receive waits for those that begin earlier: its rank's clock has gone on alone."""

    def __init__(self, engine: Engine, eager_bytes: int) -> None:
        super().__init__(engine, eager_bytes)
        self.engine, self.post_at_once, self.post = engine, self.post, self.post_in_turn
        self.unusual.add("on a device")

    def post_in_turn(self, *message):
        self.engine.keep_up(self.engine.rank)
        return self.post_at_once(*message)


class DeviceServedEngine(ServedEngine):
    """Of ranks with a device each."""

    ComputeTime, Queues = ToldHostTime, QueuesInTurn


class EngineServer:
    """Serves the ranks of one run; `results[rank]` are bytes that only the caller opens."""

    def __init__(self, engine: ServedEngine, call: bytes, job: dict, streams) -> None:
        self.engine, self.streams = engine, streams
        self.results: list[bytes | None] = [None] * engine.world_size
        self.exceptions: dict[int, bytes | None] = {}
        self.memory: dict[int, list[dict]] = {}
        self.device_streams: dict[int, np.ndarray] = {}
        self.handles: list[dict[int, Any]] = [{} for _ in range(engine.world_size)]
        self.awaited: list[set[int]] = [set() for _ in range(engine.world_size)]
        self.seen: list[set[int]] = [set() for _ in range(engine.world_size)]  # whose outputs the rank has already
        self.n_handles = 0
        for name in job["modules"]:
            with suppress(Exception):  # imported ahead for speed; a rank that needs it will see the error itself
                importlib.import_module(name)
        self.processes = RankProcesses(engine.world_size, call, job)
        self.requests = ThreadRequests(
            engine, self.processes, lambda rank, name, arguments: getattr(self, name)(rank, *arguments)
        )
        engine.hears_more, engine.agenda.hears_more = self.hears_more, self.requests.overhear_asked
        self.n_beats = 0  # how often in a row threads that are not their ranks' first ones have slept

    def serve(self, who: int) -> None:
        """Everything that one thread of a rank asks for, until it has ended."""
        engine, lane = self.engine, who if isinstance(who, Lane) else self.engine.agenda.lanes[who]
        try:
            while not engine.ending.is_over:
                try:
                    message = self.requests.hear(lane)
                except Stuck:
                    self.free(lane)
                    continue
                if message is None:
                    return
                stamp, name, arguments = message
                engine.compute.heard(lane, *stamp)
                self._count_beats(lane, name)
                if name in ("returned", "failed"):
                    engine.compute.now()
                    self.requests.end(int(lane))
                    getattr(self, name)(int(lane), *arguments)
                    return
                try:
                    answer = (True, getattr(self, name)(lane, *arguments))
                except Exception as error:
                    answer = (False, _sendable(error))
                if engine.compute.told_s:
                    engine.compute.now()
                self.processes.send(lane, (lane.thread, (*answer, engine.clock[lane])))
        except Stop:
            return

    def free(self, lane: Lane) -> None:
        """A thread stands in code that lets nobody in: it is told what its collectives give, one after the other."""
        engine = self.engine
        for number, handle in self.handles[lane].items():
            if number in self.awaited[lane]:
                self._owned(lane, number)
                handle.wait()
                self.processes.ring(lane, (number, self._taken(lane, number)))
                return
        engine.block(lane, Standing(lane))

    def _count_beats(self, lane: Lane, name: str) -> None:
        """Ends a run in which nothing happens but that further threads sleep again and again, as one with a heartbeat.

        Their clocks go on for ever; who waits for the first threads of ranks would never be told. A first thread that
        stands in its own process may wait for the one that sleeps, so that one has longer.
        """
        self.n_beats = self.n_beats + 1 if lane.name and name in ("sleep", "read_clock") else 0
        if self.n_beats and self.n_beats % MOST_BEATS == 0:
            is_patient = self.n_beats < MOST_BEATS_AWAITED and any(
                isinstance(what, Standing) for what in self.engine.agenda.waiting[: self.engine.world_size]
            )
            if not is_patient and self.requests.all_wait():
                self.engine.ending.is_over = True
                raise Stop

    def hears_more(self) -> bool:
        """Whether a thread that was busy asks for something; if not, those that stand are told where."""
        if self.requests.overhear():
            return True
        waiting = self.engine.agenda.waiting
        for lane, what in self.engine.agenda.rows():
            if isinstance(what, Standing) and lane.name:
                waiting[lane] = None  # of a pool, or between two calls
            elif isinstance(what, Standing):
                what.site = self.site_of(int(lane))
        return False

    def site_of(self, rank: int) -> int:
        """The number of the student's line that a process's first thread is at."""
        frames = self.processes.frames(rank)
        return self.engine.places.number_of(_site(frames[-1])) if frames else 0

    # what a rank can ask for

    def listens(self, rank: int, thread: int) -> None:
        self.requests.helpers[rank] = thread

    def is_asked(self, rank: int) -> None:
        self.requests.asked.add(rank)

    def awaits(self, rank: int, number: int) -> None:
        """A future of this call is in the hands of code that may wait for it in C++."""
        self.awaited[rank].add(number)

    def printed(self, rank: int, is_out: bool, text: str) -> None:
        (self.streams.out if is_out else self.streams.err).write(text)

    def kept_memory(self, rank: int, parts: list[dict]) -> None:
        self.memory[rank] = parts

    def kept_streams(self, rank: int, records: np.ndarray) -> None:
        self.device_streams[rank] = records

    def returned(self, rank: int, result: bytes) -> None:
        self.results[rank] = result

    def failed(self, rank: int, failure: Failure, exception: bytes | None) -> None:
        self.engine.ending.failures.append(failure)
        self.exceptions[rank] = exception

    def read_clock(self, rank: int) -> None:
        self.engine.compute.now()

    def sleep(self, rank: int, seconds: float) -> None:
        self.engine.move_on(rank, self.engine.compute.now() + seconds)

    def join_group(self, rank: int, key, name: str, site) -> int:
        return self.engine.groups.members_of(key, name, self.engine.places.number_of(site)).number

    def exchange(self, rank: int, number: int, nth: int, mine, name: str, site, limit_s: float | None) -> dict:
        return self.engine.groups.exchange(number, nth, mine, name, self.engine.places.number_of(site), limit_s)

    def ask_store(self, rank: int, name: str, method: str, arguments: tuple, site) -> Any:
        return self.engine.stores.ask(name, method, arguments, self.engine.places.number_of(site))

    def collective(self, rank: int, number: int, spec: dict) -> int:
        engine = self.engine
        members = engine.groups.numbered[number]
        inputs = [packed_tensors.unpacked(t) for t in spec["inputs"]]
        outputs = inputs if spec["outputs"] is None else [packed_tensors.unpacked(t) for t in spec["outputs"]]
        reduce_op = None if spec["reduce_op"] is None else getattr(torch.distributed.ReduceOp, spec["reduce_op"])
        if spec["factor"] is not None:
            reduce_op = torch.distributed._make_nccl_premul_sum(spec["factor"])
        post = Post(
            spec["name"], engine.places.number_of(spec["site"]), spec["kind"], inputs, outputs, spec["root"], reduce_op,
            spec["n_bytes"],
        )  # fmt: skip
        post.limit_s = spec["limit_s"]
        group = SimpleNamespace(engine=engine, members=members, place=members.place_of[rank])
        return self._kept(rank, collectives.call(group, post, spec["outer"]))

    def message(self, rank: int, number: int, spec: dict) -> int:
        engine = self.engine
        tensor, peer, is_send = packed_tensors.unpacked(spec["tensor"]), spec["peer"], spec["is_send"]
        src, dst = (rank, peer) if is_send else (peer, rank)
        request = engine.queues.post(
            is_send, engine.rows.op(spec["name"]), tensor, tensor.dtype, peer, spec["tag"], number,
            engine.places.number_of(spec["site"]), src, dst, spec["is_blocking"],
        )  # fmt: skip
        engine.rows.note_part(rank, request.row, spec["name"], spec["outer"])
        return self._kept(rank, request.of_group(engine.groups.numbered[number]))

    def wait(self, rank: int, number: int, timeout: timedelta | None) -> tuple[tuple[list[bytes], int, float], dict]:
        """What has come, and what came meanwhile of collectives that the rank has not waited for."""
        self._owned(rank, number).wait(timeout)
        return self._taken(rank, number), self._came(rank)

    def _owned(self, lane: Lane, number: int):
        """A handle, which is now the wait of this thread, whoever has made the call."""
        handle = self.handles[lane][number]
        if isinstance(handle, VirtualWork):
            handle.owner = lane
        else:
            handle.rank = lane
        return handle

    def _came(self, rank: int) -> dict[int, list[bytes]]:
        found = {}
        for number, handle in self.handles[rank].items():
            is_own = isinstance(handle, VirtualWork) and handle.owner is rank
            is_over = is_own and 0 <= handle.done_s <= self.engine.clock[rank]
            if is_over and number not in self.seen[rank]:
                self.seen[rank].add(number)
                found[number] = [packed_tensors.packed(t)[-1] for t in handle.outputs]
        return found

    def waits_for(self, rank: int, number: int) -> tuple[int, ...]:
        return self.handles[rank][number].waits_for()

    def test(self, rank: int, number: int) -> tuple[list[bytes], int, float] | None:
        return self._taken(rank, number) if self._owned(rank, number).is_completed() else None

    def _kept(self, rank: int, handle) -> int:
        self.n_handles += 1
        self.handles[rank][self.n_handles] = handle
        return self.n_handles

    def _taken(self, rank: int, number: int) -> tuple[list[bytes], int, float]:
        """What the rank gets, who sent it, and when it was there."""
        handle = self.handles[rank].pop(number)
        self.seen[rank].discard(number)
        if getattr(handle, "is_send", False):
            return [], -1, handle.done_s
        tensors = handle.outputs if isinstance(handle, VirtualWork) else [handle.tensor]
        found = [packed_tensors.packed(t)[-1] for t in tensors]
        return found, getattr(handle, "peer", -1), handle.done_s


def _site(frame) -> tuple[str, int, str]:
    return frame.where.file, frame.where.line, frame.function


def _sendable(error: Exception) -> Exception:
    """The error, or its text if it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(str(error))
    return error


def preloadable(imported: list[str]) -> list[str]:
    """Those that are modules of libraries: a later attempt imports them once for all ranks."""
    from hw_utils.core.source.students_files import is_students

    files = ((name, getattr(sys.modules.get(name), "__file__", None)) for name in imported)
    return [name for name, file in files if file and not is_students(os.fspath(file))]
