"""Checks of lesson 05: where the time goes, bucketing, overlap, attribution."""

from __future__ import annotations

from hw_utils.checks.lesson_05_buckets import bucketed_all_reduce
from hw_utils.checks.lesson_05_causes import step_under, waterfall
from hw_utils.checks.lesson_05_costs import (
    amdahl_speedup,
    bucketed_s,
    calls_per_epoch,
    overlapped_s,
    ring_bytes,
    server_bytes,
)
from hw_utils.checks.lesson_05_profile import profiled_training, scaling_metrics
from hw_utils.checks.overlap import overlap, overlap_in_time

__all__ = [
    "amdahl_speedup", "bucketed_all_reduce", "bucketed_s", "calls_per_epoch", "overlap", "overlap_in_time",
    "overlapped_s", "profiled_training", "ring_bytes", "scaling_metrics", "server_bytes", "step_under", "waterfall",
]  # fmt: skip
