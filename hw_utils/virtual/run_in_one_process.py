"""One attempt at a simulation, from its first rank's first line to what comes of it, as plain parts."""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)  # fmt: skip
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.distributed import distributed_c10d as c10d

from hw_utils.core import pickling
from hw_utils.core.errors import Failure, Frame
from hw_utils.core.source.lines import locate
from hw_utils.core.source.students_files import is_students
from hw_utils.virtual import deadlock
from hw_utils.virtual.device.cuda_devices import said
from hw_utils.virtual.device.device_engine import DeviceEngine
from hw_utils.virtual.device.hidden_gpus import real_gpus_hidden
from hw_utils.virtual.ending import failure_of, is_from_a_package, misses_of_thread, sendable
from hw_utils.virtual.engine import Engine
from hw_utils.virtual.groups.group import KERNELS, shown_to_modes, unregister
from hw_utils.virtual.groups.new_group import Groups
from hw_utils.virtual.groups.world import CurrentWorld, inherited_after
from hw_utils.virtual.ranks.child_processes import left_by, result_of
from hw_utils.virtual.ranks.clock import virtual_clock
from hw_utils.virtual.ranks.greenlets_or_threads import Greenlets, Threads
from hw_utils.virtual.ranks.per_rank_state.environment import own_environment
from hw_utils.virtual.ranks.per_rank_state.modules import own_modules
from hw_utils.virtual.ranks.per_rank_state.process_state import ProcessState
from hw_utils.virtual.ranks.per_rank_state.random_states import own_random_states
from hw_utils.virtual.ranks.per_rank_state.thread_locals import OfFirstThread
from hw_utils.virtual.ranks.per_rank_state.watched_calls import note_writes
from hw_utils.virtual.ranks.per_rank_state.worker_copies import Copies
from hw_utils.virtual.ranks.profiler import asynchronous_ranges
from hw_utils.virtual.ranks.rank_memory import books_of_all
from hw_utils.virtual.ranks.rank_output import Streams
from hw_utils.virtual.ranks.shapes.value_readers import values_asked_for
from hw_utils.virtual.ranks.shardings import meshes_of_their_own
from hw_utils.virtual.ranks.turns import Stop
from hw_utils.virtual.stores.torch_stores import virtual_stores
from hw_utils.virtual.traffic.messages.point_to_point import ShortCuts
from hw_utils.virtual.traffic.without_values import shapes_only
from hw_utils.virtual.traffic.work import virtual_futures

LOOKED_AT = 2  # ranks whose end is looked at most closely: all ranks run one program


class Attempt:
    """One attempt at a simulation, all ranks in this process."""

    Engine, DeviceEngine, is_here = Engine, DeviceEngine, True
    mode = None  # sees what each rank allocates, if the run keeps memory
    shapes = None  # sees what each rank computes, if the run has shapes only

    def __init__(self, call: bytes, job: dict, lamp, shown: list[list[str]]) -> None:
        self.world_size, self.call, self.job = job["world_size"], call, job
        kind, fold = self.DeviceEngine if job["compute"] == "device" else self.Engine, job.get("fold")
        may_go_apart = self.is_here and fold is None and self.world_size <= job.get("most_processes", 0)
        self.engine = kind(
            self.world_size, job["network"], job["compute"], job["eager_bytes"], lamp, fold=fold,
            may_go_apart=may_go_apart, own_seeds=job.get("own_seeds", False),
        )  # fmt: skip
        self.results: list[Any] = [None] * self.world_size
        self.returned, self.n_running = [False] * self.world_size, len(self.engine.running)
        self.streams = Streams(self.engine, sys.stdout if job["echo"] else None, shown)

    def run(self, carrier: str) -> None:
        """All ranks until nobody can go on; this process's own state is as before afterwards."""
        before = torch.get_rng_state(), torch.is_grad_enabled(), torch.get_num_threads(), gc.get_threshold()
        torch.set_num_threads(1)
        gc.set_threshold(500_000, 50, 100)  # a thousand ranks' objects take long to go through
        try:
            with ExitStack() as stack:
                if self.has_shapes_only:
                    self.engine.queues.unusual.add("tensors without values")
                    self.shapes = stack.enter_context(self.without_values())
                if self.job.get("memory") and self.is_here:
                    self.watch, self.mode = stack.enter_context(books_of_all(self.engine, self.job, self.shapes))
                if self.engine.lines is not None:
                    self.mode.looks.insert(0, self.engine.lines.saw)
                    self.engine.lines.shapes = self.shapes
                    stack.enter_context(said(self.engine.lines, self.job["network"], self.watch))
                else:
                    stack.enter_context(real_gpus_hidden())
                if self.engine.folding is not None:
                    stack.enter_context(self.engine.folding.looking_at_shards())
                for part in self.parts():
                    stack.enter_context(part)
                with left_by(inherited_after(stack.close)):
                    self.host({"greenlets": Greenlets, "threads": Threads, "processes": Greenlets}[carrier])
        finally:
            unregister()
            KERNELS.remove()
            torch.set_rng_state(before[0])
            torch._C._set_grad_enabled(before[1])
            torch.set_num_threads(before[2])
            gc.set_threshold(*before[3])

    @property
    def has_shapes_only(self) -> bool:
        return self.job.get("values") == "shapes"

    def without_values(self) -> AbstractContextManager:
        return shapes_only()

    def parts(self) -> tuple:
        """What of torch.distributed and the standard library is the running rank's while the ranks run."""
        engine = self.engine
        self.copies, self.groups, self.shared = Copies(self.call), Groups(engine), ProcessState(engine)
        return (
            _world(engine),
            *([] if engine.lines else [ShortCuts(engine).installed()]),
            note_writes(engine),
            self.groups.installed(),
            virtual_clock(engine),
            own_random_states(engine),
            own_environment(engine, self.job["network"].ranks_per_host),
            own_modules(engine),
            virtual_stores(engine),
            virtual_futures(),
            asynchronous_ranges(),
            shown_to_modes(),
            meshes_of_their_own(engine),
            self.shared.watched(),
            redirect_stdout(self.streams.out),
            redirect_stderr(self.streams.err),
            torch.autograd.set_multithreading_enabled(False),
        )

    def host(self, carrier) -> None:
        self.of_first_thread = None if carrier.is_shared else OfFirstThread()
        carrier(self.world_size, self.body, Stop).host(self.engine.run)

    def body(self, rank: int) -> None:
        """One rank, from its first line to its last."""
        engine = self.engine
        engine.threads.add()
        try:
            if engine.ending.is_over:
                return
            torch._C._set_grad_enabled(True)
            if self.of_first_thread is not None:
                self.of_first_thread.begin()
            for mode in dict.fromkeys((self.shapes, self.mode)):
                if mode is not None and not engine.carrier.is_shared:
                    mode.begin()  # it is this thread's, and ends with it
            if engine.lines is not None and not engine.carrier.is_shared:
                engine.lines.begin()
            engine.turns.random.enter(rank)
            self.shared.settings.enter(rank)
            worker, args = self.copies.take()
            self.shared.learn(worker)
            self.groups.join_world(rank)
            engine.compute.resume()
            self.results[rank] = result_of(worker, rank, self.world_size, args)
            engine.finish()
            self.n_running -= 1
            self.shared.look_now(everywhere=rank < LOOKED_AT or not self.n_running)
            self.returned[rank] = True
            self._end_books(rank)
            engine.turns.random.leave(rank)
        except Stop:
            self._end_books(rank, is_early=True)
        except BaseException as error:
            self._end_books(rank, is_early=True)
            with suppress(Stop):
                if not engine.ending.is_over:
                    self.shared.look_now(everywhere=True)  # it may have failed for what another rank has changed
                    self._fails_for_another(rank, error)
                    self._fails_for_its_thread(error)
                    engine.ending.failures.append(failure_of(rank, error))
        finally:
            if not engine.carrier.is_shared:
                engine.threads.discard()

    def _end_books(self, rank: int, **options) -> None:
        if self.mode is not None:
            self.watch.end(rank, **options)

    def _fails_for_another(self, rank: int, error: BaseException) -> None:
        """A package that refuses what the first rank was allowed, as a second registration, is asked again apart.

        So is one that misses what it has kept of a rank: another one may have thrown it away.
        """
        engine = self.engine
        is_first = (rank == 0 or engine.ending.failures) and not isinstance(error, KeyError)
        if not is_first and engine.ending.may_go_apart and is_from_a_package(error):
            engine.ending.need("processes", "what a package keeps")

    def _fails_for_its_thread(self, error: BaseException) -> None:
        """What a package has set for its first thread alone is there where each rank is the first one of a process."""
        engine = self.engine
        if not engine.carrier.is_shared and engine.ending.may_go_apart and misses_of_thread(error):
            engine.ending.need("processes", "what a package has set for one thread")

    def frames_of(self, rank: int, frame) -> tuple[Frame, ...]:
        """The student's lines that a rank is at; `frame` is where this process's main thread is."""
        found = traceback.extract_stack(self.engine.carrier.frame_of(rank) or frame)
        return tuple(Frame(locate(f.filename, f.lineno), f.name) for f in found if is_students(f.filename))

    def outcome(self) -> dict:
        """The run's parts, or those of its error."""
        engine = self.engine
        failures = sorted(engine.ending.failures, key=lambda f: f.rank)
        if not failures and any(engine.agenda.waiting):
            return {"table": deadlock.table_of(engine, self.returned)}
        failures = failures or deadlock.lost(engine)
        if not failures:
            try:
                return self._run()
            except pickling.Unpicklable:
                failures = self._unpicklable()
        note, ended_in = deadlock.who_waited(engine), engine.ending.ended_in
        sent = [self.exception_of(f) for f in failures]
        failures = [replace(f, exception=None) for f in failures]
        return {"failures": failures, "exceptions": sent, "note": note, "ended_in": ended_in, **self.books()}

    def exception_of(self, failure: Failure) -> bytes | None:
        return sendable(failure.exception)

    def books(self) -> dict:
        """Those of the ranks' memory, if the run keeps any."""
        return {} if self.mode is None else {"memory": self.watch.parts()}

    def device_streams(self) -> np.ndarray | None:
        """When those of the ranks' devices were busy, if they have devices."""
        return None if self.engine.lines is None else self.engine.lines.records()

    def packed_results(self) -> dict:
        if self.engine.folding is not None:
            self.results = [self.results[self.job["fold"].representative(r)] for r in range(self.world_size)]
        with values_asked_for() if self.has_shapes_only else nullcontext():
            return {"results": bytes(pickling.dump(self.results, ""))}

    def _run(self) -> dict:
        engine, folding = self.engine, self.engine.folding
        trace = engine.rows.trace(engine.places.sites, self.world_size, engine.groups.numbered)
        return {
            **self.packed_results(), **self.books(), "seconds": max(engine.clock), "output": self.streams.texts(),
            "world_size": self.world_size, **trace, "uneven": None if folding is None else folding.uneven,
            "torn": None if folding is None else folding.torn, "streams": self.device_streams(),
        }  # fmt: skip

    def _unpicklable(self) -> list[Failure]:
        failures = []
        for rank, result in enumerate(self.results):
            try:
                pickling.dump(result, "the value that the worker returned")
            except pickling.Unpicklable as error:
                failures.append(Failure(rank, "unpicklable", str(error)))
        return failures


@contextmanager
def _world(engine: Engine):
    before = c10d._world
    c10d._world = CurrentWorld(engine)
    try:
        yield
    finally:
        c10d._world = before
