"""Stops its own process."""

# expects: limit
import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)
