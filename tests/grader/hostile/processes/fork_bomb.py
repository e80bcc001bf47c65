"""Forks without end."""

# expects: fail limit crashed
import os

while True:
    try:
        os.fork()
    except OSError:
        pass
