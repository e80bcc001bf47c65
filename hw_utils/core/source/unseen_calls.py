"""Refuses what lets Python code run where no tracer sees it: threads, audit hooks, profilers, tracers of one's own.

It is refused by an audit hook, which Python keeps where no Python code can reach it, before it is done: who catches the
exception has gained nothing. The hook looks up no name that could be given another meaning: what it needs, it is handed
in one tuple.
"""

from __future__ import annotations

import _imp
import functools
import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import NamedTuple

from hw_utils.core.source.students_files import packages

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
_NAMES = frozenset({  # frames have a tracer each
    *(("object.__getattr__", name) for name in ("tb_frame", "gi_frame", "cr_frame", "ag_frame")),
    *(("object.__setattr__", name) for name in ("__code__", "__defaults__", "__kwdefaults__")),
})  # fmt: skip
_LENDERS = frozenset({"currentframe", "<lambda>", "walk_stack", "walk_tb"})  # that give a frame to who calls them
_RUNS_A_RANK = "_serve_one"


class _Rule(NamedTuple):
    """All that the hook knows."""

    starts: frozenset[str]
    never: frozenset[str]
    below_nobody: frozenset[str]
    by_libraries: frozenset[str]
    names: frozenset[tuple[str, str]]
    lenders: frozenset[str]
    runs_a_rank: str
    everywhere: bool  # or in ranks only
    own: tuple[str, ...]  # files whose functions may start threads, and run in them
    is_librarys: Callable[[CodeType], bool]
    mine: CodeType
    start: CodeType  # of threading's
    getframe: Callable[[], FrameType]
    kind_of: type
    method: type
    function: type
    refused: type[Exception]
    texts: tuple[str, str]


def refuse_unseen(own: Iterable[str], *, everywhere: bool) -> None:
    """From now on, for the rest of this process.

    own: files of libraries whose functions may start threads, and run in them; one of the first one's runs a rank.
    everywhere: also outside ranks, where a student's code could prepare something.
    """
    rule = _Rule(
        *(_STARTS, _NEVER, _BELOW_NOBODY, _BY_LIBRARIES, _NAMES, _LENDERS, _RUNS_A_RANK, everywhere, tuple(own)),
        *(_library_of(packages()), _hook.__code__, threading.Thread.start.__code__, sys._getframe),
        *(type, MethodType, FunctionType, PermissionError, (STARTED, UNSEEN)),
    )
    sys.addaudithook(functools.partial(_hook, rule))


def _hook(rule: _Rule, event: str, args: tuple) -> None:
    (starts, never, below_nobody, by_libraries, names, lenders, runs_a_rank, everywhere, own, is_librarys, mine, start,
     getframe, kind_of, method, function, refused, texts) = rule  # fmt: skip
    is_taken = event in by_libraries or (event[:7] == "object." and (event, args[1]) in names)
    if not (is_taken or event in starts or event in never or event in below_nobody):
        return
    if event == "sys._getframe" and args[0].f_code is mine:
        return
    frame = caller = getframe().f_back
    before = caller and caller.f_back
    if is_taken and (caller is None or is_librarys(caller.f_code)):
        if before is None or caller.f_code.co_name not in lenders or is_librarys(before.f_code):
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
        target = args[0].__self__._target if kind_of(args[0]) is method else None
        target = target.__func__ if kind_of(target) is method else target
        is_ours = kind_of(target) is function and is_librarys(target.__code__) and target.__code__.co_filename in own
        if is_ours and not is_students and before is not None and caller.f_code is start:
            if before.f_code.co_filename in own:
                return
        raise refused(texts[0])
    if is_students or event not in below_nobody:
        raise refused(f"{event} {texts[1]}")


def _library_of(folders: tuple[str, ...]) -> Callable[[CodeType], bool]:
    """Tells whether a code stands in the file that it names, and this below one of the folders.

    Python's own frozen modules count; all names that it uses are its own.
    """
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
        return code in codes_in(code.co_filename)

    del codes_in.__wrapped__
    return is_librarys
