"""Streams and events of virtual devices: time lines on which operations and collectives are enqueued.

The rank's clock is its host's. An operation costs the host a launch and goes to the end of the current stream, where it
begins when the stream is free, and not before it was launched. What reads a value lets the host wait for the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hw_utils.core.hardware import Device
from hw_utils.core.trace import STREAM
from hw_utils.virtual.device.operation_costs import Costs, is_tf32_allowed


class Stream:
    """One time line of a rank's device; has the methods of `torch.cuda.Stream`."""

    priority, device_type = 0, 1  # torch's number of "cuda"

    def __init__(self, lines: TimeLines, *args, **kwargs) -> None:
        self.lines, self.rank = lines, lines.engine.rank
        mine = lines.streams[self.rank]
        self.stream_id, self.free_s = len(mine), 0.0
        self.before: list[Stream] = []  # those that were current where it was entered, the outermost first
        mine.append(self)

    def wait_stream(self, stream: Stream) -> None:
        self.free_s = max(self.free_s, stream.free_s)

    def wait_event(self, event: Event) -> None:
        self.free_s = max(self.free_s, event.at_s)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or self.lines.Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.lines.wait_until(self.free_s)

    def query(self) -> bool:
        return self.free_s <= self.lines.host_s()

    def is_capturing(self) -> bool:
        return False

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def device_index(self) -> int:
        return torch.cuda.current_device()

    @property
    def cuda_stream(self) -> int:
        """The number that stands for it."""
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(lowest, highest): streams never slow each other down, so none goes before another."""
        return 0, -5

    def __enter__(self) -> Stream:
        self.before.append(self.lines.now_on())
        self.lines.current[self.rank] = self
        return self

    def __exit__(self, *error) -> None:
        self.lines.current[self.rank] = self.before.pop()


class StreamContext:
    """Within, a stream is the current one; with None nothing changes."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


class Event:
    """A moment of a stream; has the methods of `torch.cuda.Event`."""

    def __init__(self, lines: TimeLines, *args, **kwargs) -> None:
        self.lines, self.at_s, self.is_recorded = lines, 0.0, False

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.lines.now_on()
        self.at_s, self.is_recorded = max(stream.free_s, self.lines.host_s()), True

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.lines.now_on()).wait_event(self)

    def synchronize(self) -> None:
        self.lines.wait_until(self.at_s)

    def query(self) -> bool:
        return self.at_s <= self.lines.host_s()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`.

        Raises:
            RuntimeError: one of the two was not recorded.
        """
        if not (self.is_recorded and end.is_recorded):
            raise RuntimeError("both events must be recorded before their elapsed time is asked: call record() first")
        return (end.at_s - self.at_s) * 1000


def _is_elsewhere(out: Any) -> bool:
    """Whether a result has no memory here, as those by which DTensor finds out what an operation does to shards."""
    while isinstance(out, (list, tuple)) and out:
        out = out[0]
    if not isinstance(out, torch.Tensor):
        return False
    return out.is_meta or type(out).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


class TimeLines:
    """The streams of all ranks' devices."""

    def __init__(self, engine, device: Device, world_size: int) -> None:
        self.engine, self.device, self.costs = engine, device, Costs(device)
        self.shapes = None  # the mode of tensors without values, if they have none: it knows calls that are alike
        self.spans: list[list] = []  # rank, stream, start, end: when a stream is busy with operations
        self.last: dict[Stream, list] = {}
        lines = self

        class OwnStream(Stream):
            def __init__(self, *args, **kwargs) -> None:
                lines.default()  # is there before any other
                super().__init__(lines)

        class OwnEvent(Event):
            def __init__(self, *args, **kwargs) -> None:
                super().__init__(lines)

        self.Stream, self.Event = OwnStream, OwnEvent
        self.streams: list[list[Stream]] = [[] for _ in range(world_size)]
        self.current: dict[int, Stream] = {}

    def now_on(self) -> Stream:
        """The running rank's current stream."""
        rank = self.engine.rank
        if rank not in self.current:
            self.current[rank] = self.default()
        return self.current[rank]

    def default(self) -> Stream:
        """The running rank's first stream."""
        mine = self.streams[self.engine.rank]
        if not mine:
            Stream.__init__(self.Stream.__new__(self.Stream), self)
        return mine[0]

    def host_s(self) -> float:
        return self.engine.clock[self.engine.rank]

    def saw(self, func, args: tuple, kwargs: dict, out: Any) -> None:
        """The running rank's program has called an operation."""
        engine = self.engine
        if engine.rank >= engine.world_size or _is_elsewhere(out):
            return
        case = None if self.shapes is None else self.shapes.case
        if case is None:
            seconds, is_read = self.costs.of(func, args, kwargs, out)
        else:  # as others before it
            precision = is_tf32_allowed()
            if case.cost is None or case.cost[2] != precision:
                case.cost = *self.costs.of(func, args, kwargs, out), precision
            seconds, is_read, _ = case.cost
        if seconds >= 0:
            self.launch(seconds)
        if is_read:
            self.wait_until(self.now_on().free_s)

    def launch(self, seconds: float) -> None:
        """Enqueues an operation that keeps the device busy for so long."""
        rank, stream = self.engine.rank, self.now_on()
        self.engine.clock[rank] += self.device.launch_s
        start_s = max(stream.free_s, self.engine.clock[rank])
        stream.free_s = end_s = start_s + seconds
        last = self.last.get(stream)
        if last is not None and last[3] == start_s:
            last[3] = end_s
        else:
            self.last[stream] = [rank, stream.stream_id, start_s, end_s]
            self.spans.append(self.last[stream])

    def wait_until(self, at_s: float) -> None:
        """The host stands still until then; others run when it communicates next."""
        clock, rank = self.engine.clock, self.engine.rank
        clock[rank] = max(clock[rank], at_s)

    def synchronize(self) -> None:
        """The host waits for all streams."""
        self.wait_until(max((stream.free_s for stream in self.streams[self.engine.rank]), default=0.0))

    @contextmanager
    def as_clock(self) -> Iterator[Stream]:
        """Within, the rank's clock is its current stream's: what it posts is posted there, what it waits for waits."""
        clock, rank, stream = self.engine.clock, self.engine.rank, self.now_on()
        host_s, clock[rank] = clock[rank], max(clock[rank], stream.free_s)
        try:
            yield stream
        finally:
            clock[rank] = host_s

    @contextmanager
    def posting(self) -> Iterator[Stream]:
        """What is posted within begins when the current stream gets there, and costs the host a launch."""
        self.engine.clock[self.engine.rank] += self.device.launch_s
        with self.as_clock() as stream:
            yield stream

    @contextmanager
    def waiting(self) -> Iterator[Stream]:
        """What is waited for within is waited for by the current stream."""
        with self.as_clock() as stream:
            yield stream
            stream.free_s = max(stream.free_s, self.host_s())

    def records(self) -> np.ndarray:
        """When streams were busy, as a trace keeps it: rank by rank, whose turn it was when is no matter."""
        spans = sorted(tuple(span) for span in self.spans if span[3] > span[2])
        return np.array(spans, STREAM)
