"""Two sides of one communication that do not fit: an error that names both, before gloo aborts the process."""

from __future__ import annotations

from hw_utils.core.calls.operations import DTYPES
from hw_utils.core.errors import CollectiveMismatch, MessageMismatch, ranks_text
from hw_utils.core.source import place_mark
from hw_utils.gloo.shared_state import SEND, Publisher


def messages_differ(publisher: Publisher, own: tuple, direction: int, other: int, theirs: tuple) -> MessageMismatch:
    """own, theirs: (bytes, dtype, site) of a message's two sides."""
    sides = {direction: (publisher.rank, own), 1 - direction: (other, theirs)}
    (sender, sent), (receiver, received) = sides[SEND], sides[1 - SEND]
    return MessageMismatch(
        f"rank {sender} sends {_amount(*sent[:2])} to rank {receiver}{_at(publisher, sender, sent[2])}, but "
        f"rank {receiver} receives {_amount(*received[:2])} from rank {sender}{_at(publisher, receiver, received[2])}; "
        "both ends need the same number of elements and the same dtype",
        _ends(publisher, other, theirs[2]),
    )


def collectives_differ(publisher: Publisher, own: tuple, other: int, theirs: tuple) -> CollectiveMismatch:
    """own, theirs: (bytes or -1, signature, site) of two members' calls."""
    mine, others = (_call(publisher, r, c) for r, c in ((publisher.rank, own), (other, theirs)))
    return CollectiveMismatch(
        f"{mine}, but {others}; all members call the same collectives with the same sizes, in the same order",
        _ends(publisher, other, theirs[2]),
    )


def _call(publisher: Publisher, rank: int, call: tuple) -> str:
    n_bytes, signature, site = call
    dtype, root = signature >> 16 & 0xFFFF, (signature & 0xFFFF) - 1
    op, _, _ = _site(publisher, rank, site)
    if op == "new_group":
        return f"rank {rank} calls {op} for {ranks_text(_ranks(n_bytes))}{_at(publisher, rank, site)}"
    amount = f" with {_amount(n_bytes, dtype)}" if n_bytes > 0 else ""
    with_root = f" and root {root}" if root >= 0 else ""
    return f"rank {rank} calls {op}{amount}{with_root}{_at(publisher, rank, site)}"


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def _amount(n_bytes: int, dtype: int) -> str:
    import torch

    name = DTYPES[dtype]
    return f"{n_bytes // getattr(torch, name).itemsize} x {name}"


def _site(publisher: Publisher, rank: int, site: int) -> tuple[str, str, int]:
    return publisher.site_list[site] if rank == publisher.rank else publisher.board.site(rank, site)


def _at(publisher: Publisher, rank: int, site: int) -> str:
    _, file, line = _site(publisher, rank, site)
    return f" ({place_mark(file, line)})" if file else ""


def _ends(publisher: Publisher, rank: int, site: int) -> tuple[tuple[int, str, int], ...]:
    _, file, line = _site(publisher, rank, site)
    return ((rank, file, line),) if file else ()
