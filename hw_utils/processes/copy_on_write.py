"""What a process does before it begins to fork: imports, what copies keep of freed memory, and share for long."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HUGE, _MADV_COLLAPSE = 2**21, 25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_BYTES, _KEPT_BYTES = 2**25, 2**28  # the first is glibc's limit


@contextmanager
def no_collections() -> Iterator[None]:
    """While modules are imported: they leave next to no garbage, and looking for it takes a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def keep_freed_memory() -> None:
    """From now on glibc keeps up to 256 MB of what this process frees, and each of its forks, for the next tensors.

    By default most of it goes back to the kernel, which fills each page with zeros when it is asked for again: a sixth
    of the time of a step of VGG-11 (https://man7.org/linux/man-pages/man3/mallopt.3.html). Of tensors above 32 MB
    nothing is kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own; other systems have other means
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def share_with_forks() -> None:
    """Leaves what there is out of collections, and puts it into pages of 2 MiB where the kernel can (Linux 6.1).

    A fork copies 512 times fewer entries then: 3 ms instead of 11 with torch imported. A page that is written to
    afterwards is still copied by 4 KiB, and a collection writes to every object. There is none before: it would find
    one in sixty of the objects that imports have left, and take a sixth of their time. The one here has nothing to
    look at and gives back Python's spare tuples and lists: 350 pages that each fork's first collection would copy.

    Worth another call after whatever wrote to objects everywhere, an import in a fork for instance: each write has
    broken up 2 MiB.
    """
    gc.freeze()
    gc.collect()
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for addresses, rights, _, _, _, *name in lines:
        if rights != "rw-p" or name not in ([], ["[heap]"]):
            continue
        low, high = (int(end, 16) for end in addresses.split("-"))
        low, high = -(-low // _HUGE) * _HUGE, high // _HUGE * _HUGE
        if low < high:  # what it gives is no matter: nothing may be there yet, or the kernel does not know it
            madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), _MADV_COLLAPSE)
