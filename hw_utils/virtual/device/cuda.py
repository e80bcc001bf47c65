"""What a program finds that says "cuda": the rank's virtual device, with its streams, events and memory.

Values are computed on the CPU, so tensors say "cpu" when asked; a device that the program names is taken as said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from hw_utils.core.network import Cluster
from hw_utils.virtual.device.streams import Stream, TimeLines

_CPU = torch.device("cpu")
_Tensor = torch.Tensor
_READS = frozenset({_Tensor.cpu, _Tensor.tolist, _Tensor.numpy, _Tensor.__array__})
_SAME = frozenset({_Tensor.cuda, _Tensor.pin_memory})  # the tensor itself


def is_cuda(device: Any) -> bool:
    """Whether a program means the GPU with it."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.split(":")[0] == "cuda"


class SaysCuda(TorchFunctionMode):
    """A device "cuda" in a call is where the rank's tensors are; `.cpu()` and the like wait for the stream."""

    def __init__(self, lines: TimeLines) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _SAME:
            return args[0]
        if func is _Tensor.record_stream:
            return None
        if func in _READS or (func is _Tensor.to and _names_cpu(args, kwargs)):
            self.lines.wait_until(self.lines.now_on().free_s)
        if is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if func is _Tensor.to:
            args = tuple(_CPU if is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def _names_cpu(args: tuple, kwargs: dict) -> bool:
    named = [*args[1:], kwargs.get("device")]
    return any(value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu") for value in named)


def of_cuda(lines: TimeLines, cluster: Cluster, watch) -> dict[str, Any]:
    """Names of `torch.cuda` and what they are while ranks with virtual devices run."""
    engine, device = lines.engine, cluster.device
    chosen: dict[int, int] = {}  # rank -> what it has given to set_device
    reset: dict[int, int] = {}  # rank -> records of its memory when the peak was reset

    def books():
        return watch.books[engine.rank]

    def peak_bytes(_=None) -> int:
        since = reset.get(engine.rank, 0)
        held = np.cumsum(books().changes, dtype="i8")
        return int(max(held[since:].max(initial=0), held[since - 1] if since else 0))

    def set_device(number) -> None:
        number = number.index or 0 if isinstance(number, torch.device) else number
        number = int(number.split(":")[1]) if isinstance(number, str) and ":" in number else number
        if isinstance(number, int) and not 0 <= number < cluster.devices_per_host:
            last = cluster.devices_per_host - 1
            raise RuntimeError(f"invalid device ordinal: {cluster.name} has 0 to {last} in a host, got {number}")
        chosen[engine.rank] = number if isinstance(number, int) else 0

    return {
        **of_any_device(lines),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: cluster.devices_per_host,
        "set_device": set_device,
        "current_device": lambda: chosen.get(engine.rank, engine.rank % cluster.devices_per_host),
        "get_device_name": lambda _=None: device.name,
        "get_device_properties": lambda _=None: SimpleNamespace(name=device.name, total_memory=device.memory_bytes),
        "is_bf16_supported": lambda *_, **__: True,
        "memory_allocated": lambda _=None: books().n_bytes,
        "memory_reserved": lambda _=None: books().n_bytes,
        "max_memory_allocated": peak_bytes,
        "max_memory_reserved": peak_bytes,
        "reset_peak_memory_stats": lambda _=None: reset.__setitem__(engine.rank, len(books().changes)),
        "mem_get_info": lambda _=None: (watch.capacity_bytes - books().n_bytes, watch.capacity_bytes),
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,  # the CPU's generator makes all numbers
        "manual_seed_all": lambda seed: None,
        "device": lambda number: nullcontext(),
    }


def of_any_device(lines: TimeLines) -> dict[str, Any]:
    """What `torch.cuda` and `torch.cpu` have alike."""

    def stream(chosen: Stream | None):
        return nullcontext() if chosen is None else chosen

    def set_stream(chosen: Stream) -> None:
        lines.current[lines.engine.rank] = chosen

    return {
        "Stream": lines.Stream,
        "Event": lines.Event,
        "stream": stream,
        "current_stream": lambda _=None: lines.now_on(),
        "default_stream": lambda _=None: lines.default(),
        "set_stream": set_stream,
        "synchronize": lambda _=None: lines.synchronize(),
    }


@contextmanager
def said(lines: TimeLines, cluster: Cluster, watch) -> Iterator[None]:
    """While it lasts, "cuda" is the running rank's virtual device."""
    names = [(torch.cuda, n, f) for n, f in of_cuda(lines, cluster, watch).items()]
    names += [(torch.cpu, n, f) for n, f in of_any_device(lines).items() if hasattr(torch.cpu, n)]
    names += [(where, "__init__", make(where.__init__)) for where, make in _MADE]
    with ExitStack() as stack:
        for where, name, value in names:
            stack.callback(setattr, where, name, getattr(where, name))
            setattr(where, name, value)
        mode = SaysCuda(lines)
        stack.enter_context(mode)
        lines.begin = mode.__enter__  # for other threads of ranks
        yield


def _mesh(original: Callable) -> Callable:
    @wraps(original)
    def make(self, device_type, *args, **kwargs) -> None:
        original(self, "cpu" if is_cuda(device_type) else device_type, *args, **kwargs)

    return make


def _data_parallel(original: Callable) -> Callable:
    @wraps(original)
    def make(self, module, device_ids=None, output_device=None, *args, **kwargs) -> None:
        original(self, module, None, None, *args, **kwargs)  # it would look for GPUs

    return make


def _autocast(original: Callable) -> Callable:
    @wraps(original)
    def make(self, device_type, *args, **kwargs) -> None:
        original(self, "cpu" if is_cuda(device_type) else device_type, *args, **kwargs)

    return make


_MADE = ((DeviceMesh, _mesh), (DistributedDataParallel, _data_parallel), (torch.autocast, _autocast))
