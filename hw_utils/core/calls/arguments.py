"""What a collective was given: an options object or the value itself."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

SHORT_S = 10.0  # a message of a group with such a timeout is to run into it; else a standstill is told at once


def root_of(opts, root: int | None) -> int:
    """The root's place, of an options object, or given as it is; rank 0 where nobody says."""
    return root if root is not None else getattr(opts, "rootRank", opts) or 0


def op_of(opts):
    """The ReduceOp of an options object, or one given as it is."""
    return getattr(opts, "reduceOp", opts if opts is not None and not isinstance(opts, int) else dist.ReduceOp.SUM)


def as_timedelta(timeout: timedelta | float) -> timedelta:
    """A timeout that may be given in seconds, as C++ takes it."""
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
