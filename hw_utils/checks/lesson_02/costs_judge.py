"""Judging a cost formula: the same messages, played on the virtual network, say what is right."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from hw_utils.checks.common_mistakes import came
from hw_utils.core.collective_algorithms import steps
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.virtual.traffic.schedule_replay import replay

NOTEBOOKS = Network(latency_s=50e-6, bandwidth_Bps=125e6)
ITS_NUMBERS = (
    "these are the numbers of the notebook's cluster, whatever network is given: network.latency_s and "
    "network.bandwidth_Bps are those that count."
)
NO_BYTES = 1e300  # a bandwidth with which bytes cost nothing


def played_s(ops: tuple[str, ...], world_size: int, n_bytes: int, network: Network) -> float:
    """Seconds that built-in collectives take one after the other on idle ports."""
    ports = SimpleNamespace(network=network, sending=[0.0] * world_size, receiving=[0.0] * world_size)
    clock = [0.0] * world_size
    for op in ops:
        clock, _ = replay(ports, range(world_size), clock, steps(op, n_bytes, world_size))
    return max(clock)


def played_evenly_s(ops: tuple[str, ...], world_size: int, n_bytes: float, network: Network) -> float:
    """As `played_s`, for a tensor whose pieces are all equally long, also where that is no whole number of bytes.

    N times the bytes over N times the bandwidth take as long, and N divides them.
    """
    wide = Network(network.latency_s, network.bandwidth_Bps * world_size)
    return played_s(ops, world_size, round(n_bytes * world_size), wide)


TREE, RING = ("reduce", "broadcast"), ("all_reduce",)


def number(value: Any, call: str) -> float:
    """The value as a finite number; an array of one element counts."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CheckFailed(
            f"{call} is {came(value)}, expected a number.",
            cause="the function returns nothing: is there a return?"
            if value is None
            else "one number is asked for, an int or a float: no text, no list, no infinity.",
        )
    return float(value)


def list_of(data: Any, length: int) -> list[Any]:
    """The data, if it is a list of that length."""
    if not isinstance(data, list) or len(data) != length:
        raise ValueError(f"expected a list of {length}")
    return data


def network_text(network: Network) -> str:
    """`latency 1 s, bytes for nothing`."""
    bytes_cost = "bytes for nothing" if network.bandwidth_Bps >= NO_BYTES else f"{network.bandwidth_Bps:g} B/s"
    return f"latency {network.latency_s:g} s, {bytes_cost}"


def require_cost(value: Any, call: str, expected_s: float, network: Network, why) -> None:
    """Raises CheckFailed unless the value is the seconds that the messages take; `why(ratio)` names the cause."""
    got_s = number(value, call)
    if math.isclose(got_s, expected_s, rel_tol=1e-9, abs_tol=1e-15):
        return
    n_digits = 6 if f"{got_s:.6g}" != f"{expected_s:.6g}" else 12
    raise CheckFailed(
        f"{call} with {network_text(network)} is {got_s:.{n_digits}g} s; on the virtual network the messages take "
        f"{expected_s:.{n_digits}g} s.",
        cause=_why_unit(got_s, expected_s) or why(got_s / expected_s if expected_s else math.inf),
    )


def _why_unit(got_s: float, expected_s: float) -> str:
    for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds")):
        if math.isclose(got_s, factor * expected_s, rel_tol=1e-9) and expected_s:
            return f"that is in {unit}: latency_s and bandwidth_Bps are in seconds, so is the time."
    close = math.isclose(got_s, expected_s, rel_tol=1e-3)
    if close and any(got_s == round(expected_s, n_digits) for n_digits in range(1, 13)):
        return "right but rounded: leave the number as it is."
    if math.isclose(got_s, expected_s, rel_tol=0.5) and got_s in [round(expected_s, n_digits) for n_digits in (5, 6)]:
        return "right but rounded: leave the number as it is."
    if math.isclose(got_s, expected_s, rel_tol=1e-6):
        return "right to six digits, of nine that are asked: no float32 on the way, and nothing rounded."
    if math.isclose(got_s, -expected_s, rel_tol=1e-9):
        return "right but for its sign."
    return ""


def crossover(world_size: int, network: Network) -> float:
    """The size at which both lines meet, read off two played runs each (they are straight lines)."""
    far = 1_000_000 * world_size
    tree, ring = ([played_s(ops, world_size, n, network) for n in (0, far)] for ops in (TREE, RING))
    return far * (ring[0] - tree[0]) / ((tree[1] - tree[0]) - (ring[1] - ring[0]))


def require_crossover(value: Any, world_size: int, network: Network) -> None:
    """Raises CheckFailed unless tree and ring take equally long for tensors of that size."""
    call, expected = f"crossover_bytes({world_size}, network)", crossover(world_size, network)
    of_notebook = crossover(world_size, NOTEBOOKS)
    if not expected and (value is None or value == math.inf):
        raise CheckFailed(f"{call} is {value}, expected 0.", cause=_why_crossover(0, expected, world_size))
    got = number(value, call)
    if math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-6):
        return
    seconds = [played_s(ops, world_size, int(got) // world_size * world_size, network) for ops in (TREE, RING)]
    raise CheckFailed(
        f"{call} with {network_text(network)} is {got:.6g}; for a tensor of that many bytes "
        f"a tree takes {seconds[0]:.6g} s and a ring {seconds[1]:.6g} s, not the same.",
        cause=ITS_NUMBERS
        if of_notebook and math.isclose(got, of_notebook, rel_tol=1e-6)
        else _why_crossover(got, expected, world_size) or _why_lines(got, world_size, network),
    )


def _steps_of(tree: tuple[float, float], world_size: int, levels) -> tuple[float, float]:
    """A tree's line with another number of steps a phase."""
    times = levels(world_size) / (world_size - 1).bit_length()
    return tree[0] * times, tree[1] * times


def _why_lines(got: float, world_size: int, network: Network) -> str:
    """A cause that follows from where other lines would meet."""
    far, n = 1_000_000 * world_size, world_size
    (tree_0, tree_1), (ring_0, ring_1) = (
        [played_s(ops, n, size, network) for size in (0, far)] for ops in (TREE, RING)
    )
    tree_b, ring_b = tree_1 - tree_0, ring_1 - ring_0
    expected = far * (ring_0 - tree_0) / (tree_b - ring_b)

    def meet(tree: tuple[float, float], ring: tuple[float, float]) -> float:
        return far * (ring[0] - tree[0]) / (tree[1] - ring[1]) if tree[1] != ring[1] else math.inf

    right, around = (tree_0, tree_b), (ring_0, ring_b)
    causes = {
        "one phase of the tree, both of the ring: both phases of each count.": meet((tree_0 / 2, tree_b / 2), around),
        "one phase of the ring, both of the tree: both phases of each count.": meet(right, (ring_0 / 2, ring_b / 2)),
        "a tree's tensors go up and come down again: w counts both ways.": meet((tree_0, tree_b / 2), around),
        "a tree's tensors are whole in every round: w is as many times D as there are rounds, in all, not 1.": meet(
            (tree_0, far / network.bandwidth_Bps), around
        ),
        "a tree's tensors are whole in every round: w is as many times D as there are rounds, in all, not 2.": meet(
            (tree_0, 2 * far / network.bandwidth_Bps), around
        ),
        "a ring's rank sends less than two tensors: 2 (N - 1) chunks of D / N.": meet(
            right, (ring_0, 2 * far / network.bandwidth_Bps)
        ),
        "a ring's phase has N - 1 steps, not N.": meet(right, (ring_0 * n / (n - 1), ring_b)),
        "a ring's step moves a chunk, D / N, and not D.": meet(right, (ring_0, ring_b * n)),
        f"{n} is not a power of two: the number of steps is rounded up.": meet(_steps_of(right, n, math.log2), around),
        f"{n} is not a power of two: the number of steps is rounded up, not down.": meet(
            _steps_of(right, n, lambda n: int(math.log2(n))), around
        ),
        "that is seconds: times bytes a second it is bytes.": expected / network.bandwidth_Bps,
        "the latency is missing: it stands above, times the rounds that the ring has more.": (
            expected / network.latency_s if network.latency_s else math.inf
        ),
    }
    named = [cause for cause, value in causes.items() if math.isclose(got, value, rel_tol=1e-6)]
    if not named and math.isclose(got, expected, rel_tol=1e-3):
        return "close, and not to six digits: solve for the size, no search step by step that ends too early."
    return named[0] if named else "set both times equal and solve for the size."


def _why_crossover(got: float, expected: float, world_size: int) -> str:
    if expected == 0 and world_size & (world_size - 1):
        return (
            f"{world_size} is not a power of two: the number of steps is rounded up. With {world_size} ranks the "
            "ring then takes no more rounds than the tree, so it is never slower: 0."
        )
    if expected == 0:
        return f"with {world_size} ranks the ring takes no more rounds than the tree, so it is never slower: 0."
    if math.isclose(got, -expected, rel_tol=1e-6):
        return "the sign: latency the ring pays more, over bytes the tree sends more."
    for factor, text in (
        (8, "that is bits instead of bytes"),
        (1e-3, "that is kilobytes; asked is bytes"),
        (1e-6, "that is megabytes; asked is bytes"),
        (1 / 2, "half of it: both phases of the tree count, and both of the ring"),
        (2, "twice of it: both phases of the tree count, and both of the ring"),
        (world_size, "that is N times too much: D stands for the whole tensor, a chunk is D / N"),
        (1 / world_size, "that is the size of a chunk; asked is the size of the tensor"),
        (1 / 4, "that counts elements of four bytes; asked is bytes"),
    ):
        if math.isclose(got, factor * expected, rel_tol=1e-6):
            return text + "."
    if got == int(got) and abs(got - expected) <= 1:
        return "right but for its fraction: leave it a float."
    roundings = {round(expected, n) for n in range(-6, 6)} | {float(f"{expected:.{n}g}") for n in range(1, 6)}
    if got in roundings and math.isclose(got, expected, rel_tol=0.05):
        return "right but rounded: six digits are asked, leave the number as it is."
    if 0 < got < expected and any(
        math.isclose(got, base ** round(math.log(got, base)), rel_tol=1e-9) for base in (2, 10)
    ):
        return (
            "that is a power of 2 or of 10: does a search stop at the largest size that it tries? The equation has its "
            "solution wherever it lies."
        )
    return ""
