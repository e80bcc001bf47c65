"""How the tensors of a call lie in memory: their bytes, gaps, order; which of them gloo takes as they are."""

from __future__ import annotations

import torch

# gloo takes and gives their elements in the order of the shape, whatever lies in memory: of inputs it makes one piece
# without gaps itself (torch's own backward hands them expanded gradients), and copies to outputs from one.
TAKE_GAPS = frozenset(
    {
        "allgather", "gather", "reduce_scatter", "alltoall",
        "_allgather_base", "all_gather_single", "_reduce_scatter_base", "reduce_scatter_single",
        "allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced",
        "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced",
    }
)  # fmt: skip


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether other things lie between the tensor's elements, or elements share a place."""
    if tensor.is_contiguous():
        return False
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected:
            return True
        expected *= size
    return False


def require_dense(tensor: torch.Tensor) -> None:
    """Raises RuntimeError if there are gaps between the tensor's elements: gloo would take what lies in them."""
    if _has_gaps(tensor):
        raise RuntimeError("input tensor must be non-overlapping and dense: pass .contiguous() or a clone()")


def require_one_order(output: torch.Tensor, first: torch.Tensor) -> None:
    """Raises RuntimeError where gloo's reduce_scatter of tensors like `first` would mix the output's elements up."""
    in_rows = first.is_contiguous() or _has_gaps(first)  # of those gloo makes one piece
    if not (output.is_contiguous() if in_rows else output.stride() == first.stride()):
        raise RuntimeError(
            "reduce_scatter mixes up elements unless its output lies in memory as its inputs do: pass contiguous ones"
        )


def no_memory(tensor: torch.Tensor) -> RuntimeError:
    """Why a tensor cannot travel whose bytes are nowhere: of device "meta", or of a storage that was freed."""
    kind = type(tensor).__name__ if tensor.device.type == "cpu" else f'tensor on device "{tensor.device}"'
    return RuntimeError(f"a {kind} of shape {tuple(tensor.shape)} has no memory: there is nothing to send or to fill")


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a sparse tensor, each entry once."""
    tensor = tensor.coalesce()
    return tensor.indices(), tensor.values()


_WITH_MEMORY = {torch.Tensor, torch.nn.Parameter}
_NOT_ASKED = torch._C._disabled_torch_dispatch_impl


def asks_its_class(value) -> bool:
    """Whether torch asks the class of a tensor, or of one in lists of them, what a call does: it may have no memory."""
    if isinstance(value, torch.Tensor):
        return type(value) not in _WITH_MEMORY and type(value).__torch_dispatch__ is not _NOT_ASKED
    return isinstance(value, (list, tuple)) and any(map(asks_its_class, value))


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def sizes_of(tensors) -> int:
    """Bytes of a list of tensors, nested or not."""
    if isinstance(tensors, torch.Tensor):
        return size_of(tensors)
    return sum(sizes_of(t) for t in tensors)
