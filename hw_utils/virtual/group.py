"""torch.distributed's process group of one virtual rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FunctionType, SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls.arguments import op_of, root_of
from hw_utils.core.calls.c10d_operations import Front, Kernels
from hw_utils.core.calls.mismatch import check_alike, late_text
from hw_utils.core.calls.public_calls import OBJECT_OPS, caller, not_compiled
from hw_utils.core.calls.tensor_layout import TAKE_GAPS, asks_its_class, require_one_order, sizes_of
from hw_utils.virtual.ranks import modes
from hw_utils.virtual.ranks.profiler import is_profiled, profiled
from hw_utils.virtual.traffic import reductions, several, sparse
from hw_utils.virtual.traffic.collectives import Call, Post
from hw_utils.virtual.traffic.messages.requests import MessageWork
from hw_utils.virtual.traffic.tensor_bytes import address
from hw_utils.virtual.traffic.work import together

_register = torch._C._distributed_c10d._register_process_group
_OWN_FILES = (__file__, modes.__file__, several.__file__)  # whose frames lie between a call and what it does here


class Members:
    """A group that all its ranks share: who is in it, and the collectives they have called."""

    def __init__(self, engine, number: int, ranks: tuple[int, ...]) -> None:
        self.engine, self.number, self.ranks = engine, number, ranks
        self.running = ranks if engine.folding is None else engine.folding.running(ranks)  # the others do the same
        self.limit_s: float | None = None  # seconds that a call may take, where the program gave the group a timeout
        self.place_of = {rank: i for i, rank in enumerate(ranks)}
        self.n_called = [0] * len(ranks)
        self.calls: dict[int, Call] = {}


class VirtualGroup(dist.ProcessGroup):
    """One rank's view of a group."""

    create_device = getattr(getattr(c10d, "ProcessGroupGloo", None), "create_device", None)  # its backend is asked

    def __init__(self, members: Members, rank: int, name: str, desc: str = "undefined") -> None:
        place = members.place_of[rank]
        super().__init__(place, len(members.ranks))
        self.members, self.place, self.registered_as = members, place, name
        self.desc = "default_pg" if members.number == 0 else desc
        self.engine = members.engine
        self.is_registered = False
        self.front: Front | None = None  # takes the calls with tensors whose class decides what becomes of them
        self.shown: dist.ProcessGroup | None = None  # what modes of torch see in its place, see modes.py
        self.of_objects: VirtualGroup | None = None  # takes objects, if they have a backend of their own
        self.held: dict = {}  # works that C++ has and nobody has waited for yet

    def getBackendName(self) -> str:
        return "virtual"  # DDP's logger would ask a "gloo" for its threads

    def name(self) -> str:
        """The backend's, as on real processes."""
        return "gloo"

    @property
    def backend(self) -> str:
        """Whose rules hold: NCCL's where a program has asked for it on virtual devices."""
        if self.engine.lines is None:
            return "Gloo"
        return "NCCL" if "nccl" in str(c10d._world.pg_map.get(self)) else "Gloo"

    def _get_backend(self, device) -> VirtualGroup:
        """Itself, for every kind of device: there is none in C++."""
        return self

    def size(self) -> int:
        return len(self.members.ranks)

    def rank(self) -> int:
        return self.place

    getSize, getRank = size, rank

    def boxed(self):
        """As an argument of torch's operations."""
        KERNELS.install()
        return super().boxed()

    @property
    def group_name(self) -> str:
        if not self.is_registered:  # C++ code looks groups up by name
            self.is_registered = True
            KERNELS.install()
            _register(self.registered_as, self)
            self.engine.registered.append(self.registered_as)
        return self.registered_as

    pg_name = group_name

    @property
    def group_desc(self) -> str:
        return self.desc

    @property
    def bound_device_id(self) -> None:
        return None

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_group_store(self):
        return c10d._world.pg_map[self][1]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.members.limit_s = limit_of(timeout)

    @property
    def options(self) -> SimpleNamespace:
        """What gloo says of itself where it is asked for its timeout."""
        limit_s = self.members.limit_s
        timeout = c10d.default_pg_timeout if limit_s is None else timedelta(seconds=limit_s)
        return SimpleNamespace(_timeout=timeout, global_ranks_in_group=list(self.members.ranks))

    def shutdown(self) -> None: ...
    def abort(self) -> None: ...

    # Point to point: what does not take point_to_point.py's short cut.

    def send(self, tensors, dst: int, tag: int = 0):
        return self._post("send", tensors, dst, tag)

    def recv(self, tensors, src: int, tag: int = 0):
        return self._post("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag: int = 0):
        return self._post("recv_anysource", tensors, None, tag)

    def _post(self, method: str, tensors, peer: int | None, tag: int):
        engine, me, is_send = self.engine, self.engine.rank, method == "send"
        tensor = tensors[0]
        if not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")
        other = -1 if peer is None else self._global_rank(peer)
        if other == me:
            raise RuntimeError(
                f"rank {me} sends to itself or receives from itself: {self.backend} connects different ranks only"
            )
        name, site, outer = self._caller(method)
        call = self, is_send, name, tensor, other, tag, site, name in ("send", "recv") and outer is not None, outer
        if is_profiled():
            with profiled(method, tensors):
                request = engine.message(*call)
        else:
            request = engine.message(*call)
        return request if outer is not None else self._hold(MessageWork(request))

    def _global_rank(self, place: int) -> int:
        ranks = self.members.ranks
        if not 0 <= place < len(ranks):
            raise ValueError(f"there is no rank {place} in a group of {len(ranks)}: ranks are 0 to {len(ranks) - 1}")
        return ranks[place]

    def _caller(self, method: str):
        """(the torch.distributed function that was called, the number of the student's line, that call's frame)."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        name, outer, _, _ = caller(frame, method)
        if outer is None and self.engine.carrier.is_shared:
            self.engine.need(
                "threads", "C++ code calls a collective"
            )  # C++ code called: a greenlet cannot leave its frames
        return name, self.engine.places.of(frame), outer

    # Collectives: the names by which torch's Python and C++ code call them, in several versions.

    def _call(
        self, method: str, kind: str, inputs, outputs, n_bytes: int, root: int = 0, reduce_op=None, limit_s=None,
        in_profile=None,
    ):  # fmt: skip
        """in_profile: the tensors whose shapes a profile shows, if they are not the inputs; empty for no range."""
        name, site, outer = self._caller(method)
        with modes.unseen():
            if method in TAKE_GAPS:
                inputs = [t if t.is_contiguous() else t.detach().contiguous() for t in inputs]
            for tensor in inputs:
                reductions.require_carried(tensor, self.backend)
            for tensor in outputs:
                is_put = method in TAKE_GAPS and self.backend == "Gloo"
                reductions.require_carried(tensor, self.backend, is_put=is_put)
        for tensor in (*inputs, *outputs):
            if tensor.device.type == "cpu":  # "meta" has shapes, bytes and times, and no values
                address(tensor, tensor.nbytes)
        if reduce_op is not None:
            reductions.reducer(reduce_op, inputs[0].dtype, self.backend)  # raises if it cannot
        post = Post(name, site, kind, inputs, outputs, root, reduce_op, n_bytes)
        post.limit_s = self.members.limit_s if limit_s is None else limit_s
        group = self.of_objects if self.of_objects is not None and name in OBJECT_OPS else self
        with profiled(method, in_profile or inputs) if is_profiled() and in_profile != [] else nullcontext():
            work = self.engine.collective(group, post, outer)
        return work if outer is not None else self._hold(work)

    def _hold(self, work):
        """C++ of torch 2.6 keeps no Python object alive, and would wait for ever."""
        for one in [one for one, its in self.held.items() if its.was_waited_for]:
            del self.held[one]
        self.held[id(work)], work.held_in = work, self.held
        return work

    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        tensors, opts = several.as_list(tensors), op or opts
        if len(tensors) != 1:
            return several.all_reduce(self, tensors, opts)
        if tensors[0].layout is not torch.strided:
            return self._sparse_allreduce(tensors[0], op_of(opts))
        return self._call("allreduce", "all_reduce", tensors, tensors, sizes_of(tensors), 0, op_of(opts))

    def _sparse_allreduce(self, tensor, reduce_op):
        data = sparse.packed(tensor, reduce_op)
        work = self._call("allreduce", sparse.KIND, [data], [], data.nbytes)
        sparse.deliver_to(tensor, work)
        return work

    def allreduce_coalesced(self, tensors, opts=None):
        several.require_coalesced(self, tensors)
        return self._call("allreduce_coalesced", "all_reduce", tensors, tensors, sizes_of(tensors), 0, op_of(opts))

    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None):
        tensors, reduce_op = several.the_only(self, "reduce", tensors), opts if hasattr(opts, "reduceOp") else op
        several.require_root_tensor(self, "reduce", opts, tensors)
        return self._call(
            "reduce", "reduce", tensors, tensors, sizes_of(tensors), root_of(opts, root), op_of(reduce_op)
        )

    def broadcast(self, tensors, opts=None, timeout=None, root=None):
        tensors = several.as_list(tensors)
        if len(tensors) != 1:
            return several.broadcast(self, tensors, opts)
        several.require_root_tensor(self, "broadcast", opts, tensors)
        return self._call("broadcast", "broadcast", tensors, tensors, sizes_of(tensors), root_of(opts, root))

    def allgather(self, outputs, inputs, opts=None, timeout=None, in_profile=None):
        if not isinstance(inputs, torch.Tensor):
            if len(inputs) != 1 or len(outputs) != 1:
                return several.all_gather(self, outputs, inputs, opts)
            (outputs,), (inputs,) = outputs, inputs
        parts, inputs = outputs, [inputs]
        several.require_as_many(self, "allgather", parts)
        if self.backend == "NCCL":  # which counts elements, whatever their shape
            parts = [part.view(inputs[0].shape) if part.numel() == inputs[0].numel() else part for part in parts]
        check_alike(self.backend, "allgather", parts, inputs[0])
        return self._call("allgather", "all_gather", inputs, parts, sizes_of(inputs), in_profile=in_profile)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        several.require_coalesced_outputs(self, outputs, inputs)
        pairs = enumerate(zip(zip(*outputs), inputs))
        in_profile = [inputs, *[[]] * len(inputs)]  # one range for all
        return together([self.allgather([out], [mine], opts, in_profile=in_profile[k]) for k, (out, mine) in pairs])

    def _allgather_base(self, output, input, opts=None, timeout=None):
        if self.engine.lines is not None and output.is_contiguous() and input.is_contiguous():
            output, input = output.view(-1), input.view(-1)  # NCCL counts elements, whatever their shape
        parts = list(output.chunk(self.size(), 0))  # as gloo does: each as large as the input, and of its shape
        if len(parts) != self.size():
            raise RuntimeError(
                f"ProcessGroup{self.backend}::allgather: the output must have {self.size()} times the input's first "
                f"dimension, got {tuple(output.shape)} for an input of {tuple(input.shape)}"
            )
        check_alike(self.backend, "allgather", parts, input)
        return self._call("_allgather_base", "all_gather", [input], parts, sizes_of(input))

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return together([self._allgather_base(out, mine) for out, mine in zip(outputs, inputs)])

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs, inputs, opts=None, timeout=None, root=None):
        inputs, root = several.the_only(self, "gather", inputs, "input tensor list"), root_of(opts, root)
        parts = several.the_roots_own(self, "gather", outputs, inputs[0], "output", root)
        if self.backend == "Gloo" and inputs[0].is_complex():  # for all others torch makes two real numbers of one
            raise RuntimeError("Invalid scalar type: Gloo's gather carries no complex numbers, as view_as_real it does")
        return self._call("gather", "gather", inputs, parts, sizes_of(inputs), root)

    def scatter(self, outputs, inputs, opts=None, timeout=None, root=None):
        outputs, root = several.the_only(self, "scatter", outputs, "output tensor list"), root_of(opts, root)
        parts = several.the_roots_own(self, "scatter", inputs, outputs[0], "input", root)
        return self._call("scatter", "scatter", parts, outputs, sizes_of(outputs), root)

    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None, op=None):
        parts, outputs = inputs if isinstance(outputs, torch.Tensor) else inputs[0], several.as_list(outputs)
        several.the_only(self, "reduce_scatter", outputs)
        require_one_order(outputs[0], parts[0])
        return self._call("reduce_scatter", "reduce_scatter", parts, outputs, sizes_of(parts), 0, op_of(op or opts))

    def _reduce_scatter_base(self, output, input, opts=None, *options):
        return self._call(
            "_reduce_scatter_base", "reduce_scatter_tensor", [input], [output], sizes_of(input), 0, op_of(opts)
        )

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return together([self._reduce_scatter_base(out, mine, opts) for out, mine in zip(outputs, inputs)])

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        if self.backend == "Gloo":
            check_alike("Gloo", "alltoall", [*outputs, *inputs], inputs[0])
        return self._call("alltoall", "all_to_all", inputs, outputs, sizes_of(inputs))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None, timeout=None):
        if not (output.is_contiguous() and input.is_contiguous()):
            raise ValueError("Tensors must be contiguous")
        outputs, inputs = (
            list(t.split(list(sizes)) if sizes else t.tensor_split(self.size()))
            for t, sizes in ((output, output_split_sizes), (input, input_split_sizes))
        )
        return self._call("alltoall_base", "all_to_all", inputs, outputs, sizes_of(input), in_profile=[input])

    all_to_all_single = alltoall_base

    def barrier(self, opts=None, timeout=None):
        return self._call("barrier", "barrier", [], [], 0, limit_s=limit_of(getattr(opts, "timeout", timeout)))

    def monitored_barrier(self, timeout=None, wait_all_ranks: bool = False) -> None:
        limit_s = 0.0 if timeout == timedelta(0) else limit_of(timeout) or self.members.limit_s
        work = self._call("monitored_barrier", "barrier", [], [], 0, limit_s=limit_s)
        try:
            work.wait()
        except RuntimeError:
            if limit_s is None:
                raise
            late = [self.members.place_of[rank] for rank in work.waits_for()]
            raise RuntimeError(late_text(self.place, late if wait_all_ranks else late[:1], limit_s)) from None

    def ask_classes(self, name: str, arguments: tuple, named: dict):
        """A call with a tensor that may have no memory, as torch's own groups make it: its class is asked."""
        KERNELS.install()
        self.front = self.front or Front(self)
        return getattr(self.front, name)(*arguments, **named)


SHOWN = (
    "allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced", "_allgather_base",
    "all_gather_single", "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "gather", "scatter",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
)  # fmt: skip


def _asking(name: str, method: Callable) -> Callable:
    def call(self, *arguments, **named):
        if asks_its_class(arguments):
            return self.ask_classes(name, arguments, named)
        return method(self, *arguments, **named)

    return call


for _name in [*SHOWN[:-1], "send", "recv", "recv_anysource"]:
    setattr(VirtualGroup, _name, _asking(_name, vars(VirtualGroup)[_name]))

for _method in [value for value in vars(VirtualGroup).values() if isinstance(value, FunctionType)]:
    not_compiled(_method)

KERNELS = Kernels(VirtualGroup)  # in place while a run has groups that C++ code can find


def shown_to_modes() -> AbstractContextManager:
    """While a simulation runs, a program's dispatch modes see its collectives."""
    return modes.shown(VirtualGroup, SHOWN)


def limit_of(timeout) -> float | None:
    """Seconds of a timeout that a program gave; torch's own default is none: a rank that waits for ever is named."""
    if timeout is None or timeout in (c10d.default_pg_timeout, timedelta(milliseconds=-1)) or not timeout:
        return None
    return timeout.total_seconds()
