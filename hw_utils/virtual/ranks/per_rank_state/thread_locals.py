"""What modules keep in a `threading.local`: a rank on a thread of its own begins with what the first thread has.

A rank is the first thread of its process. A package that has set something there as it was imported would find it
missing on the rank's thread, and take `getattr(local, name, default)`'s default without a word.
"""

from __future__ import annotations

import copy
import sys
from threading import local
from typing import Any

from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports

_CONTAINERS = (list, dict, set)  # of which each rank has a copy


class _Locals:
    """Those among the globals of modules; each module is looked at once a process."""

    def __init__(self) -> None:
        self.imports, self.found = Imports(all_are_new=True), []

    def find(self) -> list[local]:
        new = self.imports.new()
        self.imports.mark()
        for name in new:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "hw_utils":
                self.found += _locals_in(sys.modules.get(name))
        return self.found


def _locals_in(module: Any) -> list[local]:
    values = list(vars(module).values()) if hasattr(module, "__dict__") else []
    return [value for value in values if issubclass(type(value), local)]


_locals = _Locals()


def know_locals() -> None:
    """Looks at what has been imported so far: for a process from which others are forked."""
    _locals.find()


class OfFirstThread:
    """What the thread that makes it has, for threads that begin later."""

    def __init__(self) -> None:
        self.kept = [(one, values) for one in _locals.find() if (values := vars(one))]

    def begin(self) -> None:
        """The calling thread has it, too."""
        for one, values in self.kept:
            copies = {name: copy.copy(v) if type(v) in _CONTAINERS else v for name, v in values.items()}
            vars(one).update(copies)
