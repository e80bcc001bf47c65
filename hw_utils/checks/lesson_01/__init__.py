"""Checks of lesson 01: ranks, world size, send and receive."""

from __future__ import annotations

from hw_utils.checks.lesson_01.first_output import hello
from hw_utils.checks.lesson_01.hangs import read_a_hang, shift_at_once, shift_by_parity
from hw_utils.checks.lesson_01.link import fit_link, time_message
from hw_utils.checks.lesson_01.outcomes import predictions, times
from hw_utils.checks.lesson_01.values import ping_pong, relay

__all__ = [
    "fit_link", "hello", "ping_pong", "predictions", "read_a_hang", "relay", "shift_at_once", "shift_by_parity",
    "time_message", "times",
]  # fmt: skip
