"""The life of a rank's process, from the fork to its last word."""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import random
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace

import numpy as np
import torch

from hw_utils.core import pickling
from hw_utils.core.errors import Failure
from hw_utils.core.source.noted_frames import ASKS_WHERE
from hw_utils.scripts.torchrun_script import environment
from hw_utils.virtual.device.cuda_devices import said
from hw_utils.virtual.ending import failure_of, sendable
from hw_utils.virtual.groups.group import shown_to_modes
from hw_utils.virtual.groups.new_group import Groups
from hw_utils.virtual.groups.world import inherited_after
from hw_utils.virtual.multiprocess import packed_tensors, remote_work
from hw_utils.virtual.multiprocess.devices import DeviceEngineProxy
from hw_utils.virtual.multiprocess.engine_proxy import EngineProxy
from hw_utils.virtual.multiprocess.thread_clocks import threads_of_their_own
from hw_utils.virtual.ranks.child_processes import left_by, result_of
from hw_utils.virtual.ranks.clock import virtual_clock
from hw_utils.virtual.ranks.per_rank_state.environment import MASTER_PORT
from hw_utils.virtual.ranks.per_rank_state.random_states import SEED
from hw_utils.virtual.ranks.profiler import asynchronous_ranges
from hw_utils.virtual.ranks.rank_memory import books_of_one
from hw_utils.virtual.stores.torch_stores import virtual_stores
from hw_utils.virtual.traffic.without_values import shapes_only
from hw_utils.virtual.traffic.work import virtual_futures


class _Printed(io.TextIOBase):
    """A rank's standard output or error."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, proxy: EngineProxy, is_out: bool) -> None:
        self.proxy, self.is_out = proxy, is_out

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self.proxy.tell("printed", self.is_out, text)
        return len(text)

    def fileno(self) -> int:
        """Where programs that this one starts, and the fault handler, write past it."""
        return 1 if self.is_out else 2

    def writable(self) -> bool:
        return True


@contextmanager
def _logged(instead: dict):
    """Handlers of packages that were imported before this process began write where the rank's own do."""
    handlers = [
        h
        for h in (ref() for ref in logging._handlerList)
        if isinstance(h, logging.StreamHandler) and "stream" in vars(h)
    ]
    before = [(handler, handler.stream) for handler in handlers if handler.stream in instead]
    for handler, stream in before:
        handler.setStream(instead[stream])
    try:
        yield
    finally:
        for handler, stream in before:
            handler.setStream(stream)


@contextmanager
def _accounts_told(proxy: EngineProxy, watch):
    """However the worker ends, the server gets what its rank held until then."""
    is_early = True
    try:
        yield
        is_early = False
    finally:
        if watch is not None:
            watch.end(proxy.rank, is_early=is_early)
            proxy.tell("kept_memory", watch.parts())


def live(rank: int, line, bell, call: bytes, job: dict, stack_file: str) -> None:
    """The whole life of a rank's process."""
    stack = open(stack_file, "w")  # noqa: SIM115 (open as long as the process)
    faulthandler.enable(stack, all_threads=False)
    if ASKS_WHERE is not None:
        faulthandler.register(ASKS_WHERE, stack, all_threads=False)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the server's ends the run, as an error of this rank's
    proxy = (DeviceEngineProxy if job["compute"] == "device" else EngineProxy)(rank, line, bell, job)
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(SEED + rank)
    random.seed(rank)
    np.random.seed(rank)
    os.environ.update(environment(rank, job["world_size"], MASTER_PORT, job["network"].ranks_per_host))
    try:
        with ExitStack() as stack_:
            groups, books, shapes, begin = Groups(proxy, is_alone=True), None, None, []
            if job.get("values") == "shapes":
                shapes = stack_.enter_context(shapes_only(packed_tensors, remote_work))
                begin.append(shapes.begin)
            if job.get("memory"):
                books = books_of_one(proxy, job, shapes)
            for part in (
                _logged({sys.stdout: _Printed(proxy, True), sys.stderr: _Printed(proxy, False)}),
                redirect_stdout(_Printed(proxy, True)),
                redirect_stderr(_Printed(proxy, False)),
                virtual_clock(proxy),
                groups.installed(),
                virtual_stores(proxy),
                virtual_futures(),
                asynchronous_ranges(),
                shown_to_modes(),
            ):
                stack_.enter_context(part)
            watch, mode = stack_.enter_context(books) if books is not None else (None, None)
            if proxy.lines is not None:
                proxy.lines.shapes = shapes
                mode.looks.insert(0, proxy.lines.saw)
                stack_.enter_context(said(proxy.lines, job["network"], watch))
                begin += [proxy.lines.begin, *([] if mode is shapes else [mode.begin])]
            stack_.enter_context(threads_of_their_own(proxy, *begin))
            with left_by(inherited_after(stack_.close)), _accounts_told(proxy, watch):
                worker, args = pickling.load(call)
                groups.join_world(rank)
                proxy.compute.resume()
                result = result_of(worker, rank, job["world_size"], args)
                threading._shutdown()  # as when a process ends: it waits for threads that are no daemons
                proxy.finish()
            data = bytes(pickling.dump(result, "the value that the worker returned"))
            if proxy.lines is not None:
                proxy.tell("kept_streams", proxy.lines.records())
            proxy.end("returned", data)
    except pickling.Unpicklable as error:
        proxy.end("failed", Failure(rank, "unpicklable", str(error)), None)
    except BaseException as error:
        failure = failure_of(rank, error)
        proxy.end("failed", replace(failure, exception=None), sendable(error))
    _wait_for_the_end(line)


def _wait_for_the_end(line) -> None:
    """Until the server lets go: whoever reads its end knows how the rank ended."""
    try:
        line.recv()
    except (EOFError, OSError):
        return
