"""What every rank's tensor holds, round by round, while an all-reduce runs on the virtual cluster."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import torch
import torch.distributed as dist

from hw_utils.core.hardware import Network
from hw_utils.core.run_result import Run
from hw_utils.simulate import simulate

ONE_SECOND_A_ROUND = Network(latency_s=1.0, bandwidth_Bps=1e300)
MAX_ROUNDS = 200

Frame = list[list[int]]  # frame[rank][chunk]: a sum of 10**r, one r a share that is in it


class Frames(list):
    """The frames, and the run that they were seen in: a round is one second of it."""

    def __init__(self, frames: list[Frame], run: Run) -> None:
        super().__init__(frames)
        self.run = run


def watch(all_reduce: Callable[[torch.Tensor], object], world_size: int, n_chunks: int | None = None) -> Frames:
    """The tensors before the first round and after each one: `frames[round][rank][chunk]`, for `play(chunks=...)`.

    Rank r starts with 10**r in each of `n_chunks` elements (one a rank if not given), so that digit r of an element
    says how often rank r's share is in it. At most 8 ranks.

    Raises:
        ValueError: more than 8 ranks. WorkerFailed, Deadlock: the all-reduce did not finish.
    """
    if not 1 <= world_size <= 8:
        raise ValueError(f"world_size must be 1 to 8, got {world_size}: more shares do not fit into a cell")
    args = (all_reduce, n_chunks or world_size)
    run = simulate(_watched, world_size, args, network=ONE_SECOND_A_ROUND, compute="free", echo=False)
    rounds = min(math.ceil(run.seconds), MAX_ROUNDS)
    return Frames([[_at(seen, after_s) for seen in run.results] for after_s in range(rounds + 1)], run)


def _watched(rank: int, world_size: int, all_reduce, n_chunks: int) -> list[tuple[float, list[float]]]:
    """(time, contents) of this rank's tensor, at each of its sends and receives and at the end."""
    engine = dist.group.WORLD.engine
    tensor = torch.full((n_chunks,), 10.0**rank, dtype=torch.float64)
    mine = [(0.0, tensor.tolist())]
    engine.queues.watch(rank, lambda *_: mine.append((engine.clock[rank], tensor.tolist())))
    all_reduce(tensor)
    mine.append((engine.clock[rank], tensor.tolist()))
    return mine


def _at(seen: list[tuple[float, list[float]]], after_s: float) -> list[int]:
    """What the tensor held when `after_s` had passed; 0 where it held no sum of shares."""
    times = [time_s for time_s, _ in seen]
    values = seen[bisect_right(times, after_s + 1e-9) - 1][1]
    return [int(v) if math.isfinite(v) and 0 <= v < 1e15 else 0 for v in values]
