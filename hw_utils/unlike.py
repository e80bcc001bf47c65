"""Two sides of one communication that do not fit: an error that names both, before gloo aborts the process."""

from __future__ import annotations

from hw_utils.board import SEND, Publisher
from hw_utils.ops import DTYPES
from hw_utils.where import locate


class MessageMismatch(RuntimeError):
    """A message and its receive, or the members' calls of one collective, differ."""

    hw_utils_kind = "mismatch"


class CollectiveMismatch(MessageMismatch):
    hw_utils_kind = "collective"


def _amount(n_bytes: int, dtype: int) -> str:
    import torch

    name = DTYPES[dtype]
    n = n_bytes // getattr(torch, name).itemsize
    return f"{n:,} {name} ({n_bytes:,} bytes)"


def _at(publisher: Publisher, rank: int, site: int) -> tuple[str, str]:
    """(operation, where) of a rank's site."""
    op, file, line = publisher.site_list[site] if rank == publisher.rank else publisher.board.site(rank, site)
    return op, f" at {locate(file, line)}" if file else ""


def messages_differ(publisher: Publisher, own: tuple, direction: int, other: int, theirs: tuple) -> MessageMismatch:
    """own, theirs: (bytes, dtype, site) of a message's two sides."""
    sides = {direction: (publisher.rank, own), 1 - direction: (other, theirs)}
    (sender, sent), (receiver, received) = sides[SEND], sides[1 - SEND]
    _, sent_at = _at(publisher, sender, sent[2])
    _, received_at = _at(publisher, receiver, received[2])
    rule = "a message and its receive must have the same " + ("dtype" if sent[0] == received[0] else "number of bytes")
    return MessageMismatch(
        f"rank {sender} sends {_amount(*sent[:2])} to rank {receiver}{sent_at}, "
        f"but rank {receiver} receives {_amount(*received[:2])} from it{received_at}: {rule}"
    )


def collectives_differ(publisher: Publisher, own: tuple, other: int, theirs: tuple) -> CollectiveMismatch:
    """own, theirs: (bytes or -1, dtype, site, root) of two members' calls."""
    mine, others = (_call(publisher, r, c) for r, c in ((publisher.rank, own), (other, theirs)))
    return CollectiveMismatch(f"{mine}, but {others}: all ranks of a group make the same collective calls in one order")


def _call(publisher: Publisher, rank: int, call: tuple) -> str:
    n_bytes, dtype, site, root = call
    op, at = _at(publisher, rank, site)
    of = f" of {_amount(n_bytes, dtype)}" if n_bytes > 0 else ""
    with_root = f" with root {root}" if root >= 0 else ""
    return f"rank {rank} calls {op}{of}{with_root}{at}"
