"""What stands in the engine's place in a rank's process: it asks the engine's server."""

from __future__ import annotations

import os
import threading
from time import thread_time
from typing import Any

from hw_utils.virtual.apart import packed_tensors, timer
from hw_utils.virtual.apart.remote_work import RemoteWork
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.groups.group import Members
from hw_utils.virtual.ranks.modes import unseen
from hw_utils.virtual.traffic import reductions

_start = threading.Thread.start  # a program's threads begin as `rank_main` says


class _OfThread(threading.local):
    """What each thread of a rank has of its own; another thread than the first one begins where its starter was."""

    clock_s, cpu_s, is_known = 0.0, 0.0, False  # cpu_s: computed before cpu_start_s

    def __init__(self) -> None:
        self.cpu_start_s = thread_time()


class _Clock:
    """Asked as an engine's list of clocks; of the other ranks it knows nothing."""

    def __init__(self, own: _OfThread) -> None:
        self.own = own

    def __getitem__(self, rank: int) -> float:
        return self.own.clock_s

    def __setitem__(self, rank: int, to_s: float) -> None:
        self.own.clock_s = to_s


class EngineProxy:
    """A rank, with what its groups, clock and stores expect of an engine."""

    Work = RemoteWork  # what a call gives back
    is_over, threads_have_clocks = False, True
    is_asked = False  # by threads of torch's, which run the program's functions for other ranks
    lines = None  # the streams of the rank's device, if it has one
    folding = None  # a folded run has no process a rank
    most_processes = 0  # the run is not started again: ranks have processes

    class carrier:
        is_shared = False

    def __init__(self, rank: int, line, bell, job: dict) -> None:
        self.rank, self.world_size, self.line, self.bell = rank, job["world_size"], line, bell
        self.is_free, self.is_measured = job["compute"] == "free", job["compute"] == "measured"
        self.places, self.registered, self.pending = Places(), [], {}
        self.groups = [Members(self, 0, tuple(range(self.world_size)))]
        self.own = _OfThread()
        self.own.is_known = True
        self.clock = _Clock(self.own)
        self.speaking, self.hearing = threading.Lock(), threading.Condition()
        self.answers: dict[int, tuple] = {}  # thread -> what came for it
        self.somebody_reads = False
        self.heard: dict[int, RemoteWork] = {}
        self.under_way: dict[int, RemoteWork] = {}  # collectives whose outputs have not come
        self.is_listening = False
        self.resume_compute()

    @property
    def clock_s(self) -> float:
        return self.own.clock_s

    # asking

    def stamp(self) -> tuple[float, float]:
        """What the server needs to know of the time when a thread asks for something."""
        return self.own.clock_s, self._spent_s()

    def _spent_s(self) -> float:
        """The thread's CPU seconds since its last call."""
        own, now_s = self.own, thread_time()
        spent_s, own.cpu_start_s = now_s - own.cpu_start_s, now_s
        own.cpu_s += spent_s
        return spent_s

    def _say(self, stamp, name: str, arguments: tuple) -> int:
        thread, own = threading.get_native_id(), self.own
        with self.speaking:
            if not own.is_known and stamp is not None:
                own.is_known = True
                self.line.send((thread, None, "begins", (threading.current_thread().name, own.clock_s)))
            self.line.send((thread, stamp, name, arguments))
        return thread

    def tell(self, name: str, *arguments) -> None:
        """Says something that needs no answer."""
        self._say(None, name, arguments)

    def end(self, name: str, *arguments) -> None:
        """The rank's last word, of its first thread."""
        self._say(self.stamp(), name, arguments)

    def ask(self, name: str, *arguments) -> Any:
        """The server's answer; the thread's clock is then what the server says.

        Raises what the server raised.
        """
        with timer.stands_still(lambda: self.clock_s):
            is_right, value, self.own.clock_s = self._answer(self._say(self.stamp(), name, arguments))
        self.resume_compute()
        if not is_right:
            raise value
        return value

    def _answer(self, thread: int) -> tuple:
        """What comes for this thread. Of those that wait one reads for all."""
        with self.hearing:
            while thread not in self.answers:
                if self.somebody_reads:
                    self.hearing.wait()
                    continue
                self.somebody_reads = True
                self.hearing.release()
                try:
                    whose, answer = self.line.recv()
                except (EOFError, ConnectionError):
                    os._exit(0)  # the run is over
                finally:
                    self.hearing.acquire()
                    self.somebody_reads = False
                self.answers[whose] = answer
                self.hearing.notify_all()
            return self.answers.pop(thread)

    def resume_compute(self) -> None:
        """From here on the CPU time is the program's again."""
        self.own.cpu_start_s = thread_time()

    def begin_thread(self, at_s: float) -> None:
        """The calling thread begins at `at_s`, where its starter was."""
        self.own.clock_s = at_s
        self.resume_compute()

    def catch_up(self, at_s: float) -> None:
        """The calling thread has waited for another one, which was there at `at_s`."""
        self.own.clock_s = max(self.own.clock_s, at_s)

    def carries(self) -> bool:
        return True  # the process is the rank's, with all of its threads

    def has_other_threads(self) -> bool:
        return self.is_asked or threading.active_count() > 1

    def has_torchs_threads(self) -> None:
        """From now on other ranks may have functions run here, and answer this one, as no part of the run."""
        self.is_asked = True
        self.tell("is_asked")

    def now(self) -> float:
        if self.is_free:
            return self.clock_s
        if self.is_measured:
            return self.clock_s + thread_time() - self.own.cpu_start_s
        self.ask("read_clock")
        return self.clock_s

    def computed_s(self) -> float:
        if self.is_free and self.lines is None:
            return 0.0
        if self.is_measured:
            return self.own.cpu_s + thread_time() - self.own.cpu_start_s
        return self.now()

    def move_on(self, rank: int, to_s: float) -> None:
        """Sleeps until then; a timer of the program's that is due before rings when it is."""
        while 0 < (due_s := timer.left_s()) < to_s - self.now():
            self.ask("sleep", due_s)
        self.ask("sleep", max(to_s - self.now(), 0.0))

    # what groups ask of an engine

    def op(self, name: str) -> str:
        return name

    def site(self, number: int) -> tuple[str, int, str]:
        return self.places.sites[number]

    def collective(self, group, post, outer) -> RemoteWork:
        with unseen():
            inputs = [packed_tensors.packed(t) for t in post.inputs]
            outputs = [packed_tensors.packed(t, with_bytes=False) for t in post.outputs]
        spec = {
            "name": post.name, "site": self.site(post.site), "kind": post.kind, "root": post.root,
            "n_bytes": post.n_bytes, "reduce_op": reductions.reduce_name(post.reduce_op) or None,
            "factor": reductions.factor_of(post.reduce_op),
            "inputs": inputs, "outputs": None if post.outputs is post.inputs else outputs,
            "outer": getattr(outer, "f_lasti", -1), "limit_s": post.limit_s,
        }  # fmt: skip
        number, by_shape = self.ask("collective", group.members.number, spec), post.kind in reductions.BY_SHAPE
        work = self.Work(self, number, post.name, list(post.outputs), by_shape=by_shape)
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
            "outer": getattr(outer, "f_lasti", -1),
        }  # fmt: skip
        number = self.ask("message", group.members.number, spec)
        kept = tensor if is_send and not is_blocking else None
        work = self.Work(self, number, name, [] if is_send else [tensor], kept)
        work.text = f"rank {self.rank} sends {tensor.numel():,} elements to rank {peer}"
        return work.of_group(group.members)

    def members_of(self, key: tuple, name: str, site: int) -> Members:
        number = self.ask("join_group", key, name, self.site(site))
        return Members(self, number, key[1])

    def exchange(self, number: int, nth: int, mine, name: str, site: int, limit_s: float | None) -> dict:
        return self.ask("exchange", number, nth, mine, name, self.site(site), limit_s)

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
