"""A rank that asks for more than its device has."""

from __future__ import annotations

import torch

from hw_utils.core.memory.memory_timeline import OWNERS

MOST_NAMED = 4  # named in the error, the largest first


class OutOfMemory(torch.OutOfMemoryError, MemoryError):
    """A rank held more than `capacity_bytes`; `by_owner` says who holds what, with what it asked for last.

    The line that asked is in the traceback. A program that catches `torch.OutOfMemoryError`, which is
    `torch.cuda.OutOfMemoryError`, catches this one.
    """

    def __init__(self, rank: int, asked_bytes: int, capacity_bytes: int, by_owner: dict[str, int]) -> None:
        self.rank, self.asked_bytes = rank, asked_bytes
        self.capacity_bytes, self.by_owner = capacity_bytes, by_owner
        super().__init__(self.text())

    def text(self) -> str:
        """The message: what was asked for, a line an owner, the next step."""
        before = sum(self.by_owner.values()) - self.asked_bytes
        largest = sorted(self.by_owner.items(), key=lambda item: (-item[1], OWNERS.index(item[0])))
        rows = largest[:MOST_NAMED]
        if largest[MOST_NAMED:]:
            rows = [*rows, ("all others", sum(n for _, n in largest[MOST_NAMED:]))]
        width = max(len(f"{n:,}") for _, n in rows)
        return "\n".join(
            [
                f"it holds {before:,} of {self.capacity_bytes:,} bytes and asks for {self.asked_bytes:,} more; then",
                *(f"    {n:>{width},} bytes  {owner}" for owner, n in rows),
                f"next step: {_NEXT[largest[0][0]]}",
            ]
        )

    def __reduce__(self):
        return OutOfMemory, (self.rank, self.asked_bytes, self.capacity_bytes, self.by_owner)


OutOfMemory.__module__ = "hw_utils.core.memory"  # as it is imported, and named in a message

_NEXT = {
    "parameters": "shard the parameters over more ranks (ZeRO-3, tensor or pipeline parallelism)",
    "gradients": "shard the gradients (ZeRO-2), or free them as soon as they are reduced",
    "optimizer": "shard the optimizer's state (ZeRO-1)",
    "activations": "recompute activations, or take fewer or smaller micro-batches at once",
    "gathered": "free what was gathered after its use, and gather fewer layers ahead",
    "buffers": "use smaller buckets, and free them after their collective",
    "other": "free what is no longer needed; `own(owner, *tensors)` names what the books call other",
}
