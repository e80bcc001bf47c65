"""A forked child goes on as if it were the notebook."""

# expects: fail
import os

for _ in range(4):
    os.fork()
