"""Checks of lesson 08: pipelines, by who did what when."""

from __future__ import annotations

from hw_utils.checks.lesson_08.balanced_stages import balance
from hw_utils.checks.lesson_08.bubbles import bubble_of_ideal, bubble_of_total
from hw_utils.checks.lesson_08.interleaved_and_zero_bubble import interleaved_order, zero_bubble_order
from hw_utils.checks.lesson_08.schedules import (
    gpipe,
    gpipe_in_time,
    one_f_one_b,
    one_f_one_b_in_flight,
    one_f_one_b_in_time,
)
from hw_utils.checks.lesson_08.stage_gradients import stage
from hw_utils.checks.lesson_08.stage_memory import stage_lets_go

__all__ = [
    "balance", "bubble_of_ideal", "bubble_of_total", "gpipe", "gpipe_in_time", "interleaved_order", "one_f_one_b",
    "one_f_one_b_in_flight", "one_f_one_b_in_time", "stage", "stage_lets_go", "zero_bubble_order",
]  # fmt: skip
