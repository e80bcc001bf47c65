"""Which sockets students' code can make: those that end at their network namespace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hw_grader.sandbox import call_filter

TRIES = """
import errno, socket
from hw_grader.sandbox import call_filter, lockdown
lockdown.prctl(lockdown.PR_SET_NO_NEW_PRIVS, 1)
assert call_filter.filter_calls(FAMILIES)
def made(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK):
    print(int(family), made(socket.socket, family, socket.SOCK_DGRAM))
print("pair", made(socket.socketpair))
print("buffers", socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1))
for family in (40, 38, 17, 0, 31, 29):  # VSOCK, ALG, PACKET, UNSPEC, BLUETOOTH, CAN
    print(family, made(socket.socket, family, socket.SOCK_STREAM))
"""


@pytest.mark.skipif(call_filter.platform.machine() not in call_filter._DENIED, reason="no filter for this machine")
@pytest.mark.parametrize("of_networks", [True, False])
def test_only_families_of_the_network_namespace_or_where_that_is_the_machines_of_files(of_networks):
    script = TRIES.replace("FAMILIES", "call_filter.FAMILIES" if of_networks else "call_filter.ONLY_FILES")
    script = script if of_networks else script.replace("socket.socket().setsockopt", "socket.socket(1).setsockopt")
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split("\n")
    assert said[:5] == ["1 True", f"2 {of_networks}", f"16 {of_networks}", "pair True", "buffers None"]
    assert said[5:-1] == [f"{family} False" for family in (40, 38, 17, 0, 31, 29)]
