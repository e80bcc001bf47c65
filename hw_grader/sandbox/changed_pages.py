"""Which of a process's memory is new: pages whose content differs from what it was, read from outside the process.

To keep a number, a process must write it down somewhere. What it says of itself, which allocator it asked and how much
it had put aside before are no matter here: a page that was written since and is still mapped counts, no other does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

PAGE = mmap.PAGESIZE
_FILES = "/scratch"  # where a jail may write, /tmp and /dev/shm included
_NAME_BYTES = 1024  # of a file's name, and of what else lies beside its content: a link's target
_FEW, _LINE_BYTES = 2, 2**20  # pipes and sockets that an answer can have use for; what each other one could hold
_AT_ONCE = 1024  # pages that are read with one call
_ITS_OWN, _SWAPPED, _PRESENT = (np.uint64(1 << bit) for bit in (56, 62, 63))  # in /proc/PID/pagemap
_PID = np.uint64(40)  # the bits below are a page's number
_FACTORS = np.frombuffer(os.urandom(PAGE), dtype=np.uint64)  # unknown: nobody writes what has the same sum


@dataclass(frozen=True)
class Pages:
    """Those that a process and its children share with no other: whose and which, in order, and a sum of each."""

    names: np.ndarray
    sums: np.ndarray


def pages_of(pid: int) -> Pages:
    """Its own pages now, and those of the processes below it.

    Raises:
        OSError: it is gone, or not ours to read.
    """
    parts = [_pages_of_one(pid)]
    for child in _children(pid):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended: it has no memory any more
            parts.append(_pages_of_one(child))
    parts.sort(key=lambda part: part[0][:1].tolist())  # by process: a child's number may be the smaller one
    return Pages(*map(np.concatenate, zip(*parts)))


def _pages_of_one(pid: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.concatenate([np.zeros(0, np.uint64), *_own(pid)])
    return numbers | np.uint64(pid) << _PID, _sums(pid, numbers)


def n_changed(before: Pages, now: Pages) -> int:
    """How many pages are new, or have another content.

    What was shared with this process, and still is in it what it is there, was only touched.
    """
    places = np.searchsorted(before.names, now.names)
    places[places == len(before.names)] = 0
    is_known = before.names[places] == now.names
    is_same = is_known & (before.sums[places] == now.sums)
    new = np.flatnonzero(~is_known)
    numbers = now.names[new] & np.uint64((1 << int(_PID)) - 1)
    order = np.argsort(numbers, kind="stable")
    is_same[new[order]] = _sums("self", numbers[order]) == now.sums[new[order]]
    return int((~is_same).sum())


def bytes_beside(pid: int) -> int:
    """What lies where no page is: in its jail's files, and in pipes and sockets.

    Of pipes and sockets more than an answer has use for count as much as they could hold.
    """
    jail = os.statvfs(f"/proc/{pid}/root{_FILES}")
    in_files = (jail.f_blocks - jail.f_bfree) * jail.f_frsize + (jail.f_files - jail.f_ffree) * _NAME_BYTES
    with open(f"/proc/{pid}/net/sockstat") as counts:
        n_sockets = int(counts.readline().split()[2])  # sockets: used 53
    pipes = {end for one in (pid, *_children(pid)) for end in _open(one) if end.startswith("pipe:")}
    return in_files + max(0, n_sockets + len(pipes) - _FEW) * _LINE_BYTES


def _open(pid: int) -> Iterator[str]:
    """What its descriptors lead to."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(ProcessLookupError, FileNotFoundError):  # closed meanwhile
                yield os.readlink(f"/proc/{pid}/fd/{fd}")


def _children(pid: int) -> Iterator[int]:
    """All that it has started, and what these have."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in _children_of_thread(pid, thread):
                yield child
                yield from _children(child)


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{thread}/children") as children:
            return [int(child) for child in children.read().split()]
    except (ProcessLookupError, FileNotFoundError):  # it has ended
        return []


def _own(pid: int) -> Iterator[np.ndarray]:
    """The numbers of pages that it alone has, a mapping at a time."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            place, rights, *_ = line.split(maxsplit=2)
            first, last = (int(end, 16) // PAGE for end in place.split("-"))
            if rights[3] != "p":  # shared with others: a file, which counts as one
                continue
            told = np.frombuffer(os.pread(pagemap.fileno(), 8 * (last - first), 8 * first), dtype=np.uint64)
            is_own = (told & _SWAPPED != 0) | ((told & _PRESENT != 0) & (told & _ITS_OWN != 0))
            yield np.flatnonzero(is_own).astype(np.uint64) + np.uint64(first)


def _sums(pid: int | str, numbers: np.ndarray) -> np.ndarray:
    """Of each page; 0 of what cannot be read."""
    found = np.zeros(len(numbers), np.uint64)
    ends = np.flatnonzero(np.diff(numbers) != 1) + 1
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, stop in zip([0, *ends], [*ends, len(numbers)]):
            for k in range(start, stop, _AT_ONCE):
                words = _read(memory.fileno(), int(numbers[k]), min(_AT_ONCE, stop - k))
                found[k : k + len(words)] = (words * _FACTORS).sum(axis=1, dtype=np.uint64)
    return found


def _read(memory: int, number: int, n_pages: int) -> np.ndarray:
    """(pages, words) of as many as can be read."""
    try:
        content = os.pread(memory, n_pages * PAGE, number * PAGE)
    except OSError:
        content = b""
    n_read = len(content) // PAGE
    return np.frombuffer(content, dtype=np.uint64, count=n_read * PAGE // 8).reshape(n_read, PAGE // 8)
