"""Settings of a process that a program may change: the standard library's and torch's, one set a rank.

They are looked at when ranks take turns. From the first change on a setting is exchanged at every switch, so that each
rank finds its own, and those that changed nothing find what was there before. What a package sets as it is imported is
there for all: it is imported once.
"""

from __future__ import annotations

import copyreg
import csv
import gc
import locale
import logging
import multiprocessing.context
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.hub
import torch.multiprocessing
import torch.utils._pytree
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss

from hw_utils.core.calls.patched import patched

NAMED = (  # module, name: what a program assigns to
    (sys, "excepthook"), (sys, "displayhook"), (sys, "unraisablehook"), (threading, "excepthook"),
    (tempfile, "tempdir"), (pickle, "DEFAULT_PROTOCOL"), (logging, "raiseExceptions"), (logging, "lastResort"),
    (torch.hub, "_hub_dir"), (torch.multiprocessing, "_sharing_strategy"),
    (multiprocessing.context._default_context, "_actual_context"),
    *((torch._tensor_str.PRINT_OPTS, n) for n in ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")),
)  # fmt: skip
TABLES = (  # what a program registers with
    copyreg.dispatch_table, torch.utils._pytree.SUPPORTED_NODES, logging._levelToName, logging._nameToLevel,
)  # fmt: skip
_TORCH = (  # what reads it, what writes it; a torch that lacks one is looked at without
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"), ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"), ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"), ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"), ("_get_qengine", "_set_qengine"),
    ("get_num_threads", "set_num_threads"),
)  # fmt: skip
_LOGGING, _SIGNALS, _HANDLERS = 0, 1, 2  # their places
_custom_handlers = DTensor._op_dispatcher._custom_op_handlers  # DTensor's own operations, which `loss_parallel` changes
# What a warning goes through; the last one is where `catch_warnings(record=True)` records.
_OF_WARNINGS = tuple(n for n in ("showwarning", "formatwarning", "_showwarnmsg_impl") if hasattr(warnings, n))
_OF_LOGGER = ("level", "propagate", "disabled", "handlers", "filters")


class Setting(NamedTuple):
    """get: its value now, which nobody changes afterwards. put: makes a value that `get` gave the present one."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


class Settings:
    """Every rank's; `note` is called before a rank changes what costs too much to look at each time."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.loggers, self.signals = [logging.root], []
        self.all = _settings(self)
        self.base = [setting.get() for setting in self.all]
        self.present, self.first = list(self.base), list(self.base)
        self.own: dict[int, dict[int, Any]] = {}  # the place of an exchanged setting -> rank -> value

    @contextmanager
    def watched(self):
        """While the ranks run; afterwards all is as it was."""
        with ExitStack() as stack:
            for name in ("__setattr__", "addHandler", "removeHandler", "addFilter", "removeFilter"):
                stack.enter_context(_noted(logging.Logger, name, self._logger))
            stack.enter_context(_noted(signal, "signal", self._signal))
            stack.enter_context(_noted(loss, "_enable_custom_loss_ops", self._handlers))
            stack.enter_context(_threads_between_operations(self.engine))
            yield
        for setting, value, now in zip(self.all, self.first, self.present, strict=True):
            if now != value or setting.get() != value:
                setting.put(value)

    def notice(self, is_late: bool = False) -> str:
        """Takes what the running rank has changed for its own; which it was if others may have seen it, else ""."""
        rank = self.engine.rank
        for place, setting in enumerate(self.all):
            value = setting.get()
            if value != self.present[place]:
                if place not in self.own:
                    if is_late:
                        return "a setting of the standard library or of torch"
                    self.own[place] = {}
                    self.engine.turns.exchanged[:] = [self]
                self.own[place][rank] = self.present[place] = value
        return ""

    def adopt(self) -> None:
        """What has been set since is there for all ranks."""
        for place, setting in enumerate(self.all):
            value = setting.get()
            is_the_ranks = place == _HANDLERS and place in self.own  # no import changes them
            if value != self.present[place] and not is_the_ranks:
                self.base[place] = self.present[place] = value
                self.own.get(place, {}).clear()

    def leave(self, rank: int) -> None:
        """Keeps those of a rank that stops running."""
        for place, values in self.own.items():
            value = self.all[place].get()
            if value != self.present[place]:
                values[rank] = self.present[place] = value

    def enter(self, rank: int) -> None:
        """Puts those of a rank in place that runs from now on."""
        for place, values in self.own.items():
            value = values.get(rank, self.base[place])
            if value != self.present[place]:
                self.all[place].put(value)
                self.present[place] = value

    def _logger(self, logger: logging.Logger, name: Any = "handlers", *_) -> None:
        if logger not in self.loggers and (name in _OF_LOGGER or type(name) is not str) and "_cache" in vars(logger):
            self.loggers.append(logger)
            self._add(_LOGGING, _state_of(logger))

    def _signal(self, number: int, *_) -> None:
        if not self.engine.carrier.is_shared:
            self.engine.ending.need("processes", "signals")  # only the main thread may have them
        if number not in self.signals:
            self.signals.append(number)
            self._add(_SIGNALS, (number, signal.getsignal(number)))

    def _handlers(self) -> None:
        """A rank enters `loss_parallel`: the others have theirs from now on, however seldom they are looked at."""
        self.own.setdefault(_HANDLERS, {})
        self.engine.turns.exchanged[:] = [self]

    def _add(self, place: int, value: Any) -> None:
        """One more part of a setting, the same for all ranks until now."""
        for values in (self.base, self.present, self.first):
            values[place] = [*values[place], value]
        for rank, parts in self.own.get(place, {}).items():
            self.own[place][rank] = [*parts, value]


def _settings(of: Settings) -> list[Setting]:
    calls = [
        (gc.isenabled, lambda value: (gc.enable if value else gc.disable)()),
        (gc.get_threshold, lambda value: gc.set_threshold(*value)),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (sys.getswitchinterval, sys.setswitchinterval),
        (socket.getdefaulttimeout, socket.setdefaulttimeout),
        (csv.field_size_limit, csv.field_size_limit),
        (partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
        (_umask, os.umask),
        (_running_loop, _put_running_loop),
    ]
    calls += [
        (torch.get_default_dtype, torch.set_default_dtype),
        (_deterministic, lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])),
        (_anomaly, lambda value: torch.autograd.set_detect_anomaly(*value)),
        (_precision, _set_precision),
        (torch.is_warn_always_enabled, torch.set_warn_always),
        (dist.get_debug_level, dist.set_debug_level),
    ]
    if hasattr(sys, "get_int_max_str_digits"):
        calls.append((sys.get_int_max_str_digits, sys.set_int_max_str_digits))
    calls += [
        (getattr(torch._C, read), getattr(torch._C, write))
        for read, write in _TORCH
        if hasattr(torch._C, read) and hasattr(torch._C, write)
    ]
    tables = [Table(table) for table in TABLES]
    return [
        Setting(partial(_logging, of.loggers), _put_logging),
        Setting(lambda: [(n, signal.getsignal(n)) for n in of.signals], _put_signals),
        Setting(_custom_handlers.copy, _put_handlers),
        _together([read for read, _ in calls], [write for _, write in calls]),
        _together([partial(vars(place).get, name) if type(place) is types.ModuleType else partial(getattr, place, name)
                   for place, name in NAMED], [partial(setattr, place, name) for place, name in NAMED]),
        Setting(sys.path.copy, partial(sys.path.__setitem__, slice(None))),
        Setting(_warnings, _put_warnings),
        *(Setting(table.get, table.put) for table in tables),
    ]  # fmt: skip


def _together(reads: list[Callable[[], Any]], writes: list[Callable[[Any], None]]) -> Setting:
    """One setting of many: a look at them costs little more than the calls."""

    def put(values: list) -> None:
        for read, write, value in zip(reads, writes, values, strict=True):
            if read() != value:
                write(value)

    return Setting(lambda: [read() for read in reads], put)


class Table:
    """What a program registers something in; it grows, and an entry is hardly ever another one afterwards."""

    def __init__(self, table: dict) -> None:
        self.table, self.copy = table, dict(table)

    def get(self) -> dict:
        if len(self.table) != len(self.copy):
            self.copy = dict(self.table)
        return self.copy

    def put(self, value: dict) -> None:
        self.table.clear()
        self.table.update(value)
        self.copy = value


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _precision() -> str | None:
    """Of float32's products; None where a program has set it by backend: then torch names none for all."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_precision(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


def _put_handlers(value: dict) -> None:
    _custom_handlers.clear()
    _custom_handlers.update(value)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _warnings() -> tuple:
    return warnings.filters, warnings.filters[:], *(getattr(warnings, name) for name in _OF_WARNINGS)


def _put_warnings(value: tuple) -> None:
    warnings.filters, filters, *functions = value
    for name, function in zip(_OF_WARNINGS, functions):
        setattr(warnings, name, function)
    warnings.filters[:] = filters
    changed = getattr(warnings, "_filters_mutated", None) or warnings._filters_mutated_lock_held
    changed()


def _logging(loggers: list[logging.Logger]) -> list:
    return [logging.root.manager.disable, *map(_state_of, loggers)]


def _state_of(logger: logging.Logger) -> tuple:
    handlers = [(h, h.level, h.formatter, h.filters[:]) for h in logger.handlers]
    return logger, logger.level, logger.propagate, logger.disabled, logger.filters[:], handlers


def _put_logging(value: list) -> None:
    logging.root.manager.disable = value[0]
    for logger, level, propagate, disabled, filters, handlers in value[1:]:
        logger.level, logger.propagate, logger.disabled = level, propagate, disabled
        logger.filters[:] = filters
        logger.handlers[:] = [handler for handler, *_ in handlers]
        for handler, level_, formatter, filters_ in handlers:
            handler.level, handler.formatter = level_, formatter
            handler.filters[:] = filters_
    logging.root.manager._clear_cache()


def _put_signals(value: list) -> None:
    for number, handler in value:
        signal.signal(number, handler)


def _running_loop() -> Any:
    events = sys.modules.get("asyncio.events")
    return events and events._get_running_loop()


def _put_running_loop(value: Any) -> None:
    sys.modules["asyncio.events"]._set_running_loop(value)


def _noted(place: Any, name: str, note: Callable[..., None]) -> AbstractContextManager:
    """While it lasts, `note` has the arguments of a call first."""
    original = getattr(place, name)

    def noting(*args, **named):
        note(*args)
        return original(*args, **named)

    return patched(place, name, noting)


@contextmanager
def _threads_between_operations(engine):
    """torch takes `set_num_interop_threads` once a process: a rank is told what it has set, and nothing is changed."""
    before = torch.get_num_interop_threads, torch.set_num_interop_threads
    numbers: dict[int, int] = {}

    def put(number: int) -> None:
        if engine.rank in numbers:
            raise RuntimeError("cannot set number of interop threads after set_num_interop_threads was called")
        numbers[engine.rank] = number

    torch.get_num_interop_threads = lambda: numbers.get(engine.rank, before[0]())
    torch.set_num_interop_threads = put
    try:
        yield
    finally:
        torch.get_num_interop_threads, torch.set_num_interop_threads = before
