"""The engine of ranks with a device each: what they communicate is ordered on streams, as with NCCL."""

from __future__ import annotations

from hw_utils.core.hardware import Cluster
from hw_utils.virtual.device.streams import TimeLines
from hw_utils.virtual.engine import Engine
from hw_utils.virtual.ranks.compute_time import ComputeTime
from hw_utils.virtual.traffic.messages.queues import Queues
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


class HostTime(ComputeTime):
    """Of hosts, which compute nothing that takes time: operations cost what they cost on the device."""

    def __init__(self, engine, rule) -> None:
        super().__init__(engine, "free")

    def total_s(self) -> float:
        return self.now()  # as on real devices, whose hosts ask again and again while they wait


class StreamQueues(Queues):
    """A send or receive begins when the current stream gets there, and a wait for it is the stream's."""

    def __init__(self, engine: DeviceEngine, eager_bytes: int) -> None:
        super().__init__(engine, eager_bytes)
        self.engine, self.post_at_once, self.post = engine, self.post, self.post_on_stream
        self.unusual.add("on a device")

    def requests(self, engine: DeviceEngine) -> type:
        lines = engine.lines

        class OnStream(requests_of(engine, self)):
            __slots__ = ()

            def wait(self, timeout=None) -> bool:
                with lines.waiting():
                    super().wait(timeout)
                return True

        return OnStream

    def post_on_stream(self, *message):
        with self.engine.lines.posting():
            self.engine.keep_up(self.engine.rank)
            return self.post_at_once(*message)


class DeviceEngine(Engine):
    """Computation is what the operations cost on the device; communication begins where the current stream is."""

    ComputeTime, Queues, Work = HostTime, StreamQueues, DeviceWork

    def __init__(self, world_size: int, cluster: Cluster, *more, **named) -> None:
        self.lines = TimeLines(self, cluster.device, world_size)
        super().__init__(world_size, cluster, *more, **named)

    def collective(self, group, post, outer):
        with self.lines.posting():
            return super().collective(group, post, outer)

    def finish(self) -> None:
        self.lines.synchronize()
