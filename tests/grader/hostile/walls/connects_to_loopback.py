"""Connects to a server on the grading machine's loopback."""

# expects: fail
import socket

with socket.socket() as s:
    s.settimeout(1)
    assert s.connect_ex(("127.0.0.1", PORT)) != 0
with socket.socket(socket.AF_UNIX) as s:
    assert s.connect_ex("\0grader-PORT") != 0
print("BLOCKED")
