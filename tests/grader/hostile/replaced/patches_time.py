"""A clock that stands still."""

# expects: fail
import time

time.monotonic = time.perf_counter = time.time = lambda: 0.0
time.sleep = lambda s: None
