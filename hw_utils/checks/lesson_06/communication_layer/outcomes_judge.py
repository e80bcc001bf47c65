"""Judges how the calls of lesson 06's communication layer ended, and says what one sees of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hw_utils.checks.lesson_06.communication_layer.race_causes import (
    ALIASED,
    ARRIVED,
    CLEARED,
    LOST,
    OTHER_SHAPE,
    RANKS_OF_WHOLE_NUMBERS,
    SHAPE,
    UNWRITTEN,
    numbers_of,
    whole_numbers_of,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.core.source.unseen_calls import STARTED, UNSEEN

_OF_LOST_SHARES = (UNWRITTEN, ARRIVED)
_BLOCKS = re.compile(r"last line: (?!.*\bwhile\b).*\.(get|put|recv|recv_bytes|read|join|result|wait|acquire|map)\(")
_REMOVES = re.compile(r"\bdel\b|\.(pop|popitem|clear)\(|=\s*(\{\}|\[\]|None)\s*$")


def judge_unknown_op(data: dict[str, list[str]], world_size: int) -> None:
    """Raises CheckFailed unless every rank refuses each op before it waits for another one."""
    for op, said in data.items():
        what = f"all_reduce with op={op!r}, called on rank"
        if len(said) != world_size:
            raise ValueError("this is not what the driver returns")
        for rank, raised in enumerate(said):
            if raised == "waits":
                raise CheckFailed(
                    f"{what} {rank} alone: expected a ValueError at once, but it waits for the other ranks",
                    cause=_EVERY_RANK
                    if "ValueError" in said
                    else "op is looked at after all_gather or a barrier: look first, before any rank waits",
                )
            if raised == "nothing":
                raise CheckFailed(
                    f"{what} {rank}: expected a ValueError, got nothing",
                    cause="what is neither sum nor mean is taken for one of them: test for both, and refuse the rest"
                    if rank == 0 or "ValueError" not in said
                    else _EVERY_RANK,
                )
            if raised != "ValueError":
                raise CheckFailed(
                    f"{what} {rank}: expected a ValueError, got {_a(raised)}",
                    cause="`raise ValueError(...)`: an assert can be switched off, and other errors mean other things",
                )


_EVERY_RANK = "every rank refuses the op: no `if rank == 0`"


def _a(name: str) -> str:
    return f"an {name}" if name[:1] in "AEIOU" else f"a {name}"


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
                found = _why_given_changed(rank, k, entry["given"])
            if found is None and entry["own"] != numbers_of(rank, k):
                found = (
                    f"rank {rank} writes into what it got, and its own tensor changes",
                    "the result has the rank's own tensor in it: put a copy there (.clone())",
                )
            if found is None and entry.get("changed_later"):
                found = (
                    f"what rank {rank} got from call {k + 1} changes later: it has {entry['changed_later'][0]:g} in it",
                    "the result is a buffer that is used again: give a new copy at every call (.clone())",
                )
            if found:
                (text, cause), story = found, outcome["story"][f"{rank} {k}"]
                cause = CLEARED if k and cause in _OF_LOST_SHARES and _clears_at_last(story) else cause
                _fail(f"{text}", what, case, outcome, story, cause)
    _judge_another_shape(data["reshaped"], what, case)
    _judge_whole_numbers(data["whole numbers"], what)
    if data["two objects"] is not None:
        how = data["two objects"]
        ended = "the results are not those of each alone" if how["kind"] == "returned" else how["text"]
        raise CheckFailed(
            f"{what} on two objects at a time, {_n_ranks(case)} each, on the same group_id: {ended}",
            cause="what stands in the class, or under a global name, is shared by all its objects: make it in "
            "__init__, on self",
        )
    if data["evidence"]:
        raise CheckFailed(f"{what}: {data['evidence']}", cause="the check must see every step of the methods")
    if not data["outcomes"] or data["n"] < needed:
        raise CheckFailed(f"{what}: {data['n']} of {needed} interleavings were run")


def _clears_at_last(story: list[str]) -> bool:
    """Whether a rank removes something and then waits for nobody before it returns."""
    for at, step in enumerate(story):
        if _REMOVES.search(step) and "[None]" not in step:
            who = step.partition(",")[0]
            after = itertools.takewhile(
                lambda s: ".wait(" not in s, (s for s in story[at + 1 :] if re.match(rf"{who}\b", s))
            )
            if any("has returned" in s for s in after):
                return True
    return False


def _judge_another_shape(outcome: dict, what: str, case: dict) -> None:
    text = f"{what} with {_n_ranks(case)}: a call with shape {SHAPE} is right, and the next one on the same group_id, "
    text += f"with shape {OTHER_SHAPE} of float32,"
    cause = "a buffer is kept in the shape of an earlier call: the next one may bring another shape"
    if outcome["results"] is not None and f"shape {OTHER_SHAPE} and dtype" in str(outcome["results"]):
        cause = "a call's results have the dtype of its tensors: make no double() or float() of them"
    if outcome["results"] is None:
        raise CheckFailed(f"{text} raises {outcome['text']} at `{outcome['line']}`"[:600], cause=cause)
    for mine in outcome["results"]:
        if not isinstance(mine[1]["got"], list):
            raise CheckFailed(f"{text} gives {_unlike(mine[1]['got'])}", cause=cause)
        if any(isinstance(part, dict) for part in mine[1]["got"]):
            raise CheckFailed(f"{text} has {_unlike(mine[1]['got'][0])} in its list", cause=cause)


def _judge_whole_numbers(results: list | None, what: str) -> None:
    """Whether what comes back as int64 has all its digits; who reduces to floats, or raises, keeps to floats."""
    brought = [whole_numbers_of(rank) for rank in range(RANKS_OF_WHOLE_NUMBERS)]
    expected = brought if what == "all_gather" else [sum(numbers) for numbers in zip(*brought)]
    for rank, (entry,) in enumerate(results or ()):
        got = entry["got"]
        if what == "all_gather" and isinstance(got, list) and any("dtype" in str(part) for part in got):
            raise CheckFailed(
                f"{what} with {len(brought)} ranks that bring int64: rank {rank} gets {_unlike(got[0])} in its list",
                cause="a call's results have the dtype of its tensors: make no double() or float() of them",
            )
        if isinstance(got, list) and np.shape(got) == np.shape(expected) and got != expected:
            raise CheckFailed(
                f"{what} with {len(brought)} ranks that bring int64: rank {rank} gets {got}, expected {expected}",
                cause="these numbers have more digits than a float64: keep, and add, them in the dtype of what was "
                "brought",
            )


def _unlike(got: Any) -> str:
    return str(got.get("unknown")) if isinstance(got, dict) else type(got).__name__


def _why_given_changed(rank: int, k: int, given: list[float]) -> tuple[str, str]:
    """Another rank writes -1 - its number into its results, and -1001 - its number into what it has brought."""
    wrote = int(-1 - given[0]) % 1000 if given[0] < 0 else rank
    if given[0] < 0 and wrote != rank:
        return f"rank {wrote} writes into what it got, and the tensor that rank {rank} brought changes", ALIASED
    return (
        f"call {k + 1} changes the tensor that rank {rank} brought",
        "the sum is made in the caller's own tensor: += and copy_ change it, so work on a copy",
    )


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
        cause = _cause_of_hang(outcome["text"], story)
        _fail(f"no rank can go on: {outcome['text']}", what, case, outcome, story, cause)
    if outcome["kind"] == "endless":
        cause = "a loop waits for another rank by looking again and again; wait in a barrier or a condition"
        if _BLOCKS.search(outcome["text"]):
            cause = "it waits where no other rank can be let in: only waits of threading and queue let others go on"
        _fail(outcome["text"], what, case, outcome, story, cause)
    text = f"rank {outcome['rank']} raises {outcome['text']} at `{outcome['line']}`"
    _fail(text, what, case, outcome, story, _cause_of_error(outcome, story, case["world_size"]))


def _cause_of_hang(text: str, story: list[str]) -> str:
    waits = [part for part in text.split("; ") if " wait" in part]
    at_lock = [part for part in waits if re.search(r"\bwith\b|\.acquire\(", part)]
    if at_lock and any(".wait(" in part for part in waits):
        return "a rank waits for the others while it keeps a lock that they need first"
    if "returned" in text:
        return "a rank returns without coming to a wait of the others: every rank comes to every wait, in each call"
    if at_lock:
        return "a lock is taken and not given back, or taken twice by one rank: `with lock:` gives it back"
    removed = [s for s in story if _REMOVES.search(s) and "[None]" not in s]
    if removed:
        who, _, line = removed[-1].partition(": ")
        return (
            f"{who.split(',')[0]} removed the buffer (`{line}`), and its barrier, while others were still in that call "
            "or already in the next one: each then waits in a barrier of its own. Do it between barriers"
        )
    return LOST if _both_make(story) else "the ranks stand in waits that no rank ends: count who comes to which wait"


def _both_make(story: list[str]) -> bool:
    """Whether two ranks wrote under a key of the object at one line, and no rank returned between."""
    made: dict[str, str] = {}
    for step in story:
        if "returned" in step:
            made.clear()
        found = re.match(r"(rank \d+), (line \d+: self\.\w+\[\w+\] = .*)", step)
        if found and made.setdefault(found[2], found[1]) != found[1]:
            return True
    return False


def _cause_of_error(outcome: dict, story: list[str], world_size: int) -> str:
    if STARTED in outcome["text"] or UNSEEN in outcome["text"]:
        return IN_RANKS
    mine = f"rank {outcome['rank']}"
    removed = [s for s in story if _REMOVES.search(s) and "[None]" not in s]
    if "Barrier" in outcome["text"]:
        if any("timeout" in step for step in story):
            return _IN_TIME
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
    if any(word in outcome["text"] for word in ("shape", "size of tensor", "must match")):
        return "all ranks' tensors have one shape: look at what stands in the buffer, and in whose slot"
    if not any(word in outcome["text"] for word in ("NoneType", "KeyError", "index out of range")):
        return ""
    if any("timeout" in step for step in story):
        return _IN_TIME
    if _both_make(story):
        return LOST
    if _all_came(story, outcome["rank"], world_size):
        return _TWO_KEYS
    if outcome["number"] == 1 or not any(".wait(" in step for step in story):
        return (
            f"{mine} reads before the others have written: a barrier is missing between writing and reading, or it "
            "counts fewer than world_size ranks"
        )
    return LOST


IN_RANKS = (
    "each rank is a thread already, and the check must see every step of it: do the work in the methods themselves, "
    "and start no thread, tracer, profiler or hook"
)
_IN_TIME = "a wait with a short timeout is no barrier: a rank may be late, so wait for it without a limit"
_TWO_KEYS = (
    "all ranks wrote before this one read, and not all into one list: what it is found by (a count, a number of this"
    " call) must be the same on all ranks, however far each of them is"
)


def _all_came(story: list[str], rank: int, world_size: int) -> bool:
    """Whether every other rank made a step while this one stood in its last wait."""
    mine = [k for k, step in enumerate(story) if step.startswith(f"rank {rank},") and ".wait(" in step]
    after = story[mine[-1] :] if mine else []
    return world_size > 1 and {f"rank {r}" for r in range(world_size) if r != rank} <= {s.split(",")[0] for s in after}
