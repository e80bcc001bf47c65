"""Writes 1 GB to the descriptors and the original streams."""

# expects: fail limit
import os
import sys

for _ in range(1000):
    os.write(1, b"x" * 10**6)
    sys.__stdout__.write("y" * 1000)
os.system("head -c 100000000 /dev/zero")
