"""Two sides of one communication that do not fit, in the words of both engines.

one = message_text(True, 0, 1, amount_text(4, "float32", 16), where="cell.py, line 4")
raise MessageMismatch(messages_differ(one, message_text(False, 1, 0, ...), is_dtype=False))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from hw_utils.core.errors import ranks_text

if TYPE_CHECKING:
    import torch


def amount_text(n_elements: int, dtype: str, n_bytes: int) -> str:
    """A tensor's size.

    >>> amount_text(1000, "float32", 4000)
    '1,000 float32 (4,000 bytes)'
    """
    return f"{n_elements:,} {dtype} ({n_bytes:,} bytes)"


def message_text(is_send: bool, rank: int, peer: int, amount: str, *, tag: int = 0, where: object = "") -> str:
    """One side of a message; `peer` is -1 if it may be anybody.

    >>> message_text(True, 0, 1, "2 float32 (8 bytes)", tag=3, where="cell.py, line 4")
    'rank 0 sends 2 float32 (8 bytes) to rank 1 with tag 3 at cell.py, line 4'
    """
    verb, way = ("sends", "to") if is_send else ("receives", "from")
    other = f"rank {peer}" if peer >= 0 else "any rank"
    with_tag = f" with tag {tag}" if tag else ""
    return f"rank {rank} {verb} {amount} {way} {other}{with_tag}{_at(where)}"


def messages_differ(send: str, receive: str, *, is_dtype: bool) -> str:
    """Why a message and its receive are an error: is_dtype: of the same bytes, else their numbers differ."""
    return f"{send}, but {receive}: a message and its receive must have the same " + (
        "dtype" if is_dtype else "number of bytes"
    )


def call_text(rank: int, op: str, amount: str = "", *, root: int = -1, where: object = "") -> str:
    """A collective call; `root` is -1 if it has none.

    >>> call_text(0, "reduce", "3 float32 (12 bytes)", root=1)
    'rank 0 calls reduce of 3 float32 (12 bytes) with root 1'
    """
    of = f" of {amount}" if amount else ""
    with_root = f" with root {root}" if root >= 0 else ""
    return f"rank {rank} calls {op}{of}{with_root}{_at(where)}"


def calls_differ(one: str, other: str) -> str:
    """Why two members' collective calls are an error."""
    return f"{one}, but {other}: all ranks of a group make the same collective calls in one order"


def check_alike(backend: str, method: str, tensors: Iterable[torch.Tensor], like: torch.Tensor) -> None:
    """Raises what torch's backend ("Gloo", "NCCL") raises unless all have one shape and dtype."""
    for i, tensor in enumerate(tensors):
        for what, expected, got in (
            ("type", like.dtype, tensor.dtype),
            ("size", _as_gloos(like.shape), _as_gloos(tensor.shape)),
        ):
            if got != expected:
                raise RuntimeError(
                    f"ProcessGroup{backend}::{method}: invalid tensor {what} at index {i} "
                    f"(expected {expected}, got {got})"
                )


def check_exchange(world_size: int, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Raises what gloo raises unless there are as many lists' tensors as ranks, of one shape and dtype."""
    name = "ProcessGroupGloo::alltoall"
    for what, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != world_size:
            raise RuntimeError(f"{name}: {what} tensor list size {len(tensors)} does not match world size {world_size}")
    for tensors in (inputs, outputs):
        check_alike("Gloo", "alltoall", tensors, tensors[0])
    if outputs[0].dtype != inputs[0].dtype:
        raise RuntimeError(f"{name}: input and output tensors must have the same type")
    if outputs[0].shape != inputs[0].shape:
        raise RuntimeError(f"{name}: input and output tensors must have the same size")


def check_splits(world_size: int, *sides: tuple[Sequence[int], torch.Tensor]) -> None:
    """Raises what torch raises unless the split sizes of (them, a tensor) fit the ranks and the tensor.

    Without sizes all get as many rows; gloo itself would leave the last ones where they do not divide.
    """
    for sizes, tensor in sides:
        n_rows = tensor.size(0) if tensor.dim() else 1
        if not sizes:
            if n_rows % world_size:
                raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        elif len(sizes) != world_size:
            raise RuntimeError("Number of tensor splits not equal to group size")
        elif sum(sizes) != n_rows:
            raise RuntimeError("Split sizes doesn't match total dim 0 size")


def _as_gloos(shape: torch.Size) -> str:
    return f"({', '.join(map(str, shape))})"


def _at(where: object) -> str:
    return f" at {where}" if where else ""


def late_text(place: int, late: list[int], limit_s: float, *, names_all: bool = False) -> str:
    """What a monitored_barrier says on a rank after `limit_s` seconds: gloo's own words."""
    if place:
        return (
            f"Rank {place} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0. Please check rank 0 logs for faulty rank."
        )
    if limit_s == 0:
        return "Rank 0 timed out in monitoredBarrier after 0 ms."
    who = f"Ranks {', '.join(map(str, late))}" if names_all else f"Rank {late[0]}"
    return f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit_s * 1000:g} ms"


def closed_text(place: int, gave_up: Collection[int]) -> str:
    """What each later call of a group says once a member's wait has run into its time limit: gloo's own words.

    place: of the member that calls; gave_up: of those that have waited so long.
    """
    if place in gave_up:
        return "Application timeout caused pair closure"
    return f"Connection closed by peer: {ranks_text(gave_up)} of the group had a timeout before"
