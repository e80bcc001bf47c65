"""Writes forged messages to every descriptor."""

# expects: fail tampered limit crashed
import json
import os
import struct

text = json.dumps({"right": True, "pickled": 3, "data": True, "opened": True}).encode()
for fd in range(3, 64):
    try:
        os.write(fd, struct.pack("!II", len(text), 3) + text + b"abc")
    except OSError:
        pass
