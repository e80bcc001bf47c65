"""Fills /dev/shm, /tmp and memory files."""

# expects: fail limit
import os

for folder in ("/dev/shm", "/tmp", "."):
    try:
        for n in range(100):
            with open(f"{folder}/{n}", "wb") as file:
                file.write(bytes(100 * 2**20))
    except OSError as error:
        print("stopped:", error)
try:
    os.memfd_create("more")
except OSError as error:
    print("stopped:", error)
