"""What a collective costs on a cluster, and which algorithm NCCL would take: the fastest of those it has.

| algorithm | is |
|---|---|
| ring | pieces travel around all members; many rings at once, each through another card of a host |
| tree | chunks go up a double binary tree between hosts and down again, along a chain inside each host |
| hierarchical | reduce-scatter inside each host, all-reduce between members of one place, all-gather inside |

Steps are counted off collective_algorithms.py. A link's latency is paid once a step that takes it, bytes at the
smallest bandwidth on the way: that of a device inside its host, or of all cards of a host that the group uses.
As NCCL's own estimate (src/graph/tuning.cc), without its protocols for short messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from hw_utils.core import collective_algorithms as algorithms
from hw_utils.core.hardware.cluster import Cluster
from hw_utils.core.hardware.link import Network

MORE_FOR_A_TREE = 1 / 0.92  # NCCL's own share of the bandwidth that its trees reach, tuning.cc


@dataclass(frozen=True)
class Price:
    """What a collective takes: seconds, dependent messages in a row, and by which algorithm."""

    seconds: float
    rounds: int
    algorithm: str


@dataclass(frozen=True)
class Layout:
    """How a group lies on a cluster."""

    n_members: int
    n_hosts: int
    per_host: int  # the most members of one host
    is_even: bool  # as many on every host
    inside: Network
    between: Network  # all cards of a host that the group uses, as one

    @classmethod
    def of(cls, cluster: Cluster, ranks: tuple[int, ...]) -> Layout:
        on_host = Counter(cluster.host_of(rank) for rank in ranks)
        cards = Counter(host for host, _ in {(cluster.host_of(r), cluster.card_of(r)) for r in ranks})
        one = cluster.between
        most = max(on_host.values())
        between = Network(one.latency_s, one.bandwidth_Bps * min(cards.values()))
        return cls(len(ranks), len(on_host), most, set(on_host.values()) == {most}, cluster.inside, between)

    @property
    def slowest_Bps(self) -> float:
        """Of the bandwidths that a ring through all members meets."""
        found = [self.inside.bandwidth_Bps] if self.per_host > 1 else []
        return min([*found, self.between.bandwidth_Bps] if self.n_hosts > 1 else found)


def price(layout: Layout, kind: str, n_bytes, itemsize: int = 1) -> Price:
    """The cheapest way for a collective of collective_algorithms.py; `n_bytes` and `itemsize` are as there."""
    if layout.n_members == 1:
        return Price(0.0, 0, "ring")
    if kind == "barrier":
        kind, n_bytes = "all_reduce", 0
    ways = {"all_reduce": (_ring, _tree, _hierarchical), "all_to_all": (_pairs,)}.get(kind, (_ring,))
    offers = [offer for way in ways for offer in way(layout, kind, n_bytes, itemsize)]
    return min(offers, key=lambda offer: offer.seconds)


def share_between_hosts(layout: Layout, kind: str, n_bytes, itemsize: int = 1) -> float:
    """Of the bytes that members send in a collective, how much goes from one host to another; arguments of `price`."""
    if layout.n_hosts == 1:
        return 0.0
    algorithm = price(layout, kind, n_bytes, itemsize).algorithm
    if algorithm == "pairs":
        return 1 - (layout.per_host - 1) / (layout.n_members - 1)
    if algorithm == "ring":  # it leaves every host once
        return layout.n_hosts / layout.n_members
    return (layout.n_hosts - 1) / (layout.n_members - 1)  # a tree over hosts, or a ring of the members of one place


def _around(layout: Layout, steps: list[algorithms.Step]) -> tuple[float, int]:
    """Seconds and rounds of steps around a ring in which every host is left once a lap."""
    rounds = sum(step.times for step in steps)
    bytes_a_member = sum(step.times * float(np.max(step.n_bytes)) for step in steps)
    crossings = rounds * layout.n_hosts / layout.n_members if layout.n_hosts > 1 else 0
    latency_s = crossings * layout.between.latency_s + (rounds - crossings) * layout.inside.latency_s
    return latency_s + bytes_a_member / layout.slowest_Bps, rounds


def _ring(layout: Layout, kind: str, n_bytes, itemsize: int) -> Iterator[Price]:
    yield Price(*_around(layout, list(algorithms.blocks(kind, n_bytes, layout.n_members, 0, itemsize))), "ring")


def _tree(layout: Layout, kind: str, n_bytes, itemsize: int) -> Iterator[Price]:
    """A member is inside one of the two trees and a leaf of the other; each tree carries half of the bytes."""
    chain, depth = layout.per_host - 1, ceil(log2(layout.n_hosts))
    up_and_down = 2
    latency_s = up_and_down * (chain * layout.inside.latency_s + depth * layout.between.latency_s)
    bytes_s = up_and_down * n_bytes * MORE_FOR_A_TREE / layout.slowest_Bps
    yield Price(latency_s + bytes_s, up_and_down * (chain + depth), "tree")


def _hierarchical(layout: Layout, kind: str, n_bytes, itemsize: int) -> Iterator[Price]:
    if layout.n_hosts == 1 or layout.per_host == 1 or not layout.is_even:
        return
    k = layout.per_host
    host = Layout(k, 1, k, True, layout.inside, layout.between)
    share_Bps = Network(layout.between.latency_s, layout.between.bandwidth_Bps / k)
    places = Layout(layout.n_hosts, layout.n_hosts, 1, True, layout.inside, share_Bps)
    mine = algorithms.pieces(int(n_bytes) // itemsize, k).max() * itemsize
    phases = [
        _around(host, list(algorithms.blocks("reduce_scatter", n_bytes, k, 0, itemsize))),
        _around(places, list(algorithms.blocks("all_reduce", mine, layout.n_hosts, 0, itemsize))),
        _around(host, list(algorithms.blocks("all_gather", mine, k, 0, itemsize))),
    ]
    yield Price(sum(seconds for seconds, _ in phases), sum(rounds for _, rounds in phases), "hierarchical")


def _pairs(layout: Layout, kind: str, n_bytes, itemsize: int) -> Iterator[Price]:
    """All messages at once: those inside a host and those between hosts take different links."""
    steps = list(algorithms.blocks(kind, n_bytes, layout.n_members, 0, itemsize))
    bytes_a_member = sum(float(np.max(step.n_bytes)) for step in steps)
    share_inside = (layout.per_host - 1) / (layout.n_members - 1)
    inside_s = layout.inside.latency_s + bytes_a_member * share_inside / layout.inside.bandwidth_Bps
    crossing = bytes_a_member * (1 - share_inside) * layout.per_host  # of a whole host
    between_s = layout.between.latency_s + crossing / layout.between.bandwidth_Bps if layout.n_hosts > 1 else 0.0
    yield Price(max(inside_s, between_s), len(steps), "pairs")
