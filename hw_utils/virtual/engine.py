"""Virtual time: clocks, ports, matching of sends with receives. One rank runs at a time, the one furthest behind.

A rank may act at its own time t only when every other rank that can run is at t or later; so whoever asks for a
port first in virtual time gets it first, and the same program gives the same times, every time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from time import thread_time

import torch

from hw_utils.core.calls.operations import OBJECT_OPS
from hw_utils.core.errors import Failure
from hw_utils.core.network import Network
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.ranks.own.random_states import TorchStates
from hw_utils.virtual.traffic import collectives
from hw_utils.virtual.traffic.matching import post_of
from hw_utils.virtual.traffic.requests import Request, requests_of
from hw_utils.virtual.traffic.rows import END, WAITED, put_time, put_wait, row_of, start_of, was_waited

is_grad_enabled, is_inference_mode_enabled = torch.is_grad_enabled, torch.is_inference_mode_enabled
_current_graph_task_id = torch._C._current_graph_task_id
FIRST_TURNS = 4  # of a rank
IN_NO_BACKWARD = -1  # what torch says of a thread that is not in a backward pass


class Stop(BaseException):
    """Unwinds a rank whose run is over."""


class Expiry:
    """The end of the time that a rank gives a wait."""

    def __init__(self, engine: Engine, rank: int, what, at_s: float) -> None:
        self.engine, self.rank, self.what, self.at_s, self.has_come = engine, rank, what, at_s, False

    def go_on(self) -> None:
        if self.engine.waiting[self.rank] is self.what:
            self.has_come = True
            self.engine.wake(self.rank, self.at_s)


class Engine:
    """The virtual cluster's state; `rank` is the one that runs."""

    most_processes = 0  # up to so many ranks may be started again with a process each

    def __init__(self, world_size: int, network: Network, compute, eager_bytes: int, lamp) -> None:
        self.world_size, self.network, self.eager_bytes = world_size, network, eager_bytes
        self.compute, self.is_free = compute, compute == "free"
        self.latency_s, self.bandwidth_Bps = network.latency_s, network.bandwidth_Bps
        self.is_flat = network.inside is None
        self.rank = world_size  # world_size stands for the scheduler
        self.clock = [0.0] * world_size
        self.sending = [0.0] * world_size  # when the transmit port is free
        self.receiving = [0.0] * world_size
        self.order = [0] * world_size
        # Who is due when. Times are often equal: so it is a heap of different times, with the ranks of each.
        self.times: list[float] = []
        self.later: dict[float, list[int]] = {}  # time -> who is due then
        self.due: list[int] = []  # who is due at `due_s`, the last one first
        self.due_s = 0.0
        self.queues: dict = {}  # (group, src, dst, tag) -> deque of requests that wait for their other end
        # Those of messages without a tag in the group of all: by sender, then receiver; and the other way round.
        self.sent_by: list[dict[int, deque]] = [{} for _ in range(world_size)]
        self.sent_to: list[dict[int, deque]] = [{} for _ in range(world_size)]
        self.any_source: dict = {}  # (group, dst, tag) -> the same, of receives from anybody
        self.waiting: list = [None] * world_size  # what a rank stands still for: a Request, a VirtualWork, ...
        self.failures: list[Failure] = []
        self.rows, self.places = bytearray(), Places()
        self.costs: list[tuple[int, int, int, int]] = []  # row, sent bytes, sent messages, rounds of a collective
        self.n_agents = 0
        self.next_message = count().__next__  # a number for one communication, the same on all its sides
        self.cpu_start_s = 0.0
        self.agents: dict[int, object] = {}
        self.is_over = False
        self.carrier = None
        self.random = TorchStates(world_size)
        self.Request = requests_of(self)
        self.post, self.cross = post_of(self)
        self.watch = None  # called with the rank at every send and receive, before it is posted
        self.unusual = {"sent ahead"} if eager_bytes else set()  # why no message may take the short cut
        self.outer: dict[int, tuple] = {}  # rank -> the object collective under way: its frame, its first row
        self.parts: list[tuple[int, int]] = []  # row of a part, row of the whole
        self.pending: dict[int, dict[int, list]] = {}  # rank -> its backward passes -> collectives called inside
        self.names: list[str] = []
        self._op: dict[str, int] = {}
        self.switch = self.plain_switch = None
        self.is_watched = False
        self.exchanged: list = []  # the ranks' settings, once one of them has changed some, see settings.py
        self.wants, self.why, self.asked_by = (
            "",
            "",
            0,
        )  # what this run needs to go on: "threads" or "processes", and what for
        self.ended_in = "failed"
        self.argv: list[str] | None = None  # sys.argv of a script's ranks
        self.registered: list[str] = []  # names of groups that torch's C++ code knows
        self.groups: list = []  # Members, the default group first
        self.lamp = lamp  # says to other processes which rank runs

    def op(self, name: str) -> int:
        """The number that stands for an operation's name in the rows."""
        number = self._op.get(name)
        if number is None:
            number = self._op[name] = len(self.names)
            self.names.append(name)
        return number

    def record(self, name: str, n_bytes: int, site: int, group: int, message: int) -> int:
        """A new row for a collective that the running rank calls; its place in `rows`."""
        rank, row = self.rank, len(self.rows)
        self.order[rank] += 1
        self.rows += row_of(
            rank, self.op(name), -1, n_bytes, self.clock[rank], -1.0, message, site, 0, 0, group, self.order[rank], -1
        )
        return row

    def note_part(self, row: int, name: str, outer) -> None:
        """An object collective sends sizes, then bytes: one row for both in the ledger."""
        if name in OBJECT_OPS:
            frame, first = self.outer.get(self.rank, (None, -1))
            if frame == outer:
                self.parts.append((row, first))
            else:
                self.outer[self.rank] = (outer, row)

    def note_end(self, row: int, end_s: float) -> None:
        put_time(self.rows, row + END, end_s)

    def note_wait(self, row: int, order: int, start_s: float, end_s: float) -> None:
        """The first wait of a row's communication."""
        if not was_waited(self.rows, row):
            put_wait(self.rows, row + WAITED, order, start_s, end_s)

    def add_agent(self, agent) -> int:
        """A number for something that can be put on the agenda beside the ranks."""
        self.n_agents += 1
        number = self.world_size + self.n_agents
        self.agents[number] = agent
        return number

    def need(self, carrier: str, why: str) -> None:
        """Gives this run up; the caller starts it again with "threads" or "processes" for ranks.

        Threads would find what this attempt has left in modules (a singleton that is there already): processes do not.
        """
        left = self.changed() if carrier == "threads" else ""
        carrier, why = ("processes", left) if left else (carrier, why)
        self.wants, self.why, self.asked_by, self.is_over = carrier, why, self.rank, True
        raise Stop

    def changed(self) -> str:
        """What the ranks have changed of what they share, "" if nothing."""
        return ""

    def look(self) -> None:
        """Called before others run: has the running rank changed what it shares with them? see shared_state.py."""

    def watch_switches(self, turns: float = inf) -> None:
        """From now on so many switches look first, those of the short cuts too."""
        left = turns

        def looked(rank: int) -> None:
            nonlocal left
            self.look()
            left -= 1
            if left < 0 and self.switch is looked:
                self.switch, self.is_watched = self.plain_switch, False
            self.plain_switch(rank)

        self.switch, self.is_watched = looked, True

    # -- what a group asks, see group.py -----------------------------------------------------------------------

    def collective(self, group, post, outer):
        """The running rank's part of a collective; its work."""
        return collectives.call(group, post, outer)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer):
        """The running rank's side of a message; its request."""
        rank = self.rank
        src, dst = (rank, peer) if is_send else (peer, rank)
        members = group.members
        request = self.post(
            is_send, self.op(name), tensor, tensor.dtype, peer, tag, members.number, site, src, dst, is_blocking
        )
        self.note_part(request.row, name, outer)
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
        self.cpu_start_s = thread_time()
        return self.clock[self.rank]

    def resume_compute(self) -> None:
        """From here on the CPU time is the student's again."""
        if not self.is_free:
            self.cpu_start_s = thread_time()

    def schedule(self, who: int, at_s: float) -> None:
        """Puts a rank or an agent on the agenda."""
        others = self.later.get(at_s)
        if others is None:
            self.later[at_s] = [who]
            heappush(self.times, at_s)
        else:
            others.append(who)

    def let_the_past_run(self, rank: int) -> None:
        """Every rank that is behind runs first."""
        if not self.is_watched:
            self.look()
        self.schedule(rank, self.clock[rank])
        self.switch(rank)

    def keep_up(self, rank: int) -> None:
        """Nobody is behind the running rank after this."""
        now_s = self.clock[rank]
        if (self.due and self.due_s < now_s) or (self.times and self.times[0] < now_s):
            self.let_the_past_run(rank)

    def move_on(self, rank: int, to_s: float) -> None:
        """The running rank's clock goes on to `to_s`; whoever is due before runs first."""
        self.clock[rank] = to_s
        self.keep_up(rank)

    def next_rank(self) -> int:
        """The rank that is furthest behind and can run, of equal ones the first; the scheduler if there is none."""
        due, times = self.due, self.times
        while True:
            if not due:
                if not times:
                    return self.world_size
                self.due_s = heappop(times)
                due[:] = sorted(self.later.pop(self.due_s), reverse=True)
            who = due.pop()
            if who < self.world_size:
                return who
            self.agents.pop(who).go_on()  # not a rank but a step of a collective

    def block(self, rank: int, what) -> None:
        """The running rank stands still until what it waits for is done."""
        if not self.is_watched:
            self.look()
        self.waiting[rank] = what
        self.switch(rank)

    def block_for(self, rank: int, what, limit_s: float | None) -> bool:
        """The same for at most `limit_s` seconds, None is for ever; False if the time was up."""
        if limit_s is None:
            self.block(rank, what)
            return True
        expiry = Expiry(self, rank, what, self.clock[rank] + limit_s)
        self.schedule(self.add_agent(expiry), expiry.at_s)
        self.block(rank, what)
        return not expiry.has_come

    def wake(self, rank: int, at_s: float) -> None:
        self.waiting[rank] = None
        if at_s > self.clock[rank]:
            self.clock[rank] = at_s
        self.schedule(rank, self.clock[rank])

    def run(self, carrier) -> None:
        """Runs all ranks until nobody can go on."""
        self.carrier, self.plain_switch = carrier, switch_of(self, carrier)
        self.watch_switches(FIRST_TURNS * self.world_size)  # where programs set what they set
        self.due[:], self.due_s = range(self.world_size - 1, -1, -1), 0.0
        try:
            while not self.is_over:
                who = self.next_rank()
                if who == self.world_size:
                    break
                self.rank = self.lamp[0] = who
                carrier.resume[who](self.world_size)
                self.rank = self.world_size
        except Stop:
            self.rank = self.world_size
        self.is_over = True
        carrier.close()

    def fail(self, failures: list[Failure]) -> None:
        """Ends the run at once, whatever the other ranks do."""
        self.failures.extend(failures)
        self.is_over = True
        raise Stop

    # -- point to point ----------------------------------------------------------------------------------------

    def route(self, src, dst, peer) -> deque | None:
        """The queue of messages without a tag in the group of all; None if `peer`, one of the two, is no other rank."""
        if type(peer) is not int or peer == self.rank or not 0 <= peer < self.world_size:
            return None
        queue = self.queues.setdefault(src * self.world_size + dst, deque())
        self.sent_by[src][dst] = self.sent_to[dst][src] = queue
        return queue

    def match_anybody(self, request: Request, key, group: int, dst: int, tag: int) -> Request | None:
        """Matching while some receive takes a message from anybody: the first posted goes first."""
        self.unusual.add("a receive from anybody")
        anybody = self.any_source.setdefault((group, dst, tag), deque())
        queue = self.queues.setdefault(key, deque())
        if request.is_send:
            named = queue[0] if queue and not queue[0].is_send else None
            if anybody and (named is None or anybody[0].row < named.row):
                return anybody.popleft()
        elif request.peer < 0:
            sent = [q for q in self._queues_to(group, dst, tag) if q and q[0].is_send]
            if sent:
                return min(sent, key=lambda q: (start_of(self.rows, q[0].row), q[0].row)).popleft()
            anybody.append(request)
            return None
        if queue and queue[0].is_send is not request.is_send:
            return queue.popleft()
        queue.append(request)
        return None

    def _queues_to(self, group: int, dst: int, tag: int):
        size = self.world_size
        for src in range(size):
            queue = self.queues.get(src * size + dst if tag == 0 and group == 0 else (group, src, dst, tag))
            if queue:
                yield queue

    def travel(self, src: int, dst: int, n_bytes: int, now_s: float) -> float:
        """When a message that is ready now has crossed; both ports are taken until then."""
        sending, receiving = self.sending, self.receiving
        start_s = now_s
        if sending[src] > start_s:
            start_s = sending[src]
        if receiving[dst] > start_s:
            start_s = receiving[dst]
        if self.is_flat:
            end_s = start_s + self.latency_s + n_bytes / self.bandwidth_Bps
        else:
            end_s = start_s + self.network.message_s(n_bytes, src, dst)
        sending[src] = receiving[dst] = end_s
        return end_s

    def send_ahead(self, send: Request, dst: int, now_s: float) -> None:
        """A short message leaves before its receive is posted; the sender has its buffer back at once."""
        send.take()
        send.arrives_s = self.travel(send.rank, dst, send.n_bytes, now_s)
        send.done_s = now_s
        self.note_end(send.row, send.arrives_s)
        if send.is_blocking:
            self.note_wait(send.row, self.order[send.rank], now_s, now_s)


def switch_of(engine: Engine, carrier) -> Callable[[int], None]:
    """The function that lets the rank run that is furthest behind; it returns when `rank` runs again, as it was."""
    random, states, lamp, due, agents = engine.random, engine.random.states, engine.lamp, engine.due, engine.agents
    glance, is_shared, resume, exchanged = random.glance, carrier.is_shared, carrier.resume, engine.exchanged

    def switch(rank: int) -> None:
        who = due.pop() if due and not agents else engine.next_rank()
        if who == rank:
            return
        grad = is_grad_enabled()
        if is_shared and (is_inference_mode_enabled() or _current_graph_task_id() != IN_NO_BACKWARD):
            engine.need("threads", "a rank waits inside a backward pass")  # which autograd keeps in its OS thread
        if glance.value != random.seen:
            random.leave(rank)
        if exchanged:
            exchanged[0].leave(rank)
        engine.rank = lamp[0] = who
        resume[who](rank)
        if engine.is_over:
            raise Stop
        if states[rank] is not random.loaded:
            random.enter(rank)
        if exchanged:
            exchanged[0].enter(rank)
        if is_grad_enabled() is not grad:
            torch._C._set_grad_enabled(grad)

    return switch
