"""Where the turn may pass to another thread: what a student's code does that another one can see."""

from __future__ import annotations

import _imp
import dis
import functools
import importlib
import linecache
import re
import sys
from types import CodeType
from typing import Any

from hw_utils.core.source.students_files import is_students

# Instructions that read or change what another thread can see; a method's name is looked up without a switch.
_SHARED = re.compile(r"(LOAD|STORE|DELETE)_(ATTR|SUBSCR|SLICE)|BINARY_(SUBSCR|SLICE)|(STORE|DELETE)_GLOBAL|CONTAINS_OP")
_CALLS = re.compile(r"CALL(_\w+)?$|FOR_ITER|(BEFORE|SETUP)_WITH")
_NAMES = re.compile(r"(LOAD|STORE|DELETE)_(DEREF|GLOBAL)")
_PRELUDE = frozenset({"GEN_START", "EXTENDED_ARG"})
_GOES_ON = "YIELD_VALUE" if sys.version_info < (3, 11) else "RESUME"  # before what a frame begins or goes on with
# Containers of the standard library that are written in Python: what they do in one call is many steps.
_CONTAINERS = ("_collections_abc", "collections", "weakref", "_weakrefset")


@functools.lru_cache(maxsize=1000)
def points_in(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that touch what another thread can see, and of the first one.

    C code that calls Python in the middle of a step, as a defaultdict calls its factory, is switched there. None in
    libraries' code, but for containers that are written in Python.
    """
    return frozenset() if _is_of_a_library(code) and not is_of_a_container(code) else _offsets(code)


def is_of_a_container(code: CodeType) -> bool:
    """Whether it stands in one of the standard library's containers; what a weak one does when something is freed does
    not count, which happens whenever it happens."""
    return code.co_filename in _files_of_containers() and "selfref" not in code.co_varnames


@functools.cache
def _files_of_containers() -> frozenset[str]:
    modules = map(importlib.import_module, _CONTAINERS)
    return frozenset({*(f"<frozen {name}>" for name in _CONTAINERS), *(str(module.__file__) for module in modules)})


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
def _is_of_a_library(code: CodeType) -> bool:
    """Whether the code stands in the library's file that it names: text that is compiled can name any file."""
    file = code.co_filename
    return not is_students(file) and code in _codes_in(file)


@functools.lru_cache(maxsize=200)
def _codes_in(file: str) -> frozenset[CodeType]:
    try:
        if file.startswith("<frozen "):
            found = [_imp.get_frozen_object(file[len("<frozen ") : -1])]
        else:
            found = [compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)]
    except (ImportError, SyntaxError, ValueError):
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
        "points": sorted(_offsets(code)),
        "handlers": [[entry.start, entry.end, entry.target] for entry in table],
    }
