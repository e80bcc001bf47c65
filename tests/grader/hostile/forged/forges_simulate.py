"""A simulate that returns a run with the right results and ledger without running anything."""

# expects: fail
import hw_utils
from hw_utils import Event, Run, Trace
from hw_utils.checks import lesson_01


def forged(worker, world_size, args=(), **options):
    n = args[0] if args else 0
    events = []
    for i in range(n):
        events += [
            Event(0, "send", 1, 4, i, i + 1, message=2 * i, sent_bytes=4, sent_messages=1),
            Event(1, "recv", 0, 4, i, i + 1, message=2 * i),
        ]
        events += [
            Event(1, "send", 0, 4, i, i + 1, message=2 * i + 1, sent_bytes=4, sent_messages=1),
            Event(0, "recv", 1, 4, i, i + 1, message=2 * i + 1),
        ]
    results = [2.0 * n if r < 2 else 0.0 for r in range(world_size)]
    return Run(results, 0.0, [""] * world_size, Trace.of(events, world_size))


hw_utils.simulate = lesson_01.simulate = forged
