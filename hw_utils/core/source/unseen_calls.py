"""Refuses what lets Python code run where no tracer sees it: threads, audit hooks, profilers, tracers of one's own.

It is refused by an audit hook, which Python keeps where no Python code can reach it, before it is done: who catches the
exception has gained nothing. The hook looks up no name that could be given another meaning: what it needs, it is handed
in one tuple.
"""

from __future__ import annotations

import _imp
import _thread
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from hw_utils.core.source.students_files import is_students, packages

STARTED = "a rank starts a thread of its own, whose steps are in no order"
UNSEEN = "was called: then no other rank can be let in between two steps"

_STARTS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_NEVER = frozenset({
    *("sys.addaudithook", "sys.setprofile", "sys.monitoring.register_callback", "cpython.PyInterpreterState_New"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
})  # fmt: skip
_BELOW_NOBODY = frozenset({  # done by code of libraries' that no code of a student's has called
    *("sys.settrace", "ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function", "ctypes.cdata"),
    *("ctypes.cdata/buffer", "ctypes.string_at", "ctypes.addressof", "ctypes.PyObj_FromPtr"),
})  # fmt: skip
_BY_LIBRARIES = frozenset({"sys._getframe", "sys._current_frames", "sys._current_exceptions"})
_LENDERS = frozenset({"currentframe", "<lambda>", "walk_stack", "walk_tb"})  # that give a frame to who calls them
_RUNS_A_RANK = "_serve_one"


class _Rule(NamedTuple):
    """All that the hook knows."""

    events: frozenset[str]  # all of which more is asked
    starts: frozenset[str]
    below_nobody: frozenset[str]
    by_libraries: frozenset[str]
    lenders: frozenset[str]
    runs_a_rank: str
    everywhere: bool  # or in ranks only
    own: tuple[str, ...]  # files whose functions may start threads, and run in them
    is_librarys: Callable[[CodeType], bool]
    mine: CodeType
    start: tuple[str, str]  # of threading's: its file, and one that hands on to it
    tells: CodeType
    begins: Callable[[int], None]
    native_id: Callable[[], int]
    getframe: Callable[[], FrameType]
    kind_of: type
    frame_kind: type
    method: type
    function: type
    refused: type[Exception]
    said: tuple[str, str]


def refuse_unseen(
    own: Iterable[str], *, everywhere: bool, via: str = "", begins: Callable[[], None] | None = None
) -> None:
    """From now on, for the rest of this process.

    own: files of libraries whose functions may start threads, and run in them; one of the first one's runs a rank.
    everywhere: also outside ranks, where a student's code could prepare something.
    via: a file with what stands before the start of a thread there.
    begins: called once on each thread that runs a rank, before it does.
    """
    (tells,) = (code for code in _telling.__code__.co_consts if isinstance(code, CodeType))
    in_thread = functools.lru_cache(maxsize=10_000)(lambda native_id: begins() if begins else None)
    del in_thread.__wrapped__
    rule = _Rule(
        _STARTS | _NEVER | _BELOW_NOBODY | _BY_LIBRARIES,
        *(_STARTS, _BELOW_NOBODY, _BY_LIBRARIES, _LENDERS, _RUNS_A_RANK, everywhere, tuple(own)),
        *(_library_of(packages()), _hook.__code__, (threading.__file__, via), tells, in_thread),
        *(_thread.get_native_id, sys._getframe),
        *(type, FrameType, MethodType, FunctionType, PermissionError, (STARTED, UNSEEN)),
    )
    sys.addaudithook(functools.partial(_hook, rule))
    if sys.version_info < (3, 12) and type(_thread.start_new_thread) is BuiltinFunctionType:
        told = _telling(_thread.start_new_thread, sys.audit)
        _thread.start_new_thread = _thread.start_new = threading._start_new_thread = told


def _hook(rule: _Rule, event: str, args: tuple) -> None:
    if event not in rule[0]:  # first: the tracer's own `f_code` is one of Python's events, too
        return
    (_, starts, below_nobody, by_libraries, lenders, runs_a_rank, everywhere, own, is_librarys, mine, start, tells,
     begins, native_id, getframe, kind_of, frame_kind, method, function, refused, said) = rule  # fmt: skip
    if event == "sys._getframe" and kind_of(args[0]) is frame_kind and args[0].f_code is mine:
        return
    is_taken = event in by_libraries
    caller = getframe().f_back
    while caller is not None and caller.f_code is tells:
        caller = caller.f_back
    frame, before = caller, caller and caller.f_back
    is_kept = before is None or caller.f_code.co_name not in lenders or is_librarys(before.f_code)
    if is_taken and is_kept and (caller is None or is_librarys(caller.f_code)):
        return
    is_students = is_rank = False
    while frame is not None and not is_rank:
        code = frame.f_code
        is_known = is_librarys(code)
        is_students = is_students or not is_known
        is_rank = is_known and code.co_name == runs_a_rank and code.co_filename == own[0]
        frame = frame.f_back
    if not everywhere and not (is_rank and is_students):
        return
    if event in starts:
        is_ours = caller.f_code.co_filename == start[0] and kind_of(args[0]) is method
        before = before.f_back if is_ours and before.f_code.co_filename == start[1] else before
        if is_students or not is_ours or before is None or before.f_code.co_filename not in own:
            raise refused(said[0])
        target = args[0].__self__._target
        target = target.__func__ if kind_of(target) is method else target
        if (
            kind_of(target) is not function
            or target.__code__.co_filename not in own
            or not is_librarys(target.__code__)
        ):
            raise refused(said[0])
    elif is_students or event not in below_nobody:
        raise refused(f"{event} {said[1]}")
    elif is_rank and event == "sys.settrace":
        begins(native_id())


def _telling(real: Callable, audit: Callable) -> Callable:
    """Starts a thread, and tells of it as Python 3.12 does; nobody finds the real one behind it."""

    @functools.lru_cache(maxsize=0)
    def start_new_thread(*given: Any) -> int:
        audit("_thread.start_new_thread", *given)
        return real(*given)

    del start_new_thread.__wrapped__
    return start_new_thread


def _library_of(folders: tuple[str, ...]) -> Callable[[CodeType], bool]:
    """Tells whether a code stands in the file that it names, and this below one of the folders.

    Python's own frozen modules count, and so does what has led to this call; all names that it uses are its own.
    """
    led_here = frozenset(frame.f_code for frame in _callers() if not is_students(frame.f_code.co_filename))
    open_, compile_, kind_of, code_kind, frozen = open, compile, type, CodeType, _imp.get_frozen_object
    errors = (ImportError, OSError, SyntaxError, ValueError)

    @functools.lru_cache(maxsize=500)
    def codes_in(file: str) -> frozenset[CodeType]:
        try:
            if file[:8] == "<frozen ":
                name = file[8:-1].replace("importlib._bootstrap", "_frozen_importlib")
                found = [frozen(name)]
            elif file.startswith(folders):
                with open_(file, "rb") as text:
                    found = [compile_(text.read(), file, "exec", dont_inherit=True)]
            else:
                found = []
        except errors:
            found = []
        for code in found:
            found += [constant for constant in code.co_consts if kind_of(constant) is code_kind]
        return frozenset(found)

    def is_librarys(code: CodeType) -> bool:
        return code in led_here or code in codes_in(code.co_filename)

    del codes_in.__wrapped__
    return is_librarys


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
