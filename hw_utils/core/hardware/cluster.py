"""A cluster as data: hosts, the devices in each, a link inside a host and one between hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hw_utils.core.hardware.link import Network
from hw_utils.core.hardware.roofline import Device


@dataclass(frozen=True)
class Cluster:
    """`n_hosts` hosts of `devices_per_host` equal devices; rank r is device r % devices_per_host of its host.

    inside: the link between two devices of a host. between: that of two hosts, one network card's. cards_per_host: how
    many cards the devices of a host share, device i the card i * cards_per_host // devices_per_host.

    Raises:
        ValueError: a number below 1, more cards than devices, a link that has two levels itself.

    >>> Cluster.named("a100x16").world_size, Cluster.named("a100x16").n_hosts
    (16, 2)
    """

    name: str
    n_hosts: int
    devices_per_host: int
    device: Device
    inside: Network
    between: Network
    cards_per_host: int

    def __post_init__(self) -> None:
        for name in ("n_hosts", "devices_per_host", "cards_per_host"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.cards_per_host > self.devices_per_host:
            raise ValueError(
                f"cards_per_host must be at most devices_per_host, {self.devices_per_host}: a device uses one card, "
                f"got {self.cards_per_host}"
            )
        if self.inside.inside is not None or self.between.inside is not None:
            raise ValueError("inside and between are one link each: give Network(latency_s, bandwidth_Bps)")

    @property
    def world_size(self) -> int:
        """How many devices there are."""
        return self.n_hosts * self.devices_per_host

    @property
    def network(self) -> Network:
        """What one message costs between two ranks."""
        return Network.two_level(self.devices_per_host, self.inside, self.between)

    @property
    def ranks_per_host(self) -> int:
        """As a network of two levels says it: a rank is a device."""
        return self.devices_per_host

    def host_of(self, rank: int) -> int:
        return rank // self.devices_per_host

    def card_of(self, rank: int) -> int:
        """The number of the network card that a rank uses, counted over all hosts."""
        host, place = divmod(rank, self.devices_per_host)
        return host * self.cards_per_host + place * self.cards_per_host // self.devices_per_host

    @classmethod
    def named(cls, name: str) -> Cluster:
        """A preset and how many devices: "h100x64" has eight hosts of eight H100; "laptop" is one.

        Raises:
            ValueError: there is no such preset, or its hosts would not be full; names those there are.
        """
        from hw_utils.core.hardware.datasheets import PRESETS  # they are clusters themselves

        found = re.fullmatch(r"([a-z0-9]+?)(?:x([0-9]+))?", name)
        if found is None or found[1] not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(f'a cluster is a preset ({known}) and how many devices, as "h100x64", got {name!r}')
        return PRESETS[found[1]](int(found[2] or 1), name)


def check_cluster(cluster: Cluster | str | None, world_size: int) -> Cluster | None:
    """The cluster that a user named or gave.

    Raises:
        ValueError: it is none, or too small for `world_size` ranks.
    """
    if isinstance(cluster, str):
        cluster = Cluster.named(cluster)
    if cluster is None:
        return None
    if not isinstance(cluster, Cluster):
        raise ValueError(f'cluster must be a Cluster or the name of a preset, as "h100x64", got {cluster!r}')
    if world_size > cluster.world_size:
        raise ValueError(
            f"{cluster.name} has {cluster.world_size} devices, one a rank, got {world_size} ranks: take a larger one"
        )
    return cluster
