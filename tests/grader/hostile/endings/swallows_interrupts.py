"""A loop that swallows every interrupt."""

# expects: limit
import signal
import time

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        time.sleep(0.1)
    except BaseException:
        pass
