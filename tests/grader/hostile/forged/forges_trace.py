"""A ledger that always says what a judge wants to hear."""

# expects: fail
from hw_utils.core.trace import Trace

Trace.rounds = property(lambda self: 1)
Trace.bytes_sent = lambda self, rank: 0
Trace.ops = property(lambda self: frozenset({"send", "recv"}))
Trace.as_plain = lambda self: {"columns": {}, "names": [], "groups": [], "world_size": 2}
Trace.from_plain = classmethod(lambda cls, data: cls.of([]))
