"""The engine: one rank runs at a time, the one furthest behind in virtual time.

A rank may act at its own time t only when every other rank that can run is at t or later; so whoever asks for a
port first in virtual time gets it first, and the same program gives the same times, every time.
"""

from __future__ import annotations

from collections.abc import Sequence

from hw_utils.core.hardware import Cluster, Network
from hw_utils.virtual.agenda import Agenda, Expiry
from hw_utils.virtual.call_sites import Places
from hw_utils.virtual.ending import Ending
from hw_utils.virtual.groups.group_members import GroupRegistry
from hw_utils.virtual.ranks.clock import MOST_S
from hw_utils.virtual.ranks.compute_time import ComputeTime
from hw_utils.virtual.ranks.greenlets_or_threads import CarryingThreads
from hw_utils.virtual.ranks.turns import Stop, Turns
from hw_utils.virtual.stores.store_contents import Stores
from hw_utils.virtual.traffic import collectives
from hw_utils.virtual.traffic.changed_in_flight import InFlight
from hw_utils.virtual.traffic.folding import FoldedCall, Folding
from hw_utils.virtual.traffic.ledger_rows import Rows
from hw_utils.virtual.traffic.messages.queues import Queues
from hw_utils.virtual.traffic.ports import ports_of
from hw_utils.virtual.traffic.work import VirtualWork


class Engine:
    """The virtual cluster. `rank` is the one that runs; `world_size` stands for the scheduler.

    agenda: who is due when; its list `clock` has the time of each rank. turns: how a turn passes on. compute: what
    ranks compute in between. ports: when the links are free. queues: messages that wait for their other end.
    in_flight: tensors of collectives that nobody has waited for. rows: the ledger's; places: the lines in them. groups,
    stores: where ranks meet. threads: which carry ranks, as `carrier` has them do. folding: which ranks run for others,
    None if all run. lines: the streams of the ranks' devices, None if they have none. ending: how the run ends.
    """

    Agenda, ComputeTime, Queues = Agenda, ComputeTime, Queues
    Work = VirtualWork  # what a collective gives back
    lines = None

    def __init__(
        self, world_size: int, network: Network | Cluster, compute="free", eager_bytes: int = 0, lamp=None, *,
        fold=None, may_go_apart: bool = False, own_seeds: bool = False,
    ) -> None:  # fmt: skip
        self.world_size = self.rank = world_size
        self.agenda = self.Agenda(world_size)
        self.clock = self.agenda.clock
        self.turns = Turns(world_size, [world_size] if lamp is None else lamp, own_seeds=own_seeds)
        self.compute = self.ComputeTime(self, compute)
        self.ports, self.places, self.rows = ports_of(world_size, network), Places(), Rows(world_size)
        self.queues, self.in_flight = self.Queues(self, eager_bytes), InFlight()
        self.folding = None if fold is None else Folding(self, fold)
        self.Call = collectives.Call if fold is None else FoldedCall
        self.groups, self.stores = GroupRegistry(self), Stores(self)
        self.threads, self.carrier = CarryingThreads(), None
        self.ending = Ending(self, may_go_apart=may_go_apart)
        self.turns.random.own_seeds_needed = lambda: self.ending.need("seeds", "torch's random numbers, no seed set")

    @property
    def running(self) -> Sequence[int]:
        """The ranks that run: all, but in a folded run."""
        return range(self.world_size) if self.folding is None else self.folding.fold.representatives

    def run(self, carrier) -> None:
        """Runs all ranks until nobody can go on."""
        self.carrier, ending = carrier, self.ending
        self.turns.begin(self, carrier)
        try:
            ending.is_under_way = True
            while not ending.is_over:
                who = self.agenda.next_rank()
                if who == self.world_size:
                    if self.hears_more():
                        continue
                    break
                self.rank = self.turns.lamp[0] = who
                carrier.resume[who](self.world_size)
                self.rank = self.world_size
            ending.is_under_way = False  # here: a time limit that comes before is caught as well
        except Stop:
            self.rank = self.world_size
        ending.is_over, ending.is_under_way = True, False
        carrier.close()

    def hears_more(self) -> bool:
        """Nobody is due: whether somebody is now, whom the engine could not know of."""
        return False

    def finish(self) -> None:
        """The running rank's worker has returned."""
        self.compute.now()

    # -- what a group asks, see group.py -----------------------------------------------------------------------

    def collective(self, group, post, outer):
        """The running rank's part of a collective; its work."""
        return collectives.call(group, post, outer)

    def message(self, group, is_send, name, tensor, peer, tag, site, is_blocking, outer):
        """The running rank's side of a message; its request."""
        rank = self.rank
        src, dst = (rank, peer) if is_send else (peer, rank)
        members, op = group.members, self.rows.op(name)
        request = self.queues.post(
            is_send, op, tensor, tensor.dtype, peer, tag, members.number, site, src, dst, is_blocking
        )
        self.rows.note_part(rank, request.row, name, outer)
        return request.of_group(members)

    # -- time --------------------------------------------------------------------------------------------------

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

    def block_for(self, rank: int, what, limit_s: float | None, *, is_groups: bool = False) -> bool:
        """The same for at most `limit_s` seconds, None is for ever, and so is what no clock reaches; False if the time
        was up.

        is_groups: it is the group's limit. Once a rank has failed it ends no wait: who only waited has no failure.
        """
        if limit_s is None or self.clock[rank] + limit_s > MOST_S:
            self.block(rank, what)
            return True

        def counts() -> bool:
            return not (is_groups and self.ending.failures)

        expiry = Expiry(self.agenda, rank, what, self.clock[rank] + limit_s, counts)
        self.agenda.at(expiry.at_s, expiry)
        self.block(rank, what)
        return not expiry.has_come
