"""Memory that no process has mapped, and what one submission could leave for another: counted, or not to be had."""

from __future__ import annotations

import pytest

from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.sandbox import Sandbox
from tests.grader.in_sandbox import needs_sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]
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
