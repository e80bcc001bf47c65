"""Leaves processes that have detached themselves."""

# expects: fail
import os
import subprocess
import time

for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(1)
        os._exit(0)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
