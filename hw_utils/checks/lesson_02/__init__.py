"""Checks of lesson 02: all-reduce along a tree and around a ring, and what they cost."""

from __future__ import annotations

from hw_utils.checks.lesson_02.all_reduce import (
    halving_doubling_all_reduce,
    ring_all_reduce,
    ring_sum,
    tree_all_reduce,
    tree_sum,
)
from hw_utils.checks.lesson_02.costs import crossover_bytes, point_to_point_s, ring_all_reduce_s, tree_all_reduce_s
from hw_utils.checks.lesson_02.partners_and_chunks import chunk_owned, chunk_to_send, tree_partner, tree_steps

__all__ = [
    "chunk_owned", "chunk_to_send", "crossover_bytes", "halving_doubling_all_reduce", "point_to_point_s",
    "ring_all_reduce", "ring_all_reduce_s", "ring_sum", "tree_all_reduce", "tree_all_reduce_s", "tree_partner",
    "tree_steps", "tree_sum",
]  # fmt: skip
