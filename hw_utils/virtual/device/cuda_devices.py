"""What a program finds that says "cuda": the rank's virtual device; its torch.cuda is torch_cuda_api.py.

Values are computed on the CPU, so tensors say "cpu" when asked; a device that the program names is taken as said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    _init_utils,
    sharded_grad_scaler,  # noqa: F401 (keeps the world of its import)
)
from torch.nn import attention
from torch.nn.attention import flex_attention
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils.data import DataLoader

from hw_utils.core.calls.patched import patched
from hw_utils.core.hardware import Cluster
from hw_utils.virtual.device import sharded_attention, sync_batch_norm, torch_cuda_api
from hw_utils.virtual.device.numbered_devices import Device, TorchsOwn
from hw_utils.virtual.device.streams import TimeLines

_CPU = torch.device("cpu")
_Tensor = torch.Tensor
_READS = frozenset({_Tensor.cpu, _Tensor.tolist, _Tensor.numpy, _Tensor.__array__})
_SAME = frozenset({_Tensor.cuda, _Tensor.pin_memory})  # the tensor itself
_Generator = torch.Generator


def is_cuda(device: Any) -> bool:
    """Whether a program means the GPU with it; a number is the GPU of that number."""
    if isinstance(device, TorchsOwn):
        return device.type == "cuda"
    return (isinstance(device, str) and device.split(":")[0] == "cuda") or type(device) is int


def on_cpu(device: Any) -> Any:
    """The device where a rank's tensors are, if a program says "cuda"; else what it says."""
    return "cpu" if is_cuda(device) else device


class SaysCuda(TorchFunctionMode):
    """A device "cuda" in a call is where the rank's tensors are; `.cpu()` and the like wait for the stream."""

    def __init__(self, lines: TimeLines) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _SAME:
            return args[0]
        if func in _READS or (func is _Tensor.to and _names_cpu(args, kwargs)):
            self.lines.wait_until(self.lines.now_on().free_s)
        if is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if func is _Tensor.to:
            args = tuple(_CPU if is_cuda(value) else value for value in args)
        return func(*args, **kwargs)

    def also_in(self, run_backward: Callable) -> Callable:
        """The same for hooks and functions' own backward passes: torch takes a mode away while it handles a call."""

        def run(*args, **kwargs):
            if self in _get_current_function_mode_stack():
                return run_backward(*args, **kwargs)
            with self:
                return run_backward(*args, **kwargs)

        return run


def _names_cpu(args: tuple, kwargs: dict) -> bool:
    named = [*args[1:], kwargs.get("device")]
    return any(value == "cpu" or (isinstance(value, TorchsOwn) and value.type == "cpu") for value in named)


class _OfAnyDevice(type):
    """`torch.Generator` while ranks run: one for "cuda" is the CPU's."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return _Generator(on_cpu(device))

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _Generator)


class Generator(metaclass=_OfAnyDevice):
    """Makes random numbers."""


@contextmanager
def said(lines: TimeLines, cluster: Cluster, watch) -> Iterator[None]:
    """While it lasts, "cuda" is the running rank's virtual device."""
    cuda = torch_cuda_api.of_cuda(lines, cluster, watch)
    places = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams)
    names = [(place, n, f) for place in places for n, f in cuda.items() if hasattr(place, n)]
    accelerator = torch_cuda_api.of_accelerator(lines, cuda)
    places = (torch.accelerator, torch.accelerator.memory)
    names += [(place, n, f) for place in places for n, f in accelerator.items() if hasattr(place, n)]
    names += [(torch.cpu, n, f) for n, f in torch_cuda_api.of_any_device(lines).items() if hasattr(torch.cpu, n)]
    names += [(place, n, f) for place, n, f in _elsewhere(lines) if hasattr(place, n)]
    names += [
        (place, "torch", sync_batch_norm.torch_of_devices(lines.shapes is None)) for place in sync_batch_norm.MODULES
    ]
    made = _MADE if lines.shapes is None else (*_MADE, (torch.amp.GradScaler, "_unscale_grads_", _finite))
    names += [(place, n, make(getattr(place, n))) for place, n, make in made if hasattr(place, n)]
    with ExitStack() as stack:
        for place, name, value in names:
            stack.enter_context(patched(place, name, value))
        mode = SaysCuda(lines)
        stack.enter_context(mode)
        stack.enter_context(patched(autograd, "_engine_run_backward", mode.also_in(autograd._engine_run_backward)))
        lines.begin = mode.__enter__  # for other threads of ranks
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing to do on a virtual device."""


@contextmanager
def _range(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _elsewhere(lines: TimeLines) -> list[tuple[Any, str, Any]]:
    """Names outside of torch.cuda that ask for a GPU, or make something of one."""
    nvtx, profiler = torch.cuda.nvtx, torch.cuda.profiler
    return [
        *((nvtx, name, _nothing) for name in ("range_push", "range_pop", "range_start", "range_end", "mark")),
        (nvtx, "range", _range),
        (profiler, "start", _nothing), (profiler, "stop", _nothing), (profiler, "profile", _range),
        (torch.cuda.memory, "_record_memory_history", _nothing),
        (torch.cuda.memory, "_snapshot", lambda *_, **__: {"segments": [], "device_traces": []}),
        (torch.cuda.memory, "_dump_snapshot", _nothing),
        (torch.cuda.nccl, "version", lambda: torch_cuda_api.NCCL),
        (torch.version, "cuda", torch_cuda_api.CUDA),
        (torch, "Stream", lines.Stream), (torch, "Event", lines.Event), (torch, "Generator", Generator),
        (torch, "device", Device),
        (torch, "compile", _compiled), (torch.nn.Module, "compile", _nothing),
        (_Tensor, "record_stream", _nothing),
        (torch.UntypedStorage, "cuda", lambda self, *_, **__: self),
        (dist, "is_nccl_available", lambda: True),
        (DistributedDataParallel, "_passing_sync_batchnorm_handle", _nothing),  # it asks whether devices are GPUs
        (_init_utils, "_check_module_states_for_sync_module_states", _nothing),  # it asks whether they are on a GPU
        (flex_attention, "_validate_device", _nothing),  # torch has no compiled backward of it for a CPU
    ]  # fmt: skip


def _compiled(model: Callable | None = None, **options: Any) -> Callable:
    """What is compiled is run as it is: an operation of the program is a kernel."""
    return model if model is not None else lambda function: function


def _first_on_cpu(original: Callable) -> Callable:
    """A call whose first argument, after `self`, is a device or has one as `device`."""

    @wraps(original)
    def make(self, *args, **kwargs):
        args = tuple(on_cpu(value) for value in args[:1]) + args[1:]
        kwargs = {name: on_cpu(v) if name in ("device", "device_type") else v for name, v in kwargs.items()}
        return original(self, *args, **kwargs)

    return make


def _mesh(original: Callable) -> Callable:
    """A mesh is where DTensors come from: their attention has its rules from then on."""
    make = _first_on_cpu(original)

    @wraps(original)
    def make_with_rules(self, *args, **kwargs):
        sharded_attention.register()
        return make(self, *args, **kwargs)

    return make_with_rules


def _first_on_cpu_device(original: Callable) -> Callable:
    @wraps(original)
    def get(self, device):
        return original(self, torch.device(on_cpu(device)))

    return get


def _coalescing(original: Callable) -> Callable:
    @wraps(original)
    def manage(group=None, device=None, async_ops=False):
        return original(group, None, async_ops)  # a virtual group has no backend in C++

    return manage


def _data_parallel(original: Callable) -> Callable:
    @wraps(original)
    def make(self, module, device_ids=None, output_device=None, *args, **kwargs) -> None:
        original(self, module, None, None, *args, **kwargs)  # it would look for GPUs

    return make


def _one_device(original: Callable) -> Callable:
    """nn.DataParallel, which calls the module itself where it has one GPU."""

    @wraps(original)
    def make(self, module, device_ids=None, *args, **kwargs) -> None:
        n = torch.cuda.device_count() if device_ids is None else len(device_ids)
        if n > 1:
            raise RuntimeError(
                f"nn.DataParallel would drive {n} GPUs from one process, and a rank has one virtual device. Next step: "
                "DistributedDataParallel with a rank a GPU, or DataParallel(module, device_ids=[0])"
            )
        original(self, module, [0], *args, **kwargs)
        self.device_ids = []

    return make


def _fully_sharded(original: Callable) -> Callable:
    @wraps(original)
    def make(self, *args, device_id=None, **kwargs) -> None:
        original(self, *args, device_id=_CPU, **kwargs)

    return make


def _autocast(original: Callable) -> Callable:
    @wraps(original)
    def make(self, device_type, dtype=None, *args, **kwargs) -> None:
        if is_cuda(device_type):
            now = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float16
            device_type, dtype = "cpu", dtype or now
        original(self, device_type, dtype, *args, **kwargs)

    return make


def _autocast_state(original: Callable) -> Callable:
    """`is_autocast_enabled()` and its kind: of "cuda", which is meant without a word, it is the CPU's."""

    @wraps(original)
    def ask(device_type="cuda", *args):
        return original(on_cpu(device_type), *args)

    return ask


def _loads(original: Callable) -> Callable:
    @wraps(original)
    def load(f, map_location=None, *args, **kwargs):
        if map_location is None or isinstance(map_location, dict) or is_cuda(map_location):
            map_location = "cpu"
        return original(f, map_location, *args, **kwargs)

    return load


def _finite(original: Callable) -> Callable:
    """Gradients without values count as finite: each step is taken."""

    @wraps(original)
    def unscale(*args, **kwargs):
        return {device: torch.zeros(1) for device in original(*args, **kwargs)}

    return unscale


def _with_math(original: Callable) -> Callable:
    """One of attention's kernels is always there; for a fused one, whichever a GPU has, it is the CPU's fused one."""
    kinds = attention.SDPBackend

    @wraps(original)
    def choose(backends, *args, **kwargs):
        fused = [] if list(backends) == [kinds.MATH] else [kinds.FLASH_ATTENTION]
        return original([*backends, *fused, kinds.MATH], *args, **kwargs)

    return choose


def _unpinned(original: Callable) -> Callable:
    @wraps(original)
    def make(self, *args, **kwargs) -> None:
        kwargs.pop("pin_memory_device", None)
        original(self, *args, **kwargs)
        self.pin_memory = False  # all memory is the host's

    return make


_MADE = (
    (DeviceMesh, "__init__", _mesh),
    (dist.ProcessGroup, "_get_backend", _first_on_cpu_device),
    (dist, "_coalescing_manager", _coalescing),
    (DeviceContext, "__init__", _first_on_cpu),
    (torch.nn.Module, "to", _first_on_cpu),
    (torch.nn.Module, "to_empty", _first_on_cpu),
    (DistributedDataParallel, "__init__", _data_parallel),
    (torch.nn.DataParallel, "__init__", _one_device),
    (FullyShardedDataParallel, "__init__", _fully_sharded),
    (torch.autocast, "__init__", _autocast),
    (torch, "is_autocast_enabled", _autocast_state),
    (torch, "get_autocast_dtype", _autocast_state),
    (torch, "get_autocast_gpu_dtype", lambda original: lambda: torch.get_autocast_dtype("cuda")),
    (torch, "load", _loads),
    (attention, "_sdpa_kernel", _with_math),
    (DataLoader, "__init__", _unpinned),
)
