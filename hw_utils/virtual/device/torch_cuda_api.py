"""Every public name of `torch.cuda`: modelled, a harmless answer, refused with what works instead, or left as it is.

A name that a newer torch brings is in none of the tables, and tests/virtual/device/test_torch_cuda_api.py says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from hw_utils.core.hardware import Cluster
from hw_utils.virtual.device.streams import Stream, StreamContext, TimeLines

CUDA, NCCL = "12.8", (2, 27, 5)  # what a program is told that asks for versions
# (compute capability, multiprocessors) by how a device's name begins: NVIDIA's datasheets.
_KINDS = {"A100": ((8, 0), 108), "H100": ((9, 0), 132), "H200": ((9, 0), 132)}

REFUSED = {
    "CUDAGraph": "call what you would capture: each operation costs its launch",
    "graph": "call what you would capture: each operation costs its launch",
    "make_graphed_callables": "use the callables themselves: each operation costs its launch",
    "export_dot": "each operation is in the ledger of the run",
    "export_graph_data": "each operation is in the ledger of the run",
    "graph_pool_handle": "call what you would capture: each operation costs its launch",
    "ExternalStream": "use torch.cuda.Stream()",
    "get_stream_from_external": "use torch.cuda.Stream()",
    "GreenContext": "use torch.cuda.Stream(): streams never slow each other down",
    "CUDAPluggableAllocator": "leave the allocator: memory is counted in bytes of tensors",
    "change_current_allocator": "leave the allocator: memory is counted in bytes of tensors",
    "caching_allocator_alloc": 'use torch.empty(n, dtype=torch.uint8, device="cuda")',
    "caching_allocator_delete": "delete the tensor",
    "current_solver_handle": "use torch.linalg",
    "cudart": "use torch.cuda.mem_get_info and torch.cuda.get_device_properties",
}
# Types, modules, flags and what torch keeps for itself: nothing in them asks a device that is not there.
LEFT = frozenset(
    {
        "AcceleratorError", "BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage",
        "ComplexDoubleStorage", "ComplexFloatStorage", "CudaError", "DeferredCudaCallError", "DoubleStorage",
        "FloatStorage", "HalfStorage", "IntStorage", "LongStorage", "ShortStorage", "OutOfMemoryError", "amp",
        "check_error", "cudaStatus", "device_memory_used", "gds", "graphs", "green_contexts", "has_half",
        "has_magma", "init", "jiterator", "list_gpu_processes", "memory", "nccl", "nvtx", "profiler", "random",
        "sparse", "streams", "tunable", "memory_cached", "max_memory_cached", "reset_max_memory_cached",
        "reset_max_memory_allocated", "memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict",
        "DEVICE_REQUIREMENT", "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION", "PYTORCH_RELEASES_CODE_CC",
        "graph_annotations", "glob", "Any", "Callable", "Device", "NewType", "Optional",
        "TYPE_CHECKING", "cast", "classproperty", "importlib", "lru_cache", "os", "platform", "threading",
        "torch", "traceback", "warnings",
    }
)  # fmt: skip
_TENSORS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


class _Here(nullcontext):
    """`torch.cuda.device(1)`: a rank has one device, whatever its number."""

    def __init__(self, device: Any = None) -> None:
        super().__init__(device)
        self.idx = device


class _Pool:
    """A memory pool: all pools are one here."""

    id = (0, 0)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def snapshot(self, *_: Any) -> list:
        return []

    def use_count(self) -> int:
        return 1


def of_cuda(lines: TimeLines, cluster: Cluster, watch) -> dict[str, Any]:
    """Names of `torch.cuda` and what they are while ranks with virtual devices run."""
    kind = cluster.device
    capability, n_multiprocessors = next((v for k, v in _KINDS.items() if kind.name.startswith(k)), ((9, 0), 132))
    properties = SimpleNamespace(
        name=kind.name, total_memory=kind.memory_bytes, major=capability[0], minor=capability[1],
        multi_processor_count=n_multiprocessors, warp_size=32, is_integrated=0, is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048, L2_cache_size=50 * 2**20, gcnArchName="",
    )  # fmt: skip
    return {
        **of_any_device(lines), **_chosen(lines, cluster), **_memory(lines, watch), **_harmless(), **_random(cluster),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: cluster.devices_per_host,
        "get_device_name": lambda device=None: kind.name,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "can_device_access_peer": lambda device, peer_device: device != peer_device,
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "get_gencode_flags": lambda: "",
        **{name: _refusal(f"torch.cuda.{name}", instead) for name, instead in REFUSED.items()},
    }  # fmt: skip


def of_any_device(lines: TimeLines) -> dict[str, Any]:
    """What `torch.cuda`, `torch.accelerator` and `torch.cpu` have alike."""

    def set_stream(stream: Stream) -> None:
        lines.current[lines.engine.rank] = stream

    return {
        "Stream": lines.Stream,
        "Event": lines.Event,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "current_stream": lambda device=None: lines.now_on(),
        "default_stream": lambda device=None: lines.default(),
        "set_stream": set_stream,
        "synchronize": lambda device=None: lines.synchronize(),
    }


def _chosen(lines: TimeLines, cluster: Cluster) -> dict[str, Any]:
    engine = lines.engine
    chosen: dict[int, int] = {}  # rank -> what it has given to set_device

    def set_device(number) -> None:
        number = number.index or 0 if isinstance(number, torch.device) else number
        number = int(number.split(":")[1]) if isinstance(number, str) and ":" in number else number
        if isinstance(number, int) and not 0 <= number < cluster.devices_per_host:
            last = cluster.devices_per_host - 1
            raise RuntimeError(f"invalid device ordinal: {cluster.name} has 0 to {last} in a host, got {number}")
        chosen[engine.rank] = number if isinstance(number, int) else 0

    return {
        "set_device": set_device,
        "current_device": lambda: chosen.get(engine.rank, engine.rank % cluster.devices_per_host),
        "device": _Here,
        "device_of": _Here,
    }


def _memory(lines: TimeLines, watch) -> dict[str, Any]:
    engine = lines.engine
    reset: dict[int, int] = {}  # rank -> records of its memory when the peak was reset

    def books():
        return watch.books[engine.rank]

    def peak_bytes(device=None) -> int:
        since = reset.get(engine.rank, 0)
        held = np.cumsum(books().changes, dtype="i8")
        return int(max(held[since:].max(initial=0), held[since - 1] if since else 0))

    def stats(device=None) -> Counter:
        """What is not counted is 0: retries, segments, pools."""
        amounts = {"current": books().n_bytes, "peak": peak_bytes()}
        kinds = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
        return Counter({f"{kind}.all.{name}": n for kind in kinds for name, n in amounts.items()})

    return {
        "memory_allocated": lambda device=None: books().n_bytes,
        "memory_reserved": lambda device=None: books().n_bytes,
        "max_memory_allocated": peak_bytes,
        "max_memory_reserved": peak_bytes,
        "memory_stats": stats,
        "memory_summary": lambda device=None, abbreviated=False: "\n".join(
            f"{name:<28} {n:>16,} bytes" for name, n in stats().items()
        ),
        "host_memory_stats": Counter,
        "memory_snapshot": lambda *_, **__: [],
        "memory_usage": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: reset.__setitem__(engine.rank, len(books().changes)),
        "mem_get_info": lambda device=None: (watch.capacity_bytes - books().n_bytes, watch.capacity_bytes),
        "MemPool": _Pool,
        "use_mem_pool": lambda pool, device=None: nullcontext(),
    }


def _nothing(*_: Any, **__: Any) -> None:
    """Nothing to do on a virtual device."""


def _harmless() -> dict[str, Any]:
    quiet = (
        "empty_cache", "ipc_collect", "reset_accumulated_memory_stats", "reset_accumulated_host_memory_stats",
        "reset_peak_host_memory_stats", "set_per_process_memory_fraction", "caching_allocator_enable", "_sleep",
        "set_sync_debug_mode",
    )  # fmt: skip
    zeros = ("utilization", "temperature", "power_draw", "clock_rate", "get_sync_debug_mode", "current_blas_handle")
    return {
        **dict.fromkeys(quiet, _nothing),
        **{name: lambda device=None: 0 for name in zeros},
        "caching_allocator_disabled": nullcontext,
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "get_allocator_backend": lambda: "native",
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        **{f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in _TENSORS},
    }


def _random(cluster: Cluster) -> dict[str, Any]:
    """The CPU's generator makes all numbers: its state is that of the rank's device."""
    return {
        "manual_seed": _nothing,
        "manual_seed_all": _nothing,
        "seed": _nothing,
        "seed_all": _nothing,
        "default_generators": (torch.default_generator,) * cluster.devices_per_host,
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * cluster.devices_per_host,
        "set_rng_state_all": lambda new_states: torch.set_rng_state(next(iter(new_states))),
    }


def _refusal(name: str, instead: str) -> Callable:
    class Refused:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError(f"a virtual device has no {name}: {instead}")

    Refused.__name__ = Refused.__qualname__ = name.rpartition(".")[2]
    return Refused


def of_accelerator(lines: TimeLines, cuda: dict[str, Any]) -> dict[str, Any]:
    """Names of `torch.accelerator`, out of those of `torch.cuda`."""
    same = (
        "is_available", "device_count", "current_stream", "set_stream", "synchronize", "empty_cache",
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    )  # fmt: skip
    return {
        **{name: cuda[name] for name in same},
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": cuda["current_device"],
        "current_device_idx": cuda["current_device"],
        "set_device_index": cuda["set_device"],
        "set_device_idx": cuda["set_device"],
        "device_index": cuda["device"],
        "get_memory_info": cuda["mem_get_info"],
        "empty_host_cache": _nothing,
        "get_device_capability": lambda device=None: {
            "supported_dtypes": {torch.float32, torch.bfloat16, torch.float16}
        },
        "Graph": _refusal("torch.accelerator.Graph", REFUSED["CUDAGraph"]),
    }
