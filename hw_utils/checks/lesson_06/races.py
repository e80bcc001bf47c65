"""The driver's runs and the judge's words for lesson 06's communication layer: what an interleaving broke."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks.lesson_06.passed import Evidence
from hw_utils.core.errors import CheckFailed, ranks_text
from hw_utils.threads.interleavings import CallsInOrders, Outcome, explored

GROWTH = 7.0  # from call to call: no number of ranks, so that a mean of one call is no sum of another
_REMOVES = re.compile(r"\bdel\b|\.(pop|popitem|clear)\(|=\s*(\{\}|\[\]|None)\s*$")


def outcomes(kind: Callable[[int], Any], method: str, args: list[tuple], case: dict) -> dict[str, Any]:
    """Plain data on every outcome of `method`, called by each rank as often as `args` has entries, in a row.

    Rank r brings [[10**r * 7**k, 7**k]] to its call number k. `evidence`: why one cannot believe that other ranks
    were let in wherever the text of the answer gives a chance; empty if one can.
    """
    world_size = case["world_size"]
    brought = [[tensor_of(rank, k) for k in range(len(args))] for rank in range(world_size)]
    setting = (world_size, method, brought, args, 4.0)
    explorer = kind.in_orders(*setting) if hasattr(kind, "in_orders") else CallsInOrders(kind, *setting)
    is_elsewhere, evidence = not isinstance(explorer, CallsInOrders), Evidence()
    plain: list[dict] = []

    def run(orders: list[tuple]) -> list[Outcome]:
        said = explorer.run(orders)
        if is_elsewhere:
            evidence.look_at(said, orders, world_size, len(args))
        plain.extend(said["outcomes"])
        return [Outcome(o["results"], o["kind"], n_points=o["n_points"]) for o in said["outcomes"]]

    with explorer:
        explored_ = explored(run, world_size, case["n_interleavings"], case.get("seed", 0), _rounded, True)
        first = plain[0]
        is_not_written = first.get("error") == "NotImplementedError"
        if is_not_written or (world_size == 1 and first["results"] is None and first["kind"] == "raised"):
            error = explorer.error
            raise (
                error
                if isinstance(error, Exception)
                else NotImplementedError
                if is_not_written
                else RuntimeError(first["text"])
            )
    found = [{**plain[o.number - 1], "number": o.number, "count": o.count} for o in explored_.outcomes]
    data = {"n": explored_.n_interleavings, "outcomes": found, "evidence": evidence.problem}
    for outcome in found:
        del outcome["passed"], outcome["n_points"]
    return data


def tensor_of(rank: int, k: int) -> torch.Tensor:
    """What a rank brings to its call number k: float64 of shape (1, 2)."""
    return torch.tensor([numbers_of(rank, k)], dtype=torch.float64)


def numbers_of(rank: int, k: int) -> list[float]:
    """What stands in that tensor."""
    return [10.0**rank * GROWTH**k, GROWTH**k]  # sums of calls and of ranks all differ


def _rounded(results: Any) -> str:
    """The results as text to five digits: the order of a sum may show in the last bit."""
    if isinstance(results, dict):
        return repr({name: _rounded(value) for name, value in results.items()})
    if isinstance(results, list):
        return repr([_rounded(value) for value in results])
    return f"{results:.5g}" if isinstance(results, float) else repr(results)


def judge_outcomes(data: Any, what: str, case: dict, explain: Callable[[dict, int, int, Any], tuple[str, str] | None]):
    """Raises CheckFailed on the first wrong outcome; `explain(outcome, rank, k, got)` gives (what is wrong, cause)."""
    needed = case["n_interleavings"] if case["world_size"] > 1 else 1
    for outcome in data["outcomes"]:
        if outcome["results"] is None:
            _judge_end(outcome, what, case)
        for rank, k in itertools.product(range(case["world_size"]), range(case["calls"])):
            entry = outcome["results"][rank][k]
            found = explain(outcome, rank, k, entry["got"])
            if found is None and entry["given"] != numbers_of(rank, k):
                found = (
                    f"call {k + 1} changes the tensor that rank {rank} brought",
                    "the sum is made in the caller's own tensor: += and copy_ change it, so work on a copy",
                )
            if found is None and entry["own"] != numbers_of(rank, k):
                found = (
                    f"rank {rank} writes into what it got, and its own tensor changes",
                    "the result has the rank's own tensor in it: put a copy there (.clone())",
                )
            if found:
                text, cause = found
                _fail(f"{text}", what, case, outcome, outcome["story"][f"{rank} {k}"], cause)
    if data["evidence"]:
        raise CheckFailed(f"{what}: {data['evidence']}", cause="the check must see every step of the methods")
    if not data["outcomes"] or data["n"] < needed:
        raise CheckFailed(f"{what}: {data['n']} of {needed} interleavings were run")


def _fail(text: str, what: str, case: dict, outcome: dict, story: list[str], cause: str) -> None:
    how = (
        "in the plainest order, each rank running until it must wait"
        if outcome["number"] == 1
        else f"in interleaving {outcome['number']} of {case['n_interleavings']}"
    )
    steps = "".join(f"\n    {step}" for step in story)
    raise CheckFailed(f"{what} with {_n_ranks(case)}: {text}, {how}:{steps}", cause=cause)


def _n_ranks(case: dict) -> str:
    return "1 rank" if case["world_size"] == 1 else f"{case['world_size']} ranks"


def _judge_end(outcome: dict, what: str, case: dict) -> None:
    story = outcome["story"]["end"]
    if outcome["kind"] == "hung":
        cause = "some rank does not come to a barrier that the others wait in, or keeps a lock that they need"
        _fail(f"no rank can go on: {outcome['text']}", what, case, outcome, story, cause)
    if outcome["kind"] == "endless":
        cause = "a loop waits for another rank by looking again and again; wait in a barrier or a condition"
        _fail(outcome["text"], what, case, outcome, story, cause)
    text = f"rank {outcome['rank']} raises {outcome['text']} at `{outcome['line']}`"
    _fail(text, what, case, outcome, story, _cause_of_error(outcome, story))


def _cause_of_error(outcome: dict, story: list[str]) -> str:
    mine = f"rank {outcome['rank']}"
    removed = [s for s in story if _REMOVES.search(s) and "[None]" not in s]
    if "Barrier" in outcome["text"]:
        return "the barrier is broken or counts another number of ranks than the world size"
    if removed:
        who, _, line = removed[-1].partition(": ")
        who = who.split(",")[0]
        if who == mine:
            return (
                f"{who} removed the buffer (`{line}`) that others already use in the next call: do it between barriers"
            )
        return f"{who} removed the buffer (`{line}`) while {mine} was still reading: first wait until all have read"
    if "assignment index" in outcome["text"]:
        return (
            "there is no slot for this rank: one for each of world_size ranks, made in this object"
            " (what stands in the class, outside __init__, is shared by all its objects)"
        )
    if not any(word in outcome["text"] for word in ("NoneType", "KeyError", "index out of range")):
        return ""
    if outcome["number"] == 1 or not any(".wait(" in step for step in story):
        return f"{mine} reads before the others have written: a barrier is missing between writing and reading"
    return LOST


LOST = (
    "two ranks looked whether the buffer is there, and each made one: what was in the first is lost. "
    "Look and make under one lock"
)
NEXT_CALL = "a fast rank is in its next call while a slow one still reads: a second barrier, after reading, is missing"
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
        if odd and "tensor of" in _shown(odd[0]):
            return (
                f"{at} has {_shown(odd[0])} in its list; every rank brings one of shape (1, 2) and dtype float64",
                "a copy has the shape and the dtype of what was brought",
            )
        if not isinstance(got, list) or not all(isinstance(g, list) for g in got if g is not None):
            return (
                f"{at} gives {_shown(got)}, not a list of {world_size} tensors",
                "return the list of all ranks' tensors",
            )
        if any(isinstance(v, float) and v < 0 for g in got for v in g or []):
            return f"{at} sees what another rank wrote into its own tensors afterwards: {got}", ALIASED
        if len(got) == world_size and None not in got and sorted(got) == sorted(expected):
            cause = "tensors are in order of arrival: give each rank a slot of its own, list[rank]"
            if all(mine[k]["got"] == expected[r:] + expected[:r] for r, mine in enumerate(outcome["results"])):
                cause = "each rank has its own tensor first; the order is that of the ranks, 0 first, on every rank"
            return f"{at} has all tensors, in the wrong order: {_firsts(got)}", cause
        if len(got) > world_size:
            cause = "the buffer still holds the last call's tensors: the next call on a group_id starts afresh"
            return f"{at} has {len(got)} tensors, not {world_size}", cause
        missing = [r for r in range(world_size) if r >= len(got) or got[r] is None or len(got) < world_size]
        if missing:
            cause = UNWRITTEN if outcome["number"] == 1 else LOST
            return f"{at} lacks the tensor of {ranks_text(missing)}: {_firsts(got)}", cause
        return _other_call(at, got, expected, k)

    return explain


def _other_call(at: str, got: list, expected: list, k: int) -> tuple[str, str]:
    for r, (g, e) in enumerate(zip(got, expected)):
        if g != e:
            for other, cause in ((k + 1, NEXT_CALL), (k - 1, UNWRITTEN)):
                if other >= 0 and g == numbers_of(r, other):
                    return f"{at} has rank {r}'s tensor of call {other + 1}: {_firsts(got)}", cause
    return f"{at} gives {_firsts(got)}, expected {_firsts(expected)}", ""


def _shown(got: Any) -> str:
    return got["unknown"] if isinstance(got, dict) and "unknown" in got else repr(got)


def _firsts(got: list) -> str:
    return "[" + ", ".join("None" if g is None else f"{g[0]:g}" for g in got) + "]"


def explain_reduce(world_size: int, ops: list[str]) -> Callable[[dict, int, int, Any], tuple[str, str] | None]:
    """What is wrong with a reduced tensor."""

    def explain(outcome: dict, rank: int, k: int, got: Any) -> tuple[str, str] | None:
        op = ops[k % len(ops)]
        share = [numbers_of(r, k)[0] for r in range(world_size)]
        divisor = world_size if op == "mean" else 1
        expected = [sum(share) / divisor, world_size * GROWTH**k / divisor]
        if isinstance(got, list) and len(got) == 2 and all(isinstance(g, float) for g in got):
            if all(abs(g - e) <= 1e-4 * abs(e) for g, e in zip(got, expected)):
                return None
            value = got[0]
        else:
            cause = ""
            if "tensor of shape" in _shown(got):
                cause = "only the ranks are reduced, the first dimension of the stack: sum(0), mean(0)"
            if "and dtype" in _shown(got):
                cause = "the result has the dtype of what was brought"
            return f"call {k + 1} on rank {rank} gives {_shown(got)}, not one tensor of shape (1, 2)", cause
        text = f"call {k + 1} ({op}) on rank {rank} gives {value:g}, expected {expected[0]:g}"
        alike = all(mine[k]["got"] == got for mine in outcome["results"])
        if rank and got == numbers_of(rank, k) and outcome["results"][0][k]["got"] == expected:
            return f"{text}, its own number", "the result is not returned on every rank: no `if rank == 0`"
        cause = _cause_of_value(value, share, op, outcome["number"], k, alike)
        return (f"{text}{cause[0]}", cause[1])

    return explain


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
    if op == "mean":
        for m in range(1, n):
            if near(total / m):
                return f", the sum of all divided by {m}", ARRIVED
    return _cause_of_share(near, share, op, number, k)


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
    return "", "stack the gathered tensors, then reduce over the first dimension"
