"""Checks of lesson 04: the training loop, and three ways to synchronise gradients."""

from __future__ import annotations

from hw_utils.checks.lesson_04.costs import bytes_sent, predicted_s
from hw_utils.checks.lesson_04.gradients import (
    all_reduce_mean,
    all_reduce_traffic,
    batches,
    gather_scatter,
    gather_scatter_traffic,
)
from hw_utils.checks.lesson_04.loop import evaluate, train
from hw_utils.checks.lesson_04.worker import calls, ddp, worker

__all__ = [
    "all_reduce_mean", "all_reduce_traffic", "batches", "bytes_sent", "calls", "ddp", "evaluate", "gather_scatter",
    "gather_scatter_traffic", "predicted_s", "train", "worker",
]  # fmt: skip
