"""Prints the environment and the command lines of all processes."""

# expects: fail
import glob
import os

print(dict(os.environ))
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        text = open(path, "rb").read()
    except OSError:
        continue
    assert b"SECRET_OF_THE_GRADER" not in text
assert "SECRET_OF_THE_GRADER" not in str(os.environ)
