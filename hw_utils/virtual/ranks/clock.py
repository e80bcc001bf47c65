"""While a simulation runs, the functions of `time` read and advance the running rank's virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager

_SECONDS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


def _replacements(engine) -> dict:
    """For threads that carry ranks; others of this process, as one of a kernel that sleeps, keep the real ones."""

    def of_rank(name: str, virtual: Callable) -> Callable:
        real, carries = getattr(time, name), engine.carries

        def call(*seconds):
            return virtual(*seconds) if carries() else real(*seconds)

        return call

    def now_s() -> float:
        return engine.now() if engine.rank < engine.world_size else 0.0

    def now_ns() -> int:
        return round(now_s() * 1e9)

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        engine.move_on(engine.rank, engine.now() + seconds)
        engine.resume_compute()

    found = dict.fromkeys(_SECONDS, now_s) | {f"{name}_ns": now_ns for name in _SECONDS}
    return {name: of_rank(name, function) for name, function in {**found, "sleep": sleep}.items()}


@contextmanager
def virtual_clock(engine):
    """`time.perf_counter()` is the rank's virtual time, `time.sleep(s)` takes s virtual seconds."""
    replacements = _replacements(engine)
    before = {name: getattr(time, name) for name in replacements}
    try:
        for name, function in replacements.items():
            setattr(time, name, function)
        yield
    finally:
        for name, function in before.items():
            setattr(time, name, function)
