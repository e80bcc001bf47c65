"""Which parts of the machine's files are in memory is nothing that a jail can ask, nor change but by reading."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from hw_grader.sandbox import call_filter

TRIES = """
import ctypes, mmap, os, sys
from hw_grader.sandbox import call_filter, lockdown
libc = ctypes.CDLL(None, use_errno=True)
lockdown.prctl(lockdown.PR_SET_NO_NEW_PRIVS, 1)
assert call_filter.filter_calls()
fd = os.open(sys.argv[1], os.O_RDONLY)
def said(call):
    try:
        return call()
    except OSError as error:
        return os.strerror(error.errno)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
print(said(lambda: os.preadv(fd, [bytearray(8)], 0, os.RWF_NOWAIT)))
print(said(lambda: os.preadv(fd, [bytearray(8)], 0, 0x80)))
print(said(lambda: os.preadv(fd, [bytearray(8)], 0)))
whole = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print(said(lambda: whole.madvise(21)), said(lambda: whole.madvise(mmap.MADV_RANDOM)))
for number in 27 if os.uname().machine == "x86_64" else 232, 440, 451:
    print(libc.syscall(number, 0, 0, 0, 0), os.strerror(ctypes.get_errno()))
"""


@pytest.mark.skipif(call_filter.platform.machine() not in call_filter._DENIED, reason="no filter for this machine")
@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="no Linux")
def test_what_of_a_file_is_in_memory_can_be_neither_asked_nor_changed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    done = subprocess.run([sys.executable, "-c", TRIES, path], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    refused = "Operation not supported"
    assert done.stdout.split("\n")[:-1] == [
        refused, refused, "8", "Invalid argument None", *["-1 Operation not permitted"] * 3,
    ]  # fmt: skip
