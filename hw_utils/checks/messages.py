"""What a worker of sends and receives did: run on a free network, and read off the ledger."""

from __future__ import annotations

from typing import Any

from hw_utils.errors import CheckFailed
from hw_utils.simulate import simulate
from hw_utils.trace import Trace


def free(worker, world_size: int, *args):
    return lambda: simulate(worker, world_size, args, compute="free", echo=False)


def ledger_of(data: dict[str, Any]) -> Trace:
    return Trace.from_plain(data["trace"])


def require_no_collective(trace: Trace, what: str) -> None:
    others = sorted(trace.ops - {"send", "recv", "isend", "irecv"})
    if others:
        raise CheckFailed(f"{what}: called {', '.join(others)}; use send and receive only.")


def require_messages(trace: Trace, what: str, expected: dict[tuple[int, int], int]) -> None:
    """Exactly the expected number of messages from rank to rank, and no other."""
    sent: dict[tuple[int, int], int] = {}
    for event in trace.of_op("send", "isend"):
        sent[event.rank, event.peer] = sent.get((event.rank, event.peer), 0) + 1
    if sent == expected:
        return
    total, right = sum(sent.values()), sum(expected.values())
    if total != right:
        raise CheckFailed(
            f"{what}: every value is right, but {total} messages were sent; {right} are enough.",
            cause="a value goes from one rank to the next only; nobody collects or repeats it."
            if total > right
            else "",
        )
    pair = next(p for p in sorted(sent) if sent[p] != expected.get(p))
    raise CheckFailed(
        f"{what}: every value is right, but rank {pair[0]} sent {sent[pair]} messages to rank {pair[1]}, "
        f"expected {expected.get(pair, 0)}.",
        cause="the path is 0, 1, 2, ...: each rank sends to the next.",
    )


def number(value: Any) -> float | None:
    """A plain number or an array of one element, else None."""
    if type(value) in (int, float):
        return float(value)
    if hasattr(value, "shape") and value.size == 1 and value.dtype.kind in "if":
        return float(value.reshape(()))
    return None
