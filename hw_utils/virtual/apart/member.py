"""What runs in a rank's process: the worker, and in the engine's place what asks the hub."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
import threading
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from time import thread_time
from typing import Any

import numpy as np
import torch

from hw_utils.core import pickling
from hw_utils.core.calls.operations import OBJECT_OPS
from hw_utils.core.errors import Failure
from hw_utils.scripts.script import environment
from hw_utils.virtual.apart import handles, packed_tensors
from hw_utils.virtual.apart.handles import RemoteWork
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.failures import failure_of, sendable
from hw_utils.virtual.group import Members, shown_to_modes
from hw_utils.virtual.ranks.children import left_by, result_of
from hw_utils.virtual.ranks.clock import virtual_clock
from hw_utils.virtual.ranks.memory import books_of_one
from hw_utils.virtual.ranks.own.environment import MASTER_PORT
from hw_utils.virtual.ranks.own.random_states import SEED
from hw_utils.virtual.ranks.profiler import asynchronous_ranges
from hw_utils.virtual.ranks.shapes.messages import shapes_only
from hw_utils.virtual.subgroups import Groups
from hw_utils.virtual.traffic import reductions
from hw_utils.virtual.traffic.stores import virtual_stores
from hw_utils.virtual.traffic.work import virtual_futures


class Member:
    """A rank, with what its groups, clock and stores expect of an engine."""

    is_over = False
    folding = None  # a folded run has no process a rank

    class carrier:
        is_shared = False

    def __init__(self, rank: int, line, bell, job: dict) -> None:
        self.rank, self.world_size, self.line, self.bell = rank, job["world_size"], line, bell
        self.is_free, self.is_measured = job["compute"] == "free", job["compute"] == "measured"
        self.places, self.registered, self.pending = Places(), [], {}
        self.groups = [Members(self, 0, tuple(range(self.world_size)))]
        self.clock_s, self.cpu_start_s = 0.0, thread_time()
        self.lock = threading.RLock()
        self.outer, self.n_outer = None, 0
        self.heard: dict[int, RemoteWork] = {}
        self.under_way: dict[int, RemoteWork] = {}  # collectives whose outputs have not come
        self.is_listening = False
        self.resume_compute()

    # asking

    def _spent_s(self) -> float:
        """CPU seconds since the last call, of the rank's first thread."""
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        now_s = thread_time()
        spent_s, self.cpu_start_s = now_s - self.cpu_start_s, now_s
        return spent_s

    def tell(self, name: str, *arguments) -> None:
        """Says something that needs no answer."""
        with self.lock:
            self.line.send((0.0, name, arguments))

    def ask(self, name: str, *arguments) -> Any:
        """The hub's answer; the rank's clock is then what the hub says.

        Raises what the hub raised.
        """
        with self.lock:
            self.line.send((self._spent_s(), name, arguments))
            try:
                is_right, value, self.clock_s = self.line.recv()
            except (EOFError, ConnectionError):
                os._exit(0)  # the run is over
        self.resume_compute()
        if not is_right:
            raise value
        return value

    def resume_compute(self) -> None:
        """From here on the CPU time is the program's again."""
        if threading.current_thread() is threading.main_thread():
            self.cpu_start_s = thread_time()

    def now(self) -> float:
        if self.is_free:
            return self.clock_s
        if self.is_measured and threading.current_thread() is threading.main_thread():
            return self.clock_s + thread_time() - self.cpu_start_s
        self.ask("read_clock")
        return self.clock_s

    def move_on(self, rank: int, to_s: float) -> None:
        self.ask("sleep", max(to_s - self.now(), 0.0))

    # what groups ask of an engine

    def op(self, name: str) -> str:
        return name

    def site(self, number: int) -> tuple[str, int, str]:
        return self.places.sites[number]

    def _token(self, name: str, outer) -> int:
        """A number for the object collective that a call is part of."""
        if name in OBJECT_OPS and outer is not self.outer:
            self.outer, self.n_outer = outer, self.n_outer + 1
        return self.n_outer

    def collective(self, group, post, outer) -> RemoteWork:
        is_in_place = post.outputs is post.inputs
        spec = {
            "name": post.name, "site": self.site(post.site), "kind": post.kind, "root": post.root,
            "n_bytes": post.n_bytes, "reduce_op": reductions.reduce_name(post.reduce_op) or None,
            "inputs": [packed_tensors.packed(t) for t in post.inputs],
            "outputs": None if is_in_place else [packed_tensors.packed(t, with_bytes=False) for t in post.outputs],
            "outer": self._token(post.name, outer), "limit_s": post.limit_s,
        }  # fmt: skip
        work = RemoteWork(self, self.ask("collective", group.members.number, spec), list(post.outputs))
        self.under_way[work.number] = work
        return work

    def fill(self, came: dict[int, list[bytes]]) -> None:
        """Outputs of collectives that nobody has waited for."""
        for number, data in came.items():
            self.under_way.pop(number).fill(data)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer) -> RemoteWork:
        spec = {
            "name": name, "site": self.site(site), "is_send": is_send, "peer": peer, "tag": tag,
            "is_blocking": is_blocking, "tensor": packed_tensors.packed(tensor, with_bytes=is_send),
            "outer": self._token(name, outer),
        }  # fmt: skip
        number = self.ask("message", group.members.number, spec)
        work = RemoteWork(self, number, [] if is_send else [tensor], tensor if is_send and not is_blocking else None)
        work.text = f"rank {self.rank} sends {tensor.numel():,} elements to rank {peer}"
        return work.of_group(group.members)

    def members_of(self, key: tuple, name: str, site: int) -> Members:
        number = self.ask("join_group", key, name, self.site(site))
        return Members(self, number, key[1])

    def ask_store(self, name: str, method: str, arguments: tuple, site: int) -> Any:
        return self.ask("ask_store", name, method, arguments, self.site(site))

    # futures that C++ code waits for

    def listen_for(self, work: RemoteWork) -> None:
        """Another thread sets the work's future if this one stands where it cannot."""
        if not self.is_listening:
            self.is_listening = True
            threading.Thread(target=self._listen, daemon=True, name="hw_utils helper").start()
        self.heard[work.number] = work
        self.tell("awaits", work.number)

    def _listen(self) -> None:
        self.tell("listens", threading.get_native_id())
        while True:
            try:
                number, found = self.bell.recv()
            except (EOFError, OSError):
                return
            work = self.heard.pop(number)
            work.take(found)
            work.settle_future()


class _Printed:
    """A rank's standard output or error."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, member: Member, is_out: bool) -> None:
        self.member, self.is_out = member, is_out

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self.member.tell("printed", self.is_out, text)
        return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

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
def _books_told(member: Member, watch):
    """However the worker ends, the hub gets what its rank held until then."""
    is_early = True
    try:
        yield
        is_early = False
    finally:
        if watch is not None:
            watch.end(member.rank, is_early=is_early)
            member.tell("kept_memory", watch.parts())


def live(rank: int, line, bell, call: bytes, job: dict, stack_file: str) -> None:
    """The whole life of a rank's process."""
    stack = open(stack_file, "w")  # noqa: SIM115 (open as long as the process)
    faulthandler.enable(stack, all_threads=False)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    member = Member(rank, line, bell, job)
    torch.set_num_threads(1)
    torch.default_generator.set_state(torch.Generator().manual_seed(SEED).get_state())
    random.seed(rank)
    np.random.seed(rank)
    os.environ.update(environment(rank, job["world_size"], MASTER_PORT))
    try:
        with ExitStack() as stack_:
            groups = Groups(member)
            if job.get("values") == "shapes":
                stack_.enter_context(shapes_only(packed_tensors, handles))
            books = books_of_one(member, job) if job.get("memory") else None
            for part in (
                _logged({sys.stdout: _Printed(member, True), sys.stderr: _Printed(member, False)}),
                redirect_stdout(_Printed(member, True)),
                redirect_stderr(_Printed(member, False)),
                virtual_clock(member),
                groups.installed(),
                virtual_stores(member),
                virtual_futures(),
                asynchronous_ranges(),
                shown_to_modes(),
            ):
                stack_.enter_context(part)
            watch = stack_.enter_context(books)[0] if books is not None else None
            with left_by(stack_.close), _books_told(member, watch):
                worker, args = pickling.load(call)
                groups.join_world(rank)
                member.resume_compute()
                result = result_of(worker, rank, job["world_size"], *args)
            data = bytes(pickling.dump(result, "the value that the worker returned"))
            member.line.send((member._spent_s(), "returned", (data,)))
    except pickling.Unpicklable as error:
        member.tell("failed", Failure(rank, "unpicklable", str(error)), None)
    except BaseException as error:
        failure = failure_of(rank, error)
        bare = Failure(rank, failure.kind, failure.reason, failure.frames)
        member.tell("failed", bare, sendable(error))
    _wait_for_the_end(line)


def _wait_for_the_end(line) -> None:
    """Until the hub lets go: whoever reads its end knows how the rank ended."""
    try:
        line.recv()
    except (EOFError, OSError):
        return
