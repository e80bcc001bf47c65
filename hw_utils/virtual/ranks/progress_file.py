"""What other processes can see of a simulation while it goes on: the rank that runs, and how late it is there.

A file of sixteen bytes. The engine writes the rank at every switch; who looks for ranks that stand still, the rest.
"""

from __future__ import annotations

import mmap
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROGRESS = struct.Struct("iid")  # the rank that runs, 1 if the process stands still, the virtual seconds so far
PATIENCE_S = 2.0  # of who waits at a terminal
LOOK_S = 0.5


@contextmanager
def lit(path: str | None) -> Iterator[tuple[memoryview, memoryview]]:
    """(rank, whether it stands still) and (virtual seconds,), as another process reads them in the file."""
    if path is None:
        yield memoryview(bytearray(8)).cast("i"), memoryview(bytearray(8)).cast("d")
        return
    with (
        open(path, "r+b") as file,
        mmap.mmap(file.fileno(), PROGRESS.size) as memory,
        memoryview(memory) as both,
        both[:8] as first,
        both[8:] as last,
        first.cast("i") as lamp,
        last.cast("d") as virtual_s,
    ):
        yield lamp, virtual_s


def seen(path: str) -> tuple[int, int, float]:
    """The rank that runs, whether it stands still in torch's C++ code, and the virtual seconds so far."""
    with open(path, "rb") as file:
        return PROGRESS.unpack(file.read(PROGRESS.size))


@contextmanager
def shown_at_a_terminal(path: str) -> Iterator[Callable[[str], None]]:
    """A line with the virtual seconds so far, for who has waited for some real ones; gives what writes output."""
    is_over, bars = threading.Event(), []

    def look() -> None:
        if is_over.wait(PATIENCE_S):
            return
        from tqdm import tqdm

        form = "simulating for {elapsed}: {n:.6g} virtual seconds"
        bars.append(tqdm(bar_format=form, leave=False))
        while not is_over.wait(LOOK_S):
            bars[0].n = seen(path)[2]
            bars[0].refresh()

    def write(text: str) -> None:
        if bars:
            bars[0].write(text, end="")
        else:
            print(text, end="", flush=True)

    if not sys.stderr.isatty():
        yield write
        return
    thread = threading.Thread(target=look, daemon=True, name="hw_utils progress")
    thread.start()
    try:
        yield write
    finally:
        is_over.set()
        thread.join()
        for bar in bars:
            bar.close()
