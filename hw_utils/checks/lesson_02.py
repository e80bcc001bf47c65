"""Checks of lesson 02: all-reduce along a tree and around a ring, and what they cost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks import sums
from hw_utils.checks.check import check, observe
from hw_utils.checks.costs import NO_BYTES, RING, TREE, played_s, require_cost, require_crossover
from hw_utils.checks.routes import require_halving, require_ring, require_tree, why_halving, why_ring, why_tree
from hw_utils.checks.sums import Reduced
from hw_utils.errors import CheckFailed, WorkerFailed
from hw_utils.network import Network
from hw_utils.simulate import simulate

# 2.1 and 2.2: the two functions ------------------------------------------------------------------------------


def _tensor(rank: int, shape: list[int], dtype: str, layout: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(the memory around it, one rank's tensor): a view of the memory's middle."""
    values = torch.from_numpy(sums.share(rank, shape, seed)).to(getattr(torch, dtype))
    n = math.prod(shape)
    memory = torch.full((2 * n + 8,), sums.UNTOUCHED, dtype=values.dtype)
    if layout == "strided":
        tensor = memory[4 : 4 + 2 * n : 2].view(shape)
    elif layout == "transposed":
        tensor = memory[4 : 4 + n].view(shape[::-1]).permute(*reversed(range(len(shape))))
    else:
        tensor = memory[4 : 4 + n].view(shape)
    tensor.copy_(values)
    return memory, tensor


def _worker(rank: int, world_size: int, all_reduce, shape, dtype, layout, seed, calls) -> dict[str, Any]:
    values, around, moved = [], True, False
    for call in range(calls):
        memory, tensor = _tensor(rank, shape, dtype, layout, seed + call * (seed > 0))
        mine = tensor
        returned = all_reduce(tensor)
        values.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        mine.fill_(sums.UNTOUCHED)
        moved = moved or mine.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
        around = around and (moved or bool((memory == sums.UNTOUCHED).all()))
    return {"values": values, "around": around, "moved": moved, "returned": returned}


_EXPLAINED = re.compile("there is no rank|to itself|between isend and wait")  # errors that a judge has a cause for


def _reduce(all_reduce, world_size, n_elements=None, shape=None, dtype="float64", layout="contiguous", seed=0, calls=1):
    args = (all_reduce, list(shape or [n_elements]), dtype, layout, seed, calls)
    try:
        return observe(lambda: simulate(_worker, world_size, args, compute="free", echo=False))
    except WorkerFailed as error:
        if all(f.kind in ("mismatch", "wire") or _EXPLAINED.search(f.reason) for f in error.failures):
            return {"failed": str(error)}
        raise


def _judge(name: str, *steps: Callable[[Reduced], None]) -> Callable[..., None]:
    def judge(data, world_size, n_elements=None, shape=None, dtype="float64", layout="contiguous", seed=0, calls=1):
        seen = sums.read(data, name, world_size, shape or [n_elements], dtype, layout, seed, calls)
        for step in steps:
            step(seen)

    return judge


def _sum(why: Callable[[Reduced], str]) -> Callable[[Reduced], None]:
    return lambda seen: sums.require_sum(seen, why)


# 4 ranks come first: with 2 ranks left is right, a half is a chunk, and every mistake looks like another one.
_SIZES = ({"world_size": 1, "n_elements": 3}, *({"world_size": n, "n_elements": 2 * n} for n in (4, 2, 3, 5)))
_SUM = [*_SIZES, {"world_size": 8, "n_elements": 8}]
_ALL = [
    *_SIZES,
    {"world_size": 4, "n_elements": 10, "dtype": "float32"},
    {"world_size": 4, "n_elements": 3},
    {"world_size": 3, "n_elements": 0},
    {"world_size": 6, "n_elements": 17, "dtype": "int64"},
    {"world_size": 7, "n_elements": 9, "calls": 2},
    {"world_size": 8, "n_elements": 19},
    {"world_size": 3, "n_elements": 7, "layout": "strided", "dtype": "float32"},
    {"world_size": 4, "shape": [3, 5], "layout": "transposed"},
]
_EVERY_WAY = "for 1 to 8 ranks, lengths of every kind, three dtypes, in place"


@check(
    "lesson_02.tree_sum",
    judge=_judge("tree_all_reduce", _sum(why_tree)),
    cases=_SUM,
    ok="every rank holds the sum, for 1, 2, 3, 4, 5 and 8 ranks.",
    hint="the hints of exercise 2.1c",
)
def tree_sum(tree_all_reduce, /, **case):
    """The values alone, by whatever messages."""
    return _reduce(tree_all_reduce, **case)


@check(
    "lesson_02.tree_all_reduce",
    judge=_judge("tree_all_reduce", _sum(why_tree), require_tree),
    cases=_ALL,
    ok=f"the sum and the rounds of a tree, {_EVERY_WAY}.",
    hint="the hints of exercise 2.1c",
)
def tree_all_reduce(tree_all_reduce, /, **case):
    """A binary tree: values, messages and rounds."""
    return _reduce(tree_all_reduce, **case)


@check(
    "lesson_02.ring_sum",
    judge=_judge("ring_all_reduce", _sum(why_ring)),
    cases=_SUM,
    ok="every rank holds the sum, for 1, 2, 3, 4, 5 and 8 ranks.",
    hint="the hints of exercise 2.2b",
)
def ring_sum(ring_all_reduce, /, **case):
    """The values alone, by whatever messages."""
    return _reduce(ring_all_reduce, **case)


@check(
    "lesson_02.ring_all_reduce",
    judge=_judge("ring_all_reduce", _sum(why_ring), require_ring),
    cases=_ALL,
    ok=f"the sum, the bytes and the rounds of a ring, {_EVERY_WAY}.",
    hint="the hints of exercise 2.2b",
)
def ring_all_reduce(ring_all_reduce, /, **case):
    """A ring of chunks: values, neighbours, bytes and rounds."""
    return _reduce(ring_all_reduce, **case)


@check(
    "lesson_02.halving_doubling_all_reduce",
    judge=_judge("halving_doubling_all_reduce", _sum(why_halving), require_halving),
    cases=[
        *({"world_size": n, "n_elements": 2 * n} for n in (1, 4, 2, 8)),
        {"world_size": 4, "n_elements": 11, "dtype": "int64"},
        {"world_size": 8, "n_elements": 3},
        {"world_size": 4, "shape": [3, 5], "layout": "transposed"},
        {"world_size": 16, "n_elements": 33, "dtype": "int64"},
    ],
    ok="the bytes of a ring in the rounds of a tree, for 1 to 16 ranks.",
    hint="the hints of the bonus exercise",
)
def halving_doubling_all_reduce(halving_doubling_all_reduce, /, **case):
    """Recursive halving and doubling: values, bytes and rounds."""
    return _reduce(halving_doubling_all_reduce, **case)


# 2.1 and 2.2: the small exercises ----------------------------------------------------------------------------


def _list(data: Any, length: int) -> list[Any]:
    """The data, if it is a list of that length."""
    if not isinstance(data, list) or len(data) != length:
        raise ValueError(f"expected a list of {length}")
    return data


def _whole(value: Any, call: str) -> int:
    """The value, if it is a whole number of type int."""
    if type(value) is not int:
        shown = f"{value['unknown']}" if isinstance(value, dict) and "unknown" in value else repr(value)
        cause = "a step is counted in whole numbers: int(...), or // instead of /." if type(value) is float else ""
        raise CheckFailed(f"{call} is {shown}, expected an int.", cause=cause)
    return value


def _rounds_of_a_broadcast(world_size: int) -> int:
    """Rounds until everybody knows, if all who know tell somebody in each round."""
    informed, rounds = 1, 0
    while informed < world_size:
        informed, rounds = informed + informed, rounds + 1
    return rounds


def _judge_tree_steps(data: Any, world_sizes: list[int]) -> None:
    for n, got in zip(world_sizes, _list(data, len(world_sizes))):
        one_way = _rounds_of_a_broadcast(n)
        steps = _whole(got, f"tree_steps({n})")
        if steps != 2 * one_way:
            raise CheckFailed(
                f"tree_steps({n}) is {steps}, expected {2 * one_way}.", cause=_why_steps(n, steps, one_way)
            )


def _why_steps(n: int, steps: int, one_way: int) -> str:
    if n >= 2**20 and abs(steps - 2 * one_way) == 2:
        return "a logarithm of floats is not exact for so large a number; int.bit_length() is."
    if n & (n - 1) and steps % 2 and steps != one_way:
        return "both phases take equally many steps: round up one phase, then double."
    if n & (n - 1) and steps == 2 * (one_way - 1):
        return "rounded down: the ranks beyond the last power of two need a step of their own."
    if steps == one_way:
        return "that is one phase; the sum has to come back as well."
    if n == 1:
        return "one rank has its sum already."
    if steps in (n - 1, 2 * (n - 1)):
        return "one rank after the other. In a tree all pairs of a step exchange at once."
    if not n & (n - 1) and steps == 2 * (one_way + 1):
        return "one step a phase too many: with 2 ranks a phase has a single step."
    return "each step of a phase halves the number of ranks that are left."


@check(
    "lesson_02.tree_steps",
    judge=_judge_tree_steps,
    cases=[{"world_sizes": sizes} for sizes in ([8, 2, 4, 16, 1024], [1], [3, 5, 6, 7, 9], [1000, 2**29, 2**29 + 1])],
    ok="both phases counted, for any number of ranks.",
    hint="the hints of exercise 2.1a",
)
def tree_steps(tree_steps, /, world_sizes):
    """The steps for each number of ranks."""
    return [tree_steps(n) for n in world_sizes]


def _judge_tree_partner(data: Any, world_size: int) -> None:
    left = list(range(world_size))
    for step, partners in enumerate(_list(data, world_size.bit_length() - 1), 1):
        stays = [rank for rank in left if rank % 2**step == 0]
        _require_step(step, _list(partners, world_size), left, stays)
        left = stays


def _require_step(step: int, partners: list[Any], left: list[int], stays: list[int]) -> None:
    taken: dict[int, int] = {}
    for rank, got in enumerate(partners):
        call = f"tree_partner({rank}, {step})"
        if got is None and (rank not in left or rank in stays):
            continue
        if got is None:
            raise CheckFailed(
                f"{call} is None, but rank {rank} has to hand its sum over at step {step}.",
                cause=f"after step {step} only the multiples of {2**step} are left, and {rank} is not one of them.",
            )
        if type(got) is not int and (rank not in left or rank in stays):
            raise CheckFailed(f"{call} is {got!r}, expected None: rank {rank} does not send at step {step}.")
        to = _whole(got, call)
        if rank not in left:
            raise CheckFailed(f"{call} is {to}, but rank {rank} sent at an earlier step: expected None.")
        if rank in stays:
            raise CheckFailed(
                f"{call} is {to}, expected None: rank {rank} is still there after step {step}, so it receives.",
                cause="the step counts from 1: at step 1 the odd ranks send." if to != rank else "",
            )
        if to not in stays or to > rank or to in taken:
            raise CheckFailed(f"{call} is {to}. {_why_partner(rank, to, stays, taken)}")
        taken[to] = rank


def _why_partner(rank: int, to: int, stays: list[int], taken: dict[int, int]) -> str:
    if to > rank:
        return "Sums travel towards rank 0, so the partner is a lower rank."
    if to in taken:
        return f"Rank {to} receives from rank {taken[to]} at that step already, and a rank receives one message a step."
    return f"Rank {to} does not stay: after this step only ranks {', '.join(map(str, stays[:4]))}, ... are left."


@check(
    "lesson_02.tree_partner",
    judge=_judge_tree_partner,
    cases=[{"world_size": n} for n in (2, 4, 8, 64)],
    ok="every rank but 0 hands its sum over once, to the right partner.",
    hint="the hints of exercise 2.1b",
)
def tree_partner(tree_partner, /, world_size):
    """To whom each rank sends at each step: one list a step."""
    return [[tree_partner(rank, step) for rank in range(world_size)] for step in range(1, world_size.bit_length())]


def _judge_chunk_to_send(data: Any, world_size: int) -> None:
    n = world_size
    data = [_list(row, n - 1) for row in _list(data, n)]
    for rank, row in enumerate(data):
        for step, got in enumerate(row, 1):
            call = f"chunk_to_send({rank}, {step}, {n})"
            chunk = _whole(got, call)
            if not 0 <= chunk < n:
                raise CheckFailed(
                    f"{call} is {chunk}; chunks are numbered 0 to {n - 1}.", cause="take it modulo the world size."
                )
            came = (rank - 1) % n if step == 1 else data[(rank + 1) % n][step - 2]
            if chunk != came:
                raise CheckFailed(f"{call} is {chunk}, expected {came}.", cause=_why_chunk(rank, step, n, chunk, came))


def _why_chunk(rank: int, step: int, n: int, chunk: int, came: int) -> str:
    if step == 1:
        shift = "its own number" if chunk == rank else f"chunk {chunk}"
        return (
            f"at the first step rank n sends chunk n - 1, so that it ends one place further left; this sends {shift}."
        )
    if (chunk - (rank - step)) % n == 0:
        return "the chunk numbers go down from step to step; data moves left, so what comes in is the next one up."
    if n > 2 and abs(chunk - came) in (1, n - 1):
        return f"off by one: rank {rank} passes on what rank {(rank + 1) % n} sent it at step {step - 1}."
    return f"a rank passes on what it has just received: rank {(rank + 1) % n} sent chunk {came} at step {step - 1}."


@check(
    "lesson_02.chunk_to_send",
    judge=_judge_chunk_to_send,
    cases=[{"world_size": n} for n in (4, 2, 3, 7)],
    ok="every rank passes on the chunk that it has just received.",
    hint="the hints of exercise 2.2a",
)
def chunk_to_send(chunk_to_send, /, world_size):
    """The chunk at each step of phase I, one row a rank."""
    return [[chunk_to_send(rank, step, world_size) for step in range(1, world_size)] for rank in range(world_size)]


def _judge_chunk_owned(data: Any, world_size: int) -> None:
    _list(data, world_size)
    for chunk in range(world_size):
        place = (chunk + 1) % world_size  # rank n sends chunk n - 1 first ...
        for _ in range(world_size - 1):
            place = (place - 1) % world_size  # ... and each step takes it one place to the left
        call = f"chunk_owned({place}, {world_size})"
        got = _whole(data[place], call)
        if got != chunk:
            raise CheckFailed(f"{call} is {got}, expected {chunk}.", cause=_why_owned(place, world_size, got))


def _why_owned(rank: int, n: int, got: int) -> str:
    if not 0 <= got < n:
        return f"chunks are numbered 0 to {n - 1}: take it modulo the world size."
    if got == (rank + 2) % n:
        return "for 4 ranks n - 2 and n + 2 are the same; for any other number they are not."
    if got == (rank - 3) % n or got == (rank - 1) % n:
        return "off by one: the chunk that is complete is the one *received* at the last step, N - 1."
    return "follow one chunk: where is it after N - 1 steps to the left?"


@check(
    "lesson_02.chunk_owned",
    judge=_judge_chunk_owned,
    cases=[{"world_size": n} for n in (4, 3, 5, 8)],
    ok="every chunk is complete on the rank you say.",
    hint="the hints of exercise 2.2a",
)
def chunk_owned(chunk_owned, /, world_size):
    """The chunk that each rank holds complete after phase I."""
    return [chunk_owned(rank, world_size) for rank in range(world_size)]


# 2.3: what it costs ------------------------------------------------------------------------------------------

_MIXED = {"latency_s": 50e-6, "bandwidth_Bps": 125e6}
_LATENCY = {"latency_s": 1.0, "bandwidth_Bps": NO_BYTES}
_BYTES = {"latency_s": 0.0, "bandwidth_Bps": 1e6}


def _judge_point_to_point_s(data: Any, n_bytes: int, latency_s: float, bandwidth_Bps: float) -> None:
    network = Network(latency_s, bandwidth_Bps)

    def why(ratio: float) -> str:
        if math.isclose(ratio, 8):
            return "bandwidth is given in bytes a second, not in bits."
        if latency_s == 0 or bandwidth_Bps >= NO_BYTES:
            part = "latency" if latency_s else "bytes"
            return f"look at the part with the {part}: a message waits once for the latency, then its bytes follow."
        return "both parts are paid, one after the other."

    require_cost(data, f"point_to_point_s({n_bytes}, network)", network.message_s(n_bytes), network, why)


@check(
    "lesson_02.point_to_point_s",
    judge=_judge_point_to_point_s,
    cases=[{"n_bytes": n, **network} for n, network in ((1000, _LATENCY), (1000, _BYTES), (1_000_000, _MIXED))],
    ok="a message costs what the virtual network takes for it.",
    hint="the hints of exercise 2.3",
)
def point_to_point_s(point_to_point_s, /, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds of one message."""
    return point_to_point_s(n_bytes, Network(latency_s, bandwidth_Bps))


def _judge_all_reduce_s(name: str, ops: tuple[str, ...], why) -> Callable[..., None]:
    def judge(data: Any, world_sizes: list[int], n_bytes: int, latency_s: float, bandwidth_Bps: float) -> None:
        network = Network(latency_s, bandwidth_Bps)
        for n, got in zip(world_sizes, _list(data, len(world_sizes))):
            expected_s = played_s(ops, n, n_bytes, network)
            require_cost(
                got, f"{name}({n}, {n_bytes}, network)", expected_s, network, lambda q, n=n: why(q, n, network)
            )

    return judge


def _why_tree_s(ratio: float, n: int, network: Network) -> str:
    if n & (n - 1) and ratio < 1:
        return f"{n} is not a power of two: the number of steps is rounded up."
    if math.isclose(ratio, 0.5):
        return "that is one phase: the sum has to come back as well."
    if math.isclose(ratio, math.log(2)) or math.isclose(ratio, math.log10(2)):
        return "the logarithm has base 2."
    if math.isclose(ratio, 8):
        return "bandwidth is given in bytes a second, not in bits."
    if n == 1:
        return "one rank sends nothing."
    return _why_part(network, "each step of the tree is one message with the whole tensor")


def _why_ring_s(ratio: float, n: int, network: Network) -> str:
    if n == 1:
        return "one rank sends nothing."
    if math.isclose(ratio, 0.5):
        return "that is one phase; the ring goes round twice."
    if math.isclose(ratio, 8) and not network.latency_s:
        return "bandwidth is given in bytes a second, not in bits."
    if math.isclose(ratio, n / (n - 1)) and not network.latency_s:
        return "the tensor is cut into N chunks, as many as there are ranks."
    if math.isclose(ratio, n / (n - 1)):
        return "each phase has N - 1 steps, not N."
    if math.isclose(ratio, n) and not network.latency_s:
        return "a step moves one chunk, not the whole tensor."
    if math.isclose(ratio, 1 / n) and network.latency_s:
        return "every step pays the whole latency; only the bytes are divided by N."
    return _why_part(network, "each step of the ring is one message with one chunk")


def _why_part(network: Network, rule: str) -> str:
    if network.bandwidth_Bps >= NO_BYTES:
        return f"look at the latency: {rule}, and pays it once."
    if not network.latency_s:
        return f"look at the bytes: {rule}."
    return f"{rule}."


_COSTS = [
    {"world_sizes": [4, 2, 8], "n_bytes": 840, **_LATENCY},
    {"world_sizes": [4, 2, 8], "n_bytes": 840, **_BYTES},
    {"world_sizes": [1, 2, 3, 5, 6, 7, 8, 60], "n_bytes": 840_000, **_MIXED},
]


@check(
    "lesson_02.tree_all_reduce_s",
    judge=_judge_all_reduce_s("tree_all_reduce_s", TREE, _why_tree_s),
    cases=_COSTS,
    ok="the seconds of a tree, for any number of ranks.",
    hint="the hints of exercise 2.3",
)
def tree_all_reduce_s(tree_all_reduce_s, /, world_sizes, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds, for each number of ranks."""
    return [tree_all_reduce_s(n, n_bytes, Network(latency_s, bandwidth_Bps)) for n in world_sizes]


@check(
    "lesson_02.ring_all_reduce_s",
    judge=_judge_all_reduce_s("ring_all_reduce_s", RING, _why_ring_s),
    cases=_COSTS,
    ok="the seconds of a ring, for any number of ranks.",
    hint="the hints of exercise 2.3",
)
def ring_all_reduce_s(ring_all_reduce_s, /, world_sizes, n_bytes, latency_s, bandwidth_Bps):
    """The predicted seconds, for each number of ranks."""
    return [ring_all_reduce_s(n, n_bytes, Network(latency_s, bandwidth_Bps)) for n in world_sizes]


def _judge_crossover(data: Any, world_sizes: list[int], latency_s: float, bandwidth_Bps: float) -> None:
    for n, got in zip(world_sizes, _list(data, len(world_sizes))):
        require_crossover(got, n, Network(latency_s, bandwidth_Bps))


@check(
    "lesson_02.crossover_bytes",
    judge=_judge_crossover,
    cases=[{"world_sizes": sizes, **_MIXED} for sizes in ([4, 8, 64], [2, 3], [5, 6, 7, 100])],
    ok="at that size a tree and a ring take equally long.",
    hint="the hints of exercise 2.3",
)
def crossover_bytes(crossover_bytes, /, world_sizes, latency_s, bandwidth_Bps):
    """The size at which both take equally long, for each number of ranks."""
    return [crossover_bytes(n, Network(latency_s, bandwidth_Bps)) for n in world_sizes]
