"""Dictionaries as they were, and which have changed since: CPython gives each change a number.

A comparison with a copy writes to each value's count of references, and a forked process copies each page that it
writes to: 2,200 of them for the names of torch and the standard library, half of what a short simulation costs.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator, Mapping
from typing import Any

# Behind the count of references, the type and the length of a dict (PEP 509; in CPython until 3.13, PEP 699).
_NUMBER_AT = 3 * ctypes.sizeof(ctypes.c_void_p)


class Tables:
    """Tables of names, which may be classes' own, each as it was when it was added or renewed."""

    def __init__(self) -> None:
        self.tables: list[tuple[str, Mapping[str, Any]]] = []  # (what it is, its names)
        self.known: set[str] = set()  # what they are
        self.before: list[dict[str, Any]] = []  # copies, in the same order
        self.numbers: list[ctypes.c_uint64] = []  # where each one's number lies
        self.numbers_then: list[int] = []

    def add(self, what: str, table: Mapping[str, Any]) -> None:
        """Nothing if it is there."""
        if what not in self.known:
            self.known.add(what)
            self.tables.append((what, table))
            self.numbers.append(_number_of(table))
            self.numbers_then.append(self.numbers[-1].value)
            self.before.append(dict(table))

    def renew(self) -> None:
        """From now on each is as it is now."""
        for k in self._moved():
            self._renew(k)

    def differing(self) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
        """(what, names now, names before) where a name is new, gone, or stands for something else; once each."""
        for k in self._moved():
            (what, table), before = self.tables[k], self.before[k]
            self._renew(k)
            if _differ(table, before):
                yield what, table, before

    def _moved(self) -> list[int]:
        now, then = [number.value for number in self.numbers], self.numbers_then
        if IS_NUMBERED and now == then:
            return []
        return [k for k in range(len(now)) if now[k] != then[k] or not IS_NUMBERED]

    def _renew(self, k: int) -> None:
        self.numbers_then[k] = self.numbers[k].value
        self.before[k] = dict(self.tables[k][1])


def _differ(table: Mapping[str, Any], before: dict[str, Any]) -> bool:
    try:
        return bool(table != before)
    except Exception:  # an array among them: no single answer, and not the object that was there
        return True


def _number_of(table: Mapping[str, Any]) -> ctypes.c_uint64:
    """The number of the last change, where it lies; a class shows its own table behind a proxy."""
    own = table if type(table) is dict else gc.get_referents(table)[0]
    return ctypes.c_uint64.from_address(id(own) + _NUMBER_AT) if IS_NUMBERED else ctypes.c_uint64(0)


def _is_numbered() -> bool:
    """Whether each change of a dictionary, and nothing else, shows where the number should be."""
    table: dict[str, Any] = {"a": 1}
    number, found = ctypes.c_uint64.from_address(id(table) + _NUMBER_AT), []
    for name, value in (("a", 2), ("b", 1), ("b", 2)):
        table[name] = value
        found += [number.value, table[name] and number.value]
    del table["b"]
    return found[0] == found[1] < found[2] == found[3] < found[4] == found[5] < number.value


IS_NUMBERED = _is_numbered()
