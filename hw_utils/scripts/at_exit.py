"""`atexit` of a script's rank: what its program registers runs when the script ends well, the last first.

A process may carry several ranks, and live on after them: so the functions are kept by rank. What packages register is
the process's, as it is where they tidy up what all ranks share. An error in one of them is printed, as Python does.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hw_utils.core.source.students_files import is_students


class _Functions(list):
    """Of a rank: (function, arguments, named arguments) in the order in which they came."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def run(self) -> None:
        while self:
            function, arguments, named = self.pop()
            try:
                function(*arguments, **named)
            except Exception:
                print(f"Exception ignored in atexit callback {function!r}:", file=sys.stderr)
                traceback.print_exc()


_own: ContextVar[_Functions | None] = ContextVar("functions at exit", default=None)  # of a greenlet or thread
_open: list[_Functions] = []  # of the ranks that this process carries
_register, _unregister = atexit.register, atexit.unregister


def _of_rank() -> _Functions | None:
    """The running rank's, in whichever thread of it; None for its children, which end otherwise."""
    found = _own.get() or (_open[0] if len(_open) == 1 else _own.get())
    return found if found is not None and found.process == os.getpid() else None


def _register_own(function: Callable, /, *arguments, **named) -> Callable:
    functions = _of_rank()
    if functions is None or not is_students(sys._getframe(1).f_code.co_filename):
        return _register(function, *arguments, **named)
    functions.append((function, arguments, named))
    return function


def _unregister_own(function: Callable) -> None:
    functions = _of_rank()
    if functions is not None:
        functions[:] = [known for known in functions if known[0] != function]
    _unregister(function)


@contextmanager
def run_at_exit() -> Iterator[None]:
    """At the end of what runs in it, the functions that it has registered run; not after an error."""
    functions = _Functions()
    token = _own.set(functions)
    _open.append(functions)
    atexit.register, atexit.unregister = _register_own, _unregister_own
    try:
        try:
            yield
        except SystemExit:
            functions.run()
            raise
        functions.run()
    finally:
        _own.reset(token)
        _open[:] = [other for other in _open if other is not functions]
        if not _open:
            atexit.register, atexit.unregister = _register, _unregister
