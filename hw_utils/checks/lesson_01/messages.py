"""What a worker of sends and receives did: run on a free network, and read off the ledger."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from hw_utils.checks.check import require_waits
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

HIDDEN = -0.3125  # times numbers of other ranks, in the list that a rank is given: no true ones where numbers are drawn


def free(worker, world_size: int, *args):
    return lambda: simulate(worker, world_size, args, compute="free", echo=False)


def ledger_of(data: dict[str, Any]) -> Trace:
    return Trace.from_plain(data["trace"])


def noting_sends() -> list[list[float]]:
    """The contents of every tensor that this virtual rank sends from now on, as the list fills."""
    engine = dist.group.WORLD.engine
    sent = []

    def note(is_send: bool, tensor: Tensor) -> None:
        if is_send:
            sent.append(tensor.detach().flatten().tolist())

    engine.queues.watch(engine.rank, note)
    return sent


def require_no_collective(trace: Trace, what: str) -> None:
    others = sorted(trace.ops - {"send", "recv", "isend", "irecv"})
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}; use send and receive only.",
            cause="that call is a collective, which all ranks take part in: here one rank sends, another receives.",
        )


def require_messages(trace: Trace, what: str, expected: dict[tuple[int, int], int]) -> None:
    """Exactly the expected number of messages from rank to rank, no other, and every one of them waited for."""
    _require_pairs(trace, what, expected)
    require_waits(trace, what)


def why_not_there(trace: Trace) -> str:
    """The cause of a wrong value, if an irecv was never waited for."""
    if any(event.waited is None for event in trace.of_op("irecv")):
        return "a buffer is read before its irecv is done: wait() for what irecv returns, then read."
    return ""


def _require_pairs(trace: Trace, what: str, expected: dict[tuple[int, int], int]) -> None:
    sent: dict[tuple[int, int], int] = {}
    for event in trace.of_op("send", "isend"):
        sent[event.rank, event.peer] = sent.get((event.rank, event.peer), 0) + 1
    if sent == expected:
        return
    total, right = sum(sent.values()), sum(expected.values())
    if total != right:
        raise CheckFailed(
            f"{what}: every value is right, but {total} messages were sent; {right} are "
            f"{'enough' if total > right else 'needed'}.",
            cause="a value goes from one rank to the next only; nobody collects or repeats it."
            if total > right
            else _why_too_few(sent, expected),
        )
    pair = next(p for p in sorted(sent) if sent[p] != expected.get(p))
    raise CheckFailed(
        f"{what}: every value is right, but rank {pair[0]} sent {sent[pair]} messages to rank {pair[1]}, "
        f"expected {expected.get(pair, 0)}.",
        cause="the path is 0, 1, 2, ...: each rank sends to the next.",
    )


def _why_too_few(sent: dict[tuple[int, int], int], expected: dict[tuple[int, int], int]) -> str:
    if not sent:
        return "the number was worked out without being sent: what a rank knows, the next one has to be told."
    a, b = next(pair for pair in sorted(expected) if sent.get(pair, 0) < expected[pair])
    never = "nothing goes" if not sent.get((a, b)) else f"too little goes, {sent[a, b]} of {expected[a, b]} messages,"
    return f"{never} from rank {a} to rank {b}: what a rank knows, the next one has to be told."


def number(value: Any) -> float | None:
    """A plain number or an array of one element, else None."""
    if type(value) in (int, float):
        return float(value)
    if hasattr(value, "shape") and value.size == 1 and value.dtype.kind in "if":
        return float(value.reshape(()))
    return None
