"""What torch's profiler sees of virtual communication: gloo's ranges, with gloo's names and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import profiler

is_profiled = torch.autograd._profiler_enabled

# What ProcessGroupGloo calls its ranges.
NAMES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allgather": "all_gather",
    "_allgather_base": "all_gather", "allgather_coalesced": "all_gather", "alltoall": "all_to_all",
    "alltoall_base": "all_to_all", "recv_anysource": "recvAnySource", "monitored_barrier": "monitored_barrier",
}  # fmt: skip


def profiled(method: str, tensors):
    """While a profiler runs, the range `gloo:all_reduce` with the shapes that gloo would give it."""
    return torch._C._profiler._RecordFunctionFast(f"gloo:{NAMES.get(method, method)}", list(tensors), {})


class _Event(profiler.FunctionEvent):
    """An event of a profile; one of gloo's is asynchronous, though no thread of gloo's has ended it here."""

    def __init__(self, *args, **named) -> None:
        super().__init__(*args, **named)
        self.is_async = self.is_async or self.name.startswith("gloo:")


@contextmanager
def asynchronous_ranges() -> Iterator[None]:
    """While a simulation runs, a range of gloo's belongs to no call around it, as where gloo's own thread ends it."""
    before, profiler.FunctionEvent = profiler.FunctionEvent, _Event
    try:
        yield
    finally:
        profiler.FunctionEvent = before
