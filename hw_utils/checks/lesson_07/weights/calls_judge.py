"""What the passes through layers with slots are, and which calls go with them."""

from __future__ import annotations

from hw_utils.checks.lesson_07.watched_layers import GATHERS, SCATTERS
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

ITEM = 8
STEPS = {1: "one step", 2: "two steps"}


def judge_passes(what: str, log: list, n_layers: int, n_steps: int = 2) -> None:
    """Raises unless each step goes once through all layers, and once back."""
    passes = [(name, k) for name, k, _ in log if name in ("forward", "backward")]
    step = [("forward", k) for k in range(n_layers)] + [("backward", k) for k in reversed(range(n_layers))]
    if passes != n_steps * step:
        raise CheckFailed(
            f"{what}: the passes were {' '.join(f'{name[0]}{k}' for name, k in passes[: len(step) + 1])} ..., "
            f"expected {' '.join(f'{name[0]}{k}' for name, k in step)} in each step.",
            cause="forward goes through the layers in their order, backward in the reverse one, each once.",
        )


def judge_kinds(what: str, trace: Trace) -> None:
    """Raises CheckFailed if anything else than gathers and reduce_scatters is called."""
    others = sorted(trace.ops - {*GATHERS, *SCATTERS})
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}.",
            cause="a barrier makes all ranks wait for the slowest one: each gather waits for its own layer anyway."
            if {*others} <= {"barrier", "monitored_barrier"}
            else "all_gather for the weights and reduce_scatter for their gradients are all that is needed.",
        )


def least_gathers(n_layers: int, n_steps: int) -> int:
    """Of a rank that never has more than two layers whole: it may keep these where it turns around."""
    n_turns = 2 * n_steps - 1
    return 2 * n_steps * n_layers - 2 * n_turns


def judge_calls(what: str, trace: Trace, sizes: list[int], world_size: int, n_steps: int, rank: int = 0) -> None:
    """Raises CheckFailed unless a rank gathers and reduces each layer as often as is needed.

    sizes: numbers of a rank's part of each layer.
    """
    n_layers = len(sizes)
    least_bytes = (world_size - 1) * min(sizes) * ITEM  # who sends less has gathered no layer
    gathered = sum(e.sent_bytes >= least_bytes for e in trace.of_rank(rank).of_op(*GATHERS))
    least = least_gathers(n_layers, n_steps)
    if world_size > 1 and gathered < least:
        raise CheckFailed(
            f"{what}: rank {rank} gathers a layer {gathered} times in {STEPS[n_steps]}; who lets layers go needs "
            f"{least}.",
            cause="whole weights are kept from one pass to a later one, in whatever form: gather them again.",
        )
    for ops, most, cause in (
        (GATHERS, 2 * n_steps * n_layers, "each layer is gathered once for forward and once for backward."),
        (SCATTERS, n_steps * n_layers, "the gradient of a layer is one message: flat and whole."),
    ):
        calls = len(trace.of_rank(rank).of_op(*ops))
        if calls > most:
            raise CheckFailed(
                f"{what}: rank {rank} calls {ops[0]} {calls} times in {STEPS[n_steps]}, {most} are enough.", cause=cause
            )


def judge_bytes(what: str, trace: Trace, sizes: list[int], world_size: int, n_steps: int) -> None:
    """Raises CheckFailed if a rank sends more than three times its share of the weights a step."""
    limit = n_steps * 3 * (world_size - 1) * sum(sizes) * ITEM
    for rank in range(world_size):
        sent = trace.bytes_sent(rank)
        if sent > limit:
            raise CheckFailed(
                f"{what}: rank {rank} sends {sent} bytes in {STEPS[n_steps]}, {limit} are enough.",
                cause="a layer costs three times (N - 1)/N of its bytes: two gathers and one reduce_scatter.",
            )
