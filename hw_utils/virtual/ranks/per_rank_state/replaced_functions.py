"""Functions and methods of torch's that a program has replaced by its own, as tests and tracers do.

    FSDPParamGroup.unshard = counted(FSDPParamGroup.unshard)

torch's modules keep caches and counters among their globals, so only what can be called counts, and only where
programs are known to replace it. Looking takes some 20 us. So at every turn FSDP2 alone is looked at, once a program
uses it; the rest where turns cost more anyway, and when a rank ends.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from hw_utils.virtual.ranks.per_rank_state.dict_versions import Tables
from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports

# What stands in a table and is a program's to call; a model that a class of torch's remembers is not.
_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, staticmethod, classmethod,
    property, type,
)  # fmt: skip
_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.nn.functional")
_CLASSES = {
    "torch.nn": ("Module",), "torch.optim": ("Optimizer",), "torch.nn.parallel": ("DistributedDataParallel",),
    "torch.distributed.fsdp": ("FullyShardedDataParallel",),
}  # fmt: skip
# Looked at when a rank ends, with their classes; of torch's own, only Tensor.
_AT_THE_END = ("torch.nn", "torch.nn.functional", "torch.nn.init", "torch.optim", "torch.distributed.fsdp")
# Modules of the standard library of which each rank has its own part anyway, by names that are put in place for it.
_OURS = {
    "sys", "os", "time", "random", "warnings", "logging", "threading", "signal", "tempfile", "pickle", "importlib",
    "asyncio", "multiprocessing", "queue", "resource", "timeit", "subprocess", "_posixsubprocess", "atexit",
}  # fmt: skip
_WHOLE = "torch.distributed.fsdp._fully_shard"  # its modules and all of their classes
_tables, _of_fsdp, _layers, _standard = Tables(), Tables(), Tables(), Tables()  # of this process
_imports = Imports(all_are_new=True)  # of which the standard library's are among _standard
_trusted: list[bool] = []  # of this process


def trust() -> None:
    """From now on nothing is looked at: no rank of this process runs a program that is not the kit's."""
    _trusted.append(True)


class Replaced:
    """What torch's functions were when they were first seen."""

    def __init__(self) -> None:
        self.is_begun = False
        for tables in () if _trusted else (_layers, _standard):  # what has changed between two simulations
            tables.renew()
        self.sharded: dict[type, type] = {}  # torch's table of classes that FSDP2 has sharded

    def learn(self) -> None:
        """Remembers what has been imported since."""
        if _trusted:
            return
        if not self.is_begun:
            self.is_begun = True
            _tables.renew()
            _of_fsdp.renew()
        if new := _imports.new():
            for name in (sys.stdlib_module_names - _OURS).intersection(new):
                _standard.add(f"the module {name}", vars(sys.modules[name]))
            _imports.mark()
            _learn_torchs()
        self.sharded = getattr(sys.modules.get(f"{_WHOLE}._fully_shard"), "cls_to_fsdp_cls", {})

    def changed(self, everywhere: bool, at_the_end: bool = False) -> str:
        """What was replaced, "" if nothing; names that are new or not callable are taken over.

        at_the_end: of a rank; then the standard library and what else programs change of torch are looked at too.
        """
        if _trusted or not (everywhere or at_the_end or self.sharded):
            return ""
        found = _changed(_of_fsdp)
        found = found or (_changed(_tables) if everywhere or at_the_end else "")
        return found or (_changed(_layers) or _of_the_standard_library() if at_the_end else "")


def _learn_torchs() -> None:
    for name in _MODULES:
        if name in sys.modules:
            _tables.add(f"the module {name}", vars(sys.modules[name]))
    for name, classes in _CLASSES.items():
        for cls in classes if name in sys.modules else ():
            _tables.add(f"the class {cls}", vars(getattr(sys.modules[name], cls)))
    _layers.add("the class Tensor", vars(sys.modules["torch"].Tensor))
    for name in _AT_THE_END:
        module = sys.modules.get(name)
        if module is not None and f"the module {name}" not in _layers.known:
            _layers.add(f"the module {name}", vars(module))
            for cls in list(vars(module).values()):
                if isinstance(cls, type):
                    _layers.add(f"the class {cls.__name__}", vars(cls))
    whole = sys.modules.get(_WHOLE)
    for module in [whole, *vars(whole).values()] if whole else ():
        if isinstance(module, types.ModuleType) and module.__name__.startswith(_WHOLE):
            _of_fsdp.add(f"the module {module.__name__}", vars(module))
            for cls in list(vars(module).values()):
                if isinstance(cls, type) and cls.__module__ == module.__name__:
                    _of_fsdp.add(f"the class {cls.__name__}", vars(cls))


def _of_the_standard_library() -> str:
    """A public name that is new there, or stands for something else: not what a module fills in by itself."""
    for what, table, before in _standard.differing():
        for name, value in list(table.items()):
            is_new = before.get(name) is None and (name in before or isinstance(value, types.ModuleType))
            if not name.startswith("_") and before.get(name) is not value and not is_new:
                return f"{name} of {what}"
    return ""


def _changed(tables: Tables) -> str:
    for what, table, before in tables.differing():
        for name, value in before.items():
            now = table.get(name)
            if now is not value and isinstance(value, _CODE) and not _is_known(now, value):
                return f"{name} of {what}"
        new = [n for n, v in table.items() if n not in before and not n.startswith("_") and not _is_known(v)]
        if new and (what.startswith("the class") or tables is _layers):
            return f"{new[0]} of {what}"
    return ""


def _is_known(value: Any, before: Any = None) -> bool:
    """Whether no program has put it there: modules that were imported, this package's, an optimizer's timed `step`."""
    home = getattr(value, "__globals__", {}).get("__name__", "")
    is_timed = hasattr(value, "hooked") and getattr(value, "__wrapped__", None) is before
    return isinstance(value, types.ModuleType) or home.startswith("hw_utils.") or is_timed
