"""What a process has once and ranks of one process would share: seen as soon as a rank changes it.

A module's globals, the attributes of its classes, what containers and objects there hold; torch's flags, modes and
hooks; sys.argv and the working directory. The values are compared when ranks take turns; a change ends the attempt, and
the next one gives every rank a process of its own. So nothing is ever copied back and forth, and a program that changes
nothing pays for a few comparisons.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import itertools
import os
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.distributed import distributed_c10d as c10d

from hw_utils.core.source import is_students
from hw_utils.virtual.ranks.children import is_in_simulation
from hw_utils.virtual.ranks.own.modules import is_of_rank
from hw_utils.virtual.ranks.own.replaced import Replaced
from hw_utils.virtual.ranks.own.settings import Settings
from hw_utils.virtual.ranks.turns import FIRST_TURNS
from hw_utils.virtual.traffic.rows import ROW

_MOST_CELLS = 20_000
_WRITES = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OF_THE_PROCESS = ("nice", "setpriority", "sched_setaffinity", "setsid", "setuid", "setgid", "chroot", "setrlimit")
_PLACES = [os, *((importlib.import_module("resource"),) if os.name == "posix" else ())]
_EARLY_ROWS = 100  # communications of a rank: until then little is lost
_EVERY_TURN = 2_000  # looks, one at every turn; then ever fewer
_SELDOM = 16  # looks: programs set what they set in their first turns
_QUIET = {
    "torch", "numpy", "greenlet", "cloudpickle", "scipy", "sklearn", "matplotlib", "PIL",
    "pandas",
    "joblib", "sympy", "networkx", "mpmath", "torchvision", "tqdm", "IPython", "pytest", "_pytest", "pluggy", "triton",
    "psutil", "requests", "yaml", "packaging", "setuptools", "pkg_resources", "six", "dateutil", "jinja2", "fsspec",
}  # fmt: skip
_FIXED = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, torch.dtype, torch.device, torch.Size,
    torch.layout, torch.memory_format, types.BuiltinFunctionType, types.ModuleType, types.CodeType, property,
    staticmethod, classmethod, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, os.PathLike, torch.Generator, np.dtype, np.generic,
)  # fmt: skip
_PLAIN = (list, set, bytearray, collections.deque, dict)
_ITERATORS = (itertools.count, itertools.cycle, itertools.chain, itertools.islice, enumerate, zip, map)


class SharedState:
    """What was there before the first rank ran its first line."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.cells: list[tuple[Callable[[], Any], Any, str]] = []  # look, what it showed, what it is
        # A container, a copy of it, what it is, and which part of it counts, None: all of it.
        self.tables: list[tuple[Any, Any, str, Callable[[Any], Any] | None]] = []
        self.seen: set[int] = set()
        self.kept: list[Any] = []  # what is watched stays alive, so that an id stays its own
        self.known, self.n_modules = set(sys.modules), len(sys.modules)
        self.n_turns, self.n_looks, self.next_look = 0, 0, 0
        self.is_too_much = False
        self.has_modules = False
        self.replaced, self.settings = Replaced(), Settings(engine)
        self.flags, self.thread_flags = _flags(), _of_one_thread()
        self._watch_torchs_own()
        self.argv = list(sys.argv)

    @contextmanager
    def watched(self):
        """While the ranks run, the engine looks here; what is best caught where it is called, is."""
        engine = self.engine
        engine.turns.look, engine.turns.changed = self.look, self.changed
        with _caught(self._calls(), engine.need), self.settings.watched(), _watched_imports(self.learn, self.settings):
            self.replaced.learn()
            yield

    def _calls(self) -> dict[tuple[Any, str], str]:
        """(where, name) of what a program calls to change the process -> why it then needs one a rank."""
        return {
            (os, "chdir"): "the working directory",
            (os, "fchdir"): "the working directory",
            (torch.autograd.profiler.profile, "__init__"): "the profiler",
            (torch._C._distributed_c10d, "_register_process_group"): "a name for a group in torch's C++ code",
            (c10d, "_register_process_group"): "a group that torch itself makes",
            (threading.Thread, "start"): "threads of its own",
            **{(place, n): n for place in _PLACES for n in _OF_THE_PROCESS if hasattr(place, n)},
        }

    def note_writes(self) -> None:
        """From now on a program that writes files early gets a process a rank before it does.

        So an attempt that is given up later has left nothing behind. For a process that is thrown away: an audit hook
        stays.
        """
        engine = self.engine

        def hook(event: str, arguments: tuple) -> None:
            if event not in _WRITES or not is_in_simulation() or engine.is_over or engine.rank >= engine.world_size:
                return
            if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
                return
            if "__pycache__" in str(arguments[0]) or str(arguments[0]).startswith("/dev/") or _is_a_packages_import():
                return
            if (
                len(engine.rows.data) < _EARLY_ROWS * ROW * engine.world_size
                and engine.world_size <= engine.most_processes
            ):
                engine.need("processes", "files that it writes")

        sys.addaudithook(hook)

    def look(self) -> None:
        """Gives the run up if the running rank has changed what others would see.

        A program of many turns is looked at ever more seldom: a change that lasts is seen at the end of its rank.
        """
        self.n_turns += 1
        if self.n_turns < self.next_look:
            return
        self.n_looks += 1
        self.next_look = self.n_turns + max(self.n_looks - _EVERY_TURN, 0) + 1
        self.look_now()

    def look_now(self, everywhere: bool = False) -> None:
        """The same, whatever came before; `everywhere` also at what no program changes in passing."""
        if self.thread_flags != _of_one_thread() and self.engine.carrier.is_shared:
            self.engine.need("threads", "autocast or a mode of torch")
        is_early = self.n_looks <= FIRST_TURNS * self.engine.world_size
        changed = ""
        if is_early or everywhere or self.engine.turns.exchanged or self.n_looks % _SELDOM == 0:
            changed = self.settings.notice(is_late=not is_early)
        changed = changed or self.changed()
        changed = changed or self.replaced.changed(not self.engine.carrier.is_shared, at_the_end=everywhere)
        if changed:
            self.engine.need("processes", changed)

    def learn(self, worker: Callable | None = None) -> None:
        """Watches what the program has brought since, the worker's own module, and the modules that those mention."""
        found = []
        if len(sys.modules) != self.n_modules:
            self.n_modules = len(sys.modules)
            found = [m for name, m in list(sys.modules.items()) if name not in self.known]
            self.known.update(sys.modules)
            self._watch_torchs_own()
            self.replaced.learn()
        if worker is not None:
            found.append(sys.modules.get(getattr(worker, "__module__", "")))
        while found:
            module = found.pop()
            if type(module) is not types.ModuleType or id(module) in self.seen or not _is_watched(module.__name__):
                continue
            self._watch_module(module)
            self.has_modules = True
            found += [m for value in list(vars(module).values()) if (m := _home(value)) is not None]
        if self.has_modules and self.engine.turns.switch is not None:
            self.engine.turns.watch()

    def changed(self) -> str:
        """What a rank has changed, "" if nothing."""
        if self.is_too_much:
            return "more module globals than can be watched"
        if self.flags != _flags():
            return "one of torch's settings (default dtype, deterministic algorithms, anomaly mode, ...)"
        if sys.argv != (self.engine.argv or self.argv):
            return "sys.argv"
        what = ""
        try:
            for table, before, what, part in self.tables:
                if table != before and (part is None or part(table) != part(before)):
                    return what
            for look, before, what in self.cells:
                if look() != before:
                    return what
        except Exception:  # an array in a container: no single answer, and not the object that was there
            return what
        return ""

    # what is watched

    def _add(self, look: Callable[[], Any], what: str) -> None:
        if len(self.cells) >= _MOST_CELLS:
            self.is_too_much = True
            return
        self.cells.append((look, look(), what))

    def _add_table(self, table: Any, copy: Any, what: str, part: Callable[[Any], Any] | None = None) -> None:
        if len(self.tables) >= _MOST_CELLS:
            self.is_too_much = True
            return
        self.tables.append((table, copy, what, part))

    def _watch_torchs_own(self) -> None:
        for name, table in _torchs_own().items():
            if isinstance(table, dict) and id(table) not in self.seen:
                self.seen.add(id(table))
                self._add_table(table, dict(table), name, _not_ours)
            else:
                self._watch(table, name)

    def _watch_module(self, module: types.ModuleType) -> None:
        self.seen.add(id(module))
        self.kept.append(module)
        names = vars(module)
        self._add_table(names, dict(names), f"a global of the module {module.__name__}", _without_dunders)
        for name, value in list(names.items()):
            if not name.startswith("__"):
                self._watch(value, f"{name} of the module {module.__name__}", module.__name__)

    def _watch(self, value: Any, what: str, home: str = "", depth: int = 0) -> None:
        """Everything in `value` that can be changed in place."""
        if id(value) in self.seen or isinstance(value, _FIXED) or depth > 12 or self.is_too_much:
            return
        self.seen.add(id(value))
        self.kept.append(value)
        if isinstance(value, type):
            if value.__module__ == home or _is_watched(value.__module__):
                table = vars(value)
                self._add_table(table, dict(table), f"an attribute of the class {value.__qualname__}")
                for name, inner in list(table.items()):
                    self._watch(inner, f"{name} of the class {value.__qualname__}", home, depth + 1)
        elif isinstance(value, torch.Tensor):
            self._add(lambda: (value._version, value.data_ptr() if value.layout is torch.strided else 0), what)
        elif isinstance(value, np.ndarray):
            self._add(value.tobytes, what)
        elif isinstance(value, types.FunctionType):
            if value.__module__ == home or _is_watched(value.__module__):
                self._watch_function(value, what, home, depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._add(lambda: value.cache_info()[1:], f"{what} (a cache)")
        elif isinstance(value, random.Random):
            self._add(value.getstate, what)
        elif isinstance(value, np.random.Generator):
            self._add(lambda: repr(value.bit_generator.state), what)
        elif isinstance(value, _ITERATORS):
            self._add(lambda: repr(value.__reduce__()), what)
        elif isinstance(value, types.GeneratorType):
            self._add(lambda: (value.gi_running, value.gi_frame and value.gi_frame.f_lasti), what)
        else:
            self._watch_parts(value, what, home, depth)

    def _watch_function(self, function: types.FunctionType, what: str, home: str, depth: int) -> None:
        table = function.__dict__
        self._add_table(table, dict(table), f"an attribute of {what}")
        for inner in (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *vars(function).values(),
        ):
            self._watch(inner, what, home, depth + 1)
        for cell in function.__closure__ or ():
            self._add(lambda cell=cell: _contents(cell), f"a variable of a function around {what}")
            self._watch(_contents(cell), what, home, depth + 1)

    def _watch_parts(self, value: Any, what: str, home: str, depth: int) -> None:
        parts: Iterator[Any] = iter(())
        if isinstance(value, _PLAIN):
            kind = dict if isinstance(value, dict) else type(value) if type(value) in _PLAIN else list
            if isinstance(value, dict) or type(value) in _PLAIN:
                self._add_table(value, kind(value), what)
            else:
                self._add(lambda: kind(value), what)
            parts = itertools.chain(value, value.values()) if isinstance(value, dict) else iter(list(value))
        elif isinstance(value, (tuple, frozenset)):
            parts = iter(value)
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict) and not isinstance(value, types.ModuleType) and _is_watched_type(type(value)):
            self._add_table(table, dict(table), f"an attribute of {what}")
            parts = itertools.chain(parts, list(table.values()))
        for slot in _slots(type(value)):
            self._add(lambda slot=slot: getattr(value, slot, None), f"{slot} of {what}")
            parts = itertools.chain(parts, [getattr(value, slot, None)])
        for part in list(parts):
            self._watch(part, what, home, depth + 1)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _without_dunders(names: dict) -> dict:
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _home(value: Any) -> types.ModuleType | None:
    """The module that a value comes from."""
    if isinstance(value, types.ModuleType):
        return value
    name = getattr(value, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def _is_watched(module: Any) -> bool:
    if not isinstance(module, str) or module == "__main__":
        return False  # what is defined in a notebook is copied for each rank, see copies.py
    top = module.partition(".")[0]
    return not top.startswith("hw_") and top not in _QUIET and top not in sys.stdlib_module_names


def _is_watched_type(kind: type) -> bool:
    """Objects of the standard library keep caches of their own (loggers, locks, paths), but for a few plain ones."""
    if issubclass(kind, (types.SimpleNamespace, threading.local, torch.nn.Module)):
        return True
    return _is_watched(kind.__module__) or kind.__module__ == "argparse"


def _slots(kind: type) -> list[str]:
    if not _is_watched(kind.__module__):
        return []
    names: list[str] = []
    for base in kind.__mro__:
        own = base.__dict__.get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return [n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__")]


def _not_ours(table: dict) -> list[Any]:
    """What a program has entered; hooks of this package know which rank runs (a check's, that sees each forward)."""
    return [v for v in table.values() if not str(getattr(v, "__module__", "")).startswith("hw_utils.")]


def _torchs_own() -> dict[str, Any]:
    """torch's tables that are one for a process."""
    from torch.nn.modules import module

    found = {
        f"torch's hooks for all modules ({n})": t
        for n, t in vars(module).items()
        if n.startswith("_global_") and t is not None
    }
    tensors = sys.modules.get("torch.distributed.tensor")
    if tensors is not None:
        found["DTensor's own operations (loss_parallel)"] = tensors.DTensor._op_dispatcher._custom_op_handlers
    return found


def _flags() -> tuple:
    """torch's settings of a process."""
    return (
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(), torch.is_anomaly_enabled(),
        torch.get_float32_matmul_precision(), torch.is_warn_always_enabled(),
    )  # fmt: skip


def _of_one_thread() -> tuple:
    """torch's settings that belong to an OS thread: greenlets share them."""
    return (
        torch.is_autocast_enabled("cpu"), torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
    )  # fmt: skip


@contextmanager
def _caught(calls: dict[tuple[Any, str], str], need: Callable[[str, str], None]):
    """While it lasts, each of these calls by a rank asks for processes first."""
    before = {place: getattr(*place) for place in calls}

    def asking(original: Callable, why: str) -> Callable:
        @functools.wraps(original)
        def call(*args, **named):
            if not _is_quiet_thread(args):
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


@contextmanager
def _watched_imports(learn: Callable[[], None], settings: Settings):
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
