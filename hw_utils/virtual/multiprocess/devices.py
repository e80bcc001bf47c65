"""Ranks with a process and a virtual device each: streams are the process's, when a message crosses is the server's.

A call carries the time at which it begins on the rank's current stream; the answer, the time at which it is over.
"""

from __future__ import annotations

import threading

from hw_utils.virtual.device.device_engine import HOST_WAITS
from hw_utils.virtual.device.streams import TimeLines
from hw_utils.virtual.multiprocess.engine_proxy import EngineProxy
from hw_utils.virtual.multiprocess.remote_work import RemoteWork


class RemoteWorkOnStream(RemoteWork):
    """`wait` lets the current stream wait, and the host only for a barrier."""

    def wait(self, timeout=None) -> bool:
        proxy = self.proxy
        with proxy.lines.waiting() as stream:
            super().wait(timeout)
            proxy.clock[proxy.rank] = max(proxy.clock_s, self.done_s)  # another stream may have waited first
        if self.name in HOST_WAITS:
            proxy.lines.wait_until(stream.free_s)
        return True


class _Current(threading.local):
    """A rank's current stream, which each of its threads has for itself as on a GPU; asked as a dictionary."""

    stream = None

    def __contains__(self, rank: int) -> bool:
        return self.stream is not None

    def __getitem__(self, rank: int):
        return self.stream

    def __setitem__(self, rank: int, stream) -> None:
        self.stream = stream


class DeviceEngineProxy(EngineProxy):
    """A rank whose operations are enqueued on its own device's streams."""

    Work = RemoteWorkOnStream

    def __init__(self, rank: int, line, bell, job: dict) -> None:
        super().__init__(rank, line, bell, {**job, "compute": "free"})
        self.lines = TimeLines(self, job["network"].device, self.world_size)
        self.lines.current = _Current()

    def collective(self, group, post, outer) -> RemoteWork:
        with self.lines.posting():
            return super().collective(group, post, outer)

    def message(self, *call) -> RemoteWork:
        with self.lines.posting():
            return super().message(*call)

    def finish(self) -> None:
        self.lines.synchronize()
