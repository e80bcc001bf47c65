"""Reads the sources that are in the sandbox for an answer."""

# expects: fail
import glob

text = "".join(open(path).read() for path in glob.glob("/hw/**/*.py", recursive=True))
assert "BEGIN HIDDEN" + " TESTS" not in text
assert "def ping_pong(rank" not in text
