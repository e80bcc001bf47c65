"""The check of lesson 07's checkpoints: written by some ranks, read by others, and whole at every moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Event, Trace
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.store import Store
from hw_utils.simulate import simulate

NEWEST = 33_554_442  # no float16 or float32
OLDER = 9_900_002, 3_355_444  # the first is behind it as text, the second what it begins with; even, as it is
MARK = 5000  # what a step's numbers begin with, times 1 or 2
APART = 64  # drawn digits count so much: more than a float16 of this size rounds away
NAME_LETTERS = 200  # of all names that a rank writes in a step
DTYPES = {"float16": torch.float16, "float64": torch.float64, "int64": torch.int64}


def _vector(n_elements: int, step: int, dtype: str) -> torch.Tensor:
    """Numbers that tell their step and place; the last is a zero, as a weight may be, just before the padding."""
    mark = MARK * (1 + (step == NEWEST)) + APART * torch.from_numpy(drawn_numbers.digits([n_elements], step))
    vector = (mark + torch.arange(n_elements, dtype=torch.float64) + 1 / 3).to(DTYPES[dtype])
    if dtype == "int64":
        vector += MARK * 2**50  # no float64 holds these
    vector[-1] = 0
    return vector


def _shard(vector: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    size = -(-len(vector) // world_size)
    return torch.nn.functional.pad(vector, (0, size * world_size - len(vector)))[
        rank * size : (rank + 1) * size
    ].clone()


def _save(
    rank: int, world_size: int, save: Any, steps: Sequence[int], content: dict[str, torch.Tensor], n_elements: int,
    slow: int, dtype: str,
) -> dict[str, Any]:  # fmt: skip
    """This rank's writes with their step; rank `slow` has the slowest disk."""
    store = Store(content, seconds_a_byte=1e-3 * (20 if rank == slow else 1))
    found: list[tuple[int, str, torch.Tensor, float]] = []
    changed: list[int] = []
    for step in steps:
        done = len(store.writes)
        mine = _shard(_vector(n_elements, step, dtype), rank, world_size)
        shard = mine.clone()
        save(interface(store), step, shard, n_elements)
        changed += [] if torch.equal(shard, mine) else [step]
        found += [(step, *write) for write in store.writes[done:]]
        dist.barrier()  # as the steps of a training between two saves
    return {"writes": found, "changed": changed}


def _load(rank: int, world_size: int, load: Any, content: dict[str, torch.Tensor]) -> dict[str, Any]:
    store = Store(content)
    shard = load(interface(store))
    return {"shard": shard, "reads": sum(n for _, n in store.reads)}


def _load_often(rank: int, world_size: int, load: Any, contents: list[dict[str, torch.Tensor]]) -> list[dict[str, Any]]:
    """What each of these stores gives, or why it cannot be loaded: that is for the judge to explain."""
    found = []
    for content in contents:
        try:
            found.append(_load(rank, world_size, load, content))
        except Exception as error:
            found.append({"failed": f"{type(error).__name__}: {error}"[:300]})
    return found


def _moments(saved: list[dict[str, Any]], slow: int) -> tuple[list[str], list[dict[str, torch.Tensor]]]:
    """What the store holds after the first save, and after each write of the second, with a name each; the last is
    what it holds in the end. Also at the moments that there were if a rank wrote as late as it can, whatever time the
    others let pass."""
    rows = [row for run in saved for row in _in_time(run)]
    first, second = ([row for row in rows if (row[0] == NEWEST) == is_newest] for is_newest in (False, True))
    content = {name: torch.as_tensor(tensor) for _, name, tensor, *_ in first}
    names, contents = [f"0 of {len(second)} writes of step {NEWEST}"], [dict(content)]
    for late in dict.fromkeys((slow, 0)):
        freed = _what_waits_for(saved[-1], second, late)
        others = [row for row in second if not _comes_after(row, freed)]
        for k in range(1, len(others) + (len(others) < len(second))):
            there = {name: torch.as_tensor(tensor) for _, name, tensor, *_ in others[:k]}
            names.append(f"{k} of {len(second)} writes of step {NEWEST}, while rank {late} is late")
            contents.append(content | there)
    for k, (_, name, tensor, *_) in enumerate(second, start=1):
        content = content | {name: torch.as_tensor(tensor)}
        names.append(f"{k} of {len(second)} writes of step {NEWEST}")
        contents.append(content)
    return names, contents


def _what_waits_for(run: dict[str, Any], rows: list, late: int) -> dict[int, float]:
    """From when on what a rank does comes after the first write of rank `late`, because messages say so."""
    mine = [written_s for _, _, _, rank, written_s in rows if rank == late]
    from_s = {late: min(mine, default=0.0)}
    parts: dict[int, list[Event]] = defaultdict(list)
    for event in Trace.from_plain(run["trace"]):
        parts[event.message].append(event)
    for sides in sorted(parts.values(), key=lambda sides: max(e.start_s for e in sides)):
        if sides[0].message >= 0 and any(from_s.get(e.rank, math.inf) <= e.start_s for e in sides):
            for e in sides:
                from_s[e.rank] = min(from_s.get(e.rank, math.inf), e.end_s)
    return from_s


def _comes_after(row: tuple, from_s: dict[int, float]) -> bool:
    _, _, _, rank, written_s = row
    return written_s >= from_s.get(rank, math.inf)


def _in_time(run: dict[str, Any]) -> list[tuple[int, str, torch.Tensor, int, float]]:
    """(step, name, tensor, rank, when it was there) of all ranks' writes, in the order in which they were there."""
    rows = [
        (step, name, tensor, rank, written_s)
        for rank, each in enumerate(run["results"])
        for step, name, tensor, written_s in each["writes"]
    ]
    return sorted(rows, key=lambda row: (row[4], row[1]))


def _judge(
    data: Any, old: int, new: int, n_elements: int, slow: int, dtype: str = "float64", before: int | None = None,
    older: int = OLDER[0],
) -> None:  # fmt: skip
    item = DTYPES[dtype].itemsize
    what = f"{n_elements} elements{'' if dtype == 'float64' else f' of {dtype}'} from {n_ranks(old)} to {n_ranks(new)}"
    what += f", the step before saved by {n_ranks(before)}" if before else ""
    for run in data["saved"]:
        require_no_deadlock(run, f"{what}: saving")
    if not any(each["writes"] for run in data["saved"] for each in run["results"]):
        raise CheckFailed(f"{what}: nothing is written.", cause="store.write(name, shard) on every rank.")
    if any(each["changed"] for run in data["saved"] for each in run["results"]):
        raise CheckFailed(
            f"{what}: after it was saved, a rank's shard has other numbers than before.",
            cause="the training goes on with that shard: write it as it is, and change a copy if you must.",
        )
    for step in (older, NEWEST):
        n = before if before and step == older else old
        sent = [_written(each, step) for run in data["saved"] for each in run["results"]]
        share = -(-n_elements // n) * item
        if n > 1 and max(sent) > share + 256:
            raise CheckFailed(
                f"{what}: a rank writes {max(sent)} bytes a step, its shard has {share}.",
                cause="names hold what belongs into the tensors: a name says which step and which rank."
                if _letters(data["saved"], step) > NAME_LETTERS
                else "a shard is written twice: a write is there as a whole or not at all, so one is enough."
                if _writes_own_shard(data["saved"], step, share, times=2)
                else f"what is written beside the shard has {max(sent) - share} bytes: the step, the number of ranks "
                "and n_elements are three numbers, and one rank's write."
                if _writes_own_shard(data["saved"], step, share)
                else "every rank writes its own shard, and nobody gathers.",
            )
    require_no_deadlock(data["whole"], f"{what}: loading what is whole")
    _judge_moment(f"{what}: loading", data["whole"]["results"], new, n_elements, [NEWEST], dtype, old)
    limit = -(-n_elements // new) * item + 256
    for rank, result in enumerate(data["whole"]["results"]):
        if result["reads"] > limit:
            raise CheckFailed(
                f"{what}: rank {rank} reads {result['reads']} bytes to load {limit - 256}.",
                cause="only what overlaps is read: store.read(name, start, stop), with places inside that shard.",
            )
    require_no_deadlock(data["between"], f"{what}: loading while a step is being saved")
    for k, name in enumerate(data["names"][:-1]):
        results = [each[k] for each in data["between"]["results"]]
        steps = [older] if k == 0 else [older, NEWEST]
        in_two = _n_notes(data["saved"], NEWEST) > 1
        _judge_moment(f"{what}: loading after {name}", results, new, n_elements, steps, dtype, in_two=in_two)


def _written(each: dict[str, Any], step: int) -> int:
    """Bytes of a rank's writes; a name says what something is, and what it says beside that is written, too."""
    writes = [(name, np.asarray(tensor).nbytes) for other, name, tensor, _ in each["writes"] if other == step]
    letters = sum(len(str(name).encode()) for name, _ in writes)
    return sum(n for _, n in writes) + max(0, letters - NAME_LETTERS)


def _letters(saved: list[dict[str, Any]], step: int) -> int:
    """Of the names that a rank writes, at most."""
    ranks = [each["writes"] for run in saved for each in run["results"]]
    return max(sum(len(str(name)) for other, name, *_ in writes if other == step) for writes in ranks)


def _writes_own_shard(saved: list[dict[str, Any]], step: int, share: int, times: int = 1) -> bool:
    """Whether each rank has so many writes of a shard's bytes, at least, and the rest is something else."""
    runs = [[[np.asarray(t).nbytes for other, _, t, _ in each["writes"] if other == step] for each in run["results"]]
            for run in saved]  # fmt: skip
    return all(mine.count(share) >= times for run in runs for mine in run if any(run))


def _n_notes(saved: list[dict[str, Any]], step: int) -> int:
    """How many writes beside its shard a rank makes, at most."""
    return max(sum(other == step for other, *_ in each["writes"]) for run in saved for each in run["results"]) - 1


def _judge_moment(what: str, results: list, new: int, n_elements: int, steps: Sequence[int], dtype: str,
                  old: int = 0, in_two: bool = False) -> None:  # fmt: skip
    """old: how many ranks saved, where one step is all that may come. in_two: what load needs to know is more than one
    write."""
    failed = [result["failed"] for result in results if "failed" in result]
    if failed:
        raise CheckFailed(
            f"{what} fails: {failed[0]}",
            cause="beside its shard a rank writes more than once, and between two writes the save may end: what load "
            "needs to know of a step, step, ranks and n_elements, is one write."
            if in_two
            else "a step counts once all of its shards are there: after a barrier one rank writes, last of all, which "
            "step is whole, and load starts from that.",
        )
    shards = [result["shard"] for result in results]
    rights = [[_shard(_vector(n_elements, step, dtype), rank, new).numpy() for rank in range(new)] for step in steps]
    if any(all(_same(g, r) for g, r in zip(shards, right)) for right in rights):
        return
    rank = next(k for k, (g, r) in enumerate(zip(shards, rights[-1])) if not _same(g, r))
    raise CheckFailed(
        f"{what}: rank {rank} has {_shown(shards[rank])}, expected {_shown(rights[-1][rank])}.",
        cause=_why(shards[rank], rights[-1][rank], steps)
        or _why_elsewhere(shards[rank], _vector(n_elements, steps[-1], dtype).numpy(), rank, new, old),
    )


def _same(got: Any, right: np.ndarray) -> bool:
    """To the bit, in the same dtype."""
    return isinstance(got, np.ndarray) and got.dtype == right.dtype and np.array_equal(got, right)


def _shown(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)[:60]
    numbers = ", ".join(f"{v:g}" if isinstance(v, np.floating) else str(v) for v in value.ravel()[:4])
    return f"[{numbers}{', ...' if value.size > 4 else ''}] of shape {value.shape}, {value.dtype}"


def _why(got: Any, right: np.ndarray, due_steps: Sequence[int]) -> str:
    if not isinstance(got, np.ndarray):
        return "load returns the rank's new shard, a flat tensor."
    if got.shape != right.shape:
        return "a new shard has ceil(n_elements / ranks) elements, the last one padded with zeros."
    if got.dtype != right.dtype and np.array_equal(got.astype(right.dtype), right):
        return "numbers change their dtype on the way: what is loaded has the dtype of what was saved."
    if np.allclose(got, right, rtol=1e-6, atol=0):
        return "numbers are rounded on the way: write and read them in the dtype that they have."
    if (right == 0).any() and np.array_equal(got[right > 0], right[right > 0]):
        return "what lies behind the last element is padding: zeros."
    steps = set((got[got > 0] // MARK).tolist())
    if len(steps) > 1 and OLDER[1] in due_steps:
        return f"that is a mixture of two steps: a name that begins with {OLDER[1]} may be that of step {NEWEST}."
    if len(steps) > 1 or len(due_steps) > 1:
        return "that is a mixture of two steps: a step's shards have names of their own, and replace nobody's."
    due = set((right[right > 0] // MARK).tolist())
    if due and steps and due != steps:
        return "that is an older step: the newest whole one is asked."
    return ""


def _why_elsewhere(got: np.ndarray, flat: np.ndarray, rank: int, new: int, old: int) -> str:
    """Right numbers of the right step, in other places than new rank `rank` of `new` has them."""
    n, size, old_size = len(flat), -(-len(flat) // new), -(-len(flat) // max(old, 1))
    start, mine = rank * size, flat[rank * size : rank * size + size]
    if np.array_equal(got[got > 0], mine[mine > 0]):
        return "the padding stands behind the elements, not in front of them."
    dealt = flat[rank::new]
    if np.array_equal(got[got > 0], dealt[dealt > 0]):
        return "elements are dealt like cards: a shard is one piece of the flat vector."
    n_right = int(np.argmin(np.equal(got[: len(mine)], mine)))
    if old and n_right and (start + n_right) % old_size == 0 and not got[n_right:].any():
        return "what lies in the next old shard is missing: a new shard may need parts of two, of three, or more."
    floor = max(1, n // max(old, 1))
    short = [(p // floor) * old_size + p % floor for p in range(start, min(start + size, floor * old))]
    if old and short and max(short) < n and np.array_equal(got[: len(short)], flat[short]):
        return "old shards have ceil(n_elements / ranks) elements, as new ones have."
    return "places of a new shard are places in the flat vector: which old shard holds each, and where in it?"


@check(
    "lesson_07.shards",
    judge=_judge,
    cases=[
        {"old": a, "new": b, "n_elements": n, "slow": s}
        for a, b, n, s in (
            (1, 1, 3, 0),
            (2, 1, 6, 1),
            (2, 2, 5, 0),
            (1, 3, 7, 0),
            (2, 3, 12, 1),
            (8, 6, 1000, 7),
            (6, 4, 7, 5),
        )
    ]
    + [{"old": 12, "new": 5, "n_elements": 31, "slow": 3, "older": OLDER[1]}]
    + [{"old": 3, "new": 5, "n_elements": 4, "slow": 1, "dtype": dtype} for dtype in ("float16", "int64")]
    + [{"old": a, "new": 2, "n_elements": 12, "slow": 1, "before": b} for a, b in ((2, 3), (4, 2))],
    ok="shards are the same to the bit on other ranks, read once, and whole at every moment of a save.",
    hint="hint 1 of exercise 7.6",
    hints={
        "hint 2 of exercise 7.6": "is one write|fails|mixture|older step|whole",
        "hint 1 of exercise 7.6": "places|padded|overlaps|shard",
    },
    look="save 6 elements on 2 ranks, and print what each of 3 ranks reads.",
)
def shards(
    save, load, /, old: int, new: int, n_elements: int, slow: int, dtype: str = "float64", before: int | None = None,
    older: int = OLDER[0],
):  # fmt: skip
    """Steps `older` and NEWEST saved on `old` ranks (the first one on `before`, if given), and loaded on `new` ones at
    every moment of the second save."""
    saved: list[dict[str, Any]] = []
    for n, steps in [(before, [older]), (old, [NEWEST])] if before else [(old, [older, NEWEST])]:
        content = {name: torch.as_tensor(tensor) for run in saved for _, name, tensor, *_ in _in_time(run)}
        args = (save, steps, content, n_elements, min(slow, n - 1), dtype)
        saved.append(observe(partial(simulate, _save, n, args, compute="free", echo=False)))
        if saved[-1]["deadlock"]:
            return {"saved": saved}
    if not any(_in_time(run) for run in saved):
        return {"saved": saved}
    names, contents = _moments(saved, min(slow, old - 1))
    last, before = (load, contents[-1]), (load, contents[:-1])
    return {
        "saved": saved,
        "names": names,
        "whole": observe(lambda: simulate(_load, new, last, compute="free", echo=False)),
        "between": observe(lambda: simulate(_load_often, new, before, compute="free", echo=False)),
    }
