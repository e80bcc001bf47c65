"""New memory is counted from outside, whatever holds it and whatever was put aside before."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hw_grader.driving.marshalling import lent_memory
from hw_grader.driving.marshalling.lent_objects import Lent
from hw_grader.sandbox import changed_pages
from hw_grader.sandbox.changed_pages import PAGE, look_at, n_changed

N_BYTES = 16 * 2**20
NOISE_BYTES = 4 * 2**20
NOT_TO_BE_TOLD = 2**40
GUARD = 102  # MADV_GUARD_INSTALL
ROOT = Path(__file__).resolve().parents[3]
LAST_NUMBER = "/proc/sys/kernel/ns_last_pid"


def _pieces() -> list[bytes]:
    data = os.urandom(N_BYTES)
    return [data[k : k + 400] for k in range(0, N_BYTES, 400)]


def _in_a_frame() -> Iterator[list[bytes]]:
    def keeps() -> Iterator[list[bytes]]:
        pieces = _pieces()
        while True:
            yield pieces

    frame = keeps()
    next(frame)
    return frame


def _mapped() -> mmap.mmap:
    mapped = mmap.mmap(-1, N_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.write(os.urandom(N_BYTES))
    return mapped


def _over_a_file() -> mmap.mmap:
    """Written to and yet in no file, whose name is like those of the kernel's own mappings."""
    with tempfile.NamedTemporaryFile(prefix="[v") as file:
        file.truncate(N_BYTES)
        mapped = mmap.mmap(file.fileno(), N_BYTES, flags=mmap.MAP_PRIVATE)
    mapped.write(os.urandom(N_BYTES))
    return mapped


def _by_brk() -> int:
    libc = ctypes.CDLL(None)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    place = libc.sbrk(N_BYTES)
    ctypes.memmove(place, os.urandom(N_BYTES), N_BYTES)
    return place


def _in_place_of_ballast(ballast: list[bytearray]) -> bytes:
    ballast.clear()
    return os.urandom(N_BYTES)


def _in_a_child() -> subprocess.Popen:
    run = f"import os, sys; kept = os.urandom({N_BYTES}); print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


def _shared_with_a_child() -> tuple[bytes, int]:
    kept, end = os.urandom(N_BYTES), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end[1])
        os.read(end[0], 1)
        os._exit(0)
    return kept, end[1]


def _behind_a_page_that_cannot_be_read() -> mmap.mmap:
    """The first page of each piece that is read at once can be read by nobody (a guard page, from Linux 6.13 on)."""
    n_pages = changed_pages._AT_ONCE
    mapped = mmap.mmap(-1, N_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.write(os.urandom(N_BYTES))
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    for place in range(0, N_BYTES, n_pages * PAGE):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start + place), ctypes.c_size_t(PAGE), GUARD)
    return mapped


def _in_thousands_of_places() -> list[mmap.mmap]:
    return [mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE, prot=(1, 3)[k % 2]) for k in range(10_000)]


def _in_ever_new_processes() -> int:
    """Each starts the next one and ends, until nobody is there any more."""
    first = os.getpid()
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            if not os.path.exists(f"/proc/{first}"):
                os._exit(0)
    return first


KEEPS: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda _: torch.rand(N_BYTES // 8, dtype=torch.float64),
    "a text": lambda _: os.urandom(N_BYTES).hex(),
    "pieces in a frame": lambda _: _in_a_frame(),
    "a mapping": lambda _: _mapped(),
    "a file's mapping": lambda _: _over_a_file(),
    "brk": lambda _: _by_brk(),
    "where ballast was": _in_place_of_ballast,
    "a child": lambda _: _in_a_child(),
    "shared with a child": lambda _: _shared_with_a_child(),
    "behind a page that cannot be read": lambda _: _behind_a_page_that_cannot_be_read(),
    "thousands of places": lambda _: _in_thousands_of_places(),
    "ever new processes": lambda _: _in_ever_new_processes(),
}
KEEPS_NOTHING: dict[str, Callable[[Any], Any]] = {
    "let go": lambda _: len(os.urandom(N_BYTES)),
    "only touched": lambda ballast: sum(len(one) for one in ballast),
    "nothing": lambda _: None,
}
BEFORE: dict[str, Callable[[], Any]] = {
    "": lambda: None,
    "a child of a smaller number": lambda: _in_a_child_of_a_smaller_number(),
}


def _numbers_go_on_from(number: int) -> None:
    """The next process has the first free number after this one."""
    Path(LAST_NUMBER).write_text(str(number))


def _in_a_child_of_a_smaller_number() -> subprocess.Popen:
    _numbers_go_on_from(300)
    child = _in_a_child()
    assert child.pid < os.getpid()
    return child


def _grown_in_a_fork(what: Callable[[Any], Any], before: Callable[[], Any] = lambda: None) -> int:
    """Bytes that are new in a process once it has called `what` and kept what came of it, beside what `before` gave."""
    told, asked = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # as the warm parent: collections write to none of what this process had before
        ballast, there = [bytearray(b"1" * 2**20) for _ in range(2 * N_BYTES >> 20)], before()
        for _ in range(2):
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # as answers do before they are looked at
            os.write(told[1], b".")
            os.read(asked[0], 1)
            kept = what(ballast)
        os._exit(0 if kept is there is None else 1)
    first, _ = (os.read(told[0], 1) and look_at(pid).pages, os.write(asked[1], b"."))
    os.read(told[0], 1)
    now = look_at(pid).pages
    grown = n_changed(first, now) * PAGE if now else NOT_TO_BE_TOLD
    os.write(asked[1], b".")
    os.waitpid(pid, 0)
    for end in (*told, *asked):
        os.close(end)
    return grown


def serve() -> None:
    """For each line of the input, `what` and `before` with a comma between them, the bytes that grew."""
    changed_pages._FILES = ()  # a jail's
    for line in sys.stdin:
        what, before = line.rstrip("\n").split(",")
        print(_grown_in_a_fork({**KEEPS, **KEEPS_NOTHING}[what], BEFORE[before]), flush=True)


@pytest.fixture(scope="module")
def grown() -> Iterator[Callable[..., int]]:
    """Asks a process that has torch and little else: what the tests before this one have loaded writes memory, too."""
    run = f"from {__name__} import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", run], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:

        def ask(what: str, before: str = "") -> int:
            server.stdin.write(f"{what},{before}\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.mark.parametrize("what", KEEPS)
def test_what_is_kept_is_counted_whatever_keeps_it(grown, what):
    assert grown(what) >= 0.95 * N_BYTES


@pytest.mark.parametrize("what", KEEPS_NOTHING)
def test_what_is_let_go_or_only_touched_is_not_counted(grown, what):
    assert grown(what) <= NOISE_BYTES


@pytest.mark.skipif(not os.access(LAST_NUMBER, os.W_OK), reason="numbers of processes are not ours to choose")
def test_a_child_whose_number_is_the_smaller_one_is_known_again(grown):
    """Numbers of processes start again at the smallest when the largest was given out."""
    _numbers_go_on_from(20_000)
    assert grown("nothing", "a child of a smaller number") <= NOISE_BYTES
    _numbers_go_on_from(20_000)
    assert 0.95 * N_BYTES <= grown("a tensor", "a child of a smaller number") <= N_BYTES + NOISE_BYTES


def test_a_page_that_cannot_be_read_is_like_no_other_and_hides_none_behind_it():
    room = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.write(b"a" * 3 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room)) // PAGE
    nowhere = 1  # the second page of every process
    numbers = np.array([nowhere, nowhere + 1, start, start + 1, start + 2], np.uint64)
    first, second = (changed_pages._sums("self", numbers) for _ in range(2))
    assert (first[2:] == second[2:]).all()
    assert len({*first[2:].tolist()}) == 1
    assert not (first[:2] == second[:2]).any()


def test_a_look_that_would_take_longer_than_it_may_tells_nothing():
    long_ago = time.monotonic() - 1
    now = look_at(os.getppid(), long_ago) if os.getppid() > 1 else None
    assert now is None or now.pages is None
    with pytest.raises(TimeoutError):
        changed_pages._sums("self", np.array([1], np.uint64), long_ago)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_what_was_lent_is_found_where_it_is_said_to_be_and_nowhere_else(dtype):
    model = torch.nn.Linear(256, 256).to(torch.float64 if dtype == torch.int64 else dtype)
    model.register_buffer("counts", torch.arange(2**16).to(dtype))
    lent = Lent()
    lent.things.append(model)
    said = lent_memory.places(lent)
    assert len(said) == 2
    with torch.no_grad():
        model.weight[0, 0] = 0.0
        there = lent_memory.expected(lent, said)
        model.weight[0, 0] = -0.0  # the same number
    found = changed_pages._found(os.getpid(), there)
    n_pages = sum(tensor.nbytes // PAGE for tensor in (model.weight, model.counts))
    assert n_pages - 2 <= len(found) <= n_pages
    model.weight.data.add_(1)
    others = changed_pages._found(os.getpid(), there)
    assert len(others) < len(found)
    assert {*others} < {*found}
    assert len(changed_pages._found(os.getpid(), [[4096, *one[1:]] for one in there])) == 0
    assert lent_memory.expected(lent, dict.fromkeys(said, "here")) == []
    assert lent_memory.expected(lent, None) == []
