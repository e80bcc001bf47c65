"""What shards of gradients are, and what other ones come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw_utils.core.errors import CheckFailed


def judge_left(what: str, left: list[str], rank: int, *, in_order: bool = False) -> None:
    """Raises CheckFailed if parameters still have their gradient. in_order: some bucket is full before its turn."""
    if left:
        raise CheckFailed(
            f"{what}: after wait() the whole gradient of `{left[0]}` still stands on rank {rank}.",
            cause="buckets start in their order, whatever is full first: one that is full early waits for its turn."
            if in_order
            else "p.grad = None for every parameter of a bucket once its flat vector is made: others keep the rest.",
        )


def judge_shards(what: str, got: Any, right: list[np.ndarray], rank: int, world_size: int) -> None:
    """Raises CheckFailed unless a rank got its own row of each bucket's, in the dtype of `right`."""
    if not isinstance(got, list) or len(got) != len(right):
        shown = f"{len(got)} shards" if isinstance(got, list) else "no list"
        raise CheckFailed(
            f"{what}: wait() gave {shown}, expected {len(right)}, one a bucket.",
            cause="wait returns the list of shards, and starts a new one for the next backward.",
        )
    if all(_same(mine, whole[rank]) for mine, whole in zip(got, right[::-1])) and len(got) > 1:
        raise CheckFailed(
            f"{what}: wait() gave the shard of the last bucket first.",
            cause="buckets go from the last parameter to the first, and the list in their order.",
        )
    for k, (mine, whole) in enumerate(zip(got, right)):
        expected = whole[rank]
        if not isinstance(mine, np.ndarray) or mine.shape != expected.shape:
            shape = getattr(mine, "shape", None)
            raise CheckFailed(f"{what}: shard of bucket {k} has shape {shape}, expected {expected.shape}.",
                              cause="a shard is flat, 1/N of the bucket padded to the next multiple of N: -(-n // N) "
                              "numbers, not one more where N divides.")  # fmt: skip
        if not _same(mine, expected):
            first = int((~_near(mine, expected)).argmax())
            first = 0 if first < 3 else first
            raise CheckFailed(
                f"{what}: shard of bucket {k}{f' from number {first} on' * bool(first)} is "
                f"{mine[first : first + 3]}..., expected {expected[first : first + 3]}...",
                cause=_why(mine, whole, rank, world_size),
            )
        if mine.dtype != expected.dtype:
            raise CheckFailed(
                f"{what}: shard of bucket {k} is of {mine.dtype}, the model is of {expected.dtype}.",
                cause="a shard has the dtype of its bucket's parameters: so have the zeros of those without a gradient "
                "(torch.zeros_like(p)), and the vector that the shard arrives in.",
            )


def _same(mine: Any, right: np.ndarray) -> bool:
    is_alike = isinstance(mine, np.ndarray) and mine.shape == right.shape
    return is_alike and bool(_near(mine, right).all())


def _near(mine: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.isclose(mine, right, rtol=1e-10, atol=1e-12)


def _why(mine: np.ndarray, whole: np.ndarray, rank: int, world_size: int) -> str:
    causes = {
        "that is the sum: divide by the number of ranks, once.": whole[rank] * world_size,
        "divided by the number of ranks twice.": whole[rank] / world_size,
        "it is zero: the gradients were set to None before they were copied, or the shard was read before wait().": 0
        * whole[rank],
    }
    flat = whole.ravel()
    packed = np.trim_zeros(flat, "f")
    packed = np.pad(packed, (0, len(flat) - len(packed))).reshape(whole.shape)
    if not np.array_equal(packed, whole) and np.allclose(mine, packed[rank], rtol=1e-9, atol=1e-12):
        return "a parameter without a gradient counts as zeros, at its own place in the bucket."
    if np.allclose(mine, whole[rank], rtol=1e-5, atol=1e-6):
        return "right to six places: gradients travel in the dtype that they have."
    ends = [np.roll(flat, n).reshape(whole.shape) for n in range(1, world_size) if not flat[-n:].any()]
    if any(np.allclose(mine, shifted[rank], rtol=1e-9, atol=1e-12) for shifted in ends):
        return "the padding stands behind the gradients, not before them."
    near = [cause for cause, value in causes.items() if np.allclose(mine, value, rtol=1e-9, atol=1e-12)]
    other = [r for r in range(world_size) if np.allclose(mine, whole[r], rtol=1e-9, atol=1e-12)]
    if near or not other:
        usual = (
            "the bucket's order is that of its parameters; gradients of one backward alone are in it, and a shard is "
        )
        return (near or [usual + "read after wait()."])[0]
    return f"that is rank {other[0]}'s shard: the ranks' pieces lie in the order of the ranks."
