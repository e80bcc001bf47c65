"""What reduce_scatters of buckets are: one a bucket and step, no more bytes than it has, and nothing beside them."""

from __future__ import annotations

from hw_utils.checks.lesson_07.watched_layers import SCATTERS
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

ITEM = 8
_STEPS = {1: "one step", 2: "two steps"}


def judge_calls(what: str, trace: Trace, pieces: list[int], world_size: int, n_steps: int) -> None:
    """Raises CheckFailed unless each bucket leaves each rank once a step, whole, in its turn, and is waited for.

    pieces: numbers of a rank's shard of each bucket.
    """
    others = sorted(trace.ops - {*SCATTERS})
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}; reduce_scatter is enough.",
            cause="all_reduce sends twice as much, and gives each rank sums that it does not keep."
            if "all_reduce" in others
            else "a barrier makes all ranks wait for the slowest one: each bucket waits for its own sums anyway."
            if {*others} <= {"barrier", "monitored_barrier"}
            else "one reduce_scatter a bucket, started in the hook, and nothing else.",
        )
    due = [(world_size - 1) * piece * ITEM for piece in pieces] * n_steps
    for rank in range(world_size):
        mine = trace.of_rank(rank).of_op(*SCATTERS)
        if world_size == 1 and not len(mine):
            continue
        sent = [e.sent_bytes for e in mine]
        if len(sent) != len(due):
            cause = "a bucket is one message: its gradients in one flat vector."
            if len(sent) < len(due):
                cause = "buckets that are not full when backward ends are started in wait(), and wait() starts over."
            raise CheckFailed(
                f"{what}: rank {rank} calls reduce_scatter {len(sent)} times in {_STEPS[n_steps]}, for {len(due)} "
                "buckets.",
                cause=cause,
            )
        if any(s > d for s, d in zip(sent, due)):
            raise CheckFailed(
                f"{what}: rank {rank} sends {sent} bytes, its buckets need {due}.",
                cause="buckets go in their order, each padded to the next multiple of the number of ranks.",
            )
        left = {k % len(pieces) for k, e in enumerate(mine) if e.waited is None}
        if left:
            raise CheckFailed(
                f"{what}: rank {rank} did not wait for the reduce_scatter of bucket {min(left)}.",
                cause="the last bucket is still under way when backward ends: wait() waits for it, too."
                if left == {len(pieces) - 1}
                else "keep every handle, and wait for each.",
            )
