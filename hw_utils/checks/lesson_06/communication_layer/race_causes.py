"""What is wrong with what lesson 06's communication layer gives, and which race leads there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks.common_mistakes import came
from hw_utils.core.errors import ranks_text

GROWTH = 7.0  # from call to call: no number of ranks, so that a mean of one call is no sum of another
# On both sides of a step of rounding: if each of 3 ranks or 4 begins with its own, their sums differ; a third of the
# sum is another one by * (1 / 3), and in single precision no digit of it is left.
_UNEVEN = (0.3, 2.0**27 + 1, 77 - 2.0**27, 0.7)


SHAPE, OTHER_SHAPE = (1, 3), (3, 1)  # of what is brought


def tensor_of(rank: int, k: int, shape: tuple[int, int] = SHAPE, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What a rank brings to its call number k."""
    return torch.tensor(numbers_of(rank, k), dtype=dtype).reshape(shape)


def numbers_of(rank: int, k: int) -> list[float]:
    """What stands in that tensor; sums of calls and of ranks all differ, and the last one's shows its order."""
    return [10.0**rank * GROWTH**k, GROWTH**k, _UNEVEN[rank % 4] * GROWTH**k]


RANKS_OF_WHOLE_NUMBERS = 3


def whole_numbers_of(rank: int) -> list[int]:
    """What a rank brings in int64: neither these nor their sums are a float64 exactly."""
    return [2**58 + 10**rank, 2**57 + 3 * rank + 1]


LOST = (
    "two ranks looked whether the buffer is there, and each made one: what was in the first is lost. "
    "Look and make under one lock"
)
NEXT_CALL = (
    "a fast rank is in its next call while a slow one still reads: a second barrier, after reading, is missing, or "
    "what is read behind it is still the shared buffer, and no copy"
)
CLEARED = (
    "one rank clears what is shared after the last barrier, when another one may be in its next call: what that put "
    "there is gone. Clear between two barriers, or give each call a place of its own"
)
UNWRITTEN = "nothing makes a rank wait until all have written: a barrier is missing between writing and reading"
ALIASED = "ranks share one tensor: give each rank copies of its own (.clone())"


def explain_gather(world_size: int) -> Callable[[dict, int, int, Any], tuple[str, str] | None]:
    """What is wrong with a gathered list."""

    def explain(outcome: dict, rank: int, k: int, got: Any) -> tuple[str, str] | None:
        expected = [numbers_of(r, k) for r in range(world_size)]
        at = f"call {k + 1} on rank {rank}"
        if got == expected and type(got) is list:
            return None
        odd = [g for g in got if isinstance(g, dict)] if isinstance(got, list) else []
        if odd and "tensor of" in came(odd[0]):
            return (
                f"{at} has {came(odd[0])} in its list; every rank brings shape {SHAPE} and dtype float64",
                "a copy has the shape and the dtype of what was brought",
            )
        if not isinstance(got, list) or not all(isinstance(g, list) for g in got if g is not None):
            return (
                f"{at} gives {came(got)}, not a list of {world_size} tensors",
                "return the list of all ranks' tensors",
            )
        if any(g and isinstance(g[0], float) and g[0] < 0 for g in got):
            return f"{at} sees what another rank wrote into its own tensors afterwards: {got}", ALIASED
        if len(got) == world_size and None not in got and sorted(got) == sorted(expected):
            cause = "tensors are in order of arrival: give each rank a slot of its own, list[rank]"
            if outcome["number"] == 1 and not _began_in_order(outcome, k, world_size):
                cause = (
                    "the order is that of the ranks, 0 first: the list is turned, reversed or sorted by something else"
                )
            if all(mine[k]["got"] == expected[r:] + expected[:r] for r, mine in enumerate(outcome["results"])):
                cause = "each rank has its own tensor first; the order is that of the ranks, 0 first, on every rank"
            return f"{at} has all tensors, in the wrong order: {_firsts(got)}", cause
        if len(got) > world_size:
            cause = "the buffer still holds the last call's tensors: the next call on a group_id starts afresh"
            return f"{at} has {len(got)} tensors, not {world_size}", cause
        each = [mine[k]["got"] for mine in outcome["results"]]
        if world_size > 1 and each == [[expected[r]] * world_size for r in range(world_size)]:
            return (
                f"{at} has its own tensor {world_size} times: {_firsts(got)}",
                "each place of the list is read from the slot of its own rank",
            )
        missing = [r for r in range(world_size) if r >= len(got) or got[r] is None or len(got) < world_size]
        if missing:
            cause = UNWRITTEN if outcome["number"] == 1 else LOST
            return f"{at} lacks the tensor of {ranks_text(missing)}: {_firsts(got)}", cause
        rounded = _rounded(got, expected)
        if rounded:
            return (
                f"{at} {rounded}",
                "digits are lost on the way: a copy, or a buffer, has the dtype of what was brought",
            )
        text, cause = _other_call(at, got, expected, k)
        return text, cause or _why_unwritten(outcome, k, expected)

    return explain


def _rounded(got: list, expected: list) -> str:
    """The first number that is another one than was brought, if all are equal but for their last digits."""
    pairs = [pair for g, e in zip(got, expected) for pair in zip(g, e)]
    if not all(abs(g - e) <= 1e-2 * abs(e) for g, e in pairs):
        return ""
    return next(f"gives {g!r} where {e!r} was brought" for g, e in pairs if g != e)


def _why_unwritten(outcome: dict, k: int, expected: list) -> str:
    """The cause, if in the plainest order some rank, the last one to come, has the right result, and others have not:
    they took something else for what was not written yet."""
    is_right = [mine[k]["got"] == expected for mine in outcome["results"]]
    return UNWRITTEN if outcome["number"] == 1 and any(is_right) and not all(is_right) else ""


def _began_in_order(outcome: dict, k: int, world_size: int) -> bool:
    """Whether every earlier call's list is in rank order: then the order of this one is that of arrival."""
    right = [[numbers_of(r, j) for r in range(world_size)] for j in range(k)]
    return k > 0 and all(mine[j]["got"] == right[j] for mine in outcome["results"] for j in range(k))


def _other_call(at: str, got: list, expected: list, k: int) -> tuple[str, str]:
    for r, (g, e) in enumerate(zip(got, expected)):
        if g != e:
            for other, cause in ((k + 1, NEXT_CALL), (k - 1, UNWRITTEN)):
                if other >= 0 and g == numbers_of(r, other):
                    return f"{at} has rank {r}'s tensor of call {other + 1}: {_firsts(got)}", cause
    return f"{at} gives {_firsts(got)}, expected {_firsts(expected)}", ""


def _firsts(got: list) -> str:
    return "[" + ", ".join("None" if g is None else f"{g[0]:g}" for g in got) + "]"


def explain_reduce(world_size: int, ops: list[str]) -> Callable[[dict, int, int, Any], tuple[str, str] | None]:
    """What is wrong with a reduced tensor."""

    def explain(outcome: dict, rank: int, k: int, got: Any) -> tuple[str, str] | None:
        op = ops[k % len(ops)]
        brought = [numbers_of(r, k) for r in range(world_size)]
        divisor = world_size if op == "mean" else 1
        expected = [math.fsum(numbers) / divisor for numbers in zip(*brought)]
        if not (isinstance(got, list) and len(got) == 3 and all(isinstance(g, float) for g in got)):
            cause = ""
            if "tensor of shape" in came(got):
                cause = "only the ranks are reduced, the first dimension of the stack: sum(0), mean(0)"
            if "and dtype" in came(got):
                cause = "the result has the dtype of what was brought"
            if got is None:
                cause = "every rank returns the result"
            wanted = f"one tensor of shape {SHAPE} and dtype float64"
            return f"call {k + 1} on rank {rank} gives {came(got)}, not {wanted}", cause
        are_near = [abs(g - e) <= 1e-4 * abs(e) for g, e in zip(got, expected)]
        if all(are_near):
            return _why_bits_differ(outcome, rank, k, got)
        at = f"call {k + 1} ({op}) on rank {rank}"
        if all(are_near[:2]):
            return (
                f"{at} makes {got[2]:g} of {', '.join(f'{b[2]:g}' for b in brought)}, expected {expected[2]:g}",
                "digits are lost on the way: reduce in the dtype of what was brought, and divide with /, not with //",
            )
        text = f"{at} gives {got[0]:g}, expected {expected[0]:g}"
        alike = all(mine[k]["got"] == got for mine in outcome["results"])
        if rank and got == numbers_of(rank, k) and outcome["results"][0][k]["got"] == expected:
            return f"{text}, its own number", "the result is not returned on every rank: no `if rank == 0`"
        cause = _cause_of_value(got[0], [b[0] for b in brought], op, outcome["number"], k, alike)
        return (f"{text}{cause[0]}", cause[1] or _why_unwritten(outcome, k, expected))

    return explain


def _why_bits_differ(outcome: dict, rank: int, k: int, got: list[float]) -> tuple[str, str] | None:
    """What is wrong with a sum that is another one on rank 0, if it is one."""
    first = outcome["results"][0][k]["got"]
    if got == first or not isinstance(first, list):
        return None
    here, there = next((a, b) for a, b in zip(got, first) if a != b)
    return (
        f"call {k + 1} gives {here!r} on rank {rank} and {there!r} on rank 0",
        "each rank adds in an order of its own, or divides in a way of its own, and floats round: all add in rank "
        "order and divide alike, or one does it for all",
    )


def _cause_of_value(value: float, share: list[float], op: str, number: int, k: int, alike: bool) -> tuple[str, str]:
    n, total = len(share), sum(share)

    def near(x: float) -> bool:
        return abs(value - x) <= 1e-4 * abs(x)

    if value < 0:
        return ", what another rank wrote into its own tensors afterwards", ALIASED
    if op == "mean" and near(total) and alike:
        return ", the sum", "for the mean, the sum is divided by the number of ranks"
    if op == "sum" and near(total / n):
        return ", the mean", "for the sum, nothing is divided; and a call that names no op means the sum"
    if op == "mean" and near(total / n**2) and alike:
        return ", the mean divided by the number of ranks", "it is divided twice"
    some = (some for size in range(1, n) for some in itertools.combinations(share, size))
    if op == "mean" and not any(near(sum(part) / len(part)) for part in some):
        for m in range(1, 17):
            if m != n and near(total / m):
                return f", the sum of all divided by {m}", ARRIVED if m < n else FIXED
    return _cause_of_share(near, share, op, number, k)


FIXED = "the mean is over the ranks that there are: divide by world_size, and by no number of your own"
ARRIVED = "the mean is over the ranks that had arrived: divide by world_size, after all have written"


def _cause_of_share(near: Callable[[float], bool], share: list[float], op: str, number: int, k: int) -> tuple[str, str]:
    n, ranks = len(share), range(len(share))
    for size in range(1, n):
        for some in itertools.combinations(ranks, size):
            part, missing = sum(share[r] for r in some), [r for r in ranks if r not in some]
            if op == "mean" and (near(part / size)):
                return f", the mean of {ranks_text(some)} alone", ARRIVED
            if near(part / (n if op == "mean" else 1)):
                cause = UNWRITTEN if number == 1 else LOST_UPDATE
                return f": the share of {ranks_text(missing)} is missing", cause
    for calls in itertools.product(range(max(k - 1, 0), k + 2), repeat=n):
        mixed = sum(10.0**r * GROWTH**c for r, c in zip(ranks, calls)) / (n if op == "mean" else 1)
        if near(mixed):
            late = max(calls) > k
            others = [r for r in ranks if calls[r] != k]
            which = "next" if late else "last"
            return f", with what {ranks_text(others)} brought to the {which} call", NEXT_CALL if late else UNWRITTEN
    return _cause_of_stale(near, share, op, k)


LOST_UPDATE = (
    "two ranks read the shared sum, and each wrote back its own: one share is lost. Read, add and write under one lock"
)
STALE = "the buffer still holds an earlier call's sum: the next call on a group_id starts afresh"


def _cause_of_stale(near: Callable[[float], bool], share: list[float], op: str, k: int) -> tuple[str, str]:
    n, total = len(share), sum(share)
    divisor = n if op == "mean" else 1
    before = [total * GROWTH ** (j - k) for j in range(k)]
    if any(near((total + sum(before[j:])) / divisor) or near((total + before[j]) / divisor) for j in range(k)):
        return ", this call's sum and an earlier one's", STALE
    if near(n * total / divisor):
        return f", {n} times too much", "every rank adds all shares, and they are added again"
    return "", ""
