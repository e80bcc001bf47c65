"""What an answer keeps of large gradients while backward goes on, whatever holds it: seen from outside.

On its memory alone a pass is not judged: what is kept may be little because little is done. So large gradients have to
leave as small ones do, and to come back as the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import observe, require_no_deadlock
from hw_utils.checks.kept_bytes import is_under_way, look_at, taken
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07.gradients.calls_judge import ITEM, judge_calls
from hw_utils.checks.lesson_07.gradients.shards_judge import judge_left, judge_shards
from hw_utils.checks.lesson_07.second_objects import batch, tower
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

# bytes: right answers have 0.1 MB of it at most; of MANY, gradients that stay are 6 MB more, in single precision 3
_BESIDE = 1_500_000
MANY = {"world_size": 2, "widths": [180] * 13, "bucket_bytes": 8 * 180 * 181, "unused": False, "many": True}


def _worker(rank: int, world_size: int, make: Any, widths: list[int], bucket_bytes: int) -> dict[str, Any]:
    """The last rank's looks, at the first gradient of a backward pass and at its last one; what stands on the model
    after the hooks of each gradient, in bytes; and what the pass gave."""
    model, looks, standing = tower(widths), [], []
    gradients, n = make(model, bucket_bytes), len(list(model.parameters()))

    def look(_: torch.Tensor) -> None:
        standing.append(sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))
        if rank == world_size - 1 and len(standing) in (1, n):
            looks.append(look_at(make))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(look)
    model(batch(rank, 0, widths[0])).square().mean().backward()
    shards = plain(gradients.wait())
    left = [name for name, p in model.named_parameters() if p.grad is not None]
    return {"looks": looks, "standing": standing, "shards": shards, "left": left}


def drive_many(make: Any, world_size: int, widths: list[int], bucket_bytes: int) -> dict[str, Any]:
    """A backward pass of layers that are large: their gradients are more than all else that is made."""
    args = (make, widths, bucket_bytes)
    return observe(lambda: simulate(_worker, world_size, args, compute="free", echo=False))


def judge_many(data: Any, world_size: int, pieces: list[int], right: list[np.ndarray]) -> None:
    """pieces: numbers of a rank's shard of each bucket. right: of each bucket (world_size, piece), the mean."""
    what = f"{n_ranks(world_size)}, buckets of {max(pieces) * world_size * ITEM} bytes"
    require_no_deadlock(data, what)
    results, trace = data["results"], Trace.from_plain(data["trace"])
    _judge_taken(what, results, world_size, pieces)
    _judge_standing(what, results, 2 * max(pieces) * world_size * ITEM)
    judge_calls(what, trace, pieces, world_size, 1)
    _judge_under_way(what, trace, world_size)
    for rank, result in enumerate(results):
        judge_left(what, result["left"], rank)
        judge_shards(f"{what}: rank {rank}", result["shards"], right, rank, world_size)


def _judge_taken(what: str, results: list, world_size: int, pieces: list[int]) -> None:
    n_bytes = taken(*results[-1]["looks"])
    allowed = world_size * ITEM * (sum(pieces) + 2 * world_size * max(pieces))
    if n_bytes is not None and n_bytes > 2 * allowed + _BESIDE:  # twice: what is under way has a copy
        raise CheckFailed(
            f"{what}: from the first gradient of a backward pass to the last one, all ranks together have {n_bytes} "
            f"bytes more; their shards and two buckets a rank are {allowed}.",
            cause="gradients that have left are kept in another form: as a text, in a list, in a file.",
        )


def _judge_standing(what: str, results: list, allowed: int) -> None:
    for rank, result in enumerate(results):
        if max(result["standing"]) > allowed:
            raise CheckFailed(
                f"{what}: during backward {max(result['standing'])} bytes of gradients stand in p.grad on rank {rank}, "
                f"{allowed} are two buckets.",
                cause="p.grad stays: the hook that completes a bucket starts it, and sets p.grad = None for all of its "
                "parameters once the flat vector is made.",
            )


def _judge_under_way(what: str, trace: Trace, world_size: int) -> None:
    """What is in a call that nobody has waited for is kept as well, by whoever carries it out."""
    for rank in range(world_size):
        mine = list(trace.of_rank(rank))
        most = max((sum(is_under_way(other, e.order) for other in mine) for e in mine), default=0)
        if most > 2:
            raise CheckFailed(
                f"{what}: rank {rank} has {most} buckets under way at once; two are enough, one that starts and the "
                "one before it.",
                cause="flat vectors pile up: wait for the bucket before this one as this one starts.",
            )
