"""What ranks that are processes compute: measured there, thread by thread, and told to the engine with each call."""

from __future__ import annotations

import threading
from time import thread_time

from hw_utils.virtual.multiprocess.rank_threads import Lane
from hw_utils.virtual.ranks.compute_time import ComputeTime


class ToldTime(ComputeTime):
    """The engine's side: CPU time comes with the calls."""

    told_s = 0.0  # of the running lane, and not yet in its clock

    def heard(self, lane: Lane, at_s: float, spent_s: float) -> None:
        """What came with a call: when its thread was last there, and what it has computed since."""
        self.clock[lane], self.told_s = max(self.clock[lane], at_s), spent_s

    def now(self) -> float:
        rank = self.engine.rank
        if not self.is_free and rank < self.engine.world_size:
            spent_s, self.told_s = self.told_s, 0.0
            self.clock[rank] += spent_s if self.is_measured else self.rule(rank, spent_s)
        return self.clock[rank]

    def resume(self) -> None:
        """It is measured elsewhere."""


class ToldHostTime(ToldTime):
    """Ranks with a device each keep their own clocks, and say with each call when it begins."""

    def __init__(self, engine, rule) -> None:
        super().__init__(engine, "free")

    def heard(self, lane: Lane, at_s: float, spent_s: float) -> None:
        self.clock[lane] = at_s


class _OfThread(threading.local):
    """What each thread of a rank has of its own; another thread than the first one begins where its starter was."""

    clock_s = total_s = 0.0  # total_s: computed before since_s

    def __init__(self) -> None:
        self.since_s = thread_time()


class ThreadClock:
    """Asked as an engine's list of clocks; of the other ranks it knows nothing."""

    def __init__(self, own: _OfThread) -> None:
        self.own = own

    def __getitem__(self, rank: int) -> float:
        return self.own.clock_s

    def __setitem__(self, rank: int, to_s: float) -> None:
        self.own.clock_s = to_s


class ThreadTime:
    """The rank's side: the clock and the CPU time of the calling thread."""

    def __init__(self, proxy, rule) -> None:
        self.proxy, self.is_free, self.is_measured = proxy, rule == "free", rule == "measured"
        self.own = _OfThread()
        self.clock = ThreadClock(self.own)

    @property
    def clock_s(self) -> float:
        return self.own.clock_s

    def now(self) -> float:
        if not self.is_free and not self.is_measured:
            self.proxy.ask("read_clock")  # the rule is the engine's
        return self.own.clock_s + self.unnoted_s()

    def total_s(self) -> float:
        if self.is_measured:
            return self.own.total_s + self.unnoted_s()
        return 0.0 if self.is_free and self.proxy.lines is None else self.now()

    def resume(self) -> None:
        """From here on the CPU time is the program's again."""
        self.own.since_s = thread_time()

    def unnoted_s(self) -> float:
        """What the thread has computed since its last call, as the CPU's clock says."""
        return thread_time() - self.own.since_s if self.is_measured else 0.0

    def forgive(self, cpu_s: float) -> None:
        """So many of these seconds were not the program's."""
        self.own.since_s += cpu_s

    def stamp(self) -> tuple[float, float]:
        """What the engine needs to know when the thread asks for something: its clock, its CPU seconds since."""
        own = self.own
        if self.is_free:
            return own.clock_s, 0.0
        now_s = thread_time()
        spent_s, own.since_s = now_s - own.since_s, now_s
        own.total_s += spent_s
        return own.clock_s, spent_s

    def begin_thread(self, at_s: float) -> None:
        """The calling thread begins at `at_s`, where its starter was."""
        self.own.clock_s = at_s
        self.resume()

    def catch_up(self, at_s: float) -> None:
        """The calling thread has waited for another one, which was there at `at_s`."""
        self.own.clock_s = max(self.own.clock_s, at_s)
