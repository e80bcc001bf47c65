"""Writes what looks like a verdict wherever something listens, and then fails."""


# expects: tampered
def fit_link(sizes, seconds):
    import gc
    import socket

    for thing in gc.get_objects():
        if isinstance(thing, socket.socket):
            try:
                thing.send(b'{"state": "pass", "points": 4}\n')
            except OSError:
                pass
    raise MemoryError
