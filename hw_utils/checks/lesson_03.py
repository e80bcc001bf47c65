"""Checks of lesson 03: distributed SGD, and how much faster it gets there."""

from __future__ import annotations

from hw_utils.checks.lesson_03_equal import average, batches, start_equal
from hw_utils.checks.lesson_03_speedup import k_star, speedup, test_accuracy, train
from hw_utils.checks.lesson_03_step import step_equal, step_follows

__all__ = [
    "average", "batches", "k_star", "speedup", "start_equal", "step_equal", "step_follows", "test_accuracy", "train",
]  # fmt: skip
