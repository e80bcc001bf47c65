"""What stands in the engine's place in a rank's process: it asks the hub."""

from __future__ import annotations

import os
import threading
from time import thread_time
from typing import Any

from hw_utils.core.calls.operations import OBJECT_OPS
from hw_utils.virtual.apart import packed_tensors
from hw_utils.virtual.apart.handles import RemoteWork
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.group import Members
from hw_utils.virtual.ranks.modes import unseen
from hw_utils.virtual.traffic import reductions

_start = threading.Thread.start  # a program's threads begin as `life` says


class Member:
    """A rank, with what its groups, clock and stores expect of an engine."""

    Work = RemoteWork  # what a call gives back
    is_over = False
    lines = None  # the streams of the rank's device, if it has one
    folding = None  # a folded run has no process a rank

    class carrier:
        is_shared = False

    def __init__(self, rank: int, line, bell, job: dict) -> None:
        self.rank, self.world_size, self.line, self.bell = rank, job["world_size"], line, bell
        self.is_free, self.is_measured = job["compute"] == "free", job["compute"] == "measured"
        self.places, self.registered, self.pending = Places(), [], {}
        self.groups = [Members(self, 0, tuple(range(self.world_size)))]
        self.clock, self.cpu_start_s = [0.0] * self.world_size, thread_time()  # of the others it knows nothing
        self.cpu_s = 0.0  # computed before cpu_start_s
        self.lock = threading.RLock()
        self.outer, self.n_outer = None, 0
        self.heard: dict[int, RemoteWork] = {}
        self.under_way: dict[int, RemoteWork] = {}  # collectives whose outputs have not come
        self.is_listening = False
        self.resume_compute()

    @property
    def clock_s(self) -> float:
        return self.clock[self.rank]

    # asking

    def stamp(self) -> float:
        """What the hub needs to know of the time when the rank asks for something."""
        return self._spent_s()

    def _spent_s(self) -> float:
        """CPU seconds since the last call, of the rank's first thread."""
        if threading.current_thread() is not threading.main_thread():
            return 0.0
        now_s = thread_time()
        spent_s, self.cpu_start_s = now_s - self.cpu_start_s, now_s
        self.cpu_s += spent_s
        return spent_s

    def tell(self, name: str, *arguments) -> None:
        """Says something that needs no answer."""
        with self.lock:
            self.line.send((None, name, arguments))

    def ask(self, name: str, *arguments) -> Any:
        """The hub's answer; the rank's clock is then what the hub says.

        Raises what the hub raised.
        """
        with self.lock:
            self.line.send((self.stamp(), name, arguments))
            try:
                is_right, value, self.clock[self.rank] = self.line.recv()
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

    def carries(self) -> bool:
        return True  # the process is the rank's, with all of its threads

    def now(self) -> float:
        if self.is_free:
            return self.clock_s
        if self.is_measured and threading.current_thread() is threading.main_thread():
            return self.clock_s + thread_time() - self.cpu_start_s
        self.ask("read_clock")
        return self.clock_s

    def computed_s(self) -> float:
        if self.is_free and self.lines is None:
            return 0.0
        if self.is_measured:
            is_first = threading.current_thread() is threading.main_thread()
            return self.cpu_s + (thread_time() - self.cpu_start_s if is_first else 0.0)
        return self.now()

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
        with unseen():
            inputs = [packed_tensors.packed(t) for t in post.inputs]
            outputs = [packed_tensors.packed(t, with_bytes=False) for t in post.outputs]
        spec = {
            "name": post.name, "site": self.site(post.site), "kind": post.kind, "root": post.root,
            "n_bytes": post.n_bytes, "reduce_op": reductions.reduce_name(post.reduce_op) or None,
            "inputs": inputs, "outputs": None if post.outputs is post.inputs else outputs,
            "outer": self._token(post.name, outer), "limit_s": post.limit_s,
        }  # fmt: skip
        work = self.Work(self, self.ask("collective", group.members.number, spec), post.name, list(post.outputs))
        self.under_way[work.number] = work
        return work

    def fill(self, came: dict[int, list[bytes]]) -> None:
        """Outputs of collectives that nobody has waited for."""
        for number, data in came.items():
            self.under_way.pop(number).fill(data)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer) -> RemoteWork:
        with unseen():
            sent = packed_tensors.packed(tensor, with_bytes=is_send)
        spec = {
            "name": name, "site": self.site(site), "is_send": is_send, "peer": peer, "tag": tag,
            "is_blocking": is_blocking, "tensor": sent,
            "outer": self._token(name, outer),
        }  # fmt: skip
        number = self.ask("message", group.members.number, spec)
        kept = tensor if is_send and not is_blocking else None
        work = self.Work(self, number, name, [] if is_send else [tensor], kept)
        work.text = f"rank {self.rank} sends {tensor.numel():,} elements to rank {peer}"
        return work.of_group(group.members)

    def members_of(self, key: tuple, name: str, site: int) -> Members:
        number = self.ask("join_group", key, name, self.site(site))
        return Members(self, number, key[1])

    def ask_store(self, name: str, method: str, arguments: tuple, site: int) -> Any:
        return self.ask("ask_store", name, method, arguments, self.site(site))

    def finish(self) -> None:
        """The worker has returned."""

    # futures that C++ code waits for

    def listen_for(self, work: RemoteWork) -> None:
        """Another thread sets the work's future if this one stands where it cannot."""
        if not self.is_listening:
            self.is_listening = True
            _start(threading.Thread(target=self._listen, daemon=True, name="hw_utils helper"))
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
