"""What stands in the engine's place in a rank's process: it asks the engine's server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.groups.group_members import Members
from hw_utils.virtual.multiprocess import packed_tensors, timer
from hw_utils.virtual.multiprocess.compute_time import ThreadTime
from hw_utils.virtual.multiprocess.remote_work import RemoteWork
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.traffic import reductions
from hw_utils.virtual.traffic.changed_in_flight import InFlight

_start = threading.Thread.start  # a program's threads begin as `rank_main` says


class _Introduced(threading.local):
    is_known = False  # whether the server has heard of the calling thread


class RemoteGroups:
    """The groups of a run, as a rank's process knows them."""

    def __init__(self, proxy: EngineProxy) -> None:
        self.proxy = proxy
        self.numbered = [Members(proxy, 0, tuple(range(proxy.world_size)))]

    def members_of(self, key: tuple, name: str, site: int) -> Members:
        number = self.proxy.ask("join_group", key, name, self.proxy.site(site))
        return Members(self.proxy, number, key[1])

    def exchange(self, number: int, nth: int, mine, name: str, site: int, limit_s: float | None) -> dict:
        return self.proxy.ask("exchange", number, nth, mine, name, self.proxy.site(site), limit_s)


class RemoteQueues:
    """What waits for its other end waits at the server: here is who watches what this rank posts."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable] = {}

    def watch(self, rank: int, told: Callable) -> None:
        """As the engine's."""
        self.watched[rank] = told

    def go_elsewhere(self, rank: int) -> None:
        """No message takes a short cut that would have to know it."""


class RemoteStores:
    """The stores of a run, which are the server's; what this process has of them."""

    def __init__(self, proxy: EngineProxy) -> None:
        self.proxy = proxy
        self.openings: dict = {}  # of files, by store
        self.next_hash_store = count(1).__next__

    def ask(self, name: str, method: str, arguments: tuple, site: int) -> Any:
        return self.proxy.ask("ask_store", name, method, arguments, self.proxy.site(site))

    def forget(self, name: str) -> None:
        """A file's store: the file is removed, and with it what a later store of its name would begin with."""
        with suppress(OSError):
            os.remove(name.removeprefix("file://"))


class OwnThreads:
    """The process is the rank's, with all of its threads."""

    have_clocks = True
    has_torchs = False  # which run the program's functions for other ranks

    def __init__(self, proxy: EngineProxy) -> None:
        self.proxy = proxy

    def carries(self) -> bool:
        return True

    def has_others(self) -> bool:
        return self.has_torchs or threading.active_count() > 1

    def are_torchs_too(self) -> None:
        """From now on other ranks may have functions run here, and answer this one, as no part of the run."""
        self.has_torchs = True
        self.proxy.tell("is_asked")


class EngineProxy:
    """A rank, with what its groups, clock and stores expect of an engine."""

    Work = RemoteWork  # what a call gives back
    lines = None  # the streams of the rank's device, if it has one
    folding = None  # a folded run has no process a rank

    class carrier:
        is_shared = False

    class ending:
        is_over = may_go_apart = False  # the run is not started again: ranks have processes

    def __init__(self, rank: int, line, bell, job: dict) -> None:
        self.rank, self.world_size, self.line, self.bell = rank, job["world_size"], line, bell
        self.compute, self.places = ThreadTime(self, job["compute"]), Places()
        self.clock = self.compute.clock
        self.groups, self.stores = RemoteGroups(self), RemoteStores(self)
        self.queues, self.threads, self.in_flight = RemoteQueues(), OwnThreads(self), InFlight()
        self.introduced = _Introduced()
        self.introduced.is_known = True
        self.speaking, self.hearing = threading.Lock(), threading.Condition()
        self.answers: dict[int, tuple] = {}  # thread -> what came for it
        self.somebody_reads = False
        self.heard: dict[int, RemoteWork] = {}
        self.under_way: dict[int, RemoteWork] = {}  # collectives whose outputs have not come
        self.is_listening = False

    @property
    def clock_s(self) -> float:
        """The calling thread's."""
        return self.compute.clock_s

    # asking

    def _say(self, stamp, name: str, arguments: tuple) -> int:
        thread = threading.get_native_id()
        with self.speaking:
            if not self.introduced.is_known and stamp is not None:
                self.introduced.is_known = True
                self.line.send((thread, None, "begins", (threading.current_thread().name, self.clock_s)))
            self.line.send((thread, stamp, name, arguments))
        return thread

    def tell(self, name: str, *arguments) -> None:
        """Says something that needs no answer."""
        self._say(None, name, arguments)

    def end(self, name: str, *arguments) -> None:
        """The rank's last word, of its first thread."""
        self._say(self.compute.stamp(), name, arguments)

    def ask(self, name: str, *arguments) -> Any:
        """The server's answer; the thread's clock is then what the server says.

        Raises what the server raised.
        """
        with timer.stands_still(lambda: self.clock_s):
            is_right, value, self.compute.own.clock_s = self._answer(self._say(self.compute.stamp(), name, arguments))
        self.compute.resume()
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

    def move_on(self, rank: int, to_s: float) -> None:
        """Sleeps until then; a timer of the program's that is due before rings when it is."""
        while 0 < (due_s := timer.left_s()) < to_s - self.compute.now():
            self.ask("sleep", due_s)
        self.ask("sleep", max(to_s - self.compute.now(), 0.0))

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
        work.watched = post.watched
        self.under_way[work.number] = work
        return work

    def fill(self, came: dict[int, list[bytes]]) -> None:
        """Outputs of collectives that nobody has waited for."""
        for number, data in came.items():
            self.under_way.pop(number).fill(data)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer) -> RemoteWork:
        if self.rank in self.queues.watched:
            self.queues.watched[self.rank](is_send, tensor)
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
