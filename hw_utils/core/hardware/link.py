"""The model of a cluster's network: what one message costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """A link between any two ranks: seconds before the first byte, bytes per second after it (Hockney 1994).

    A message of m bytes occupies the sender's transmit port and the receiver's receive port for
    `latency_s + m / bandwidth_Bps`. Ports are full duplex, one a rank and direction.

    Raises:
        ValueError: a negative latency, a bandwidth that is not positive.

    >>> Network(latency_s=1e-3, bandwidth_Bps=1e6).message_s(500)
    0.0015
    """

    latency_s: float = 50e-6
    bandwidth_Bps: float = 125e6  # 1 Gb/s
    ranks_per_host: int | None = None  # None: every rank is its own host
    inside: Network | None = None  # the link between two ranks of one host

    def __post_init__(self) -> None:
        if not self.latency_s >= 0:
            raise ValueError(f"latency_s must be at least 0, got {self.latency_s}")
        if not self.bandwidth_Bps > 0:
            raise ValueError(f"bandwidth_Bps must be more than 0, got {self.bandwidth_Bps}")
        if (self.ranks_per_host is None) != (self.inside is None):
            raise ValueError("ranks_per_host and inside go together: use Network.two_level(...)")
        if self.ranks_per_host is not None and self.ranks_per_host < 1:
            raise ValueError(f"ranks_per_host must be at least 1, got {self.ranks_per_host}")

    @classmethod
    def two_level(cls, ranks_per_host: int, inside: Network, between: Network) -> Network:
        """Hosts of `ranks_per_host` consecutive ranks: one link inside a host, another between hosts."""
        return cls(between.latency_s, between.bandwidth_Bps, ranks_per_host, inside)

    def link(self, src: int, dst: int) -> Network:
        """The link that a message from rank `src` to rank `dst` takes."""
        if self.inside is not None and src // self.ranks_per_host == dst // self.ranks_per_host:
            return self.inside
        return self

    def message_s(self, n_bytes: int, src: int = 0, dst: int = -1) -> float:
        """Seconds that one message of `n_bytes` occupies the two ports; between hosts if no ranks are given."""
        link = self if dst < 0 else self.link(src, dst)
        return link.latency_s + n_bytes / link.bandwidth_Bps

    @classmethod
    def measure(cls, **options) -> Network:
        """This machine's latency and bandwidth, fitted to a ping-pong between two real ranks.

        Options and result: see `hw_utils.hosts.measured_link.measure`. Its `Calibration` has residuals and a plot, too.
        """
        from hw_utils.hosts.measured_link import measure

        return measure(**options).network
