"""What a process prepares before it forks: its forks copy few pages of their own accord."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import gc, os, resource
from hw_utils.processes.copy_on_write import share_with_forks

def pages_of_a_collection():
    read, write = os.pipe()
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        gc.collect()
        os.write(write, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))

kept = [[(n, k) for k in range(9)] for n in range(3000)]  # every ninth of them in a page of its own is free next
for some in kept:
    del some[::9]
gc.freeze()
spare = pages_of_a_collection()
share_with_forks()
print(spare, pages_of_a_collection())
"""


def test_a_forks_first_collection_copies_few_pages():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    spare, shared = map(int, done.stdout.split())
    assert spare > 200, "Python keeps no spare tuples here: nothing is proved"
    assert shared < spare / 3
