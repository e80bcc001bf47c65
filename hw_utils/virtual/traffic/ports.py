"""When the links of the virtual cluster are free: a transmit port and a receive port a rank."""

from __future__ import annotations

from hw_utils.core.network import Network


class Ports:
    """A message takes the sender's transmit port and the receiver's receive port, from when both are free."""

    def __init__(self, world_size: int, network: Network) -> None:
        self.network, self.is_flat = network, network.inside is None
        self.latency_s, self.bandwidth_Bps = network.latency_s, network.bandwidth_Bps
        self.sending = [0.0] * world_size  # when the transmit port is free
        self.receiving = [0.0] * world_size

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
