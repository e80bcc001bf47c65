"""Checks of lesson 05: where the time goes, bucketing, overlap, attribution."""

from __future__ import annotations

from hw_utils.checks.lesson_05.attribution import step_under, waterfall
from hw_utils.checks.lesson_05.bucket_times import bucketed_s, overlapped_s
from hw_utils.checks.lesson_05.buckets import bucketed_all_reduce
from hw_utils.checks.lesson_05.formulas import amdahl_speedup, calls_per_epoch, ring_bytes, server_bytes
from hw_utils.checks.lesson_05.hooks import overlap
from hw_utils.checks.lesson_05.hooks_in_time import overlap_in_time
from hw_utils.checks.lesson_05.metrics import scaling_metrics
from hw_utils.checks.lesson_05.profile import profiled_training

__all__ = [
    "amdahl_speedup", "bucketed_all_reduce", "bucketed_s", "calls_per_epoch", "overlap", "overlap_in_time",
    "overlapped_s", "profiled_training", "ring_bytes", "scaling_metrics", "server_bytes", "step_under", "waterfall",
]  # fmt: skip
