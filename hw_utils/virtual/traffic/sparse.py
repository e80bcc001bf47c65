"""all_reduce of a sparse tensor, as gloo does it: indices and values are gathered, and every member adds them up."""

from __future__ import annotations

import torch

from hw_utils.core.calls.tensor_layout import sparse_parts
from hw_utils.virtual.traffic.reductions import reduce_name

KIND = "sparse_all_reduce"


def packed(tensor: torch.Tensor, op) -> torch.Tensor:
    """Indices and values as bytes, one after the other.

    Raises:
        RuntimeError: gloo cannot do it.
    """
    if reduce_name(op) not in ("", "SUM"):
        raise RuntimeError(
            "ProcessGroupGloo::allreduce: unsupported reduction operation "
            "(allreduce of sparse tensors only works with ReduceOp.SUM)"
        )
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in sparse_parts(tensor.detach())])


def deliver_to(tensor: torch.Tensor, work) -> None:
    """The sum is put into `tensor` when `work`, which gathers everybody's bytes, is waited for."""

    def put_sum() -> None:
        with torch.no_grad():
            tensor.copy_(_sum(tensor, work.result()))
        work.outputs = [tensor]

    work.finish_with(put_sum)


def _sum(like: torch.Tensor, gathered: list[torch.Tensor]) -> torch.Tensor:
    """In the order of ranks, as gloo adds."""
    total = _unpacked(like, gathered[0])
    for data in gathered[1:]:
        total += _unpacked(like, data)
    return total.coalesce()


def _unpacked(like: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    n_sparse, dense = like.sparse_dim(), like.shape[like.sparse_dim() :]
    index_bytes, value_bytes = 8 * n_sparse, like.element_size() * dense.numel()
    n_entries = data.numel() // (index_bytes + value_bytes)
    data = data.clone()  # aligned
    indices = data[: index_bytes * n_entries].view(torch.int64).view(n_sparse, n_entries)
    values = data[index_bytes * n_entries :].clone().view(like.dtype).view(n_entries, *dense)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False)
