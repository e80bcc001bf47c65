"""Looks for the instructor's notebook everywhere."""

# expects: fail limit
import os

found = []
for top in (
    "/root",
    "/home",
    "/mnt",
    "/srv",
    "/opt",
    "/tmp",
    "/var",
    "/scratch",
    "/hw",
    "/proc/1/root",
    "..",
    "COURSE",
):
    for folder, _, files in os.walk(top):
        found += [
            os.path.join(folder, f) for f in files if f.endswith((".ipynb", ".db")) and "site-packages" not in folder
        ]
print("FOUND", found)
assert not found, found
open("COURSE/solutions/01_hello_ranks/hello_ranks.ipynb")
