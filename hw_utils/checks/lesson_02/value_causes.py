"""What any all-reduce can get wrong, by its values: hangs, means, rounded sums, results that are somewhere else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hw_utils.checks.lesson_02.observed_all_reduce import Reduced, contributions
from hw_utils.checks.lesson_02.played_ring import why_chunk_numbers

ROUNDED = "right but for its last digits"
READ_TOO_SOON = "a receive buffer is read before the receive has finished: wait for what irecv returns, then add."


def why_hangs(data: dict[str, Any], world_size: int, is_tree: bool) -> str:
    waiting = [str(op) for _, op, _ in data.get("waiting") or []]
    if 0 < len(waiting) < world_size:
        return (
            "some rank is done while another still waits: for every send to n there is a receive on n, in the same "
            "order."
        )
    if is_tree and waiting and len({op.endswith("send") for op in waiting}) == 1:
        call = "send" if waiting[0].endswith("send") else "recv"
        return f"every rank stands in {call}: in a tree the one of a pair sends while the other one receives."
    if waiting and all(op.endswith("send") for op in waiting):
        return (
            "every rank stands in send, and a send is over when its receiver has the data. "
            "Somebody must receive: start the send with isend, receive, then wait."
        )
    if waiting and all(op.endswith("recv") for op in waiting):
        return (
            "every rank stands in recv and nobody has sent yet: start the send (isend) before the receive, and in no "
            "thread of your own."
        )
    return "some message has only one side: for every send to n there is a receive on n, in the same order."


_ENDS = re.compile(r"sends (\d+) (\w+) .*? receives (\d+) (\w+) ")


def why_failed(text: str, world_size: int, *, is_ring: bool) -> str:
    if "has to be contiguous" in text:
        return (
            "a message needs elements that lie side by side in memory: send tensor.contiguous(), and copy the result "
            "back into the tensor at the end."
        )
    if "between isend and wait" in text:
        return (
            "the buffer of an isend is written before its wait: it still has to travel. "
            "Receive into another buffer, or wait first."
        )
    if world_size == 1:
        return "one rank has its sum already: a phase has N - 1 steps, which is none."
    if "to itself" in text:
        return "a rank has itself as its partner: print rank beside whom it sends to and receives from."
    ends = _ENDS.search(text)
    if ends and ends[2] != ends[4]:
        return f"{ends[2]} is sent and {ends[4]} received: the buffer has the tensor's dtype with torch.empty_like."
    if is_ring and "there is no rank" in text:
        return "neighbours are counted around the ring, modulo the world size."
    if is_ring and ends and ends[1] != ends[3] and abs(int(ends[1]) - int(ends[3])) == 1:
        return "chunks differ in length by one: the receive buffer is as long as the chunk that comes in."
    if not is_ring and ends and int(ends[1]) > int(ends[3]):
        return (
            f"{ends[1]} elements are sent, and the buffer has room for {ends[3]}: len(tensor) counts rows, "
            "torch.empty_like(tensor) has all elements."
        )
    if world_size & (world_size - 1):
        return (
            f"{world_size} is not a power of two. Not every rank has a partner at every step, and not all pieces "
            "are equally long: leave out partners that do not exist, and receive as many elements as are sent."
        )
    if "there is no rank" in text:
        return "that partner does not exist: it comes from tree_partner, whose own check says more."
    return "the two ends of a message do not agree; both must name the same chunk."


def common_cause(seen: Reduced) -> str:
    """The mistakes that any all-reduce can make; empty if it is none of them."""
    everywhere = np.stack([v.astype("f8") for v in seen.values[0]]) if _alike(seen) else None
    if everywhere is None or everywhere.size == 0:
        return ""
    expected, own = seen.expected().astype("f8"), seen.shares(0)
    if any(e.waited is None for e in seen.trace.of_op("irecv")):
        return READ_TOO_SOON
    if np.array_equal(everywhere, own):
        return _why_unchanged(seen)
    if np.allclose(everywhere, expected / seen.world_size) or np.array_equal(everywhere, own // seen.world_size):
        return "it is divided by the number of ranks: that is the mean. An all-reduce gives the sum."
    if (everywhere == np.broadcast_to(np.floor(expected / seen.world_size), everywhere.shape)).all():
        return "it is divided by the number of ranks: that is the mean. An all-reduce gives the sum."
    if _unreceived(seen):
        return why_chunk_numbers(seen) or READ_TOO_SOON
    if np.array_equal(everywhere, np.broadcast_to(expected.astype("f4"), everywhere.shape)) and seen.dtype != "float32":
        return f"{ROUNDED}: it is added up in float32. Keep the tensor's own dtype."
    if (np.abs(everywhere - expected) <= 2.0**-52 * seen.world_size * expected).all():
        return f"{ROUNDED}: it is added up, or travels, in float64. Keep the tensor's own dtype."
    return _why_rounded(seen, everywhere, expected)


_MOST = 0.7
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}


def _why_rounded(seen: Reduced, everywhere: np.ndarray, expected: np.ndarray) -> str:
    """The cause, if what is wrong has the few digits of a smaller dtype, and is no sum of shares.

    Not each number need have so few: a rank may add its own share to what came.
    """
    if np.isinf(everywhere).any():
        return "inf: it is added up, or travels, in float16, which ends at 65,504. Keep the tensor's own dtype."
    off = np.abs(everywhere - expected)
    rows = everywhere.reshape(len(everywhere), -1)
    wrong = [(int(k), float(row[k])) for row in rows for k in np.flatnonzero(row != expected.ravel())]
    if seen.seed or all(contributions(seen, value, k) is not None for k, value in wrong):
        return ""
    for dtype, bits in _BITS.items():
        whole = np.ldexp(np.frexp([value for _, value in wrong])[0], bits)
        if (off <= seen.world_size * 2.0**-bits * expected).all() and (whole == whole.round()).mean() > _MOST:
            return f"{ROUNDED}: it is added up, or travels, in {dtype}. Keep the tensor's own dtype."
    return ""


def _alike(seen: Reduced) -> bool:
    return all(v.shape == seen.shape and v.dtype.kind in "iuf" for v in seen.values[0])


_ANY_DTYPE = "numbers of any dtype are meant, torch adds them all alike."


def _why_unchanged(seen: Reduced) -> str:
    if any(_is_sum(r, seen) for r in seen.returned):
        return "the sum is returned, but the tensor that came in is as it was: write the result into it (copy_)."
    if not any(seen.trace.messages_sent(r) for r in range(seen.trace.world_size)):
        is_common = seen.dtype in ("float64", "float32", "int64")
        return "nothing is sent at all." if is_common else f"nothing is sent of dtype {seen.dtype}: {_ANY_DTYPE}"
    if not any(n_bytes for _, _, n_bytes in seen.sends()):
        return "every message is empty: length // N is 0 for so short a tensor. tensor_split cuts any length."
    if seen.layout != "contiguous":
        return (
            "the elements do not lie side by side in memory, so flatten, reshape and contiguous give a copy. "
            "Copy the result back into the tensor."
        )
    return "the sum is made in another tensor: write it into the one that came in (+= or copy_)."


def _is_sum(returned: Any, seen: Reduced) -> bool:
    return isinstance(returned, np.ndarray) and returned.size > 0 and np.array_equal(returned, seen.expected())


def _unreceived(seen: Reduced) -> bool:
    """Whether some value is no sum of shares at all, although messages are received with irecv."""
    if not {"irecv"} & seen.trace.ops or seen.seed:
        return False
    flat = [v.ravel() for v in seen.values[0]]
    return any(contributions(seen, v.item(), k) is None for row in flat for k, v in enumerate(row))
