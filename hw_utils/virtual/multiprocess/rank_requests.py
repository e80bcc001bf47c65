"""What the threads of the ranks' processes ask for: read from the lines, put in the lane of the thread that asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hw_utils.core.calls.wait_for import OWN_WAIT
from hw_utils.virtual.multiprocess.rank_processes import RankProcesses
from hw_utils.virtual.multiprocess.rank_threads import Lane
from hw_utils.virtual.stuck_threads import (
    GONE,
    LOOK_S,
    LOOKS,
    LOOKS_FOR_GOOD,
    LOOKS_OUTSIDE,
    OUTSIDE,
    RUNS,
    STANDS,
    asleep,
    children_of,
    elsewhere,
    standing,
)

UNANSWERED = ("printed", "listens", "awaits", "is_asked", "kept_memory", "kept_streams")
LANE_LOOK_S = 0.004  # how often a thread is looked at while another one of its process waits here
ASKED_LOOKS = 400  # for an answer to a remote procedure call: 20 s
PATIENT_LOOKS = 20  # for threads that sleep for a while: they may go on by themselves


class Standing:
    """What a thread stands in that is no communication: a lock, a future, another thread, a file or a socket."""

    row, name, site = -1, OWN_WAIT, 0

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def waits_for(self) -> tuple[int, ...]:
        return ()


class Stuck(Exception):
    """A thread waits in its own process or in the system, and what it waits for is not its own to bring about."""


class _Looks:
    """Counts how often something looked the same."""

    def __init__(self) -> None:
        self.n, self.last = 0, None

    def same(self, now: Any) -> int:
        self.n = self.n + 1 if now is not None and now == self.last else 0
        self.last = now
        return self.n


class ThreadRequests:
    """The messages of all processes. at_once: called with (rank, name, arguments) of what needs no answer."""

    def __init__(self, engine, processes: RankProcesses, at_once: Callable[[int, str, tuple], None]) -> None:
        self.engine, self.processes, self.at_once = engine, processes, at_once
        self.lanes: list[dict[int, Lane]] = [{} for _ in processes.pids]
        for rank, pid in enumerate(processes.pids):
            first = engine.agenda.lanes[rank]
            first.thread, self.lanes[rank][pid] = pid, first
        self.helpers: dict[int, int] = {}  # rank -> the thread that waits for the bell, no thread of the program's
        self.ended: set[int] = set()
        self.asked: set[int] = set()  # ranks with threads of torch's, which are never still: of these the first counts

    def hear(self, lane: Lane) -> tuple | None:
        """The next thing that a thread asks for; None if it has ended.

        Raises:
            Stuck: it waits in its own process.
        """
        rank, looks, pid = int(lane), _Looks(), self.processes.pids[lane]
        lane.is_asking = bool(lane.inbox)
        while not lane.inbox:
            if rank in self.ended:
                return None
            is_one_of_many = rank in self.asked or any(other.is_asking for other in self.lanes[rank].values())
            if self.processes.ready([rank], LANE_LOOK_S if is_one_of_many else LOOK_S):
                self.take(rank)
                continue
            now = asleep(pid, lane.thread) if is_one_of_many else standing(pid, {self.helpers.get(rank)})
            if lane.place >= self.engine.world_size and asleep(pid, lane.thread) is GONE:
                del self.lanes[rank][lane.thread]
                return None
            needed = LOOKS_OUTSIDE if getattr(now, "is_parent", False) else getattr(now, "looks", LOOKS)
            if looks.same(now) >= needed:
                raise Stuck(rank)
        return lane.inbox.popleft()

    def take(self, rank: int) -> None:
        """Reads one message of a rank's process."""
        message, engine = self.processes.read(rank), self.engine
        if message is None:
            engine.ending.failures.append(self.processes.crash(rank))
            self.end(rank)
            return
        thread, stamp, name, arguments = message
        if name in UNANSWERED:
            running, engine.rank = engine.rank, rank
            self.at_once(rank, name, arguments)
            engine.rank = running
        elif name == "begins":
            lane = self.lanes[rank][thread] = engine.agenda.add(rank, thread, *arguments)
            engine.carrier.add(lane)
        else:
            lane = self.lanes[rank][thread]
            lane.inbox.append((stamp, name, arguments))
            lane.is_asking = True
            if isinstance(engine.agenda.waiting[lane], Standing):
                engine.agenda.wake(lane, engine.clock[lane])

    def end(self, rank: int) -> None:
        """A rank's process has ended, or its worker has returned: its other threads are no part of the run."""
        self.ended.add(rank)
        for lane in self.lanes[rank].values():
            self.engine.agenda.waiting[lane] = None

    def overhear(self) -> bool:
        """Nobody is due: whether a thread that was busy elsewhere asks for something after all.

        One that computes is waited for, and one that waits for the system, as for a disk, if its rank's first thread
        waits in its process as well. Others have a second: many programs have a thread that only looks now and then.
        Children of a rank that waits in its process have ten seconds, and as long as they compute.
        """
        processes, n_looks = self.processes, 0
        left = [rank for rank in range(self.engine.world_size) if rank not in self.ended]
        while True:
            if ready := processes.ready(left, LOOK_S if n_looks else 0):
                for rank in ready:
                    self.take(rank)
                return True
            busy = are_parents = False
            done = set()
            for rank in left:
                does = elsewhere(processes.pids[rank], self._here(rank))
                is_first_in = isinstance(self.engine.agenda.waiting[rank], Standing)
                children = children_of(processes.pids[rank]) if is_first_in else []
                are_parents |= bool(children)
                busy |= RUNS in does or (OUTSIDE in does and is_first_in)
                busy |= any(RUNS in elsewhere(child, set()) for child in children)
                done |= does
            n_looks = 1 if busy else n_looks + 1
            patience = LOOKS_FOR_GOOD if are_parents else LOOKS if done == {STANDS} else PATIENT_LOOKS
            if not done or n_looks > patience:
                return False

    def overhear_asked(self) -> bool:
        """Whether somebody asks for something while ranks stand in remote procedure calls: these take no time here."""
        left = [rank for rank in range(self.engine.world_size) if rank not in self.ended] if self.asked else []
        for k in range(ASKED_LOOKS):
            if ready := left and self.processes.ready(left, LOOK_S if k else 0):
                for rank in ready:
                    self.take(rank)
                return True
            if not any(isinstance(self.engine.agenda.waiting[rank], Standing) for rank in self.asked):
                return False
        return False

    def all_wait(self) -> bool:
        """Whether every rank's first thread waits for another rank, and nothing else is under way in any process."""
        waiting, processes = self.engine.agenda.waiting, self.processes
        for rank in range(self.engine.world_size):
            if rank in self.ended:
                continue
            does = elsewhere(processes.pids[rank], self._here(rank))
            if waiting[rank] is None or RUNS in does or OUTSIDE in does or children_of(processes.pids[rank]):
                return False
        return True

    def _here(self, rank: int) -> set[int | None]:
        """The threads of a rank that wait for an answer, and the one that is not the program's."""
        return {self.helpers.get(rank), *(lane.thread for lane in self.lanes[rank].values() if lane.is_asking)}
