"""Memory of a run: the bytes that each rank holds, whose they are, and when; a table behind `run.memory`.

Stands on source, calls and hardware. The engines take `storage_tracker.Watch`, which follows storages while ranks run;
everybody else takes `Memory`, the finished books, `OutOfMemory`, and `own`, by which a program names what it keeps
itself.
"""

import sys

from hw_utils.core.memory.device_out_of_memory import OutOfMemory
from hw_utils.core.memory.memory_timeline import Memory, Peak
from hw_utils.core.memory.owners import OWNERS

__all__ = ["OWNERS", "Memory", "OutOfMemory", "Peak", "own"]


def own(owner: str, *tensors) -> None:
    """Says whose the memory of `tensors` is: of a run that keeps memory; in any other it does nothing.

    For what nothing in torch tells, as the moments of an optimizer that is no `torch.optim.Optimizer`:
    `own("optimizer", exp_avg, exp_avg_sq)`.

    Raises:
        ValueError: there is no such owner; names those there are.
    """
    if owner not in OWNERS:
        raise ValueError(f"owner must be one of {', '.join(OWNERS)}, got {owner!r}")
    watching = sys.modules.get(f"{__name__}.storage_tracker")  # not imported here: while ranks run, the clock is theirs
    watch = watching.current() if watching else None
    if watch is not None:
        watch.own(owner, tensors)
