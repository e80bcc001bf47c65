"""What runs inside a rank's process: connect, take the call, run it, send the result or the reason back."""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import io
import multiprocessing.process
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from itertools import accumulate, chain, islice, repeat, takewhile
from typing import Any

from hw_utils.core import pickling
from hw_utils.core.failure_reasons import causes_of, kind_and_reason
from hw_utils.core.source.noted_frames import ASKS_WHERE
from hw_utils.core.source.students_files import is_students
from hw_utils.gloo import work
from hw_utils.processes import socket_frames
from hw_utils.processes.lock_waits import SAMPLER, name_this_thread
from hw_utils.scripts.torchrun_script import environment

SAMPLE_S = 0.5
FRAME = re.compile(r"file ('.*'|\".*\"), line (-?\d+|None), code (.*)>$")

# Kernel to rank: CALL, EXIT. Rank to kernel: UP, STARTED, RESULT (pickled result after META), FAILED.
CALL, EXIT, UP, STARTED, META, RESULT, FAILED = b"C", b"X", b"U", b"S", b"M", b"R", b"F"


def main(sock: socket.socket, rank: int, spec: dict) -> None:
    """Serves one call and waits until the kernel lets it go, so that no peer loses its connection early."""
    sock.setblocking(True)
    with contextlib.suppress(EOFError, OSError):  # the kernel has gone
        try:
            keeper = _get_ready(rank, spec)
        except BaseException as error:
            socket_frames.send_frame(sock, FAILED, pickling.dump(failure_of_the_kit(error), ""))
            socket_frames.receive_frame(sock)
            return
        socket_frames.send_frame(sock, UP)
        kind, data = socket_frames.receive_frame(sock)
        if kind == CALL:
            _serve(sock, rank, spec, keeper, data)
            socket_frames.receive_frame(sock)


def _get_ready(rank: int, spec: dict):
    """The rank's ledger, if it has one: its process is ready for a call, and knows its peers."""
    _settle(rank, spec)
    work.watch_threads()
    return _connect(rank, spec) if spec["connect"] else None


def _settle(rank: int, spec: dict) -> None:
    """A process like a fresh one: its own streams, seeds and one torch thread."""
    import numpy as np
    import torch

    from hw_utils.virtual.ranks.per_rank_state.random_states import SEED

    sys.stdin = io.StringIO()
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "replace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "replace", line_buffering=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    np.random.seed()  # forked ranks would share it, as they would torch's, which is the same in every run
    torch.default_generator.manual_seed(SEED + rank)
    if spec.get("directory"):
        # what multiprocessing keeps for a program's own processes goes with the run's folder, however this one ends
        sockets = os.path.join(spec["directory"], f"sockets-{rank}")
        os.makedirs(sockets, mode=0o700, exist_ok=True)
        multiprocessing.process.current_process()._config["tempdir"] = sockets
        stack = open(stack_path(spec["directory"], rank), "w")  # noqa: SIM115 (open as long as the process)
        faulthandler.enable(stack, all_threads=False)
        # Not one of threading's: those may post, see work.py.
        _thread.start_new_thread(_sample, (stack,))
        if ASKS_WHERE is not None:
            faulthandler.register(ASKS_WHERE, stack, all_threads=False)
        _note_ways_out(stack)


def _sample(stack: io.TextIOWrapper) -> None:
    """Notes again and again where the threads are, the first one's frames last: SIGKILL leaves no other trace.

    Not by faulthandler, which reads the list of threads without its lock: gloo's threads come into it and go out of it
    with each callback, and the process would die of a segmentation fault that nobody has made.
    """
    name_this_thread(SAMPLER)
    never = _thread.allocate_lock()
    never.acquire()
    while not never.acquire(timeout=SAMPLE_S):
        os.write(stack.fileno(), _where_threads_are().encode("utf-8", "backslashreplace"))


def _frames_as_text() -> list[list[str]]:
    """The texts of each thread's frames, innermost first; the first thread is the last.

    One call of C code from the first frame to the last: were another thread to run in between, one of its functions
    could return while its frame is held here, and its variables would live on, in the books of memory too.
    """
    return list(_texts_once_asked())  # nothing else may hold what it is given: that would keep a frame


def _texts_once_asked() -> Iterator[list[str]]:
    """The iterators of `_frames_as_text`, which have looked at no frame yet."""
    threads = map(dict.values, islice(iter(sys._current_frames, None), 1))
    and_callers = map(
        accumulate, map(chain, zip(chain.from_iterable(threads)), repeat(repeat("f_back"))), repeat(getattr)
    )
    return map(list, map(map, repeat(repr), map(takewhile, repeat(bool), and_callers)))


def _where_threads_are() -> str:
    """Nearly as faulthandler would write it, without the thread that asks.

    Names of files stay as Python spells them: who reads the note takes them out of their quotes. This thread calls
    no parser and imports nothing, or it could end a parse of the program's: CPython 3.11 counts the depth of all
    parses with one counter.
    """
    text = ""
    for thread, stack in enumerate(found := _frames_as_text()):
        if not any(frame.endswith(f"code {_frames_as_text.__name__}>") for frame in stack):
            text += f"Thread {'first' if stack is found[-1] else thread} (most recent call first):\n"
            for file, line, name in (FRAME.search(frame).groups() for frame in stack):
                text += f"  file {file}, line {line} in {name}\n"
    return text


def stack_path(directory: str, rank: int) -> str:
    """The file that says where a rank was when it died or was asked."""
    return os.path.join(directory, f"stack-{rank}")


def _note_ways_out(stack: io.TextIOWrapper) -> None:
    """os._exit, os.abort and os.kill leave no trace of their own: note the line first."""

    def noting(function):
        def call(*args):
            faulthandler.dump_traceback(stack, all_threads=False)
            return function(*args)

        return call

    os._exit_now = os._exit
    os._exit, os.abort, os.kill = noting(os._exit), noting(os.abort), noting(os.kill)


def _connect(rank: int, spec: dict):
    from hw_utils.gloo import replace_gloo

    return replace_gloo.connect(rank, spec)


def _serve(sock: socket.socket, rank: int, spec: dict, keeper, data: bytearray) -> None:
    import pickle

    call = pickle.loads(data)
    sys.path[:] = call["path"]
    os.environ.clear()
    os.environ.update(call["environ"], CUDA_VISIBLE_DEVICES="")
    if spec["connect"]:
        os.environ.update(environment(rank, spec["world_size"], call["port"]))
    meta: dict[str, Any] = {}
    books = contextlib.ExitStack()
    try:
        os.chdir(call["cwd"])
        watch = books.enter_context(_memory(rank, call["capacity_bytes"])) if call.get("memory") else None
        worker, args = pickling.load(call["call"])
        arguments = (rank, spec["world_size"], *args) if spec["connect"] else args
        _limit_memory(call.get("memory_bytes"))
        meta["start"] = time.perf_counter()
        socket_frames.send_frame(sock, STARTED, pickle.dumps(meta["start"]))
        if keeper is not None:
            keeper.begin()
        try:
            result = worker(*arguments)
            threading._shutdown()  # as when a process ends: it waits for threads that are no daemons
        finally:
            meta["end"] = time.perf_counter()
            if keeper is not None:
                keeper.returned()
            if watch is not None:
                watch.end(rank)
                meta["memory"] = watch.parts()
            books.close()
            _flush()
        name = getattr(worker, "__name__", "worker")
        frame, body = RESULT, pickling.dump(result, f"the value that {name} returned")
    except BaseException as error:
        found = failure_of(error)
        if "start" not in meta and not found["frames"]:
            found = failure_of_the_kit(error)
        frame, body = FAILED, pickling.dump(found, "")
    try:
        if keeper is not None:
            meta["ledger"] = keeper.finish()
    except Exception as error:
        if frame == RESULT:
            frame, body = FAILED, pickling.dump(failure_of_the_kit(error, "after your function returned"), "")
    socket_frames.send_frame(sock, META, pickle.dumps(meta, protocol=5))
    socket_frames.send_frame(sock, frame, body)


@contextlib.contextmanager
def _memory(rank: int, capacity_bytes: int | None):
    """The books of what this rank's first thread allocates, in seconds of its clock."""
    from hw_utils.core.memory.attribution import watched
    from hw_utils.core.memory.storage_tracker import Watch

    watch = Watch([rank], lambda: rank, lambda _: time.perf_counter(), capacity_bytes=capacity_bytes)
    with watched(watch):
        yield watch


def _limit_memory(n_bytes: int | None) -> None:
    if n_bytes and sys.platform == "linux":  # elsewhere there is no /proc to ask, or no such limit
        import resource

        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        bound, hard = used + n_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)  # it can only be lowered
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def failure_of(error: BaseException) -> dict[str, Any]:
    """What is sent of an exception: kind, one-line reason, causes, the student's own frames, itself if it can be."""
    frames = [
        (f.filename, f.lineno or 0, f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_students(f.filename)
    ]
    kind, reason = kind_and_reason(error)
    found = {
        "kind": kind, "reason": reason, "frames": frames, "exception": None, "note": "",
        "ends": getattr(error, "ends", ()) if hasattr(error, "hw_utils_kind") else (), "causes": causes_of(error),
    }  # fmt: skip
    if hasattr(error, "hw_utils_kind"):
        return found
    try:
        found["exception"] = pickling.dump_error(error, type(error).__name__)
    except pickling.Unpicklable as why:
        found["note"] = f"(the exception itself could not be sent: {why})"
    except Exception as why:
        found["note"] = f"(the exception itself could not be rebuilt: {type(why).__name__}: {why})"
    return found


def failure_of_the_kit(error: BaseException, when: str = "before your function began") -> dict[str, Any]:
    """As `failure_of`, of an error that no line of the student's has caused: with its own traceback."""
    kind, reason = kind_and_reason(error)
    return {
        "kind": kind if kind == "wire" else "kit", "reason": f"{when}: {reason}", "frames": [], "exception": None,
        "note": "", "ends": (), "causes": (), "stack": "".join(traceback.format_exception(error)).rstrip(),
    }  # fmt: skip
