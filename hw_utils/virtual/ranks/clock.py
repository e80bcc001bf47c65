"""While a simulation runs, the functions of `time` read and advance the running rank's virtual clock."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

from hw_utils.core.calls.patched import patched

_CLOCK = ("perf_counter", "monotonic", "time")
_TIMING = (timeit.Timer.__init__, timeit.timeit, timeit.repeat)  # have the clock among their defaults
_COMPUTED = ("process_time", "thread_time")  # on a real rank they stand still while it waits or sleeps


def _replacements(engine) -> dict:
    """For threads that carry ranks; others of this process, as one of a kernel that sleeps, keep the real ones."""

    def of_rank(name: str, virtual: Callable) -> Callable:
        real, carries = getattr(time, name), engine.carries

        def call(*seconds):
            return virtual(*seconds) if carries() else real(*seconds)

        return call

    def now_s() -> float:
        return engine.now() if engine.rank < engine.world_size else 0.0

    def computed_s() -> float:
        return engine.computed_s() if engine.rank < engine.world_size else 0.0

    def in_ns(seconds: Callable) -> Callable:
        return lambda: round(seconds() * 1e9)

    def sleep(seconds: float) -> None:
        if not seconds >= 0:  # nor NaN
            raise ValueError(f"sleep length must be non-negative, got {seconds}")
        engine.move_on(engine.rank, engine.now() + seconds)
        engine.resume_compute()

    found = dict.fromkeys(_CLOCK, now_s) | dict.fromkeys(_COMPUTED, computed_s)
    found |= {f"{name}_ns": in_ns(function) for name, function in found.items()}
    return {name: of_rank(name, function) for name, function in {**found, "sleep": sleep}.items()}


@contextmanager
def virtual_clock(engine):
    """`time.perf_counter()` is the rank's virtual time, `process_time()` what of it was computation."""
    clock, defaults = timeit.default_timer, [function.__defaults__ for function in _TIMING]
    with ExitStack() as stack:
        for name, function in (replacements := _replacements(engine)).items():
            stack.enter_context(patched(time, name, function))
        virtual = replacements["perf_counter"]
        stack.enter_context(patched(timeit, "default_timer", virtual))
        for function, values in zip(_TIMING, defaults):
            stack.callback(setattr, function, "__defaults__", values)
            function.__defaults__ = tuple(virtual if value is clock else value for value in values)
        yield
