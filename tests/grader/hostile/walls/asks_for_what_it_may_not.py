"""Speaks to its driver in person: calls that do not exist, giant shapes, numbers of other works, another's lines."""


# expects: fail tampered limit crashed
def ping_pong(rank, world_size, n_rounds):
    import json
    import os
    import struct

    asked = [
        {"dist": "__class__", "given": [[], []]}, {"clock": "__dict__", "given": []}, {"wait": -1, "given": []},
        {"dist": "send", "given": [[{"tensor": ["torch.float32", [2**31, 2**31, 0]]}, 1], {"dict": []}]},
        {"dist": "get_rank", "given": [[], {"dict": []}], "file": "/etc/passwd", "line": 10**30},
        {"returned": 2.0 * n_rounds, "changed": []}, {"raised": "SystemExit", "text": "0"},
        {"clock": "sleep", "given": [1e9]}, {"returned": {"numpy": {"tensor": ["torch.bfloat16", [0]]}}, "changed": []},
    ]  # fmt: skip
    for message in asked if rank else reversed(asked):
        text = json.dumps(message).encode()
        for fd in range(3, 40):
            try:
                os.write(fd, struct.pack("!II", len(text), 0) + text)
            except OSError as error:
                print(fd, error)
    return 0.0
