"""Announces a message of 4 GB, then sends noise."""

# expects: fail tampered limit crashed
import os

for fd in range(3, 64):
    try:
        os.write(fd, b"\xff" * 8 + os.urandom(100_000))
    except OSError:
        pass
