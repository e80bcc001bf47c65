"""What a collective was given: a tensor or a list of one, an options object or the value itself."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist


def one_tensor(tensors) -> list[torch.Tensor]:
    """A rank's tensor of a call, given as it is or in a list.

    Raises:
        NotImplementedError: several, which gloo would first combine within the rank.
    """
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if len(tensors) != 1:
        raise NotImplementedError(
            f"a collective of {len(tensors)} tensors a rank: the virtual cluster takes one. "
            "Next step: a call for each, or the coalesced one; launch runs this program as it is"
        )
    return tensors


def root_of(opts, root: int | None) -> int:
    """The root's place, of an options object, or given as it is; rank 0 where nobody says."""
    return root if root is not None else getattr(opts, "rootRank", opts) or 0


def op_of(opts):
    """The ReduceOp of an options object, or one given as it is."""
    return getattr(opts, "reduceOp", opts if opts is not None and not isinstance(opts, int) else dist.ReduceOp.SUM)


def as_timedelta(timeout: timedelta | float) -> timedelta:
    """A timeout that may be given in seconds, as C++ takes it."""
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
