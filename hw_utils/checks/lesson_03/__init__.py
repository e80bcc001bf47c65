"""Checks of lesson 03: distributed SGD, and how much faster it gets there."""

from __future__ import annotations

from hw_utils.checks.lesson_03.accuracy import test_accuracy
from hw_utils.checks.lesson_03.batches import batches
from hw_utils.checks.lesson_03.model_averaging import average, start_equal
from hw_utils.checks.lesson_03.speedup import k_star, speedup
from hw_utils.checks.lesson_03.step import step_equal, step_follows
from hw_utils.checks.lesson_03.training import train

__all__ = [
    "average", "batches", "k_star", "speedup", "start_equal", "step_equal", "step_follows", "test_accuracy", "train",
]  # fmt: skip
