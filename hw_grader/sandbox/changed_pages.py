"""Which of a process's memory is new: pages whose content differs from what it was, read from outside the process.

To keep a number, a process must write it down somewhere. What it says of itself, which allocator it asked and how much
it had put aside before are no matter here: a page that was written since and is still mapped counts, no other does.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

PAGE = mmap.PAGESIZE
_FILES = "/scratch", "/meet"  # where a jail may write, /tmp and /dev/shm included
_NAME_BYTES = 1024  # of a file's name, and of what else lies beside its content: a link's target
_FEW, _LINE_BYTES = 2, 2**20  # pipes and sockets that an answer can have use for; what each other one could hold
_FEW_OTHERS = 10  # descriptors of other kinds: an epoll's registrations and a file's position hold numbers, too
_MOST_MAPPINGS, _MOST_PROCESSES = 2**13, 8  # 600 and 2 are usual; where they are is a number, too
_STOP_S, _LOOK_AGAIN_S = 1.0, 0.001
LONG_S = 10.0  # for a look that usually takes some 10 ms; the grader waits longer for one
_AT_ONCE = 1024  # pages that are read with one call
_ITS_OWN, _OF_A_FILE, _SWAPPED, _PRESENT = (np.uint64(1 << bit) for bit in (56, 61, 62, 63))  # in /proc/PID/pagemap
_PID = np.uint64(40)  # the bits below are a page's number
_SUM_BYTES = 8  # of a page's sha256: who knows how it is summed up writes none that has the same sum, either


@dataclass(frozen=True)
class Pages:
    """Those that a process and its children may have written to: whose and which, in order, and a sum of each."""

    names: np.ndarray
    sums: np.ndarray


@dataclass(frozen=True)
class Look:
    """What a process and its children held at one moment. pages: None if they are not to be told, by its own doing."""

    pages: Pages | None
    bytes_beside: int  # what lies where no page is
    known: np.ndarray  # pages whose content is somebody else's: a model that was lent, for example

    def new_bytes(self, before: Look, deadline: float = math.inf) -> int | None:
        """How much is new since an earlier look; None if that is not to be told, or not by then."""
        if self.pages is None or before.pages is None:
            return None
        with suppress(TimeoutError):
            return n_changed(before.pages, self.pages, deadline, self.known) * PAGE + self.bytes_beside
        return None


def look_at(pid: int, deadline: float = math.inf, lent: Sequence[Sequence] = ()) -> Look:
    """Stands the process and all below it still, and looks.

    Where processes come and go, or pages are in thousands of places, more is kept than a look can find by then.

    lent: [address, bytes, kind of numbers, digest] of what the process was given and may have: where it is, it is
        nothing new.

    Raises:
        OSError: it is gone, or not ours to read.
    """
    with _stopped(pid) as family:
        with suppress(TimeoutError):
            if family:
                known = _found(pid, lent)
                return Look(_pages_of(family, deadline), _bytes_beside(family), known)
        return Look(None, 0, np.zeros(0, np.uint64))


def digest(content: bytes, kind: str) -> str:
    """Of numbers of a kind, "f4" or "f8", for which -0 is 0; of others' bytes."""
    if kind in ("f4", "f8"):
        content = (np.frombuffer(content, kind) + np.zeros(1, kind)).tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _found(pid: int, lent: Sequence[Sequence]) -> np.ndarray:
    """The pages, with their process, that are full of what was lent."""
    found = [np.zeros(0, np.uint64)]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for address, n_bytes, kind, its_digest in lent:
            with suppress(OSError):  # nothing can be read there
                if digest(os.pread(memory.fileno(), n_bytes, address), kind) == its_digest:
                    found.append(np.arange(-(-address // PAGE), (address + n_bytes) // PAGE, dtype=np.uint64))
    return np.unique(np.concatenate(found)) | np.uint64(pid) << _PID


@contextmanager
def _stopped(pid: int) -> Iterator[list[int] | None]:
    """The process and those below it, none of which runs; None if they are too many, or new ones come all the time."""
    stopped: list[int] = []
    try:
        for _ in range(_MOST_PROCESSES):
            family = _family(pid)
            new = [one for one in family if one not in stopped]
            if not new or len(family) > _MOST_PROCESSES:
                break
            for one in new:
                stopped.append(one)
                with suppress(ProcessLookupError):  # it has ended, and may have handed on what it kept
                    os.kill(one, signal.SIGSTOP)
        else:
            family = None
        yield family if family and len(family) <= _MOST_PROCESSES and all(map(_stands_still, family)) else None
    finally:
        for one in stopped:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _family(pid: int) -> list[int]:
    """The process first, and all that it has started, and what these have; not many more than are looked at."""
    found, more = [], [pid]
    while more and len(found) <= _MOST_PROCESSES:
        found.append(more.pop())
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
            for thread in os.listdir(f"/proc/{found[-1]}/task"):
                with suppress(ProcessLookupError, FileNotFoundError):
                    more += map(int, Path(f"/proc/{found[-1]}/task/{thread}/children").read_text().split())
    return found


def _stands_still(pid: int) -> bool:
    """Whether all threads of a process have stopped, within a second; or have ended."""
    deadline = time.monotonic() + _STOP_S
    with suppress(ProcessLookupError, FileNotFoundError):
        while any(state not in "TtZX" for state in _states(pid)):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
    return True


def _states(pid: int) -> Iterator[str]:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError, FileNotFoundError):  # this thread has ended, others may go on
            yield Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]


def _pages_of(family: list[int], deadline: float) -> Pages | None:
    parts = [_pages_of_one(pid, deadline, is_alone=len(family) == 1) for pid in family]
    if None in parts:
        return None
    parts.sort(key=lambda part: part[0][:1].tolist())  # by process: a child's number may be the smaller one
    return Pages(*map(np.concatenate, zip(*parts)))


def _pages_of_one(pid: int, deadline: float, *, is_alone: bool) -> tuple[np.ndarray, np.ndarray] | None:
    with open(f"/proc/{pid}/maps") as maps:
        mappings = list(islice(maps, _MOST_MAPPINGS + 1))
    if len(mappings) > _MOST_MAPPINGS:
        return None
    numbers = np.concatenate([np.zeros(0, np.uint64), *_own(pid, mappings, is_alone=is_alone)])
    return numbers | np.uint64(pid) << _PID, _sums(pid, numbers, deadline)


def n_changed(before: Pages, now: Pages, deadline: float = math.inf, but: np.ndarray | Sequence = ()) -> int:
    """How many pages are new, or have another content; but: pages that are not counted.

    What was shared with this process, and still is in it what it is there, was only touched.

    Raises:
        TimeoutError: the deadline is over.
    """
    places = np.searchsorted(before.names, now.names)
    places[places == len(before.names)] = 0
    is_known = before.names[places] == now.names
    is_same = is_known & (before.sums[places] == now.sums)
    new = np.flatnonzero(~is_known)
    numbers = now.names[new] & np.uint64((1 << int(_PID)) - 1)
    order = np.argsort(numbers, kind="stable")
    order = order[_are_mapped_here(numbers[order])]
    is_same[new[order]] = _sums("self", numbers[order], deadline) == now.sums[new[order]]
    return int((~is_same & ~np.isin(now.names, but)).sum())


def _are_mapped_here(numbers: np.ndarray) -> np.ndarray:
    with open("/proc/self/maps") as maps:
        ends = np.array(
            [[int(end, 16) // PAGE for end in line.split(" ", 1)[0].split("-")] for line in maps], np.uint64
        )
    return np.searchsorted(ends[:, 0], numbers, side="right") > np.searchsorted(ends[:, 1], numbers, side="right")


def _bytes_beside(family: list[int]) -> int:
    """What is in its jail's files, and in what its descriptors lead to.

    Of these more than an answer has use for count as much as they could hold.
    """
    places = [os.statvfs(f"/proc/{family[0]}/root{place}") for place in _FILES]
    in_files = sum((s.f_blocks - s.f_bfree) * s.f_frsize + (s.f_files - s.f_ffree) * _NAME_BYTES for s in places)
    with open(f"/proc/{family[0]}/net/sockstat") as counts:
        n_sockets = int(counts.readline().split()[2])  # sockets: used 53
    ends = [[*_open(pid)] for pid in family]
    n_pipes = len({end for of_one in ends for end, _ in of_one if end.startswith("pipe:")})
    n_others = max(sum(not end.startswith(("pipe:", "socket:")) for end, _ in of_one) for of_one in ends)
    n_sent = sum(n for of_one in ends for _, n in of_one)
    n_more = max(0, n_sockets + n_pipes - _FEW) + max(0, n_others - _FEW_OTHERS) + n_sent
    return in_files + n_more * _LINE_BYTES


def _open(pid: int) -> Iterator[tuple[str, int]]:
    """What its descriptors lead to, and how many of them are under way in each."""
    with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(ProcessLookupError, FileNotFoundError):  # closed meanwhile
                end = os.readlink(f"/proc/{pid}/fd/{fd}")
                yield end, _sent(pid, fd) if end.startswith("socket:") else 0


def _sent(pid: int, fd: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{fd}") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("scm_fds:")), 0)


def _own(pid: int, mappings: list[str], *, is_alone: bool) -> Iterator[np.ndarray]:
    """The numbers of pages that no other process has, a mapping at a time; of one that is not alone, all but a file's.

    What a process shares with a child of its own is nobody's alone, and yet kept.
    """
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in mappings:
            place, rights, *_, name = (line.rstrip("\n") + " ").split(" ", 5)
            first, last = (int(end, 16) // PAGE for end in place.split("-"))
            if rights[3] != "p" and (
                rights[1] == "-" or name.strip().startswith(_FILES)
            ):  # a file, which counts as one
                continue
            told = np.frombuffer(os.pread(pagemap.fileno(), 8 * (last - first), 8 * first), dtype=np.uint64)
            counts = told & _ITS_OWN != 0 if is_alone else told & _OF_A_FILE == 0
            is_own = (told & _SWAPPED != 0) | ((told & _PRESENT != 0) & counts)
            yield np.flatnonzero(is_own).astype(np.uint64) + np.uint64(first)


def _sums(pid: int | str, numbers: np.ndarray, deadline: float = math.inf) -> np.ndarray:
    """Of each page; of what cannot be read one that is no other's.

    Raises:
        TimeoutError: the deadline is over: they are too many, or each has to be read by itself.
    """
    found = np.frombuffer(os.urandom(_SUM_BYTES * len(numbers)), np.uint64).copy()
    ends = np.flatnonzero(np.diff(numbers) != 1) + 1
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, stop in zip([0, *ends], [*ends, len(numbers)]):
            while start < stop:
                if time.monotonic() > deadline:
                    raise TimeoutError("more pages, or in more places, than a look can read in time")
                pages = _read(memory.fileno(), int(numbers[start]), min(_AT_ONCE, stop - start))
                sums = b"".join(hashlib.sha256(page).digest()[:_SUM_BYTES] for page in pages)
                found[start : start + len(pages)] = np.frombuffer(sums, np.uint64)
                start += len(pages) or 1  # a page that cannot be read hides none that lie behind it
    return found


def _read(memory: int, number: int, n_pages: int) -> list[memoryview]:
    """As many pages as can be read, up to the first one that cannot be."""
    try:
        content = memoryview(os.pread(memory, n_pages * PAGE, number * PAGE))
    except OSError:  # it is the first one
        return []
    return [content[end - PAGE : end] for end in range(PAGE, len(content) + 1, PAGE)]
