"""Writes wherever it can."""

# expects: fail
import os
import sys

written = []
for folder in (
    "/",
    "/usr",
    "/hw",
    "/hw/hw_utils",
    "/etc",
    "/proc/sys/kernel",
    "/dev",
    sys.prefix,
    sys.base_prefix,
    "COURSE",
):
    try:
        open(os.path.join(folder, "planted"), "w").write("x")
        written.append(folder)
    except OSError:
        pass
print("WRITTEN", written)
