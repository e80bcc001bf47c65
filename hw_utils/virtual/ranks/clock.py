"""While a simulation runs, the functions of `time` read and advance the running rank's virtual clock.

So they do where a package has taken one of them for itself (`from time import time`, as tqdm), and so does
`datetime.now()`, on the type itself: what a rank made with another one would be no `datetime` for packages or pickles.
What asyncio's loop waits for its next timer is virtual too: it asks the clock, and would never see it pass. So is
what a rank without further threads waits for an event, a condition or a queue with a timeout.
"""

from __future__ import annotations

import ctypes
import gc
import queue
import selectors
import sys
import threading
import time
import timeit
import types
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timezone
from weakref import WeakSet

from hw_utils.core.calls.patched import patched
from hw_utils.core.source.students_files import is_students
from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports

_CLOCK = ("perf_counter", "monotonic", "time")
_TIMING = (timeit.Timer.__init__, timeit.timeit, timeit.repeat)  # have the clock among their defaults
_LARGE = frozenset({"torch", "sympy", "numpy", "hw_utils"})  # packages that take none, and many modules
LOOK_S = 0.05  # real seconds in which another thread of the rank may end a wait
_COMPUTED = ("process_time", "thread_time")  # on a real rank they stand still while it waits or sleeps
MOST_S = 1e9  # that a rank's clock sleeps up to: far from zero a float loses the seconds that a run is asked for
TAKEN = (*_CLOCK, *_COMPUTED, *(f"{name}_ns" for name in (*_CLOCK, *_COMPUTED)), "sleep")


def _replacements(engine) -> dict:
    """For threads that carry ranks; others of this process, as one of a kernel that sleeps, keep the real ones."""

    def of_rank(name: str, virtual: Callable) -> Callable:
        real, carries = getattr(time, name), engine.threads.carries

        def call(*seconds):
            return virtual(*seconds) if carries() else real(*seconds)

        return call

    def now_s() -> float:
        return engine.compute.now() if engine.rank < engine.world_size else 0.0

    def computed_s() -> float:
        return engine.compute.total_s() if engine.rank < engine.world_size else 0.0

    def in_ns(seconds: Callable) -> Callable:
        return lambda: round(seconds() * 1e9)

    def sleep(seconds: float) -> None:
        if not seconds >= 0:  # nor NaN
            raise ValueError(f"sleep length must be non-negative, got {seconds}")
        to_s = engine.compute.now() + seconds
        if to_s > MOST_S:
            raise OverflowError(f"sleep: a rank's clock goes up to {MOST_S:,.0f} s, this would end at {to_s:g} s")
        engine.move_on(engine.rank, to_s)
        engine.compute.resume()

    found = dict.fromkeys(_CLOCK, now_s) | dict.fromkeys(_COMPUTED, computed_s)
    found |= {f"{name}_ns": in_ns(function) for name, function in found.items()}
    return {name: of_rank(name, function) for name, function in {**found, "sleep": sleep}.items()}


def _loop_begins(threads) -> Callable:
    """How an event loop of asyncio begins: with a selector whose timeouts pass on the rank's clock."""
    begin = BaseSelectorEventLoop.__init__

    class Selector(selectors.DefaultSelector):
        def select(self, timeout=None):
            if timeout is None or timeout <= 0:
                return super().select(timeout)
            has_files = len(self.get_map()) > 1  # one alone is the loop's own pipe, which its threads write to
            look_s = min(timeout, LOOK_S) if threading.active_count() > 1 else 0
            found = super().select(timeout if has_files else look_s)
            if not found:
                time.sleep(timeout)
                found = super().select(0)
            return found

    def begin_with(self, selector=None) -> None:
        begin(self, Selector() if selector is None and threads.carries() else selector)

    return begin_with


def _wait(threads) -> Callable:
    """How a rank waits for a condition, as that of an event or a queue: at once if nobody is there who could end it."""
    wait = threading.Condition.wait

    def wait_on_its_clock(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout <= 0 or not threads.carries():
            return wait(self, timeout)
        others = threads.has_others()
        is_notified = wait(self, timeout if others else 0)
        if not is_notified and not (others and threads.have_clocks):
            time.sleep(timeout)
        return is_notified

    return wait_on_its_clock


class _Takers:
    """Modules that have functions of `time` among their globals; those of packages are looked at once a process."""

    def __init__(self) -> None:
        self.imports = Imports(all_are_new=True)
        self.in_packages: list[tuple[types.ModuleType, str]] = []
        self.of_programs: WeakSet[types.ModuleType] = WeakSet()  # a cell or a line of a script may take one later

    def find(self) -> list[tuple[types.ModuleType, str]]:
        """Each with the name of the function."""
        for module in self._new():
            if is_students(getattr(module, "__file__", None) or ""):
                self.of_programs.add(module)
            else:
                self.in_packages += _taken([module])
        return [*self.in_packages, *_taken({*self.of_programs, sys.modules["__main__"]})]

    def _new(self) -> Iterator[types.ModuleType]:
        new = self.imports.new()
        self.imports.mark()
        for name in new:
            top, module = name.partition(".")[0], sys.modules.get(name)
            if type(module) is types.ModuleType and top not in _LARGE and top not in sys.stdlib_module_names:
                yield module


def _taken(modules: Iterable[types.ModuleType]) -> Iterator[tuple[types.ModuleType, str]]:
    real = {name: getattr(time, name) for name in TAKEN}
    for module in modules:
        names = vars(module)
        yield from ((module, name) for name, function in real.items() if names.get(name) is function)


_takers = _Takers()


def know_packages() -> None:
    """Looks at what has been imported so far: for a process from which others are forked."""
    _takers.find()


@contextmanager
def _dates(threads, now_s: Callable[[], float]) -> Iterator[None]:
    """`datetime.now()` and `utcnow()` are the rank's, on a type of C whose names take no assignment."""
    names = next((d for d in gc.get_referents(vars(datetime)) if isinstance(d, dict) and "now" in d), {})
    before = {name: names[name] for name in ("now", "utcnow") if name in names}  # none: they stay real

    def now(cls, tz=None):
        return cls.fromtimestamp(now_s(), tz) if threads.carries() else before["now"].__get__(None, cls)(tz)

    def utcnow(cls):
        is_ours = threads.carries()
        return now(cls, timezone.utc).replace(tzinfo=None) if is_ours else before["utcnow"].__get__(None, cls)()

    if before:
        _put(names, {"now": classmethod(now), "utcnow": classmethod(utcnow)})
    try:
        yield
    finally:
        _put(names, before)


def _put(names: dict, instead: dict) -> None:
    names.update(instead)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))  # it keeps what it has looked up


def virtual_clock(engine) -> AbstractContextManager[None]:
    """`time.perf_counter()` is the rank's virtual time, `process_time()` what of it was computation."""
    return clock_of(engine.threads, _replacements(engine))


@contextmanager
def clock_of(threads, replacements: dict[str, Callable]) -> Iterator[None]:
    """Wherever time is read or passes, these functions of `time` are asked, by name: all of TAKEN.

    threads: says with `carries()` which are ranks', whose waits for others pass on that clock, and of the rest what an
    engine's do, see `greenlets_or_threads.CarryingThreads`.
    """
    clock, defaults = timeit.default_timer, [function.__defaults__ for function in _TIMING]
    with ExitStack() as stack:
        for place, name in [*_takers.find(), *((time, name) for name in replacements)]:
            stack.enter_context(patched(place, name, replacements[name]))
        bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
        if bars is not None:
            stack.enter_context(patched(bars, "monitor_interval", 0))  # its thread would compare with the real clock
        stack.enter_context(patched(BaseSelectorEventLoop, "__init__", _loop_begins(threads)))
        stack.enter_context(patched(threading.Condition, "wait", _wait(threads)))
        for place, name in ((queue, "time"), (threading, "_time")):  # they compute what is left of a timeout
            stack.enter_context(patched(place, name, replacements["monotonic"]))
        stack.enter_context(_dates(threads, replacements["time"]))
        virtual = replacements["perf_counter"]
        stack.enter_context(patched(timeit, "default_timer", virtual))
        for function, values in zip(_TIMING, defaults):
            stack.callback(setattr, function, "__defaults__", values)
            function.__defaults__ = tuple(virtual if value is clock else value for value in values)
        yield
