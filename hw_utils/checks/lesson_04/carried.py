"""What a rank's collectives carry: traffic of the right size with other numbers than gradients synchronises nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from hw_utils.core.errors import CheckFailed

_SAME = 1e-2  # of the whole: an answer that rounds, or leaves out a little, has sent its gradients all the same


def note_inputs() -> list[list[Any]]:
    """From now on each collective of the calling rank adds [kind, copies of what it puts in]."""
    group, noted = dist.group.WORLD, []
    engine, rank = group.engine, group.rank()
    make = engine.collective

    def collective(group: Any, post: Any, outer: Any) -> Any:
        if group.members.ranks[group.place] == rank:  # ranks may share an engine
            noted.append([post.kind, [t.detach().clone().flatten() for t in post.inputs]])
        return make(group, post, outer)

    engine.collective = collective
    return noted


def require_gradients(who: str, carried: Sequence[Any], gradients: dict[str, list[np.ndarray]]) -> None:
    """Raises CheckFailed unless what went in is made of gradients, in whatever proportion.

    carried: each rank's of `note_inputs`; gradients: name -> what each rank starts with. A rank puts its own in,
    and the root of a scatter a mixture of all.
    """
    for rank, calls in enumerate(carried):
        for kind in dict.fromkeys(kind for kind, _ in calls):
            tensors = [np.asarray(t, "f8") for other, inputs in calls if other == kind for t in inputs]
            for name, each in gradients.items():
                sources = each if kind == "scatter" else [each[rank]]
                sent = [t for t in tensors if t.size == each[rank].size]
                if sent and np.any(sources) and not all(_is_made_of(t, sources) for t in sent):
                    raise CheckFailed(
                        f"{who}: what rank {rank} puts into {kind} for {name!r} is not made of gradients.",
                        cause="the bytes are right, the numbers are not: p.grad travels to the others, and what they"
                        " are to have comes back.",
                    )


def _is_made_of(tensor: np.ndarray, sources: Sequence[np.ndarray]) -> bool:
    """Whether it is a mixture of these, and not nothing."""
    columns = np.stack([source.ravel() for source in sources], axis=1)
    rest = tensor - columns @ np.linalg.lstsq(columns, tensor, rcond=None)[0]
    return bool(np.isfinite(tensor).all() and np.any(tensor) and np.linalg.norm(rest) <= _SAME * np.linalg.norm(tensor))
