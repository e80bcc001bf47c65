"""Memory that no process has mapped, and what one submission could leave for another: counted, or not to be had."""

from __future__ import annotations

import mmap

import pytest

from hw_grader.sandbox import memory_in_use
from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import needs_sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]
PAGE = mmap.PAGESIZE
REST = "\nimport time\nwhile True: time.sleep(1)\n"
REFUSED = {
    "shared memory that is not mapped any more": "import mmap; mmap.mmap(-1, 2**30).madvise(mmap.MADV_DONTNEED)",
    "shared memory of /dev/zero": "import mmap; mmap.mmap(open('/dev/zero', 'r+b').fileno(), 2**20)",
    "semaphores": "import ctypes\nif ctypes.CDLL(None).semget(0, 30_000, 0o1600) < 0: raise OSError",
    "queues of messages": "import ctypes\nif ctypes.CDLL(None).mq_open(b'/q', 0o102, 0o600, None) < 0: raise OSError",
    "a ring for input and output": "import ctypes, platform\nnumber = {'x86_64': 206}.get(platform.machine(), 0)\n"
    "if ctypes.CDLL(None).syscall(number, 65536, ctypes.byref(ctypes.c_ulong())) < 0: raise OSError",
    "locks on parts of a file": "import fcntl; fcntl.lockf(open('f', 'w'), fcntl.LOCK_EX, 1, 10**6)",
    "names and values beside a file's content": "import os; os.setxattr(open('f', 'w').name, 'user.a', bytes(9000))",
    "a larger pipe": "import fcntl, os; fcntl.fcntl(os.pipe()[0], fcntl.F_SETPIPE_SZ, 2**20)",
    "descriptors of one thread alone": "import ctypes\n"
    "if ctypes.CDLL(None).syscall(436, 2**20, 2**20, 2) < 0: raise OSError",
    "a thread with descriptors of its own": "import ctypes, platform\n"
    "number = {'x86_64': 56}.get(platform.machine(), 220)\n"
    "if ctypes.CDLL(None).syscall(number, 0x10900, 0, 0, 0, 0) < 0: raise OSError",
    "terminals": "import os\nfor _ in range(40): os.openpty()",
    "files beside its own folder": "open('/dev/planted', 'w')",
    "files where checks meet": "open('/meet/planted', 'w')",
    "counts of the whole machine": "open('/proc/vmstat')",
}
COUNTED = {
    "page tables": """
import mmap
room = mmap.mmap(-1, 2**33, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
for place in range(0, 2**33, 2**21):
    room[place]
""",
    "mappings": """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
place = libc.mmap(None, 2**29, 0, 0x4022, -1, 0)
for k in range(32_000):
    libc.mprotect(ctypes.c_void_p(place + 8192 * k), ctypes.c_size_t(4096), 1)
for _ in range(24):
    if os.fork() == 0:
        break
""",
    "pipes": """
import os
for _ in range(20):
    if os.fork() == 0:
        break
ends = [os.pipe() for _ in range(2000)]
for _, end in ends:
    os.set_blocking(end, False)
    try:
        while os.write(end, bytes(4096)): pass
    except BlockingIOError:
        pass
""",
}


@pytest.fixture(scope="module")
def small():
    """A sandbox in which 12 MiB are too much."""
    with Sandbox(Limits(memory_bytes=12 * 2**20, scratch_bytes=2**31, file_bytes=2**31)) as sandbox:
        yield sandbox


@pytest.mark.parametrize("what", REFUSED)
def test_what_nobody_counts_cannot_be_had(small, what):
    with small.start("cells") as process:
        process.wire.send({"run": REFUSED[what]})
        reply, _ = process.wire.receive(60)
        assert reply["ok"] is False
        assert reply["outputs"][-1]["ename"] in ("OSError", "PermissionError", "FileNotFoundError", "error")


@pytest.mark.parametrize("what", COUNTED)
def test_what_is_no_memory_of_a_process_counts_as_memory(small, what):
    with small.start("cells") as process:
        process.wire.send({"run": COUNTED[what] + REST})
        with pytest.raises(EOFError):
            process.wire.receive(60)
        assert process.end().over_memory


def test_the_kernels_own_count_ends_a_submission_that_ours_does_not_see(small):
    if small.share.memory is None:
        pytest.skip("this user may make no control group for memory")
    with small.start("cells") as process:
        process.wire.send({"run": "part, file = bytes(2**16), open('x', 'wb')\nwhile True: file.write(part)"})
        with pytest.raises(EOFError):
            process.wire.receive(60)
        assert process.end().over_memory
    assert small.share.n_out_of_memory
    with small.start("cells") as process:  # the warm parents are there
        process.wire.send({"run": "1"})
        assert process.wire.receive(60)[0]["ok"]


def test_the_kernels_notes_on_mappings_are_counted_as_far_as_they_are_many():
    few = memory_in_use.of_mappings("self")
    assert 50 * 320 < few < 2**13 * 320
    places = [mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE, prot=(1, 3)[k % 2]) for k in range(2**13)]
    assert memory_in_use.of_mappings("self") == 2**16 * 320
    del places
    assert memory_in_use.of_mappings("no process") == 0
