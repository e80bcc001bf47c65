"""Children that each stay below the limit of one process."""

# expects: fail limit crashed
import os
import time

for _ in range(12):
    if os.fork() == 0:
        x = bytearray(os.urandom(1024) * (600 * 1024))
        time.sleep(1000)
time.sleep(1000)
