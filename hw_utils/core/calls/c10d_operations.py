"""torch's operations `c10d::...`, for process groups that are written in Python.

Some methods of a group C++ code cannot ask of Python: `gather`, or the all_gather into a tensor that a functional
collective with `out=` calls. Each is an operation of torch's dispatcher, and torch's kernel for it hands the call to a
backend in C++. Ours hands it to the group's own method if the group is a Python one:

    kernels = Kernels(VirtualGroup)
    kernels.install()  # torch.ops.c10d.allreduce_(...) calls VirtualGroup.allreduce
    kernels.remove()
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c

_CPU = torch.device("cpu")
_METHODS: dict[str, tuple[str, type | None]] = {  # operation -> the group's method and its options
    "broadcast_": ("broadcast", c.BroadcastOptions),
    "allreduce_": ("allreduce", c.AllreduceOptions),
    "allreduce_coalesced_": ("allreduce_coalesced", c.AllreduceCoalescedOptions),
    "reduce_": ("reduce", c.ReduceOptions),
    "allgather_": ("allgather", c.AllgatherOptions),
    "_allgather_base_": ("_allgather_base", c.AllgatherOptions),
    "allgather_coalesced_": ("allgather_coalesced", c.AllgatherOptions),
    "allgather_into_tensor_coalesced_": ("allgather_into_tensor_coalesced", c.AllgatherOptions),
    "gather_": ("gather", c.GatherOptions),
    "scatter_": ("scatter", c.ScatterOptions),
    "reduce_scatter_": ("reduce_scatter", c.ReduceScatterOptions),
    "_reduce_scatter_base_": ("_reduce_scatter_base", c.ReduceScatterOptions),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_tensor_coalesced", c.ReduceScatterOptions),
    "alltoall_": ("alltoall", c.AllToAllOptions),
    "alltoall_base_": ("alltoall_base", c.AllToAllOptions),
    "barrier": ("barrier", c.BarrierOptions),
    "send": ("send", None),
    "recv_": ("recv", None),
    "recv_any_source_": ("recv_anysource", None),
}
_ONE_BY_ONE = {  # no methods of a backend
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}
# What an operation's argument is called in the options; the others are the method's own.
_OPTIONS = {"reduce_op": "reduceOp", "root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp"}
_NOT_GIVEN = {"process_group", "sparse_indices", "tensor", "device_ids", "timeout"}


class Front(dist.ProcessGroup):
    """A group as torch's dispatcher calls it: tensors whose class has its own `__torch_dispatch__` are asked first.

    What the class makes of the call, with tensors that have memory, comes to the group behind.
    """

    def __init__(self, behind: dist.ProcessGroup) -> None:
        super().__init__(behind.rank(), behind.size())
        self.behind = behind


class Kernels:
    """Those of one class of groups; other groups' calls go to their backends, as with torch's own kernels."""

    def __init__(self, own: type[dist.ProcessGroup]) -> None:
        self.own = own
        self.libraries: list[torch.library.Library] = []

    def install(self) -> None:
        """In place of torch's, from now on; nothing if they are already. Takes 0.2 to 0.5 ms."""
        if self.libraries:
            return
        self.libraries = [torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional")]
        operations, functional = torch.ops.c10d, torch.ops._c10d_functional
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")  # that a kernel is replaced
            for name in [name for name in _METHODS if hasattr(operations, name)]:
                self.libraries[0].impl(name, self._kernel(name, getattr(operations, name).default._schema), "CPU")
            self.libraries[0].impl("monitored_barrier_", self._monitored_barrier, "CPU")
            if hasattr(functional, "batch_p2p_ops"):  # not in older versions of torch
                self.libraries[1].impl("batch_p2p_ops", _batch, "CPU")

    def remove(self) -> None:
        """Torch's own are back."""
        while self.libraries:
            self.libraries.pop()._destroy()

    def _asked(self, group) -> Any:
        """Who does it: the group itself, or the backend that torch would have asked."""
        group = dist.ProcessGroup.unbox(group)
        if isinstance(group, Front):
            return group.behind
        return group if isinstance(group, self.own) else group._get_backend(_CPU)

    def _kernel(self, operation: str, schema) -> Callable[..., Any]:
        method, kind = _METHODS[operation]
        names = [argument.name for argument in schema.arguments]
        gives_data = len(schema.returns) == 2

        def kernel(*arguments, **named):
            given = {**dict(zip(names, arguments)), **named}
            asked = self._asked(given["process_group"])
            own = [value for name, value in given.items() if name not in _OPTIONS and name not in _NOT_GIVEN]
            work = _call(asked, method, own, [] if kind is None else [_options(kind, given)])
            return (arguments[0], work.boxed()) if gives_data else work.boxed()

        return kernel

    def _monitored_barrier(self, tensor, group, devices, timeout_ms: int, wait_all: bool, **named) -> None:
        self._asked(group).monitored_barrier(timedelta(milliseconds=timeout_ms), wait_all)


def _batch(kinds: list[str], peers: list[int], tags: list[int], tensors: list, name: str) -> list[torch.Tensor]:
    """Several messages; torch's own begins a batch on a backend, as NCCL wants it."""
    group, outputs = dist.distributed_c10d._resolve_process_group(name), []
    for kind, peer, tag, tensor in zip(kinds, peers, tags, tensors):
        work = getattr(group, kind[1:])([tensor], peer, tag)
        outputs.append(tensor if kind == "irecv" else tensor.new_empty(0))
        c._register_work(outputs[-1], work)
    return outputs


def _options(kind: type, given: dict[str, Any]) -> Any:
    options = kind()
    for name, value in given.items():
        if name == "reduce_op":
            value = _reduce_op(value)
        if name in _OPTIONS and hasattr(options, _OPTIONS[name]):
            setattr(options, _OPTIONS[name], value)
    if given.get("timeout", -1) > 0:
        options.timeout = timedelta(milliseconds=given["timeout"])
    return options


def _reduce_op(op: torch.ScriptObject) -> dist.ReduceOp:
    kind = dist.ReduceOp.RedOpType(op.op())
    if kind != dist.ReduceOp.RedOpType.PREMUL_SUM:
        return dist.ReduceOp(kind)
    return dist._make_nccl_premul_sum(math.nan)  # torch does not say the factor; who only shows a call needs none


def _call(asked, method: str, own: list, options: list) -> dist.Work:
    if hasattr(asked, method):
        return getattr(asked, method)(*own, *options)
    works = [getattr(asked, _ONE_BY_ONE[method])(*pair, *options) for pair in zip(*own)]
    for work in works[:-1]:
        work.wait()
    return works[-1]
