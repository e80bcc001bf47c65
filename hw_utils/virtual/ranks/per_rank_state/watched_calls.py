"""What is best caught where it is called: calls that change the process, files that are written, modules imported."""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch._library import custom_ops
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.source.students_files import is_students
from hw_utils.virtual.ranks.child_processes import is_in_simulation
from hw_utils.virtual.ranks.per_rank_state.modules import is_of_rank
from hw_utils.virtual.ranks.per_rank_state.settings import Settings

_WRITES = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_THE_PROCESS = ("nice", "setpriority", "sched_setaffinity", "setsid", "setuid", "setgid", "chroot", "setrlimit")
_PLACES = [os, *((importlib.import_module("resource"),) if os.name == "posix" else ())]
_EARLY_ROWS = 100  # communications of a rank: until then little is lost


def _calls() -> dict[tuple[Any, str], str]:
    """(where, name) of what a program calls to change the process -> why it then needs one a rank."""
    return {
        (os, "chdir"): "the working directory",
        (os, "fchdir"): "the working directory",
        (torch.autograd.profiler.profile, "__init__"): "the profiler",
        (torch._C._distributed_c10d, "_register_process_group"): "a name for a group in torch's C++ code",
        (c10d, "_register_process_group"): "a group that torch itself makes",
        (threading.Thread, "start"): "threads of its own",
        **{(signal, n): "an alarm of its own" for n in ("alarm", "setitimer") if hasattr(signal, n)},
        **{(place, n): n for place in _PLACES for n in _OF_THE_PROCESS if hasattr(place, n)},
    }


@contextmanager
def note_writes(engine):
    """While it lasts, a program that writes files early gets a process a rank before it does.

    So an attempt that is given up later has left nothing behind. Python tells an audit hook of every look at a frame
    too, two a message, and each then costs 0.2 us more: there is one only where ranks may get processes.
    """
    if not _hooked and engine.ending.may_go_apart:
        _hooked.append(True)
        sys.addaudithook(_hook)
        _audit_torchs_files()
    _noting.append(engine)
    try:
        yield
    finally:
        _noting.pop()


_hooked: list[bool] = []  # an audit hook stays: one a process
_noting: list[Any] = []  # the engines of the simulations under way, the innermost last


def _hook(event: str, arguments: tuple) -> None:
    if not _noting or event not in _WRITES or not is_in_simulation():  # at the process's end all names are None
        return
    engine = _noting[-1]
    if engine.ending.is_over or engine.rank >= engine.world_size:
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
        return
    if "__pycache__" in str(arguments[0]) or str(arguments[0]).startswith("/dev/") or _is_a_packages_import():
        return
    if len(engine.rows) < _EARLY_ROWS * engine.world_size and engine.ending.may_go_apart:
        engine.ending.need("processes", "files that it writes")


def _audit_torchs_files() -> None:
    """`torch.save` to a path opens its file in C++ code, of which Python's audit hooks are not told: they are now."""
    writer = torch.serialization._open_zipfile_writer_file
    original = writer.__init__

    @functools.wraps(original)
    def make(self, name, *args, **named) -> None:
        sys.audit("open", name, "wb", os.O_WRONLY | os.O_CREAT)
        original(self, name, *args, **named)

    writer.__init__ = make


@contextmanager
def caught(need: Callable[[str, str], None]):
    """While it lasts, each call by a rank that changes the process asks for processes first."""
    calls = {**_calls(), (custom_ops, "get_library_allowing_overwrite"): "an operation that each rank registers"}
    before = {place: getattr(*place) for place in calls}

    def asking(original: Callable, why: str) -> Callable:
        @functools.wraps(original)
        def call(*args, **named):
            if not _is_quiet_thread(args) and not _is_first_of_its_name(args):
                need("processes", why)
            return original(*args, **named)

        return call

    for place, why in calls.items():
        setattr(*place, asking(before[place], why))
    try:
        yield
    finally:
        for place, original in before.items():
            setattr(*place, original)


def _is_a_packages_import() -> bool:
    """Whether an installed package does it while it is imported, as matplotlib makes its folder: no rank does."""
    frame = sys._getframe(2)
    while frame is not None and not is_students(frame.f_code.co_filename):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _is_quiet_thread(args: tuple) -> bool:
    """Threads of libraries, which do not communicate: tqdm's, those that feed a queue of a DataLoader."""
    if not args or not isinstance(args[0], threading.Thread):
        return False
    if getattr(args[0], "is_rank", False):
        return True
    return type(args[0]).__name__ == "TMonitor" or args[0].name.startswith("QueueFeederThread")


def _is_first_of_its_name(args: tuple) -> bool:
    """Whether nobody has registered an operation of (namespace, name): a second one would take its place."""
    return len(args) == 2 and all(type(a) is str for a in args) and "::".join(args) not in custom_ops.OPDEF_TO_LIB


@contextmanager
def watched_imports(learn: Callable[[], None], settings: Settings):
    """While a simulation runs, a module is watched from the moment it is imported."""
    original, by_name, depth = builtins.__import__, importlib.import_module, [0]

    def imported(load: Callable) -> Callable:
        @functools.wraps(load)
        def call(*args, **named):
            before = len(sys.modules)
            if args and args[0] not in sys.modules:
                settings.notice()
            depth[0] += 1
            try:
                return load(*args, **named)
            finally:
                depth[0] -= 1
                if len(sys.modules) != before and not (args and is_of_rank(args[0])):
                    settings.adopt()
                if not depth[0] and len(sys.modules) != before:
                    learn()

        return call

    builtins.__import__, importlib.import_module = imported(original), imported(by_name)
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = original, by_name
