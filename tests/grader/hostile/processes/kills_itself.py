"""Kills its own process."""

# expects: crashed
import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
