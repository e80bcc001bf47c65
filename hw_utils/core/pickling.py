"""What crosses between the kernel and a rank: cloudpickle, with errors and warnings that name the culprit."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import pickle
import queue
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle

from hw_utils.core.calls.patched import patched

LARGE_BYTES = 1_000_000
_MANY_BYTES = 1 << 20


def _new_local() -> Any:
    return threading.local()  # looked up where it is made: a grader's answers have one of their own


# What holds no more than who has it: the other side begins with a free one.
_LOCKS = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    queue.SimpleQueue: queue.SimpleQueue,
    threading.local: _new_local,
}


class Unpicklable(TypeError):
    """Something cannot cross to another process; the message names the attribute or variable."""


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that keeps where code stands, copies a large tensor once, and knows what `lru_cache` makes."""

    def reducer_override(self, obj: Any) -> Any:
        import torch

        if isinstance(obj, functools._lru_cache_wrapper) and _is_of_a_notebook(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, types.CodeType):
            return _code(obj)
        if isinstance(obj, types.ModuleType) and _has_properties(obj):
            return importlib.import_module, (obj.__name__,)
        if type(obj) is torch.Tensor and _is_plain_and_large(obj):
            return _tensor, (obj.detach().numpy(), obj.requires_grad)
        return super().reducer_override(obj)


class _WithLocks(_Pickler):
    """The same; a lock crosses as a new one that nobody holds."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in _LOCKS:
            return _LOCKS[type(obj)], ()
        return super().reducer_override(obj)


def _has_properties(module: types.ModuleType) -> bool:
    """Whether it is of a class of its own, as torch.backends.cudnn, and found by its name."""
    return type(module) is not types.ModuleType and sys.modules.get(module.__name__) is module


def _imported_submodules(code: types.CodeType, modules: Iterable[Any]) -> list[types.ModuleType]:
    """What cloudpickle looks for among all modules that there are, 2 ms with torch's: those that the names lead to."""
    found = []
    for module in modules:
        is_package = isinstance(module, types.ModuleType) and getattr(module, "__package__", None)
        names = [module.__name__] if is_package else []
        for name in names:  # grows
            inside = [n for word in code.co_names if sys.modules.get(n := f"{name}.{word}") is not None]
            names += inside
            found += [sys.modules[n] for n in inside]
    return found


def _code(code: types.CodeType) -> tuple:
    """As cloudpickle takes it apart, with the name of its file: without that, no error could say the line.

    From 3.1.3 on it writes "<dynamic-code>" instead.
    """
    make, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def _is_of_a_notebook(function) -> bool:
    return function.__module__ in {"__main__", None} | cloudpickle.list_registry_pickle_by_value()


def _cached(function, parameters: dict[str, Any]):
    """As decorated with `functools.lru_cache`, with nothing remembered yet."""
    return functools.lru_cache(**parameters)(function)


def _is_plain_and_large(tensor) -> bool:
    import torch

    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in (torch.float32, torch.float64, torch.int64, torch.uint8)
        and tensor.numel() * tensor.element_size() >= _MANY_BYTES
        and tensor.is_contiguous()
        and tensor.grad_fn is None
        and not tensor.is_conj()
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def _tensor(array, requires_grad: bool):
    import torch

    return torch.from_numpy(array).requires_grad_(requires_grad)


def dump(value: Any, what: str, *, with_locks: bool = False) -> bytes:
    """The value as bytes; functions and classes of a notebook go by value.

    with_locks: the other side gets locks of its own, free ones. A rank's would keep no other rank out.

    Raises:
        Unpicklable: names the attribute, item or variable in `what` that cannot cross.
    """
    buffer, kind = io.BytesIO(), _WithLocks if with_locks else _Pickler
    try:
        with patched(cloudpickle.cloudpickle, "_find_imported_submodules", _imported_submodules):
            kind(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:
        path, culprit = _culprit(value, what, kind)
        raise Unpicklable(
            f"{path} is a {_type_name(culprit)}, which cannot be sent to another process ({_first_line(error)})"
        ) from None
    return buffer.getvalue()


def load(data) -> Any:
    return pickle.loads(data)


_MOST_CAUSES = 8


def chain_of(error: BaseException) -> list[tuple[BaseException, bool]]:
    """What an exception comes of, nearest first, each with whether it is a `__cause__` or a shown `__context__`."""
    found, seen = [], {id(error)}
    while len(found) < _MOST_CAUSES:
        is_cause = error.__cause__ is not None
        following = error.__cause__ if is_cause or error.__suppress_context__ else error.__context__
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        found.append((following, is_cause))
        error = following
    return found


def dump_error(error: BaseException, what: str) -> bytes:
    """An exception as bytes for `load_error`, with what it comes of as far as that can be sent.

    Raises:
        Unpicklable: names what in it cannot cross. Exception: it cannot be rebuilt.
    """
    data, causes = dump(error.with_traceback(None), what), []
    load(data)
    for cause, is_cause in chain_of(error):
        try:
            sent = dump(cause, "")
            load(sent)
        except Exception:
            break
        causes.append((sent, is_cause))
    return pickle.dumps((data, causes))


def load_error(data: bytes) -> BaseException:
    """The exception of `dump_error`."""
    own, causes = pickle.loads(data)
    error = last = load(own)
    for sent, is_cause in causes:
        cause = load(sent)
        if is_cause:
            last.__cause__ = cause
        else:
            last.__context__ = cause
        last = cause
    return error


def dump_call(worker: Any, args: tuple) -> bytes:
    """`(worker, args)` as bytes, pickled once for all ranks; warns when it is over 1 MB, and says of what."""
    try:
        data = dump((worker, args), "")
    except Unpicklable:
        for name, value in [(_name(worker), worker), *((f"args[{i}]", a) for i, a in enumerate(args))]:
            dump(value, name)
        raise
    if len(data) > LARGE_BYTES:
        warnings.warn(_large_text(worker, args, len(data)), stacklevel=_students_level())
    return data


def _large_text(worker: Any, args: tuple, n_bytes: int) -> str:
    parts = [(f"args[{i}]", a) for i, a in enumerate(args)]
    parts += [(f"the variable {name}", value) for name, value in captured(worker)]
    sizes = sorted(((_size(value), name) for name, value in parts), reverse=True)[:3]
    named = ", ".join(f"{name} ({size / 1e6:,.1f} MB)" for size, name in sizes if size > LARGE_BYTES / 10)
    return (
        f"each rank is sent {n_bytes / 1e6:,.1f} MB{': ' + named if named else ''}. "
        "Make large data inside the worker, or load it there."
    )


def captured(worker: Any) -> Iterator[tuple[str, Any]]:
    """The notebook's variables that a function mentions: closure and globals, (name, value)."""
    if not inspect.isfunction(worker):
        return
    found = inspect.getclosurevars(worker)
    for name, value in {**found.globals, **found.nonlocals}.items():
        if not inspect.ismodule(value):
            yield name, value


def _size(value: Any) -> int:
    try:
        return len(dump(value, ""))
    except Unpicklable:
        return 0


def _students_level() -> int:
    from hw_utils.core.source.students_files import is_students

    frame, level = inspect.currentframe(), 0
    while frame is not None and not is_students(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def _culprit(value: Any, path: str, kind: type[_Pickler], depth: int = 0) -> tuple[str, Any]:
    """(where, the thing) that cannot be pickled: the deepest one found."""
    if depth < 6:
        for name, part in _parts(value, path):
            if not _can(part, kind):
                return _culprit(part, name, kind, depth + 1)
    return path or _name(value), value


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{k!r}]", v) for k, v in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"{path}[{i}]" if path else _name(v), v) for i, v in enumerate(value))
    elif inspect.isfunction(value):
        yield from (((f"the variable {n} of {path or _name(value)}"), v) for n, v in captured(value))
    elif inspect.ismethod(value):
        yield path, value.__self__
    elif isinstance(value, BaseException):
        yield from ((f"{path}.args[{i}]", v) for i, v in enumerate(value.args))
        yield from ((f"{path}.{k}", v) for k, v in vars(value).items())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f"{path}.{k}", v) for k, v in vars(value).items())


def _can(value: Any, kind: type[_Pickler]) -> bool:
    try:
        kind(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:
        return False
    return True


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or f"the {_type_name(value)}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
