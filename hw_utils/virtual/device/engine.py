"""The engine of ranks with a device each: what they communicate is ordered on streams, as with NCCL."""

from __future__ import annotations

from hw_utils.core.network import Cluster
from hw_utils.virtual.device.streams import TimeLines
from hw_utils.virtual.engine import Engine
from hw_utils.virtual.traffic.messages.requests import requests_of
from hw_utils.virtual.traffic.work import VirtualWork

HOST_WAITS = ("barrier", "monitored_barrier")


class DeviceWork(VirtualWork):
    """`wait` lets the current stream wait, and the host only for a barrier."""

    def wait(self, timeout=None) -> bool:
        lines = self.engine.lines
        with lines.waiting() as stream:
            super().wait(timeout)
        if self.name in HOST_WAITS:
            lines.wait_until(stream.free_s)
        return True


class DeviceEngine(Engine):
    """Computation is what the operations cost on the device; communication begins where the current stream is."""

    Work = DeviceWork

    def __init__(self, world_size: int, cluster: Cluster, compute, eager_bytes: int, lamp) -> None:
        self.lines = TimeLines(self, cluster.device, world_size)
        super().__init__(world_size, cluster, "free", eager_bytes, lamp)
        self.queues.unusual.add("on a device")
        self._post, self.post = self.post, self.post_on_stream

    def requests(self) -> type:
        lines = self.lines

        class OnStream(requests_of(self)):
            __slots__ = ()

            def wait(self, timeout=None) -> bool:
                with lines.waiting():
                    super().wait(timeout)
                return True

        return OnStream

    def post_on_stream(self, *message):
        """A send or receive that begins when the current stream gets there."""
        with self.lines.posting():
            self.keep_up(self.rank)
            return self._post(*message)

    def collective(self, group, post, outer):
        with self.lines.posting():
            return super().collective(group, post, outer)

    def computed_s(self) -> float:
        return self.now()  # as on real devices, whose hosts ask again and again while they wait

    def finish(self) -> None:
        self.lines.synchronize()
