"""Calls of a process group with several tensors a rank, as gloo does them: combined within the rank, then as one.

    work = several.all_reduce(group, tensors, opts)

All that such a call costs the network is one tensor's; the others have the result once the call is waited for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hw_utils.core.calls.arguments import op_of, root_of
from hw_utils.core.calls.fitting_tensors import check_alike
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.traffic import reductions


def all_reduce(group, tensors: list[torch.Tensor], opts):
    """Every tensor of every rank holds the reduction of all.

    Raises:
        RuntimeError: there are none, or they differ in kind.
        NotImplementedError: ReduceOp.AVG, of which torch does not say by what it divides here.
    """
    _require_alike(group, "allreduce", tensors)
    name = reductions.reduce_name(op_of(opts)) or "SUM"
    if name == "AVG":
        raise NotImplementedError(
            "ReduceOp.AVG of several tensors a rank. Next step: a call for each, or ReduceOp.SUM and a division"
        )
    total = _copy(tensors[0])
    with torch.no_grad(), unseen():
        for tensor in tensors[1:]:
            total = _combined(group, total, tensor.detach(), op_of(opts))
    return _handing_out(group.allreduce([total], opts), tensors, lambda: [(tensor, total) for tensor in tensors])


def broadcast(group, tensors: list[torch.Tensor], opts):
    """Every tensor of every rank holds the root's tensor `opts.rootTensor`.

    Raises:
        RuntimeError: there are none, no such root, or they differ in kind.
    """
    chosen = require_root_tensor(group, "broadcast", opts, tensors)
    _require_alike(group, "broadcast", tensors)
    others = [tensor for i, tensor in enumerate(tensors) if i != chosen]
    work = group.broadcast([tensors[chosen]], root=root_of(opts, None))
    return _handing_out(work, tensors, lambda: [(tensor, tensors[chosen]) for tensor in others])


def all_gather(group, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts):
    """Each of a rank's output lists holds all ranks' inputs, a rank's own beside one another.

    Raises:
        RuntimeError: the lists do not fit each other.
    """
    method, size = f"ProcessGroup{group.backend}::allgather", group.size()
    if not inputs:
        raise RuntimeError(f"{method}: requires non-empty input tensor list")
    if len(outputs) != len(inputs):
        raise RuntimeError(f"{method}: requires input/output tensor lists to have the same length")
    for i, parts in enumerate(outputs):
        require_as_many(group, "allgather", parts, len(inputs), i)
    for tensors in (inputs, *outputs):
        check_alike(group.backend, "allgather", tensors, inputs[0])
    with torch.no_grad(), unseen():
        mine = torch.stack([tensor.detach() for tensor in inputs])
        gathered = [torch.empty_like(mine) for _ in range(size)]
    work = group.allgather([gathered], [mine], opts)
    return _handing_out(
        work, outputs, lambda: [(to, of) for parts in outputs for to, of in zip(parts, torch.cat(gathered))]
    )


def in_one(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What NCCL's all_gather gives: one tensor of all parts, (parts, *shape)."""
    with torch.no_grad(), unseen():
        return [torch.stack([part.detach() for part in parts])]


def as_list(tensors) -> list[torch.Tensor]:
    """A rank's tensors of a call, given as one or in a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def require_root_tensor(group, method: str, opts, tensors: list[torch.Tensor]) -> int:
    """Which of a rank's tensors the root's is.

    Raises:
        RuntimeError: there is none of that number.
    """
    chosen = getattr(opts, "rootTensor", 0)
    if not 0 <= chosen < len(tensors):
        raise RuntimeError(f"ProcessGroup{group.backend}::{method}: invalid root tensor: {chosen}")
    return chosen


def require_as_many(group, method: str, parts: list[torch.Tensor], n_inputs: int = 1, index: int = 0) -> None:
    """Raises RuntimeError unless an output list has a tensor for each input of each rank."""
    if len(parts) != n_inputs * group.size():
        raise RuntimeError(
            f"ProcessGroup{group.backend}::{method}: invalid output tensor list at index {index} "
            f"(expected length {n_inputs * group.size()}, got {len(parts)})"
        )


def require_coalesced(group, tensors: list[torch.Tensor]) -> None:
    """Raises RuntimeError unless gloo can reduce the tensors as one piece."""
    method = f"ProcessGroup{group.backend}::allreduce_coalesced"
    if not tensors:
        raise RuntimeError(f"{method}: requires non-empty tensor list")
    if group.backend != "Gloo":
        return
    for i, tensor in enumerate(tensors):
        if tensor.layout is not tensors[0].layout:
            raise RuntimeError(f"{method}: invalid tensor layout at index {i}")
        if tensor.dtype is not tensors[0].dtype:
            raise RuntimeError(f"{method}: tensors must all have the same type")
    if tensors[0].layout is not torch.strided:
        raise RuntimeError(f"{method}: unsupported layout")


def require_coalesced_outputs(group, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> None:
    """Raises RuntimeError unless there is an output list for each rank, with a tensor for each input."""
    method = f"ProcessGroup{group.backend}::allgather_coalesced"
    if not inputs:
        raise RuntimeError(f"{method}: requires non-empty input tensor list")
    if len(outputs) != group.size():
        raise RuntimeError(f"{method}: output lists should be equal to world size")
    for parts in outputs:
        if len(parts) != len(inputs):
            raise RuntimeError(f"{method}: invalid output size: (expected length {len(inputs)}, got {len(parts)})")
        for i, (part, mine) in enumerate(zip(parts, inputs)):
            if part.shape != mine.shape:
                raise RuntimeError(
                    f"{method}: invalid size of output tensor at index {i} "
                    f"(expected length {list(mine.shape)}, got {list(part.shape)})"
                )
            if part.dtype is not mine.dtype:
                raise RuntimeError(
                    f"{method}: invalid tensor type at index {i} (expected {mine.dtype}, got {part.dtype})"
                )


def the_only(group, method: str, tensors, what: str = "tensor list") -> list[torch.Tensor]:
    """A rank's tensor of a call that takes no more than one.

    Raises:
        RuntimeError: none or several.
    """
    tensors = as_list(tensors)
    if len(tensors) != 1:
        raise RuntimeError(f"ProcessGroup{group.backend}::{method}: requires a single-element {what}")
    return tensors


def the_roots_own(group, method: str, lists, tensor: torch.Tensor, what: str, root: int) -> list[torch.Tensor]:
    """The list of a tensor for each rank that the root of a gather or scatter gives, and nobody else.

    what: "input" or "output".
    Raises:
        RuntimeError: it is not the root's, or does not fit the group or `tensor`.
    """
    name, lists = f"ProcessGroup{group.backend}::{method}", list(lists or ())
    if root != group.rank():
        if lists and group.backend == "Gloo":
            raise RuntimeError(f"{name}: requires empty {what} on non-root")
        return []
    parts = lists if lists and isinstance(lists[0], torch.Tensor) else lists[0] if len(lists) == 1 else None
    if parts is None:
        raise RuntimeError(
            f"{name}: requires a single-element {what} list containing a list with {group.size()} tensors"
        )
    if len(parts) != group.size():
        raise RuntimeError(
            f"{name}: Incorrect {what} list size {len(parts)}. {what.capitalize()} list size should be {group.size()}, "
            "same as size of the process group."
        )
    check_alike(group.backend, method, parts, tensor)
    return list(parts)


def _require_alike(group, method: str, tensors: list[torch.Tensor]) -> None:
    if not tensors:
        raise RuntimeError(f"ProcessGroup{group.backend}::{method}: requires non-empty tensor list")
    for i, tensor in enumerate(tensors):
        if tensor.layout is not tensors[0].layout:
            raise RuntimeError(f"ProcessGroup{group.backend}::{method}: invalid tensor layout at index {i}")
    check_alike(group.backend, method, tensors, tensors[0])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), unseen():
        return tensor.detach().clone()


def _combined(group, total: torch.Tensor, tensor: torch.Tensor, op) -> torch.Tensor:
    if total.layout is not torch.strided:
        return total + tensor
    return reductions.reducer(op, total.dtype, group.backend)(total, tensor)


def _handing_out(work, result: list, pairs: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]):
    """The work, whose result is `result`; before whoever waits for it goes on, tensors get others' elements."""

    def hand_out() -> None:
        with torch.no_grad(), unseen():
            for to, of in pairs():
                to.copy_(of)
        work.outputs = result

    work.finish_with(hand_out)
    return work
