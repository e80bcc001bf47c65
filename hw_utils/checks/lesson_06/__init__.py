"""Checks of lesson 06: a communication layer on threads, data parallelism, tensor parallelism."""

from __future__ import annotations

from hw_utils.checks.lesson_06.layers import (
    all_gather,
    all_reduce,
    column_backward,
    column_forward,
    column_then_row,
    dp_step,
    parallelize,
    row_backward,
    row_forward,
    split_batch,
    weighted_dp_step,
)

__all__ = [
    "all_gather", "all_reduce", "column_backward", "column_forward", "column_then_row", "dp_step", "parallelize",
    "row_backward", "row_forward", "split_batch", "weighted_dp_step",
]  # fmt: skip
