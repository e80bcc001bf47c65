"""Two sides of one communication that do not fit, in the words of both engines.

one = message_text(True, 0, 1, amount_text(4, "float32", 16), where="cell.py, line 4")
raise MessageMismatch(messages_differ(one, message_text(False, 1, 0, ...), is_dtype=False))
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hw_utils.core.errors import ranks_text

_MOST_PARTS = 8  # that are told one by one


def amount_text(n_elements: int, dtype: str, n_bytes: int) -> str:
    """A tensor's size.

    >>> amount_text(1000, "float32", 4000)
    '1,000 float32 (4,000 bytes)'
    """
    return f"{n_elements:,} {dtype} ({n_bytes:,} bytes)"


def amounts_text(parts: Iterable[tuple[int, str]], n_bytes: int) -> str:
    """The sizes of several tensors: their sum if they are alike, else each one's (elements, dtype).

    >>> amounts_text([(2, "float32"), (2, "float32")], 16), amounts_text([(1, "float32"), (3, "float32")], 16)
    ('4 float32 (16 bytes)', '1 float32 + 3 float32 (16 bytes)')
    """
    parts = list(parts)
    if len(set(parts)) == 1:
        return amount_text(sum(n for n, _ in parts), parts[0][1], n_bytes)
    shown = " + ".join(f"{n:,} {dtype}" for n, dtype in parts[:_MOST_PARTS])
    more = f" + {len(parts) - _MOST_PARTS} more" if len(parts) > _MOST_PARTS else ""
    return f"{shown}{more} ({n_bytes:,} bytes)"


def message_text(is_send: bool, rank: int, peer: int, amount: str, *, tag: int = 0, where: object = "") -> str:
    """One side of a message; `peer` is -1 if it may be anybody.

    >>> message_text(True, 0, 1, "2 float32 (8 bytes)", tag=3, where="cell.py, line 4")
    'rank 0 sends 2 float32 (8 bytes) to rank 1 with tag 3 at cell.py, line 4'
    """
    verb, way = ("sends", "to") if is_send else ("receives", "from")
    other = f"rank {peer}" if peer >= 0 else "any rank"
    with_tag = f" with tag {tag}" if tag else ""
    return f"rank {rank} {verb} {amount} {way} {other}{with_tag}{_at(where)}"


def messages_differ(send: str, receive: str, *, is_dtype: bool) -> str:
    """Why a message and its receive are an error: is_dtype: of the same bytes, else their numbers differ."""
    return f"{send}, but {receive}: a message and its receive must have the same " + (
        "dtype" if is_dtype else "number of bytes"
    )


def call_text(rank: int, op: str, amount: str = "", *, root: int = -1, reduce_op: str = "", where: object = "") -> str:
    """A collective call; `root` is -1 if it has none, `reduce_op` empty if it is none or of no interest.

    >>> call_text(0, "reduce", "3 float32 (12 bytes)", root=1)
    'rank 0 calls reduce of 3 float32 (12 bytes) with root 1'
    >>> call_text(0, "all_reduce", "3 float32 (12 bytes)", reduce_op="MAX")
    'rank 0 calls all_reduce of 3 float32 (12 bytes) with MAX'
    """
    of = f" of {amount}" if amount else ""
    options = [reduce_op] * bool(reduce_op) + [f"root {root}"] * (root >= 0)
    chosen = f" with {' and '.join(options)}" if options else ""
    return f"rank {rank} calls {op}{of}{chosen}{_at(where)}"


def calls_differ(one: str, other: str) -> str:
    """Why two members' collective calls are an error."""
    return f"{one}, but {other}: all ranks of a group make the same collective calls in one order"


def pieces_differ(op: str, ranks: tuple[int, int], amounts: Iterable[str], where: tuple[object, object]) -> str:
    """Why one piece of an exchange is an error; each pair is (of who gives it, of who takes it)."""
    (giver, taker), (given, taken), (gives_at, takes_at) = ranks, amounts, where
    return (
        f"rank {giver} gives {given} to rank {taker} in {op}{_at(gives_at)}, but rank {taker} takes {taken} from "
        f"rank {giver}{_at(takes_at)}: what one rank gives is what the other one takes"
    )


def _at(where: object) -> str:
    return f" at {where}" if where else ""


def late_text(place: int, late: list[int], limit_s: float, *, names_all: bool = False) -> str:
    """What a monitored_barrier says on a rank after `limit_s` seconds: gloo's own words."""
    if place:
        return (
            f"Rank {place} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0. Please check rank 0 logs for faulty rank."
        )
    if limit_s == 0:
        return "Rank 0 timed out in monitoredBarrier after 0 ms."
    who = f"Ranks {', '.join(map(str, late))}" if names_all else f"Rank {late[0]}"
    return f"[Rank 0]: {who} failed to pass monitoredBarrier in {limit_s * 1000:g} ms"


def closed_text(place: int, gave_up: Collection[int]) -> str:
    """What each later call of a group says once a member's wait has run into its time limit: gloo's own words.

    place: of the member that calls; gave_up: of those that have waited so long.
    """
    if place in gave_up:
        return "Application timeout caused pair closure"
    return f"Connection closed by peer: {ranks_text(gave_up)} of the group had a timeout before"
