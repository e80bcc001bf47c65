"""The engine: one rank runs at a time, the one furthest behind in virtual time.

A rank may act at its own time t only when every other rank that can run is at t or later; so whoever asks for a
port first in virtual time gets it first, and the same program gives the same times, every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import enumerate as enumerate_threads
from threading import get_ident, main_thread
from time import thread_time
from typing import NamedTuple

from hw_utils.core.errors import Failure
from hw_utils.core.network import Cluster, Network
from hw_utils.virtual.agenda import Agenda
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.ranks.turns import Stop, Turns
from hw_utils.virtual.traffic import collectives
from hw_utils.virtual.traffic.messages.matching import post_of
from hw_utils.virtual.traffic.messages.queues import Queues
from hw_utils.virtual.traffic.messages.requests import Request, requests_of
from hw_utils.virtual.traffic.ports import ports_of
from hw_utils.virtual.traffic.rows import Rows
from hw_utils.virtual.traffic.work import VirtualWork


class Expiry:
    """The end of the time that a rank gives a wait."""

    def __init__(self, agenda: Agenda, rank: int, what, at_s: float) -> None:
        self.agenda, self.rank, self.what, self.at_s, self.has_come = agenda, rank, what, at_s, False

    def go_on(self) -> None:
        if self.agenda.waiting[self.rank] is self.what:
            self.has_come = True
            self.agenda.wake(self.rank, self.at_s)


class GivenUp(NamedTuple):
    """Why this attempt at a run does not go on: it needs "threads" or "processes" for its ranks."""

    wants: str
    why: str
    rank: int  # that asked for it


class Engine:
    """The virtual cluster: its agenda, ports, rows and queues, and the rank that runs; `world_size` is the scheduler.

    agenda: who is due when. turns: how a turn passes on. ports: when the links are free. queues: messages that wait
    for their other end. rows: the ledger's.
    """

    Agenda = Agenda
    Work = VirtualWork  # what a collective gives back
    Call = collectives.Call  # one collective of a group
    folding = None  # which ranks run for others, in a folded run, see traffic/folding.py
    lines = None  # the streams of the ranks' devices, if they have such, see device/streams.py
    threads_have_clocks = False  # of their own, beside their ranks' first ones
    most_processes = 0  # up to so many ranks may be started again with a process each

    def __init__(self, world_size: int, network: Network | Cluster, compute, eager_bytes: int, lamp) -> None:
        self.world_size, self.eager_bytes = world_size, eager_bytes
        self.compute, self.is_free = compute, compute == "free"
        self.rank = world_size
        self.agenda, self.turns, self.ports = (
            self.Agenda(world_size),
            Turns(world_size, lamp),
            ports_of(world_size, network),
        )
        self.clock = self.agenda.clock
        self.cpu_start_s, self.cpu_s = 0.0, [0.0] * world_size  # since when, and what each rank has computed before
        self.places = Places()
        self.rows = Rows(world_size)
        self.queues = Queues(world_size, self.rows)
        if eager_bytes:
            self.queues.unusual.add("sent ahead")
        self.Request = self.requests()
        self.post, self.cross = post_of(self)
        self.watch = None  # called with the rank at every send and receive, before it is posted
        self.pending: dict[int, dict[int, list]] = {}  # rank -> its backward passes -> collectives called inside
        self.groups: list = []  # Members, the default group first
        self.registered: list[str] = []  # names of groups that torch's C++ code knows
        self.argv: list[str] | None = None  # sys.argv of a script's ranks
        self.carrier = None
        self.threads = {get_ident()}  # OS threads that carry ranks
        self.failures: list[Failure] = []
        self.given_up: GivenUp | None = None
        self.is_over, self.ended_in = False, "failed"
        self.is_under_way = False

    def requests(self) -> type[Request]:
        """What a send or a receive gives back."""
        return requests_of(self)

    @property
    def running(self) -> Sequence[int]:
        """The ranks that run: all, but in a folded run."""
        return range(self.world_size) if self.folding is None else self.folding.fold.representatives

    def carries(self) -> bool:
        """Whether the calling OS thread carries ranks; a kernel has others, which are no part of the run."""
        return get_ident() in self.threads

    def has_other_threads(self) -> bool:
        """Whether this process has threads that carry no ranks, as a kernel's; ranks that start some have processes."""
        return any(t.ident not in self.threads and t is not main_thread() for t in enumerate_threads())

    # -- how a run goes and ends -------------------------------------------------------------------------------

    def run(self, carrier) -> None:
        """Runs all ranks until nobody can go on."""
        self.carrier = carrier
        self.turns.begin(self, carrier)
        try:
            self.is_under_way = True
            while not self.is_over:
                who = self.agenda.next_rank()
                if who == self.world_size:
                    if self.hears_more():
                        continue
                    break
                self.rank = self.turns.lamp[0] = who
                carrier.resume[who](self.world_size)
                self.rank = self.world_size
            self.is_under_way = False  # here: a time limit that comes before is caught as well
        except Stop:
            self.rank = self.world_size
        self.is_over, self.is_under_way = True, False
        carrier.close()

    def hears_more(self) -> bool:
        """Nobody is due: whether somebody is now, whom the engine could not know of."""
        return False

    def need(self, carrier: str, why: str) -> None:
        """Gives this run up; the caller starts it again with "threads" or "processes" for ranks.

        Threads would find what this attempt has left in modules (a singleton that is there already): processes do not.
        """
        if not self.carries():
            return
        left = self.turns.changed() if carrier == "threads" else ""
        carrier, why = ("processes", left) if left else (carrier, why)
        self.given_up, self.is_over, self.is_under_way = GivenUp(carrier, why, self.rank), True, False
        raise Stop

    def finish(self) -> None:
        """The running rank's worker has returned."""
        self.now()

    def fail(self, failures: list[Failure]) -> None:
        """Ends the run at once, whatever the other ranks do."""
        self.failures.extend(failures)
        self.is_over, self.is_under_way = True, False
        raise Stop

    # -- what a group asks, see group.py -----------------------------------------------------------------------

    def collective(self, group, post, outer):
        """The running rank's part of a collective; its work."""
        return collectives.call(group, post, outer)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer):
        """The running rank's side of a message; its request."""
        rank = self.rank
        src, dst = (rank, peer) if is_send else (peer, rank)
        members, op = group.members, self.rows.op(name)
        request = self.post(is_send, op, tensor, tensor.dtype, peer, tag, members.number, site, src, dst, is_blocking)
        self.rows.note_part(rank, request.row, name, outer)
        return request.of_group(members)

    # -- time --------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The running rank's clock, its computation since it last communicated included."""
        if self.is_free:
            return self.clock[self.rank]
        cpu_s = thread_time() - self.cpu_start_s
        if self.compute != "measured":
            cpu_s = self.compute(self.rank, cpu_s)
        self.clock[self.rank] += cpu_s
        self.cpu_s[self.rank] += cpu_s
        self.cpu_start_s = thread_time()
        return self.clock[self.rank]

    def computed_s(self) -> float:
        """The running rank's CPU seconds: neither waiting nor sleeping is in them."""
        self.now()
        return self.cpu_s[self.rank]

    def resume_compute(self) -> None:
        """From here on the CPU time is the student's again."""
        if not self.is_free:
            self.cpu_start_s = thread_time()

    def let_the_past_run(self, rank: int) -> None:
        """Every rank that is behind runs first."""
        self.agenda.schedule(rank, self.clock[rank])
        self.turns.switch(rank)

    def keep_up(self, rank: int) -> None:
        """Nobody is behind the running rank after this."""
        if self.agenda.is_anybody_before(self.clock[rank]):
            self.let_the_past_run(rank)

    def move_on(self, rank: int, to_s: float) -> None:
        """The running rank's clock goes on to `to_s`; whoever is due before runs first."""
        self.clock[rank] = to_s
        agenda = self.agenda  # what `is_anybody_before` says, without a call
        if (agenda.due and agenda.due_s < to_s) or (agenda.times and agenda.times[0] < to_s):
            self.let_the_past_run(rank)

    def block(self, rank: int, what) -> None:
        """The running rank stands still until what it waits for is done."""
        self.agenda.waiting[rank] = what
        self.turns.switch(rank)

    def block_for(self, rank: int, what, limit_s: float | None) -> bool:
        """The same for at most `limit_s` seconds, None is for ever; False if the time was up."""
        if limit_s is None:
            self.block(rank, what)
            return True
        expiry = Expiry(self.agenda, rank, what, self.clock[rank] + limit_s)
        self.agenda.at(expiry.at_s, expiry)
        self.block(rank, what)
        return not expiry.has_come
