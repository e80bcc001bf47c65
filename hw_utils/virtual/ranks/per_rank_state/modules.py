"""The modules of a script's own, one copy a virtual rank: `__main__`, and the files beside the script.

In a process of its own every rank would have its module globals to itself. Here one object stands in `sys.modules`
for all ranks, and each access goes to the running rank's own module, which is run when that rank first imports it.
Installed packages are one for all.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hw_utils.core.source.students_files import is_students
from hw_utils.scripts import torchrun_script


class _OfRank(types.ModuleType):
    """Stands for the running rank's module."""

    def __init__(self, name: str, find: Callable[[], types.ModuleType]) -> None:
        super().__init__(name)
        object.__setattr__(self, "_find", find)

    def __getattribute__(self, name: str):
        return getattr(object.__getattribute__(self, "_find")(), name)

    def __setattr__(self, name: str, value) -> None:
        setattr(object.__getattribute__(self, "_find")(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_find")(), name)

    def __dir__(self) -> list[str]:
        return dir(object.__getattribute__(self, "_find")())


def is_of_rank(name: str) -> bool:
    """Whether a module of this name is one a rank."""
    return type(sys.modules.get(name)) is _OfRank


class _Loader:
    """Gives the import system the object that stands for all ranks; runs the file for each rank that imports it."""

    def __init__(self, engine, spec: importlib.machinery.ModuleSpec) -> None:
        self.engine, self.spec = engine, spec
        self.modules: dict[int, types.ModuleType] = {}

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        self.modules[self.engine.rank] = types.ModuleType(spec.name)
        return _OfRank(spec.name, self.find)

    def exec_module(self, module: types.ModuleType) -> None:
        self.spec.loader.exec_module(self.modules[self.engine.rank])

    def find(self) -> types.ModuleType:
        """The running rank's module; what it imports for the first time is run now."""
        rank = self.engine.rank
        if rank not in self.modules:
            spec = importlib.util.spec_from_file_location(
                self.spec.name, self.spec.origin, submodule_search_locations=self.spec.submodule_search_locations
            )
            module = self.modules[rank] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del self.modules[rank]
                raise
            parent, _, child = spec.name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[spec.name])
        return self.modules[rank]


class Modules(torchrun_script.Places):
    """Where the scripts of virtual ranks are kept."""

    def __init__(self, engine) -> None:
        self.engine, self.before = engine, sys.modules["__main__"]
        self.mains: dict[int, types.ModuleType] = {}
        self.imported: list[str] = []  # names
        self.folders: list[str] = []

    def main(self) -> types.ModuleType:
        return self.mains.get(self.engine.rank, self.before)

    def set_main(self, module: types.ModuleType) -> None:
        if not self.mains:
            sys.modules["__main__"] = _OfRank("__main__", self.main)
        self.mains[self.engine.rank] = module

    def look_in(self, folder: str) -> None:
        if folder not in self.folders:
            self.folders.append(folder)
        if folder not in sys.path:
            super().look_in(folder)

    def find_spec(self, name: str, path: Sequence[str] | None, target=None) -> importlib.machinery.ModuleSpec | None:
        """importlib's: the file beside the script, or below, that the import means."""
        if not self.folders:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        folders = tuple(os.path.realpath(f) + os.sep for f in self.folders)
        if not os.path.realpath(spec.origin).startswith(folders) or not is_students(spec.origin):
            return None
        self.imported.append(name)
        own = importlib.machinery.ModuleSpec(name, _Loader(self.engine, spec), origin=spec.origin)
        own.submodule_search_locations, own.has_location = spec.submodule_search_locations, True
        return own


@contextmanager
def own_modules(engine) -> Iterator[None]:
    """While a simulation runs, a script's modules are a rank's own; afterwards they are gone."""
    modules = Modules(engine)
    before = torchrun_script.places, list(sys.path), sys.argv
    torchrun_script.places = modules
    sys.meta_path.insert(0, modules)
    try:
        yield
    finally:
        torchrun_script.places = before[0]
        sys.meta_path.remove(modules)
        sys.path[:], sys.argv = before[1:]
        if modules.mains:
            sys.modules["__main__"] = modules.before
        for name in modules.imported:
            if is_of_rank(name):
                del sys.modules[name]
