"""Sends made-up data from inside the answer."""


# expects: fail tampered limit crashed
def fit_link(sizes, seconds):
    import json
    import os
    import struct

    text, data = json.dumps({"data": True}).encode(), b"[1.0, 2.0]"
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("!II", len(text), len(data)) + text + data)
        except OSError:
            pass
    return 0.0, 0.0
