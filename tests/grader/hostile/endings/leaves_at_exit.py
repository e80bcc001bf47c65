"""What runs at the end: atexit, finalizers, a thread, a generator. What they fork takes time from its own check only."""

# expects: fail limit
import atexit
import threading
import weakref


class Last:
    def __del__(self):
        import os

        while os.fork():
            os.setsid()


def forever():
    try:
        while True:
            yield 1
    finally:
        Last()


def fit_link(sizes, seconds):
    atexit.register(Last)
    keeps = Last()
    weakref.finalize(keeps, Last)
    threading.Thread(target=threading.Event().wait).start()
    running = forever()
    return next(running) * 0.0, 0.0


atexit.register(Last)
