"""What an answer's process keeps of large gradients while backward goes on, whatever holds it: seen from outside."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.checks.check import observe, require_no_deadlock
from hw_utils.checks.kept_bytes import look_at, taken
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07.second_objects import batch, tower
from hw_utils.core.errors import CheckFailed
from hw_utils.simulate import simulate

# bytes: right answers have 0.1 MB of it at most; of MANY, gradients that stay are 6 MB more, in single precision 3
_BESIDE = 1_500_000
MANY = {"world_size": 2, "widths": [180] * 13, "bucket_bytes": 8 * 180 * 181, "unused": False, "many": True}


def _worker(rank: int, world_size: int, make: Any, widths: list[int], bucket_bytes: int) -> list:
    """The last rank's looks, at the first gradient of a backward pass and at its last one."""
    model, looks, n_came = tower(widths), [], 0
    gradients, n = make(model, bucket_bytes), len(list(model.parameters()))

    def look(_: torch.Tensor) -> None:
        nonlocal n_came
        n_came += 1
        if rank == world_size - 1 and n_came in (1, n):
            looks.append(look_at(make))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(look)
    model(batch(rank, 0, widths[0])).square().mean().backward()
    gradients.wait()
    return looks


def drive_many(make: Any, world_size: int, widths: list[int], bucket_bytes: int) -> dict[str, Any]:
    """A backward pass of layers that are large: their gradients are more than all else that is made."""
    args = (make, widths, bucket_bytes)
    return observe(lambda: simulate(_worker, world_size, args, compute="free", echo=False))


def judge_many(data: Any, world_size: int, pieces: list[int], item: int) -> None:
    """pieces: numbers of a rank's shard of each bucket."""
    what = f"{n_ranks(world_size)}, buckets of {max(pieces) * world_size * item} bytes"
    require_no_deadlock(data, what)
    n_bytes = taken(*data["results"][-1])
    allowed = world_size * item * (sum(pieces) + 2 * world_size * max(pieces))
    if n_bytes is not None and n_bytes > 2 * allowed + _BESIDE:  # twice: what is under way has a copy
        raise CheckFailed(
            f"{what}: from the first gradient of a backward pass to the last one, all ranks together have {n_bytes} "
            f"bytes more; their shards and two buckets a rank are {allowed}.",
            cause="gradients that have left are kept in another form: as a text, in a list, in a file.",
        )
