"""The clocks of a rank's threads: each has its own, and what one hands on to another is not there before it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from weakref import WeakKeyDictionary

from hw_utils.core.calls.patched import patched
from hw_utils.virtual.multiprocess.compute_time import ThreadTime
from hw_utils.virtual.multiprocess.engine_proxy import EngineProxy


class Before:
    """A thread that has a condition's lock is not before the one that had it last.

    One that was notified goes on at that moment, however late the machine lets it run, and whoever takes an item of a
    queue is not before who put it there. So events, queues and futures carry a thread's clock to the next one.
    """

    def __init__(self, clocks: ThreadTime) -> None:
        self.clocks = clocks
        self.left_s: WeakKeyDictionary = WeakKeyDictionary()  # lock -> when it was last let go
        self.waiters: WeakKeyDictionary = WeakKeyDictionary()  # condition -> [when it may go on] of each that waits
        self.woken: WeakKeyDictionary = WeakKeyDictionary()  # lock -> the same of who waits for it to be let go
        self.put_s: WeakKeyDictionary = WeakKeyDictionary()  # queue -> when each of its items came

    def take(self, lock) -> None:
        self.clocks.catch_up(self.left_s.get(lock, 0.0))

    def let_go(self, lock) -> None:
        self.left_s[lock] = self.clocks.clock_s
        for waiter in self.woken.pop(lock, ()):
            waiter[0] = self.clocks.clock_s

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for function in self._of_conditions():
                stack.enter_context(patched(threading.Condition, function.__name__, function))
            for function in self._of_queues():
                stack.enter_context(patched(queue.Queue, function.__name__, function))
            yield

    def _of_conditions(self) -> tuple[Callable, ...]:
        condition, before = threading.Condition, self
        enter, leave, wait_really, notify_really = (
            condition.__enter__, condition.__exit__, condition.wait, condition.notify,
        )  # fmt: skip

        def __enter__(self):
            has_entered = enter(self)
            before.take(self._lock)
            return has_entered

        def __exit__(self, *error) -> None:
            before.let_go(self._lock)
            leave(self, *error)

        def wait(self, timeout: float | None = None) -> bool:
            began_s, mine = before.clocks.clock_s, [0.0]
            before.let_go(self._lock)
            before.waiters.setdefault(self, []).append(mine)
            try:
                is_notified = wait_really(self, timeout)
            finally:
                waiters = before.waiters[self]
                waiters[:] = [other for other in waiters if other is not mine]
            before.clocks.catch_up(mine[0] if is_notified else 0.0)
            if not is_notified and timeout is not None:
                before.take(self._lock)
                before.clocks.catch_up(began_s + max(timeout, 0))
            return is_notified

        def notify(self, n: int = 1) -> None:
            notify_really(self, n)  # who is woken has the lock no sooner than this thread lets it go
            waiters = before.waiters.get(self, [])
            for waiter in waiters[:n]:
                waiter[0] = before.clocks.clock_s
            before.woken.setdefault(self._lock, []).extend(waiters[:n])
            del waiters[:n]

        return __enter__, __exit__, wait, notify

    def _of_queues(self) -> tuple[Callable, ...]:
        before, put, get = self, queue.Queue._put, queue.Queue._get

        def _put(self, item) -> None:
            put(self, item)
            before.put_s.setdefault(self, deque()).append(before.clocks.clock_s)

        def _get(self):
            if came_s := before.put_s.get(self):
                before.clocks.catch_up(came_s.popleft())
            return get(self)

        return _put, _get


@contextmanager
def threads_of_their_own(proxy: EngineProxy, *begin: Callable[[], None]) -> Iterator[None]:
    """While it lasts, threads that the program starts have the modes of its first one, and clocks.

    A thread begins when it is started; who joins it is not before it.
    """
    thread = threading.Thread
    start, join = thread.start, thread.join

    def begin_and_start(self: threading.Thread) -> None:
        run, at_s = self.run, proxy.clock_s

        def begin_and_run() -> None:
            proxy.compute.begin_thread(at_s)
            for part in begin:
                part()
            try:
                run()
            finally:
                self.ended_s = proxy.clock_s

        self.run = begin_and_run
        start(self)

    def join_it(self: threading.Thread, timeout: float | None = None) -> None:
        began_s = proxy.clock_s
        join(self, timeout)
        is_late = timeout is not None and self.is_alive()
        proxy.compute.catch_up(began_s + max(timeout, 0) if is_late else getattr(self, "ended_s", 0.0))

    with Before(proxy.compute).installed(), patched(thread, "start", begin_and_start), patched(thread, "join", join_it):
        yield
