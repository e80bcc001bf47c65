"""Ranks that are threads (lesson 06): run, switched on purpose, freed from where they hang, their layer's calls traced.

Stands on core. Lessons take `run_threads` and `watch`, checks the rendezvous and, for data races, `interleavings`.
"""

from hw_utils.threads.layer_trace import watch
from hw_utils.threads.run_threads import run_threads

__all__ = ["run_threads", "watch"]
