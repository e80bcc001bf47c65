"""Two sides of one communication that do not fit: an error that names both, before gloo aborts the process."""

from __future__ import annotations

from hw_utils.core.calls.mismatch_text import amount_text, call_text, calls_differ, message_text, messages_differ
from hw_utils.core.calls.public_calls import DTYPES
from hw_utils.core.errors import CollectiveMismatch, MessageMismatch, ranks_text
from hw_utils.core.source.lines import place_mark
from hw_utils.gloo.shared_state import SEND, Publisher


def messages_unlike(
    publisher: Publisher, own: tuple, direction: int, tag: int, other: int, theirs: tuple
) -> MessageMismatch:
    """own, theirs: (bytes, dtype, site) of a message's two sides."""
    sides = {direction: (publisher.rank, own), 1 - direction: (other, theirs)}
    (sender, sent), (receiver, received) = sides[SEND], sides[1 - SEND]
    send, receive = (
        message_text(is_send, rank, peer, _amount(*side[:2]), tag=tag, where=_at(publisher, rank, side[2]))
        for is_send, rank, peer, side in ((True, sender, receiver, sent), (False, receiver, sender, received))
    )
    why = messages_differ(send, receive, is_dtype=sent[0] == received[0])
    return MessageMismatch(why, _ends(publisher, other, theirs[2]))


def collectives_unlike(publisher: Publisher, own: tuple, other: int, theirs: tuple) -> CollectiveMismatch:
    """own, theirs: (bytes or -1, signature, site) of two members' calls."""
    mine, others = (_call(publisher, r, c) for r, c in ((publisher.rank, own), (other, theirs)))
    return CollectiveMismatch(calls_differ(mine, others), _ends(publisher, other, theirs[2]))


def _call(publisher: Publisher, rank: int, call: tuple) -> str:
    n_bytes, signature, site = call
    dtype, root = signature >> 16 & 0xFFFF, (signature & 0xFFFF) - 1
    op, where = _site(publisher, rank, site)[0], _at(publisher, rank, site)
    if op == "new_group":
        return call_text(rank, f"{op} for {ranks_text(_ranks(n_bytes))}", where=where)
    return call_text(rank, op, _amount(n_bytes, dtype) if n_bytes > 0 else "", root=root, where=where)


def _ranks(bits: int) -> list[int]:
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def _amount(n_bytes: int, dtype: int) -> str:
    import torch

    name = DTYPES[dtype]
    return amount_text(n_bytes // getattr(torch, name).itemsize, name, n_bytes)


def _site(publisher: Publisher, rank: int, site: int) -> tuple[str, str, int]:
    return publisher.site_list[site] if rank == publisher.rank else publisher.board.site(rank, site)


def _at(publisher: Publisher, rank: int, site: int) -> str:
    _, file, line = _site(publisher, rank, site)
    return place_mark(file, line) if file else ""


def _ends(publisher: Publisher, rank: int, site: int) -> tuple[tuple[int, str, int], ...]:
    _, file, line = _site(publisher, rank, site)
    return ((rank, file, line),) if file else ()
