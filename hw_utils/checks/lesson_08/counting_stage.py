"""The stage that checks give to a schedule: it also counts what the schedule keeps of what the stage got."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hw_utils.material.by_hand.stages import TimedStage


class WatchedStage(TimedStage):
    """Of its inputs at a pass, whoever kept them: `n_kept`, the most that were alive beside those in flight, and
    `kept_bytes`, the most memory in which they lay, in flight or not."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.n_kept, self.kept_bytes = 0, 0
        self._theirs: set[int] = set()
        self._inputs: dict[int, tuple[StorageWeakRef, int]] = {}  # k -> its memory, and bytes of that

    def is_theirs(self, batches: Sequence[torch.Tensor]) -> None:
        """The caller keeps these himself, whatever the schedule does."""
        self._theirs = {x.untyped_storage().data_ptr() for x in batches}

    def forward(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """As a timed stage."""
        self._count()
        if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self._theirs:
            self._inputs[k] = StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()
        return super().forward(k, x)

    def backward(self, k: int, gradient: torch.Tensor) -> torch.Tensor:
        """As a timed stage."""
        self._count()
        return super().backward(k, gradient)

    def _count(self) -> None:
        alive = {k: (ref.cdata, n_bytes) for k, (ref, n_bytes) in self._inputs.items() if not ref.expired()}
        in_flight = {place for k, place in alive.items() if k in self.kept}
        self.n_kept = max(self.n_kept, len(set(alive.values()) - in_flight))
        self.kept_bytes = max(self.kept_bytes, sum(n_bytes for _, n_bytes in set(alive.values())))
