"""Where the turn may pass to another thread: what a student's code does that another one can see."""

from __future__ import annotations

import _imp
import dis
import functools
import inspect
import os
import queue
import re
import sys
import sysconfig
import threading
from types import CodeType, FrameType, FunctionType
from typing import Any

from hw_utils.core.source.students_files import is_students

# Instructions that read or change what another thread can see; a method's name is looked up without a switch.
_SHARED = re.compile(r"(LOAD|STORE|DELETE)_(ATTR|SUBSCR|SLICE)|BINARY_(SUBSCR|SLICE)|(STORE|DELETE)_GLOBAL|CONTAINS_OP")
_CALLS = re.compile(r"CALL(_\w+)?$|FOR_ITER|(BEFORE|SETUP)_WITH")
_NAMES = re.compile(r"(LOAD|STORE|DELETE)_(DEREF|GLOBAL)")
_PRELUDE = frozenset({"GEN_START", "EXTENDED_ARG"})
_GOES_ON = "YIELD_VALUE" if sys.version_info < (3, 11) else "RESUME"  # before what a frame begins or goes on with
# What a library does in one call is many steps, as in a student's function. Not switched in: what is made for threads
# and what keeps nothing that they could share. What these call of other libraries is.
_LEFT_ALONE = {
    *("threading", "_threading_local", "queue", "concurrent", "contextlib"),
    *("abc", "_py_abc", "copyreg", "dataclasses", "enum", "functools", "inspect", "json", "linecache", "numpy"),
    *("operator", "re", "sre_compile", "sre_parse", "tokenize", "torch", "traceback", "types", "typing", "warnings"),
}
_COMPUTES = re.compile(  # of torch's modules; others keep what they are given
    r"torch(\._\w.*|\.(autograd|backends|cuda|distributed|functional|linalg|overrides|random|serialization|storage)\b.*"
    r"|\.nn\.(functional|init|parameter)|\.utils(\._\w.*)?)?$"
)
_OF_MODES = "torch._library"  # what torch calls on the way to a dispatch mode, as ours is
_CLOSED = {"hw_utils", "importlib", "zipimport"}  # nor in what these call
_LOCKS = {"threading", "_thread"}
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# What stands for a class of C, whose methods nobody can interrupt; an RLock is made by a function in Python.
_IN_C = frozenset(
    function.__code__
    for kind, but in ((queue._PySimpleQueue, ()), (threading._PyRLock, ("__init__",)))
    for name, function in vars(kind).items()
    if isinstance(function, FunctionType) and name not in but
)
_KIT = os.path.join(os.path.realpath(os.path.join(__file__, "../../..")), "")
_PLACES = {os.path.join(os.path.realpath(sysconfig.get_paths()[k]), "") for k in ("purelib", "platlib", "stdlib")}


@functools.lru_cache(maxsize=1000)
def points_in(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that touch what another thread can see, and of the first one.

    C code that calls Python in the middle of a step, as a defaultdict calls its factory, is switched there. None in
    libraries' code that is left alone.
    """
    return _offsets(code) if not is_of_a_library(code) or _is_switched(code) else frozenset()


def is_passed_through(code: CodeType) -> bool:
    """Whether it is a library's code that is left alone itself, but not what it calls."""
    module = module_of(code.co_filename)
    return is_of_a_library(code) and module.split(".")[0] in _LEFT_ALONE and not _is_switched(code)


def comes_from_a_traced(caller: FrameType | None) -> bool:
    """Whether steps are seen in who calls: in the student's code, or in a library's that this has called."""
    while caller is not None and caller.f_trace is None and is_passed_through(caller.f_code):
        caller = caller.f_back
    return caller is not None and caller.f_trace is not None


@functools.lru_cache(maxsize=1000)
def opening_of(code: CodeType) -> int | None:
    """The offset of the first instruction of a library's code that is left alone, but may be called by C code.

    A defaultdict or a cache looks, calls what makes the value, be it `threading.Barrier`, and puts the value in. So
    where such code is called by code whose steps are seen, by C code or not, there is one point: before it begins.
    """
    if not is_passed_through(code) or module_of(code.co_filename).startswith(_OF_MODES):
        return None
    if _is_of_freeing(code) or code.co_flags & _GENERATORS or code in _IN_C:
        return None
    return min(_begins(list(dis.get_instructions(code))))


def _is_of_freeing(code: CodeType) -> bool:
    """Whether it is run when something is freed, which happens whenever it happens."""
    return code.co_name == "__del__" or "selfref" in code.co_varnames


@functools.lru_cache(maxsize=1000)
def _is_switched(code: CodeType) -> bool:
    """Of a library's code. What happens when something is freed does not count."""
    module = module_of(code.co_filename)
    if not module or _is_of_freeing(code):
        return False
    if module.startswith("torch."):
        return not _COMPUTES.match(module) and not _knows_of_threads(code.co_filename)
    return module.split(".")[0] not in _LEFT_ALONE | _CLOSED and not _knows_of_threads(code.co_filename)


@functools.lru_cache(maxsize=200)
def _knows_of_threads(file: str) -> bool:
    """By the text: it takes care of itself, and a rank that is stopped there could hold a lock that nobody manages."""
    return any(not _LOCKS.isdisjoint(code.co_names) for code in codes_in(file))


@functools.lru_cache(maxsize=1000)
def module_of(file: str) -> str:
    """The dotted name of a library's module, as far as its place tells; empty if the file is no library's."""
    if file.startswith("<frozen "):
        return file[len("<frozen ") : -1]
    if file.startswith("<") or is_students(file):
        return ""
    real = os.path.realpath(file)
    if real.startswith(_KIT):
        return "hw_utils"
    name = real.removeprefix(_place_of(real)) if _place_of(real) else os.path.basename(real)
    return os.path.splitext(name)[0].replace(os.sep, ".").removesuffix(".__init__")


def is_installed(file: str) -> bool:
    """Whether it is of the interpreter, or lies where its libraries are."""
    return file.startswith("<frozen ") or bool(_place_of(os.path.realpath(file)))


def _place_of(file: str) -> str:
    return max((place for place in _PLACES if file.startswith(place)), key=len, default="")


def _offsets(code: CodeType) -> frozenset[int]:
    listed = list(dis.get_instructions(code))
    touched = {i.offset for i in listed if _SHARED.match(i.opname) or _CALLS.match(i.opname)}
    return frozenset(touched | _begins(listed) | _rebound(code, listed) | _turns_back(listed))


def _begins(listed: list[dis.Instruction]) -> set[int]:
    """With what the frame begins, and goes on after each yield."""
    places = [k + 1 for k, i in enumerate(listed) if i.opname == _GOES_ON and k + 1 < len(listed)]
    places = places if _GOES_ON == "RESUME" else [0, *places]
    found = set()
    for place in places:
        while listed[place].opname in _PRELUDE and place + 1 < len(listed):
            place += 1
        found.add(listed[place].offset)
    return found


def _rebound(code: CodeType, listed: list[dis.Instruction]) -> set[int]:
    """Reads and writes of names outside the function that it gives another value: `nonlocal n` and `n += 1`."""
    names = [i for i in listed if _NAMES.match(i.opname) and (i.argval in code.co_freevars or "GLOBAL" in i.opname)]
    given = {i.argval for i in names if not i.opname.startswith("LOAD")}
    return {i.offset for i in names if i.argval in given}


def _turns_back(listed: list[dis.Instruction]) -> set[int]:
    """The ends of `while`: in a `for` there is a point already."""
    jumps, name_at = {*dis.hasjrel, *dis.hasjabs}, {i.offset: i.opname for i in listed}
    back = [i for i in listed if i.opcode in jumps and i.argval <= i.offset]
    return {i.offset for i in back if name_at.get(i.argval) not in ("FOR_ITER", "SEND")}


@functools.lru_cache(maxsize=1000)
def is_of_a_library(code: CodeType) -> bool:
    """Whether the code stands in the library's file that it names: text that is compiled can name any file."""
    file = code.co_filename
    return not is_students(file) and code in codes_in(file)


@functools.lru_cache(maxsize=200)
def codes_in(file: str) -> frozenset[CodeType]:
    """All codes that a library's file has; as it lies there, since anybody can put other lines into `linecache`."""
    try:
        if file.startswith("<frozen "):
            name = file[len("<frozen ") : -1]
            found = [_imp.get_frozen_object(name.replace("importlib._bootstrap", "_frozen_importlib"))]
        else:
            with open(file, "rb") as text:
                found = [compile(text.read(), file, "exec", dont_inherit=True)]
    except (ImportError, OSError, SyntaxError, ValueError):
        return frozenset()
    for code in found:
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(found)


def about(code: CodeType) -> dict[str, Any]:
    """Where a code stands and how its instructions follow each other, as plain values."""
    listed = list(dis.get_instructions(code))
    jumps = {*dis.hasjrel, *dis.hasjabs}
    table = getattr(dis.Bytecode(code), "exception_entries", ())
    return {
        "at": [code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno],
        "instructions": [[i.offset, i.opname, i.argval if i.opcode in jumps else -1] for i in listed],
        "points": sorted(_offsets(code) if opening_of(code) is None else [opening_of(code)]),
        "handlers": [[entry.start, entry.end, entry.target] for entry in table],
    }
