"""What a process has once and ranks of one process would share: seen as soon as a rank changes it.

A module's globals, the attributes of its classes, what containers and objects there hold; torch's flags, modes and
hooks; sys.argv and the working directory. The values are compared when ranks take turns; a change ends the attempt, and
the next one gives every rank a process of its own. So nothing is ever copied back and forth, and a program that changes
nothing pays for a few comparisons.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from hw_utils.scripts import torchrun_script
from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports
from hw_utils.virtual.ranks.per_rank_state.replaced_functions import Replaced
from hw_utils.virtual.ranks.per_rank_state.settings import Settings
from hw_utils.virtual.ranks.per_rank_state.snapshot import Snapshot, is_watched
from hw_utils.virtual.ranks.per_rank_state.watched_calls import caught, watched_imports

_FIRST_TURNS = 4  # of a rank: where programs set what they set
_EVERY_TURN = 500  # looks, one at every turn, and those of the first turns; then ever fewer
_SELDOM = 16  # looks: programs set what they set in their first turns


class ProcessState:
    """What was there before the first rank ran its first line."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.snapshot = Snapshot()
        self.imports, self.n_modules = Imports(), len(sys.modules)
        self.n_looks, self.n_early = 0, _FIRST_TURNS * len(engine.running)
        self.replaced, self.settings = Replaced(), Settings(engine)
        self.thread_flags = _of_one_thread()
        self._watch_torchs_own()
        self.argv = list(sys.argv)

    @contextmanager
    def watched(self):
        """While the ranks run, the engine looks here; what is best caught where it is called, is."""
        engine = self.engine
        engine.turns.look, engine.turns.changed = self.look, self.changed
        with caught(engine.ending.need), self.settings.watched(), watched_imports(self.learn, self.settings):
            self.replaced.learn()
            yield

    def look(self) -> int:
        """Gives the run up if the running rank has changed what others would see; how many turns then may go unseen.

        A program of many turns is looked at ever more seldom: a change that lasts is seen at the end of its rank.
        """
        self.n_looks += 1
        self.look_now()
        return max(self.n_looks - max(_EVERY_TURN, self.n_early), 0)

    def look_now(self, everywhere: bool = False) -> None:
        """The same, whatever came before; `everywhere` also at what no program changes in passing."""
        if self.thread_flags != _of_one_thread() and self.engine.carrier.is_shared:
            self.engine.ending.need("threads", "autocast or a mode of torch")
        is_early = self.n_looks <= self.n_early
        changed = ""
        if is_early or everywhere or self.engine.turns.exchanged or self.n_looks % _SELDOM == 0:
            changed = self.settings.notice(is_late=not is_early)
        changed = changed or self.changed()
        changed = changed or self.replaced.changed(not self.engine.carrier.is_shared, at_the_end=everywhere)
        if changed:
            self.engine.ending.need("processes", changed)

    def learn(self, worker: Callable | None = None) -> None:
        """Watches what the program has brought since, the worker's own module, and the modules that those mention."""
        found = []
        if len(sys.modules) != self.n_modules:
            self.n_modules = len(sys.modules)
            found = [sys.modules[name] for name in self.imports.new()]
            self.imports.mark()
            self._watch_torchs_own()
            self.replaced.learn()
        if worker is not None:
            found.append(sys.modules.get(getattr(worker, "__module__", "")))
        while found:
            module = found.pop()
            if (
                type(module) is not types.ModuleType
                or id(module) in self.snapshot.seen
                or not is_watched(module.__name__)
            ):
                continue
            self.snapshot.watch_module(module)
            found += [m for value in list(vars(module).values()) if (m := _home(value)) is not None]

    def changed(self) -> str:
        """What a rank has changed, "" if nothing."""
        if sys.argv != (torchrun_script.places.arguments or self.argv):
            return "sys.argv"
        return self.snapshot.difference()

    def _watch_torchs_own(self) -> None:
        seen = self.snapshot.seen
        for name, table in _torchs_own().items():
            if isinstance(table, dict) and id(table) not in seen:
                seen.add(id(table))
                self.snapshot.add_table(table, dict(table), name, _not_ours)
            else:
                self.snapshot.watch(table, name)


def _home(value: Any) -> types.ModuleType | None:
    """The module that a value comes from."""
    if isinstance(value, types.ModuleType):
        return value
    name = getattr(value, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def _not_ours(table: dict) -> list[Any]:
    """What a program has entered; hooks of this package know which rank runs (a check's, that sees each forward)."""
    return [v for v in table.values() if not str(getattr(v, "__module__", "")).startswith("hw_utils.")]


def _torchs_own() -> dict[str, Any]:
    """torch's tables that are one for a process."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return {
        f"torch's hooks for all {whose} ({name})": table
        for whose, place in (("modules", module), ("optimizers", optimizer))
        for name, table in vars(place).items()
        if name.startswith("_global_") and table is not None
    }


def _of_one_thread() -> tuple:
    """torch's settings that belong to an OS thread: greenlets share them."""
    return (
        torch.is_autocast_enabled("cpu"), torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
    )  # fmt: skip
