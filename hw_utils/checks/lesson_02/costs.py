"""Checks of lesson 02: what the algorithms cost, against messages played on the virtual network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.lesson_02.costs_judge import (
    ITS_NUMBERS,
    NO_BYTES,
    NOTEBOOKS,
    RING,
    TREE,
    list_of,
    played_evenly_s,
    played_s,
    require_cost,
    require_crossover,
)
from hw_utils.core.hardware import Network

_MIXED = {"latency_s": 50e-6, "bandwidth_Bps": 125e6}
_LATENCY = {"latency_s": 1.0, "bandwidth_Bps": NO_BYTES}
_BYTES = {"latency_s": 0.0, "bandwidth_Bps": 1e6}
_FAST = {"latency_s": 2.7e-7, "bandwidth_Bps": 3.1e9}  # six digits after the point show nothing of it
_FAR = {"latency_s": 1.0, "bandwidth_Bps": 1e11}  # the lines cross beyond 10**10 bytes
_BITS = "bandwidth is given in bytes a second, not in bits."


def _is_bits(ratio: float, right_s: float, seconds, n_bytes: float) -> bool:
    """Whether the time is that of eight times the bytes, or of an eighth."""
    return any(math.isclose(ratio * right_s, seconds(n), rel_tol=1e-9) for n in (8 * n_bytes, n_bytes / 8))


def _judge_point_to_point_s(data: Any, n_bytes: int, latency_s: float, bandwidth_Bps: float) -> None:
    network = Network(latency_s, bandwidth_Bps)

    def why(ratio: float) -> str:
        if network != NOTEBOOKS and math.isclose(
            ratio * network.message_s(n_bytes), NOTEBOOKS.message_s(n_bytes), rel_tol=1e-9
        ):
            return ITS_NUMBERS
        if not n_bytes:
            return "an empty message waits for the latency, too: the formula holds for 0 bytes as it is."
        if any(math.isclose(ratio * network.message_s(n_bytes), network.message_s(n), rel_tol=1e-9)
               for n in (math.floor(n_bytes), math.ceil(n_bytes)) if n != n_bytes):  # fmt: skip
            return "n_bytes may be a fraction on paper: nothing is rounded."
        if _is_bits(ratio, network.message_s(n_bytes), network.message_s, n_bytes):
            return _BITS
        if math.isclose(ratio, 4) and not latency_s:
            return "n_bytes are bytes already: nothing is multiplied by 4."
        if math.isclose(ratio, 2) and latency_s and bandwidth_Bps >= NO_BYTES:
            return "a message waits once for the latency: one message, one latency."
        if ratio > 1e200:
            return "bytes are divided by bytes a second: that gives seconds."
        if ratio == 0:
            return "the bytes are missing, or // leaves nothing of them: divide with /, and round nothing."
        if latency_s == 0 or bandwidth_Bps >= NO_BYTES:
            part = "latency" if latency_s else "bytes"
            return f"look at the part with the {part}: a message waits once for the latency, then its bytes follow."
        return "both parts are paid, one after the other."

    require_cost(data, f"point_to_point_s({n_bytes}, network)", network.message_s(n_bytes), network, why)


@check(
    "lesson_02.point_to_point_s",
    judge=_judge_point_to_point_s,
    cases=[
        {"n_bytes": n, **network}
        for n, network in (
            (1000, _LATENCY),
            (1000, _BYTES),
            (1_000_000, _MIXED),
            (1234, _FAST),
            (0, _MIXED),
            (714.3, _FAST),
        )
    ],
    ok="a message costs what the virtual network takes for it.",
    hint="the hints of exercise 2.3a",
    hints={"hint 1 of exercise 2.3a": "both parts|bytes are missing|waits once|divided by bytes"},
)
def point_to_point_s(point_to_point_s, /, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds of one message."""
    return point_to_point_s(n_bytes, Network(latency_s, bandwidth_Bps))


def _judge_all_reduce_s(name: str, ops: tuple[str, ...], why) -> Callable[..., None]:
    def judge(data: Any, world_sizes: list[int], n_bytes: int, latency_s: float, bandwidth_Bps: float) -> None:
        network = Network(latency_s, bandwidth_Bps)
        all_got = list_of(data, len(world_sizes))
        swapped = _has_arguments_swapped(all_got, ops, n_bytes, network)
        for n, got in zip(world_sizes, all_got):
            expected_s = played_evenly_s(ops, n, n_bytes, network)

            def cause(ratio: float, n: int = n, right_s: float = expected_s) -> str:
                if not n_bytes and n > 1 and ratio < 1:
                    return "an empty message waits for the latency, too: the formula holds for 0 bytes as it is."
                if (
                    n_bytes < n
                    and ops == RING
                    and any(
                        math.isclose(ratio * right_s, played_evenly_s(ops, n, size * n, network), rel_tol=1e-9)
                        for size in (1, 2, 4, 8)
                    )
                ):
                    return "a chunk is n_bytes / world_size, also where that is less than one number: no smallest one."
                if _is_bits(ratio, right_s, lambda size: played_evenly_s(ops, n, size, network), n_bytes):
                    return _BITS
                if _is_upside_down(ratio, network):
                    return "bytes are divided by bytes a second, here and in every function that is called here."
                if swapped:
                    return f"world_size and n_bytes have changed places: {name}(world_size, n_bytes, network)."
                for whole in (n_bytes // n, -(-n_bytes // n)):
                    if math.isclose(ratio * right_s, played_evenly_s(ops, n, whole * n, network), rel_tol=1e-9):
                        return "n_bytes / world_size with /: a chunk may be a fraction on paper, nothing is rounded."
                return _why_rounds(ratio, ops, n, network) or why(ratio, n, network)

            require_cost(got, f"{name}({n}, {n_bytes}, network)", expected_s, network, cause)

    return judge


def _is_upside_down(ratio: float, network: Network) -> bool:
    """Whether bytes that cost nothing have become nearly all of the time."""
    return network.bandwidth_Bps >= NO_BYTES and ratio > 1e200


def _has_arguments_swapped(all_got: list, ops: tuple[str, ...], n_bytes: int, network: Network) -> bool:
    """Whether the latency is paid as often as if there were n_bytes ranks, however many there are."""
    if network.bandwidth_Bps < NO_BYTES or not all(type(got_s) in (int, float) for got_s in all_got):
        return False
    two, three = (played_s(ops, n, 0, network) for n in (2, 3))
    often_s = two + (three - two) * (n_bytes - 2) if ops == RING else played_s(ops, n_bytes, 0, network)
    return all(math.isclose(got_s, often_s, rel_tol=1e-9) for got_s in all_got)


def _why_rounds(ratio: float, ops: tuple[str, ...], n: int, network: Network) -> str:
    """A cause that follows from how often the latency is paid, on a network where bytes cost nothing."""
    if network.bandwidth_Bps < NO_BYTES or n == 1:
        return ""
    rounds, others = (round(played_s(of, n, 0, Network(1.0, NO_BYTES))) for of in (ops, RING if ops == TREE else TREE))
    paid = ratio * rounds
    causes = (
        (1, "the latency is paid once in all: every round pays it."),
        (2, "the latency is paid once a phase: every round pays it."),
        (rounds + 1, "one step too many: count them for 2 ranks."),
        (rounds - 1, "one step too few: count them for 2 ranks."),
        (others, f"these are the steps of a {'ring' if ops == TREE else 'tree'}."),
    )
    return next((cause for k, cause in causes if math.isclose(paid, k) and k not in (rounds, rounds / 2)), "")


def _why_tree_s(ratio: float, n: int, network: Network) -> str:
    if n & (n - 1) and ratio < 1:
        return f"{n} is not a power of two: the number of steps is rounded up."
    if math.isclose(ratio, 0.5) and not network.latency_s:
        return "half of the bytes: every message is the whole tensor, and both phases count."
    if math.isclose(ratio, 0.5):
        return "that is one phase: the sum has to come back as well."
    if math.isclose(ratio, math.log(2)) or math.isclose(ratio, math.log10(2)):
        return "the logarithm has base 2."
    if n == 1:
        return "one rank sends nothing."
    return _why_part(network, "each step of the tree is one message with the whole tensor")


def _why_ring_s(ratio: float, n: int, network: Network) -> str:
    if n == 1:
        return "one rank sends nothing."
    if math.isclose(ratio, 0.5) and not network.latency_s:
        return "half of the bytes: in both phases every step moves a chunk, a tensor's share of N."
    if math.isclose(ratio, 0.5):
        return "that is one phase; the ring goes round twice."
    if math.isclose(ratio, n / (n - 1)) and not network.latency_s:
        return "the tensor is cut into N chunks, as many as there are ranks, and a phase moves N - 1 of them."
    if math.isclose(ratio, n / (n - 1)):
        return "each phase has N - 1 steps, not N."
    if math.isclose(ratio, n) and not network.latency_s:
        return "a step moves one chunk, not the whole tensor."
    if math.isclose(ratio, 1 / n) and network.latency_s:
        return "every step pays the whole latency; only the bytes are divided by N."
    return _why_part(network, "each step of the ring is one message with one chunk", ratio)


def _why_part(network: Network, rule: str, ratio: float = 1.0) -> str:
    called = "A function that is called here, as point_to_point_s, has to be right first."
    if network.bandwidth_Bps >= NO_BYTES:
        return f"look at the latency: {rule}, and pays it once. {called}"
    if not network.latency_s and math.isclose(ratio, 0.25):
        return "n_bytes are bytes already: nothing is divided by 4."
    if not network.latency_s:
        return f"look at the bytes: {rule}. {called}"
    return f"{rule}. {called}"


_COSTS = [
    {"world_sizes": [32, 2, 4], "n_bytes": 960, **_LATENCY},
    {"world_sizes": [32, 2, 4], "n_bytes": 960, **_BYTES},
    {"world_sizes": [1, 2, 3, 5, 6, 7, 8, 60], "n_bytes": 840_000, **_MIXED},
    {"world_sizes": [3, 7, 9], "n_bytes": 1000, **_FAST},  # N does not divide the bytes: the formula does not mind
    {"world_sizes": [7, 12], "n_bytes": 3, **_FAST},
    {"world_sizes": [2, 5], "n_bytes": 0, **_MIXED},
]


@check(
    "lesson_02.tree_all_reduce_s",
    judge=_judge_all_reduce_s("tree_all_reduce_s", TREE, _why_tree_s),
    cases=_COSTS,
    ok="the seconds of a tree, for any number of ranks.",
    hint="the hints of exercise 2.3a",
    hints={
        "hint 1 of exercise 2.3a": "one phase|with the whole tensor|rounded up|paid once|steps of a|one step"
        "|bytes a second"
    },
)
def tree_all_reduce_s(tree_all_reduce_s, /, world_sizes, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds, for each number of ranks."""
    return [tree_all_reduce_s(n, n_bytes, Network(latency_s, bandwidth_Bps)) for n in world_sizes]


@check(
    "lesson_02.ring_all_reduce_s",
    judge=_judge_all_reduce_s("ring_all_reduce_s", RING, _why_ring_s),
    cases=_COSTS,
    ok="the seconds of a ring, for any number of ranks.",
    hint="the hints of exercise 2.3a",
    hints={
        "hint 2 of exercise 2.3a": "not the whole tensor|only the bytes are divided",
        "hint 1 of exercise 2.3a": "one phase|N - 1 steps|with one chunk|paid once|steps of a|one step|bytes a second",
    },
)
def ring_all_reduce_s(ring_all_reduce_s, /, world_sizes, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds, for each number of ranks."""
    return [ring_all_reduce_s(n, n_bytes, Network(latency_s, bandwidth_Bps)) for n in world_sizes]


def _judge_crossover(data: Any, world_sizes: list[int], latency_s: float, bandwidth_Bps: float) -> None:
    for n, got in zip(world_sizes, list_of(data, len(world_sizes))):
        require_crossover(got, n, Network(latency_s, bandwidth_Bps))


@check(
    "lesson_02.crossover_bytes",
    judge=_judge_crossover,
    cases=[
        {"world_sizes": sizes, **network}
        for sizes, network in (
            ([32, 4, 64], _MIXED),
            ([2, 3], _MIXED),
            ([5, 6, 7, 100], _MIXED),
            ([32, 5], _FAST),
            ([4, 32], _FAR),
        )
    ],
    ok="at that size a tree and a ring take equally long.",
    hint="the hints of exercise 2.3b",
    hints={
        "hint 2 of exercise 2.3b": "not a power of two",
        "hint 1 of exercise 2.3b": "the sign|solve for|chunk|never slower",
    },
    errors={
        "ZeroDivisionError": "the two lines are parallel there: are both slopes written out, seconds a byte of the "
        "tree and of the ring, with its / N? For 2 and 3 ranks, and powers of two, they differ.",
    },
)
def crossover_bytes(crossover_bytes, /, world_sizes, latency_s, bandwidth_Bps):
    """The size at which both take equally long, for each number of ranks."""
    return [crossover_bytes(n, Network(latency_s, bandwidth_Bps)) for n in world_sizes]
