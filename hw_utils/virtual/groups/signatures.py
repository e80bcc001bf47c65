"""A virtual group's collectives, by the names by which torch's Python and C++ code call them, in several versions.

Each checks its arguments as torch's backend does and hands what travels to `_call`, which is the group's.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.calls import fitting_tensors
from hw_utils.core.calls.arguments import op_of, root_of
from hw_utils.core.calls.fitting_tensors import check_alike, check_exchange, check_splits
from hw_utils.core.calls.mismatch_text import late_text
from hw_utils.core.calls.tensor_layout import require_one_order, sizes_of
from hw_utils.core.versions import torch_version
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.traffic import several_tensors, sparse
from hw_utils.virtual.traffic.work import together

GLOO_TAKES_LISTS = (2, 12)  # the first torch whose gloo has an all_to_all of lists


class Collectives(dist.ProcessGroup):
    """What a group can be asked for together; `size`, `rank`, `backend`, `members` and `_call` are a subclass's."""

    def _told(self, method: str) -> str:
        """How torch's errors call a method."""
        return f"ProcessGroup{self.backend}::{method}"

    @property
    def _counts_elements(self) -> bool:
        """Whether numbers of elements must fit, whatever the tensors' shapes, as with NCCL."""
        return self.engine.lines is not None

    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        tensors, opts = several_tensors.as_list(tensors), op or opts
        if len(tensors) != 1:
            return several_tensors.all_reduce(self, tensors, opts)
        if tensors[0].layout is not torch.strided:
            return self._sparse_allreduce(tensors[0], op_of(opts))
        return self._call("allreduce", "all_reduce", tensors, tensors, sizes_of(tensors), 0, op_of(opts))

    def _sparse_allreduce(self, tensor, reduce_op):
        data = sparse.packed(tensor, reduce_op)
        work = self._call("allreduce", sparse.KIND, [data], [], data.nbytes)
        sparse.deliver_to(tensor, work)
        return work

    def allreduce_coalesced(self, tensors, opts=None):
        several_tensors.require_coalesced(self, tensors)
        return self._call("allreduce_coalesced", "all_reduce", tensors, tensors, sizes_of(tensors), 0, op_of(opts))

    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None):
        tensors, reduce_op = (
            several_tensors.the_only(self, "reduce", tensors),
            opts if hasattr(opts, "reduceOp") else op,
        )
        several_tensors.require_root_tensor(self, "reduce", opts, tensors)
        return self._call(
            "reduce", "reduce", tensors, tensors, sizes_of(tensors), root_of(opts, root), op_of(reduce_op)
        )

    def broadcast(self, tensors, opts=None, timeout=None, root=None):
        tensors = several_tensors.as_list(tensors)
        if len(tensors) != 1:
            return several_tensors.broadcast(self, tensors, opts)
        several_tensors.require_root_tensor(self, "broadcast", opts, tensors)
        return self._call("broadcast", "broadcast", tensors, tensors, sizes_of(tensors), root_of(opts, root))

    def allgather(self, outputs, inputs, opts=None, timeout=None, in_profile=None):
        if not isinstance(inputs, torch.Tensor):
            if len(inputs) != 1 or len(outputs) != 1:
                return several_tensors.all_gather(self, outputs, inputs, opts)
            (outputs,), (inputs,) = outputs, inputs
        parts, inputs = outputs, [inputs]
        several_tensors.require_as_many(self, "allgather", parts)
        is_nccl = self.backend == "NCCL"
        if is_nccl and len({part.numel() for part in parts}) > 1:
            return self._allgather_of_sizes(parts, inputs[0])
        if is_nccl:  # which counts elements, whatever their shape
            parts = [part.view(inputs[0].shape) if part.numel() == inputs[0].numel() else part for part in parts]
        check_alike(self.backend, "allgather", parts, inputs[0])
        work = self._call("allgather", "all_gather", inputs, parts, sizes_of(inputs), in_profile=in_profile)
        work.gives = partial(several_tensors.in_one, parts) if is_nccl else None
        return work

    def _allgather_of_sizes(self, parts: list[torch.Tensor], mine: torch.Tensor):
        """As NCCL gathers tensors of several sizes: each rank's is broadcast."""
        own = parts[self.rank()]
        check_alike(self.backend, "allgather", [own.view(mine.shape) if own.numel() == mine.numel() else own], mine)
        with torch.no_grad(), unseen():
            own.copy_(mine.detach().view(own.shape))
        return together([Collectives.broadcast(self, [part], root=root) for root, part in enumerate(parts)])

    def allgather_coalesced(self, outputs, inputs, opts=None):
        several_tensors.require_coalesced_outputs(self, outputs, inputs)
        pairs = enumerate(zip(zip(*outputs), inputs))
        in_profile = [inputs, *[[]] * len(inputs)]  # one range for all
        work = together([self.allgather([out], [mine], opts, in_profile=in_profile[k]) for k, (out, mine) in pairs])
        work.gives = outputs
        return work

    def _allgather_base(self, output, input, opts=None, timeout=None):
        whole = [output]
        if self._counts_elements and output.is_contiguous() and input.is_contiguous():
            output, input = output.view(-1), input.view(-1)
        parts = list(output.chunk(self.size(), 0))  # as gloo does: each as large as the input, and of its shape
        several_tensors.require_as_many(self, "allgather", parts)
        check_alike(self.backend, "allgather", parts, input)
        work = self._call("_allgather_base", "all_gather", [input], parts, sizes_of(input))
        work.gives = whole if self.backend == "NCCL" else None
        return work

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        fitting_tensors.check_same_length(self._told("allgather_into_tensor_coalesced"), outputs, inputs)
        return together([self._allgather_base(out, mine) for out, mine in zip(outputs, inputs)])

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs, inputs, opts=None, timeout=None, root=None):
        inputs, root = several_tensors.the_only(self, "gather", inputs, "input tensor list"), root_of(opts, root)
        parts = several_tensors.the_roots_own(self, "gather", outputs, inputs[0], "output", root)
        if self.backend == "Gloo" and inputs[0].is_complex():  # for all others torch makes two real numbers of one
            raise RuntimeError("Invalid scalar type: Gloo's gather carries no complex numbers, as view_as_real it does")
        return self._call("gather", "gather", inputs, parts, sizes_of(inputs), root)

    def scatter(self, outputs, inputs, opts=None, timeout=None, root=None):
        outputs, root = several_tensors.the_only(self, "scatter", outputs, "output tensor list"), root_of(opts, root)
        parts = several_tensors.the_roots_own(self, "scatter", inputs, outputs[0], "input", root)
        return self._call("scatter", "scatter", parts, outputs, sizes_of(outputs), root)

    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None, op=None):
        parts, outputs = inputs if isinstance(outputs, torch.Tensor) else inputs[0], several_tensors.as_list(outputs)
        several_tensors.the_only(self, "reduce_scatter", outputs)
        fitting_tensors.check_parts(
            self._told("reduce_scatter"), self.size(), self.rank(), outputs[0], parts, by_elements=self._counts_elements
        )
        require_one_order(outputs[0], parts[0])
        work = self._call("reduce_scatter", "reduce_scatter", parts, outputs, sizes_of(parts), 0, op_of(op or opts))
        work.is_mute = self.backend == "Gloo"
        return work

    def _reduce_scatter_base(self, output, input, opts=None, *options):
        fitting_tensors.check_scattered(
            self._told("_reduce_scatter_base"), self.size(), output, input, by_elements=self._counts_elements
        )
        work = self._call(
            "_reduce_scatter_base", "reduce_scatter_tensor", [input], [output], sizes_of(input), 0, op_of(opts)
        )
        work.is_mute = self.backend == "Gloo"
        return work

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        fitting_tensors.check_same_length(self._told("reduce_scatter_tensor_coalesced"), outputs, inputs)
        return together([self._reduce_scatter_base(out, mine, opts) for out, mine in zip(outputs, inputs)])

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        if self.backend == "Gloo":
            if torch_version() < GLOO_TAKES_LISTS:
                raise RuntimeError("Backend gloo does not support alltoall")
            check_exchange(self.size(), outputs, inputs)
        fitting_tensors.check_as_many(self._told("alltoall"), self.size(), outputs, inputs)
        return self._call("alltoall", "all_to_all", inputs, outputs, sizes_of(inputs))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None, timeout=None):
        is_checked = (input,) if self.backend == "Gloo" else (input, output)
        if not all(tensor.is_contiguous() for tensor in is_checked):
            raise ValueError("Tensors must be contiguous")
        whole = [output]
        check_splits(self.size(), (input_split_sizes, input), (output_split_sizes, output))
        if not output.is_contiguous():  # gloo fills memory from its first element on
            output = output.detach().as_strided(output.shape, torch.empty(output.shape, device="meta").stride())
        outputs, inputs = (
            list(t.split(list(sizes)) if sizes else t.tensor_split(self.size()))
            for t, sizes in ((output, output_split_sizes), (input, input_split_sizes))
        )
        work = self._call("alltoall_base", "all_to_all", inputs, outputs, sizes_of(input), in_profile=[input])
        work.gives = whole
        return work

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
            raise RuntimeError(late_text(self.place, late, limit_s, names_all=wait_all_ranks)) from None


def limit_of(timeout) -> float | None:
    """Seconds of a timeout that a program gave; torch's own default is none: a rank that waits for ever is named."""
    if timeout is None or timeout in (c10d.default_pg_timeout, timedelta(milliseconds=-1)) or not timeout:
        return None
    return timeout.total_seconds()
