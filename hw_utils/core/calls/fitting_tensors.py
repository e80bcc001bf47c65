"""Whether the tensors that one rank gives to a collective fit each other and the group, before anything travels.

    check_scattered("_reduce_scatter_base", 3, output, input)

Whether those of two ranks fit each other shows when both have called: virtual/traffic/collectives.py, gloo/mismatch.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


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
    check_as_many(name, world_size, outputs, inputs)
    for tensors in (inputs, outputs):
        check_alike("Gloo", "alltoall", tensors, tensors[0])
    if outputs[0].dtype != inputs[0].dtype:
        raise RuntimeError(f"{name}: input and output tensors must have the same type")
    if outputs[0].shape != inputs[0].shape:
        raise RuntimeError(f"{name}: input and output tensors must have the same size")


def check_as_many(name: str, world_size: int, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Raises RuntimeError unless each list has a tensor a rank."""
    for what, tensors in (("input", inputs), ("output", outputs)):
        if len(tensors) != world_size:
            raise RuntimeError(f"{name}: {what} tensor list size {len(tensors)} does not match world size {world_size}")


def check_same_length(name: str, outputs: Sequence, inputs: Sequence) -> None:
    """Raises RuntimeError unless there is an output for each input."""
    if len(outputs) != len(inputs):
        raise RuntimeError(f"{name}: {len(outputs)} outputs for {len(inputs)} inputs: each input has an output")


def check_parts(
    name: str, world_size: int, place: int, output: torch.Tensor, parts: Sequence[torch.Tensor], *, by_elements: bool
) -> None:
    """Raises RuntimeError unless a reduce_scatter has a part a rank of one dtype, and its own fits the output.

    place: the rank's own in the group. by_elements: numbers of elements are compared, as NCCL does, no shapes.
    """
    if len(parts) != world_size:
        raise RuntimeError(f"{name}: invalid input tensor list size {len(parts)}, must be world size {world_size}")
    for i, part in enumerate(parts):
        if part.dtype != output.dtype:
            raise RuntimeError(f"{name}: input {i} and the output must have one dtype, {_both(part, output)}")
    mine = parts[place]
    if not (mine.numel() == output.numel() if by_elements else mine.shape == output.shape):
        what = "number of elements" if by_elements else "shape"
        raise RuntimeError(
            f"{name}: on rank {place} input {place} and the output must have one {what}, {_both(mine, output)}"
        )


def check_scattered(
    name: str, world_size: int, output: torch.Tensor, whole: torch.Tensor, *, by_elements: bool
) -> None:
    """Raises RuntimeError unless `whole` can be cut into a tensor like `output` for each rank, along dimension 0.

    by_elements: numbers of elements are compared, as NCCL does, no shapes.
    """
    if whole.dtype != output.dtype:
        raise RuntimeError(f"{name}: the input and the output must have one dtype, {_both(whole, output)}")
    first, *others = output.shape or (1,)
    shape = torch.Size([first * world_size, *others])
    if not (whole.numel() == world_size * output.numel() if by_elements else whole.shape == shape):
        wanted = f"{shape.numel()} elements" if by_elements else f"shape {_as_gloos(shape)}"
        raise RuntimeError(
            f"{name}: among {world_size} ranks the input is {world_size} times the output, {wanted}, "
            f"{_both(whole, output)}"
        )


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


def _both(given: torch.Tensor, output: torch.Tensor) -> str:
    texts = (f"{str(t.dtype).removeprefix('torch.')} of shape {_as_gloos(t.shape)}" for t in (given, output))
    return "got {} for {}".format(*texts)


def _as_gloos(shape: torch.Size) -> str:
    return f"({', '.join(map(str, shape))})"
