"""Which function of the kit's, torch's or Python's has been replaced in this process since it was sealed.

    seal()          in the warm parent, before any student's code
    replaced()      "hw_utils.plain.encode", or "" if all is as it was

It looks beside the code that it looks for, and that code can make it say anything. So it gives a zero its name; points
never depend on it for the better. What an ordinary notebook does is not looked at: settings, random states, data of
modules, pictures, `print`, names of the notebook itself. A module that was loaded again is as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

_OWN = ("hw_utils", "hw_grader")
_PICTURES = ("hw_utils.plots", "hw_utils.figure", "hw_utils.stepper", "hw_utils.report", "hw_utils.watch")
_MINE_TO_CHANGE = {"print", "input", "help", "exit", "quit", "copyright", "credits", "license", "breakpoint", "_",
                   "display", "get_ipython", "execfile", "runfile", "open"}  # fmt: skip
_C10D = """send recv isend irecv batch_isend_irecv all_reduce reduce broadcast barrier gather scatter all_gather
    all_gather_into_tensor reduce_scatter reduce_scatter_tensor all_to_all all_to_all_single get_rank get_world_size
    is_initialized init_process_group new_group"""
_WATCHED = {  # elsewhere: what data is made, timed, compared and sent with
    "json": "dumps loads dump load",
    "time": "time sleep monotonic perf_counter process_time thread_time time_ns monotonic_ns perf_counter_ns",
    "pickle": "dumps loads", "base64": "b64encode b64decode", "math": "isfinite isclose prod fsum",
    "os": "_exit fork kill read write getpid waitpid", "socket": "socket socketpair", "socket.socket": "send recv",
    "sys": "exit _getframe", "gc": "get_objects get_referrers",
    "numpy": "array asarray ascontiguousarray frombuffer allclose isclose array_equal testing",
    "torch": """tensor as_tensor from_numpy frombuffer equal allclose isclose eq zeros ones full empty arange stack cat
        chunk split sum mean matmul""",
    "torch.Tensor": """__eq__ __ne__ __lt__ __gt__ __bool__ __float__ __int__ __add__ __mul__ item tolist numpy detach
        cpu clone copy_ add_ equal allclose sum mean contiguous backward""",
    "torch.distributed": _C10D, "torch.distributed.distributed_c10d": _C10D,
    "IPython.core.interactiveshell.InteractiveShell": "run_cell run_code run_ast_nodes user_global_ns",
}  # fmt: skip

_sealed: list[Sealed] = []


class Sealed(NamedTuple):
    """A name, and what it stood for."""

    name: str
    is_home: bool  # it is defined there, and not imported from elsewhere
    look: Callable[[], Any]  # what it stands for now
    value: Any
    code: Any
    mark: Any


def seal() -> None:
    """Remembers what every function is."""
    _sealed[:] = [*_elsewhere(), *_own()]


def seal_elsewhere() -> None:
    """Remembers anew what is not the kit's own: after we have replaced some of it ourselves."""
    _sealed[:] = [*_elsewhere(), *(one for one in _sealed if one.name.startswith(_OWN))]


def replaced() -> str:
    """The first name, those where something is defined before those it is imported to; empty if there is none."""
    found = [one for one in _sealed if (now := one.look()) is not one.value or _code(now) is not one.code]
    names = [(not one.is_home, one.name) for one in found if _mark(one.look()) != one.mark]
    return min(names, default=(False, ""))[1]


def _sealed_now(name: str, is_home: bool, look: Callable[[], Any]) -> Sealed:
    value = look()
    return Sealed(name, is_home, look, value, _code(value), _mark(value))


def _own() -> Iterator[Sealed]:
    for name in sorted(name for name in sys.modules if _is_watched(name)):
        if type(sys.modules[name]) is ModuleType:
            yield from _functions(name, name, vars(sys.modules[name]))


def _is_watched(module: str) -> bool:
    return module.split(".")[0] in _OWN and not module.startswith(_PICTURES) and not module.endswith("__main__")


def _functions(prefix: str, module: str, space: Mapping[str, Any]) -> Iterator[Sealed]:
    """The functions, classes with their methods, and checks with their halves, among a module's or a class's names."""
    for name, value in list(space.items()):
        home = value.__module__ if isinstance(value, FunctionType | type) else module
        if _mark(value) is not None and not home.startswith(_PICTURES):
            yield _sealed_now(f"{prefix}.{name}", home == module, partial(space.get, name))
        if isinstance(value, type) and home == module == prefix:
            yield from _functions(f"{prefix}.{name}", module, vars(value))
        if type(value).__module__ == "hw_utils.checks.check":
            for half in ("driver", "judge"):
                yield _sealed_now(f"{prefix}.{name}.{half}", True, partial(vars(value).get, half))


def _elsewhere() -> Iterator[Sealed]:
    builtins = vars(sys.modules["builtins"])
    for name in sorted(builtins.keys() - _MINE_TO_CHANGE):
        if callable(builtins[name]):
            yield _sealed_now(f"builtins.{name}", True, partial(builtins.get, name))
    for owner, names in _WATCHED.items():
        place = _owner(owner)
        for name in names.split() if place is not None else ():
            yield _sealed_now(f"{owner}.{name}", True, partial(getattr, place, name, None))


def _owner(path: str) -> Any:
    """A module, or a class in one."""
    if path in sys.modules:
        return sys.modules[path]
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _code(value: Any) -> Any:
    return value.__code__ if type(value) is FunctionType else None


def _mark(value: Any) -> Any:
    """What is the same for the same function, also when its module is loaded again; None for what is not looked at."""
    kind = type(value)
    if kind is FunctionType:
        return value.__qualname__, value.__code__
    if kind in (classmethod, staticmethod):
        return kind, _mark(value.__func__)
    if kind.__name__ == "_lru_cache_wrapper":
        return kind, _mark(value.__wrapped__)
    if kind is property:
        return kind, _mark(value.fget), _mark(value.fset)
    if isinstance(value, type) and value.__module__.startswith(_OWN):
        return value.__module__, value.__qualname__
    if kind.__module__.startswith(_OWN):
        return kind.__module__, kind.__qualname__
    return id(value) if callable(value) else None
