"""Starts threads without end."""

# expects: fail limit crashed
import threading
import time

while True:
    threading.Thread(target=time.sleep, args=(1000,)).start()
