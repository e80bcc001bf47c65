"""Checks of lesson 07: who holds what, and when."""

from __future__ import annotations

from hw_utils.checks.lesson_07.checkpoints import shards
from hw_utils.checks.lesson_07.gradients.in_time import sharded_gradients_in_time
from hw_utils.checks.lesson_07.gradients.sharded_gradients import sharded_gradients
from hw_utils.checks.lesson_07.memory_formulas import activation_bytes, state_bytes
from hw_utils.checks.lesson_07.optimizer import sharded_adam
from hw_utils.checks.lesson_07.recomputation import recomputed
from hw_utils.checks.lesson_07.weights.fully_sharded import fully_sharded
from hw_utils.checks.lesson_07.weights.in_time import fully_sharded_in_time

__all__ = [
    "activation_bytes", "fully_sharded", "fully_sharded_in_time", "recomputed", "sharded_adam", "sharded_gradients",
    "sharded_gradients_in_time", "shards", "state_bytes",
]  # fmt: skip
