"""Judges the calls that lesson 05's hooks make: each bucket once a step, in order, waited for."""

from __future__ import annotations

from collections import Counter

import torch

from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace


def judge_calls(
    what: str, trace: Trace, world_size: int, bucket_bytes: int, n_syncs: int, is_accumulated: bool, dtype: str
) -> None:
    others = sorted(trace.ops - {"all_reduce", "barrier"})
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}; all_reduce is enough.",
            cause="one all_reduce a bucket, started in the hook, and nothing else.",
        )
    itemsize = getattr(torch, dtype).itemsize
    trained_bytes = itemsize * (5 + 3 + 2)  # the frozen layer stays out
    bucket_sizes = _bucket_sizes(bucket_bytes, itemsize)
    for rank in range(world_size if world_size > 1 else 0):
        mine = trace.of_rank(rank).of_op("all_reduce")
        n_bytes = sum(e.n_bytes for e in mine)
        if n_bytes != n_syncs * trained_bytes:
            cause = "every trained parameter goes once a step, unused ones as zeros; frozen ones never."
            if is_accumulated and n_bytes > trained_bytes:
                cause = "inside no_sync() nothing may be sent: neither counted nor started."
            elif n_syncs > 1 and n_bytes == trained_bytes:
                cause = "nothing is sent in the second step: at the end of wait() everything starts over (start_over)."
            elif (
                dtype == "float32"
                and n_bytes == 2 * n_syncs * trained_bytes
                and len(mine) == n_syncs * len(bucket_sizes)
            ):
                cause = (
                    "8 bytes a number travel, as float64: the flat vector has the gradients' own dtype, float32 here."
                )
            elif n_bytes == 2 * n_syncs * trained_bytes:
                cause = (
                    "each bucket goes twice, in a hook and again in wait(): that starts only those that are not under "
                    "way, and start_over comes last."
                )
            elif [2 * e.n_bytes for e in mine] == n_syncs * bucket_sizes and itemsize == 8:
                cause = (
                    "4 bytes a number travel, as float32: the flat vector has the gradients' own dtype, float64 here."
                )
            elif len(mine) == n_syncs * len(bucket_sizes) and n_bytes < n_syncs * trained_bytes:
                cause = (
                    "each bucket goes, but one without all its parameters: where a gradient is None, zeros travel in "
                    "its place, so that the vector is as long on every rank."
                )
            elif n_bytes < n_syncs * trained_bytes:
                cause = "buckets that were not full when backward ended are never started: start them in wait()."
            elif n_bytes == n_syncs * (trained_bytes + itemsize * 4):
                cause = "the frozen layer travels too: it has no gradient."
            elif not Counter(n_syncs * bucket_sizes) - Counter(e.n_bytes for e in mine):
                beside = len(mine) - n_syncs * len(bucket_sizes)
                cause = (
                    f"every bucket goes, and {beside} more all_reduce beside them: nothing else travels, no count and "
                    "no flag."
                )
            elif len(mine) == n_syncs * len(bucket_sizes):
                cause = "each bucket goes once, in a vector longer than its gradients: nothing is added to them."
            raise CheckFailed(
                f"{what}: rank {rank} reduced {n_bytes} bytes, expected {n_syncs * trained_bytes}.", cause=cause
            )
        sizes, due = [e.n_bytes for e in mine], n_syncs * bucket_sizes
        if sizes != due:
            cause = "an all_reduce is of one bucket, all its gradients in one flat vector, in the order of the buckets."
            if len(sizes) > len(due):
                cause = "a bucket is one message: its gradients in one flat vector, one all_reduce."
            elif sorted(sizes) == sorted(due):
                cause = "buckets go in their order, the last parameters first, whatever comes in first."
            raise CheckFailed(
                f"{what}: rank {rank} calls all_reduce with {sizes} bytes, its buckets hold {due}.", cause=cause
            )
        if any(e.waited is None for e in mine):
            raise CheckFailed(
                f"{what}: rank {rank} did not wait for every all_reduce before the step.",
                cause="keep every handle, and wait() for each of them in wait.",
            )


def _bucket_sizes(bucket_bytes: int, itemsize: int) -> list[int]:
    """Bytes of each bucket of `Branches`, as the lesson's buckets_of fills them."""
    sizes, room = [], 0
    for n_bytes in (itemsize * 2, itemsize * 3, itemsize * 5):  # the last layer first
        if n_bytes > room:
            sizes.append(0)
            room = bucket_bytes
        sizes[-1] += n_bytes
        room -= n_bytes
    return sizes
