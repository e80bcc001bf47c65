"""When the links of the virtual cluster are free: transmit and receive ports, one pair a rank, or one a level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.collective_algorithms import Cost
from hw_utils.core.hardware import Cluster, Network
from hw_utils.core.hardware.nccl_costs import Layout, Price, price
from hw_utils.virtual.traffic import schedule_replay


class Ports:
    """A message takes the sender's transmit port and the receiver's receive port, from when both are free."""

    def __init__(self, world_size: int, network: Network) -> None:
        self.network, self.is_flat = network, network.inside is None
        self.latency_s, self.bandwidth_Bps = network.latency_s, network.bandwidth_Bps
        self.sending = [0.0] * world_size  # when the transmit port is free
        self.receiving = [0.0] * world_size

    def travel(self, src: int, dst: int, n_bytes: int, now_s: float) -> float:
        """When a message that is ready now has crossed; both ports are taken until then."""
        return self._take(src, dst, self.network.message_s(n_bytes, src, dst), now_s)

    def _take(self, transmit: int, receive: int, cost_s: float, now_s: float) -> float:
        start_s = max(now_s, self.sending[transmit], self.receiving[receive])
        self.sending[transmit] = self.receiving[receive] = end_s = start_s + cost_s
        return end_s

    def collective(self, ranks: Sequence[int], ready_s: Sequence[float], *steps) -> tuple[list[float], Cost]:
        """(when each member is done, what each sends) of one whose members all need each other; takes their ports.

        steps: what `algorithms.blocks` takes.
        """
        return schedule_replay.replay(self, ranks, ready_s, algorithms.blocks(*steps))


class LevelPorts(Ports):
    """Those of a cluster: a pair a rank inside its host, and a pair a network card between hosts.

    So what goes on inside a host and between hosts does not wait for each other; ranks that share a card do.
    """

    def __init__(self, world_size: int, cluster: Cluster) -> None:
        super().__init__(world_size, cluster.network)
        n_cards = cluster.n_hosts * cluster.cards_per_host
        self.cluster = cluster
        self.sending, self.receiving = [0.0] * (world_size + n_cards), [0.0] * (world_size + n_cards)
        self.host = [cluster.host_of(rank) for rank in range(world_size)]
        self.card = [world_size + cluster.card_of(rank) for rank in range(world_size)]
        self._layouts: dict[tuple[int, ...], tuple[Layout, list[int]]] = {}
        self._prices: dict[tuple, Price] = {}

    def travel(self, src: int, dst: int, n_bytes: int, now_s: float) -> float:
        if self.host[src] == self.host[dst]:
            return self._take(src, dst, self.cluster.inside.message_s(n_bytes), now_s)
        return self._take(self.card[src], self.card[dst], self.cluster.between.message_s(n_bytes), now_s)

    def collective(self, ranks: Sequence[int], ready_s: Sequence[float], *steps) -> tuple[list[float], Cost]:
        """As NCCL: it begins when all members are there and their ports are free, and ends for all at once."""
        kind, n_bytes, n_members, _, itemsize = steps
        layout, ports = self.layout(tuple(ranks))
        cost = algorithms.cost(*steps)
        if n_members == 1:
            return list(ready_s), cost
        found = self._price(layout, kind, n_bytes, itemsize)
        start_s = max(*ready_s, *(self.sending[p] for p in ports), *(self.receiving[p] for p in ports))
        for port in ports:
            self.sending[port] = self.receiving[port] = start_s + found.seconds
        return [start_s + found.seconds] * n_members, replace(cost, rounds=found.rounds)

    def layout(self, ranks: tuple[int, ...]) -> tuple[Layout, list[int]]:
        """How the ranks lie on the cluster, and the ports that they use among each other."""
        if ranks not in self._layouts:
            layout = Layout.of(self.cluster, ranks)
            inside = list(ranks) if layout.per_host > 1 else []
            cards = sorted({self.card[rank] for rank in ranks}) if layout.n_hosts > 1 else []
            self._layouts[ranks] = layout, inside + cards
        return self._layouts[ranks]

    def uses_cards(self, ranks: tuple[int, ...]) -> bool:
        """Whether what these send each other takes ports that belong to no rank alone."""
        return self.layout(ranks)[0].n_hosts > 1

    def level(self, ranks: Sequence[int]) -> None:
        """Ranks that do the same have their ports, and their cards', free at one time."""
        for ports in (ranks, [self.card[rank] for rank in ranks]):
            for free_s in (self.sending, self.receiving):
                latest_s = max(free_s[port] for port in ports)
                for port in ports:
                    free_s[port] = latest_s

    def _price(self, layout: Layout, kind: str, n_bytes, itemsize: int) -> Price:
        if not isinstance(n_bytes, int):  # members that bring different sizes
            return price(layout, kind, n_bytes, itemsize)
        key = id(layout), kind, n_bytes, itemsize  # layouts are kept; their own hash takes longer
        if key not in self._prices:
            self._prices[key] = price(layout, kind, n_bytes, itemsize)
        return self._prices[key]


def ports_of(world_size: int, network: Network | Cluster) -> Ports:
    """The ports of ranks on a network or a cluster."""
    return LevelPorts(world_size, network) if isinstance(network, Cluster) else Ports(world_size, network)
