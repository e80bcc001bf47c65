"""Processes whose names are no text, or look like what the kernel says of a process."""

# expects: fail
import ctypes
import os
import time

for name in (b"\xff\xfe:", b"a\nFDSize:\t-9", b"VmPTE: x", b": :", b""):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, name)
        time.sleep(1000)
time.sleep(0.5)
