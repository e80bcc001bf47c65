"""Inside the ranks: the right value without a message, and a ledger found by gc that is filled in."""


# expects: fail
def ping_pong(rank, world_size, n_rounds):
    import gc
    import sys

    from hw_utils import Event
    from hw_utils.core import trace

    events = [Event(0, "send", 1, 4, 0.0, 1.0, message=0, sent_bytes=4, sent_messages=1)] * n_rounds
    events += [Event(1, "send", 0, 4, 1.0, 2.0, message=1, sent_bytes=4, sent_messages=1)] * n_rounds
    forged = trace.Trace.of(events, world_size)
    trace.Trace.as_plain = lambda self, made=forged.as_plain(): made
    trace.Trace.__init__ = lambda self, *a, **k: self.__dict__.update(forged.__dict__)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("hw_utils"):
            for name, value in list(vars(module).items()):
                if isinstance(value, list) and "record" in name:
                    value.extend(events)
    return 2.0 * n_rounds if rank < 2 else 0.0
