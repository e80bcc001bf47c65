"""A launch that returns what hello should have printed."""

# expects: fail
import hw_utils
from hw_utils import Run, Trace
from hw_utils.checks import lesson_01


def forged(worker, world_size, args=(), **options):
    lines = [f"Rank {r}: Hello, {args[0]}!\n" for r in range(world_size)]
    return Run([None] * world_size, 0.0, lines, Trace.of([], world_size))


hw_utils.launch = lesson_01.launch = forged
