"""A script written for torchrun, as a worker: what `launch("train.py", 8)` and `simulate("train.py", 64)` run.

`"-m package.train"` names a module instead, as torchrun's `-m` does: it has its package, and this folder is on
`sys.path`.
Every rank runs the file as `__main__`, with the environment that torchrun gives it (RANK, LOCAL_RANK, WORLD_SIZE,
MASTER_ADDR, ...), `sys.argv` of its own and the script's folder first on `sys.path`. There is no default process group
until the script calls `init_process_group`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from hw_utils.core.source.students_files import add_program
from hw_utils.scripts.at_exit import run_at_exit

BY_NAME = "-m "
EXPORT = "python -m hw_utils export NOTEBOOK FUNCTION -o train.py"


_OF_ALL = {
    "MASTER_ADDR": "127.0.0.1", "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}  # fmt: skip


def environment(rank: int, world_size: int, port: int, ranks_per_host: int | None = None) -> dict[str, str]:
    """What torchrun tells a rank, as variables of its environment; without `ranks_per_host`, on one host."""
    most = ranks_per_host or world_size
    host, place = divmod(rank, most)
    numbers = {
        "RANK": rank, "LOCAL_RANK": place, "GROUP_RANK": host, "ROLE_RANK": rank, "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": min(most, world_size - host * most), "GROUP_WORLD_SIZE": -(-world_size // most),
        "ROLE_WORLD_SIZE": world_size, "MASTER_PORT": port,
    }  # fmt: skip
    return {**_OF_ALL, **{k: str(v) for k, v in numbers.items()}}


class Places:
    """Where a script's modules are kept: those of this process. The virtual cluster has one of its own."""

    arguments: list[str] | None = None  # what the script found as sys.argv

    def set_main(self, module: types.ModuleType) -> None:
        sys.modules["__main__"] = module

    def look_in(self, folder: str) -> None:
        sys.path.insert(0, folder)

    def set_arguments(self, arguments: list[str]) -> None:
        sys.argv, self.arguments = arguments, list(arguments)


places = Places()


@dataclass(frozen=True)
class Script:
    """A file that every rank runs from its first line to its last; `sys.exit(0)` is a good end."""

    path: str
    args: tuple[str, ...] = ()
    module: str = ""  # "package.train" if it is run by that name
    folder: str = ""  # first on sys.path

    @property
    def __name__(self) -> str:
        return os.path.basename(self.path)

    def __call__(self, rank: int, world_size: int) -> None:
        with open(self.path, "rb") as file:
            code = compile(file.read(), self.path, "exec", dont_inherit=True)
        module = types.ModuleType("__main__")
        module.__file__, module.__builtins__ = self.path, __builtins__
        if self.module:
            module.__spec__ = importlib.util.spec_from_file_location(self.module, self.path)
            module.__package__ = module.__spec__.parent
        places.set_main(module)
        places.look_in(self.folder)
        add_program(self.folder)
        places.set_arguments([self.path, *self.args])
        _await_init_process_group()
        with exit_is_an_end(), run_at_exit(), self._says_when_a_package_is_missed():
            if module.__package__:
                importlib.import_module(module.__package__)
            exec(code, vars(module))

    @contextmanager
    def _says_when_a_package_is_missed(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            if "attempted relative import with no known parent package" in str(error):
                inside = os.path.relpath(self.path, os.getcwd()).removesuffix(".py").split(os.sep)
                name = ".".join(inside) if all(part.isidentifier() for part in inside) else "PACKAGE.MODULE"
                error.msg = f"{error.msg}. Next step: run it with its package, -m {name} in place of the file"
            raise


class _Ended(BaseException):
    """Unwinds a rank that has called `os._exit(0)`."""


class _Exits:
    """`os._exit(0)` of a rank is its good end; one process may carry several, and a rank's children are none."""

    def __init__(self) -> None:
        self.inside: Counter[tuple[int, int]] = Counter()  # (process, thread) -> ranks that it carries
        self.exit = os._exit

    def begin(self) -> tuple[int, int]:
        if not self.inside:
            self.exit, os._exit = os._exit, self._end
        self.inside[here := (os.getpid(), threading.get_ident())] += 1
        return here

    def leave(self, here: tuple[int, int]) -> None:
        self.inside[here] -= 1
        self.inside += Counter()  # without those that are at 0
        if not self.inside:
            os._exit = self.exit

    def _end(self, status: int) -> None:
        if status == 0 and (os.getpid(), threading.get_ident()) in self.inside:
            raise _Ended
        self.exit(status)


_exits = _Exits()


@contextmanager
def exit_is_an_end() -> Iterator[None]:
    """`sys.exit(0)` and `os._exit(0)` end what runs in it, as they would end a process, and no more."""
    here = _exits.begin()
    try:
        yield
    except _Ended:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        _exits.leave(here)


def _await_init_process_group() -> None:
    from hw_utils.scripts import process_group_setup  # imports torch; a notebook that only simulates may do without

    process_group_setup.keep_back()


def script_or_function(worker: Any, args: Sequence[Any]) -> tuple[Any, tuple]:
    """(what every rank calls, its arguments): a path, or "-m" and a name, becomes a `Script`, `args` its command line.

    Raises:
        ValueError: there is no such file or module, or it is no Python script.
        TypeError: an argument is no text or number.
    """
    if not isinstance(worker, str | os.PathLike):
        return worker, tuple(args)
    module = os.fspath(worker)[len(BY_NAME) :].strip() if os.fspath(worker).startswith(BY_NAME) else ""
    path = _file_of(module) if module else os.path.abspath(os.fspath(worker))
    name = os.path.basename(path)
    if path.endswith(".ipynb"):
        raise ValueError(f"{name} is a notebook, and ranks run a script: write one with `{EXPORT}`, then run that")
    if module and not path:
        raise ValueError(f"there is no module {module}, in {os.getcwd()} or on sys.path, that Python code stands in")
    if not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "no such file"
        step = f". Next step: -m {worker}, it is a module's name" if _file_of(str(worker)) else ""
        raise ValueError(f"a script is wanted, and {os.fspath(worker)} is {what} (looked for {path}){step}")
    with open(path, "rb") as file:
        try:
            compile(file.read(), path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{name} is no Python script: {error}") from None
    if isinstance(args, str | bytes):
        raise TypeError(f'args of a script is a list of texts, as ["--lr", "0.1"], got {args!r}')
    wrong = [a for a in args if isinstance(a, bool) or not isinstance(a, str | int | float | os.PathLike)]
    if wrong:
        raise TypeError(f"args of a script become its command line: texts and numbers, got {wrong[0]!r}")
    folder = os.getcwd() if module else os.path.dirname(path)
    if module and name == "__main__.py" and not module.endswith(".__main__"):
        module += ".__main__"
    return Script(path, tuple(os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in args), module, folder), ()


def _file_of(module: str) -> str:
    """The file of a module that `python -m` would run; empty if there is none. Nothing is imported for it."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    for part in module.split("."):
        # by its own name alone: a folder without __init__ asks for its parent's, which is not imported
        spec = None if path is None else PathFinder.find_spec(part, path)
        if spec is None:
            return ""
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    if path is not None:
        spec = PathFinder.find_spec("__main__", path)
    return spec.origin if spec is not None and str(spec.origin).endswith(".py") else ""
