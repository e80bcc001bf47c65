"""What processes take of this machine's memory, as far as the kernel tells it without any rights.

Where there is no control group for memory (see control_groups.py), this is what bounds a submission: what is mapped or
swapped out, page tables, the kernel's notes on many mappings, and for what has no address (pipes, sockets) as much as
it could hold. What could be neither counted nor bounded, a student's process cannot make at all (see call_filter.py).
"""

from __future__ import annotations

import os
import re

SOCKET_BYTES = 2**18  # at most in a socket's buffers, as long as nobody may ask for larger ones
_FD_BYTES = 2**13  # of a pipe, whose end each descriptor may be, beyond a user's first 64 MiB of pipes
_MAPPING_BYTES = 320  # of the kernel's, for a mapping
_MANY_MAPPINGS, _MOST_MAPPINGS = 2**13, 2**16  # some hundred are usual; the kernel allows no more than the second
_LINES = re.compile(rb"^(RssAnon|RssShmem|VmSwap|VmPTE|HugetlbPages|FDSize):\s+(\d+)", re.MULTILINE)


def of_process(pid: str) -> int:
    """Memory of a process that is not a file's, in bytes; 0 if it is gone."""
    try:
        status = os.open(f"/proc/{pid}/status", os.O_RDONLY)
    except OSError:
        return 0
    try:
        text = os.read(status, 2**16)
    except OSError:
        return 0
    finally:
        os.close(status)
    found = dict(_LINES.findall(text))
    fd_size = int(found.pop(b"FDSize", 0))
    return sum(map(int, found.values())) * 1024 + fd_size * _FD_BYTES


def of_sockets(pid: int) -> int:
    """What the sockets in the network namespace of a process may hold, in bytes; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/net/sockstat") as counts:
            return int(counts.readline().split()[2]) * SOCKET_BYTES  # sockets: used 53
    except OSError:
        return 0


def of_mappings(pid: str) -> int:
    """What the kernel needs for a process's mappings, in bytes; 0 if it is gone. Of very many it counts the first."""
    n_lines = 0
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
            while n_lines < _MANY_MAPPINGS and (text := maps.read(2**16)):
                n_lines += text.count(b"\n")
    except OSError:
        return 0
    return (n_lines if n_lines < _MANY_MAPPINGS else _MOST_MAPPINGS) * _MAPPING_BYTES
