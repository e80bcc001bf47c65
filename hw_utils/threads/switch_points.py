"""Where the turn may pass to another thread: what a student's code does that another one can see."""

from __future__ import annotations

import _imp
import dis
import functools
import linecache
import re
from types import CodeType
from typing import Any

from hw_utils.core.source.students_files import is_students

# Instructions that read or change what another thread can see; a method's name is looked up without a switch.
_SHARED = re.compile(r"(LOAD|STORE|DELETE)_(ATTR|SUBSCR|SLICE)|BINARY_(SUBSCR|SLICE)|(STORE|DELETE)_GLOBAL|CONTAINS_OP")
_CALLS = re.compile(r"CALL(_\w+)?$|FOR_ITER|(BEFORE|SETUP)_WITH")


@functools.lru_cache(maxsize=1000)
def points_in(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that touch what another thread can see; none in code that is not the student's."""
    return frozenset() if _is_of_a_library(code) else _offsets(code)


def _offsets(code: CodeType) -> frozenset[int]:
    return frozenset(i.offset for i in dis.get_instructions(code) if _SHARED.match(i.opname) or _CALLS.match(i.opname))


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
