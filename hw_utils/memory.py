"""Bytes of dense tensors, copied as gloo copies them: beside autograd, whatever the shape.

All of this process's memory seen as one array: a slice of it costs 0.1 us, a call through ctypes 0.4.
"""

from __future__ import annotations

import ctypes
import sys

# Both are this process's memory: a slice of the first is bytes, the second is for writing.
memory = (ctypes.c_char * sys.maxsize).from_address(0)
writable = memoryview(memory).cast("B")


def contents(tensor, n_bytes: int) -> bytes:
    """The bytes of a contiguous tensor."""
    at = tensor.data_ptr()
    return memory[at : at + n_bytes]


def fill(tensor, data: bytes) -> None:
    """Writes bytes to where a contiguous tensor begins."""
    at = tensor.data_ptr()
    writable[at : at + len(data)] = data


def copy(source, target, n_bytes: int) -> None:
    """Bytes of one contiguous tensor to another."""
    to, at = target.data_ptr(), source.data_ptr()
    writable[to : to + n_bytes] = writable[at : at + n_bytes]


HUGE_PAGE_BYTES = 2 * 2**20
_M_TOP_PAD, _MADV_HUGEPAGE = -2, 14
_BLOCK_BYTES, _MOST_BLOCKS = 2**16, 2**14  # a gigabyte of free heap needs no more pages


def grow_in_huge_pages(n_bytes: int = 2**30) -> bool:
    """The next `n_bytes` of this process's heap come in pages of 2 MiB, where glibc and Linux have them.

    A thousand ranks' tensors are touched in turn, each in another page of 4 KiB: more than the processor keeps the
    places of. Address space only, until it is used.
    """
    libc = ctypes.CDLL(None)
    if not sys.platform.startswith("linux") or not hasattr(libc, "mallopt"):
        return False
    libc.sbrk.restype, libc.malloc.restype = ctypes.c_void_p, ctypes.c_void_p
    libc.mallopt(_M_TOP_PAD, ctypes.c_int(n_bytes))
    start = libc.sbrk(0)
    taken = []
    while libc.sbrk(0) == start and len(taken) < _MOST_BLOCKS:  # what is free already goes first
        taken.append(libc.malloc(_BLOCK_BYTES))
    for block in taken:
        libc.free(ctypes.c_void_p(block))
    low, high = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, libc.sbrk(0) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    return high > low and libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), _MADV_HUGEPAGE) == 0
