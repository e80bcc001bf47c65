"""Checks of lesson 02: the small exercises, which rank has which partner and which chunk in which step."""

from __future__ import annotations

from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_02.costs_judge import list_of
from hw_utils.core.errors import CheckFailed


def _whole(value: Any, call: str) -> int:
    """The value, if it is a whole number of type int."""
    if type(value) is not int:
        cause = "the function returns nothing here: is there a return on every way through it?"
        if type(value) is float:
            cause = "steps, ranks and chunks are whole numbers: int(...), or // instead of /."
        elif value is not None:
            cause = "one whole number of Python's own type int is asked for: no text, no tuple, no tensor."
        raise CheckFailed(f"{call} is {came(value)}, expected an int.", cause=cause)
    return value


def _rounds_of_a_broadcast(world_size: int) -> int:
    """Rounds until everybody knows, if all who know tell somebody in each round."""
    informed, rounds = 1, 0
    while informed < world_size:
        informed, rounds = informed + informed, rounds + 1
    return rounds


def _judge_tree_steps(data: Any, world_sizes: list[int]) -> None:
    for n, got in zip(world_sizes, list_of(data, len(world_sizes))):
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
    hints={
        "hint 2 of exercise 2.1a": "rounded down|rounds? up|logarithm|expected an int",
        "hint 1 of exercise 2.1a": "halves|one phase|one rank|all pairs",
    },
)
def tree_steps(tree_steps, /, world_sizes):
    """The steps for each number of ranks."""
    return [tree_steps(n) for n in world_sizes]


def _judge_tree_partner(data: Any, world_size: int) -> None:
    steps = [list_of(row, world_size) for row in list_of(data, world_size.bit_length() - 1)]
    left = list(range(world_size))
    pairs = []  # of each step: sender -> receiver
    while len(left) > 1:
        pairs.append(dict(zip(left[1::2], left[::2])))
        left = left[::2]
    if len(pairs) > 1 and all(to is None for row in steps for to in row):
        raise CheckFailed(
            f"tree_partner is None for every one of {world_size} ranks, at every step.",
            cause="the function returns nothing: is there a return on every way through it?",
        )
    cause = _why_all(steps, pairs)
    left = list(range(world_size))
    for step, partners in enumerate(steps, 1):
        stays = left[::2]
        _require_step(step, partners, left, stays, cause)
        left = stays


def _why_all(steps: list[list[Any]], pairs: list[dict[int, int]]) -> str:
    """A mistake that explains every step at once; empty if there is none."""
    said = [{rank: to for rank, to in enumerate(row) if to is not None} for row in steps]
    if any(to == -1 for row in said for to in row.values()) and all(None not in row for row in steps):
        return "None says that a rank does not send; -1 is a number like any other."
    silent = [[row[rank] for rank in range(len(row)) if rank not in step] for row, step in zip(steps, pairs)]
    ranks = [[rank for rank in range(len(row)) if rank not in step] for row, step in zip(steps, pairs)]
    if silent == ranks:
        return "None says that a rank does not send; its own number is a rank like any other."
    if len(pairs) > 1 and all(to == 0 and type(to) is int for row in silent for to in row):
        return "None says that a rank does not send; 0 is a rank like any other."
    if len(pairs) > 1 and said[:-1] == pairs[1:]:
        return "the steps are counted from 0; here they count from 1: at step 1 the odd ranks send."
    if said != pairs and said == [{rank: to for rank, to in step.items() if to} for step in pairs]:
        return (
            "the sends to rank 0 are missing alone: 0 is a rank like any other, and counts as false for `or` and `if`. "
            "Ask for `is None`."
        )
    turned = [{to: rank for rank, to in step.items()} for step in pairs]
    if said == turned:
        return "this is whom a rank receives from: towards rank 0 the higher one of a pair sends."
    if said == [step | back for step, back in zip(pairs, turned)]:
        return "both ranks of a pair got a partner: only the one that sends has one, the one that receives gets None."
    return ""


def _require_step(step: int, partners: list[Any], left: list[int], stays: list[int], why: str) -> None:
    taken: dict[int, int] = {}
    for rank, got in enumerate(partners):
        call = f"tree_partner({rank}, {step})"
        if got is None and (rank not in left or rank in stays):
            continue
        if got is None:
            raise CheckFailed(
                f"{call} is None, but rank {rank} has to hand its sum over at step {step}.",
                cause=why or f"after step {step} only the multiples of {2**step} are left; {rank} is not one of them.",
            )
        if type(got) is not int and (rank not in left or rank in stays):
            raise CheckFailed(
                f"{call} is {came(got)}, expected None: rank {rank} does not send at step {step}.",
                cause=why or "a rank that does not send gets None, nothing else.",
            )
        to = _whole(got, call)
        if rank not in left:
            raise CheckFailed(
                f"{call} is {to}, but rank {rank} sent at an earlier step: expected None.",
                cause=why or f"after step {step - 1} only the multiples of {2 ** (step - 1)} are left; {rank} is none.",
            )
        if rank in stays:
            raise CheckFailed(
                f"{call} is {to}, expected None: rank {rank} is still there after step {step}, so it receives.",
                cause=why or f"the senders of step {step} are those that are left and no multiple of {2**step}.",
            )
        if to not in stays or to > rank or to in taken:
            raise CheckFailed(
                f"{call} is {to}, no partner of rank {rank} at that step.",
                cause=why or _why_partner(rank, to, stays, taken),
            )
        taken[to] = rank


def _why_partner(rank: int, to: int, stays: list[int], taken: dict[int, int]) -> str:
    if to > rank:
        return "sums travel towards rank 0, so the partner is a lower rank."
    if to in taken:
        return f"rank {to} receives from rank {taken[to]} at that step already, and a rank receives one message a step."
    return f"rank {to} does not stay: after this step only ranks {', '.join(map(str, stays[:4]))}, ... are left."


@check(
    "lesson_02.tree_partner",
    judge=_judge_tree_partner,
    cases=[{"world_size": n} for n in (8, 2, 4, 64)],
    ok="every rank but 0 hands its sum over once, to the right partner.",
    hint="the hints of exercise 2.1b",
    hints={
        "hint 2 of exercise 2.1b": "sent at an earlier step: expected None|is none\\.$",
        "hint 1 of exercise 2.1b": "multiples? of|lower rank|does not stay|receives|hand its sum",
    },
)
def tree_partner(tree_partner, /, world_size):
    """To whom each rank sends at each step: one list a step."""
    return [[tree_partner(rank, step) for rank in range(world_size)] for step in range(1, world_size.bit_length())]


def _judge_chunk_to_send(data: Any, world_size: int) -> None:
    n = world_size
    data = [list_of(row, n - 1) for row in list_of(data, n)]
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
    cases=[{"world_size": n} for n in (4, 2, 3, 7, 18)],
    ok="every rank passes on the chunk that it has just received.",
    hint="the hints of exercise 2.2a",
    hints={
        "hint 2 of exercise 2.2a": "chunks are numbered",
        "hint 1 of exercise 2.2a": "passes on|first step|chunk numbers go",
    },
)
def chunk_to_send(chunk_to_send, /, world_size):
    """The chunk at each step of phase I, one row a rank."""
    return [[chunk_to_send(rank, step, world_size) for step in range(1, world_size)] for rank in range(world_size)]


def _judge_chunk_owned(data: Any, world_size: int) -> None:
    list_of(data, world_size)
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
    if got == (rank + 1) % n and n > 3:
        return (
            "off by one, or from a ring that sends to the right: here data moves left, and the chunk that is complete "
            "is the one *received* at the last step, N - 1."
        )
    if got == (rank - 3) % n or got == (rank - 1) % n:
        return "off by one: the chunk that is complete is the one *received* at the last step, N - 1."
    return "follow one chunk: where is it after N - 1 steps to the left?"


@check(
    "lesson_02.chunk_owned",
    judge=_judge_chunk_owned,
    cases=[{"world_size": n} for n in (4, 3, 5, 8, 70)],
    ok="every chunk is complete on the rank you say.",
    hint="the hints of exercise 2.2a",
    hints={
        "hint 2 of exercise 2.2a": "chunks are numbered",
        "hint 3 of exercise 2.2a": "are the same|received|follow one chunk",
    },
)
def chunk_owned(chunk_owned, /, world_size):
    """The chunk that each rank holds complete after phase I."""
    return [chunk_owned(rank, world_size) for rank in range(world_size)]
