"""Checks of lesson 02: tree, ring and halving-doubling all-reduce, by their sums and by their messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks.check import check, observe, require_waits
from hw_utils.checks.lesson_02 import all_reduce_judge
from hw_utils.checks.lesson_02.algorithm_causes import why_halving, why_ring, why_tree
from hw_utils.checks.lesson_02.ledger_judge import require_halving, require_ring, require_tree
from hw_utils.checks.lesson_02.observed_all_reduce import LARGE, UNTOUCHED, Reduced, share
from hw_utils.core.errors import WorkerFailed
from hw_utils.simulate import simulate


def _tensor(shape: list[int], dtype: str, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(the memory around it, one rank's tensor): a view of the memory's middle."""
    n = math.prod(shape)
    memory = torch.full((2 * n + 8,), UNTOUCHED, dtype=getattr(torch, dtype))
    if layout == "strided":
        tensor = memory[4 : 4 + 2 * n : 2].view(shape)
    elif layout == "transposed":
        tensor = memory[4 : 4 + n].view(shape[::-1]).permute(*reversed(range(len(shape))))
    else:
        tensor = memory[4 : 4 + n].view(shape)
    return memory, tensor


def _worker(rank: int, world_size: int, all_reduce, shape, dtype, layout, seed, calls, times, then) -> dict[str, Any]:
    values, around, moved, mine = [], True, False, torch.empty(0)
    for call in range(calls):
        if call != 1 or then or list(mine.shape) != shape:  # the second call gets the tensor of the first one
            memory, mine = _tensor(shape, then if call and then else dtype, layout)
        mine.copy_(torch.from_numpy(share(rank, shape, seed + call, times)))
        tensor = mine
        returned = all_reduce(tensor)
        values.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        mine.fill_(UNTOUCHED)
        moved = moved or mine.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
        around = around and (moved or bool((memory == UNTOUCHED).all()))
    return {"values": values, "around": around, "moved": moved, "returned": returned}


_EXPLAINED = re.compile(
    "there is no rank|to itself|between isend and wait|has to be contiguous"
)  # errors that a judge has a cause for


def _reduce(
    all_reduce, world_size, n_elements=None, shape=None, dtype="float64", layout="contiguous", seed=0, calls=1, times=1,
    then="",
):  # fmt: skip
    """then: the dtype of all calls but the first, if it is another one."""
    args = (all_reduce, [n_elements] if shape is None else list(shape), dtype, layout, seed, calls, times, then)
    try:
        return observe(lambda: simulate(_worker, world_size, args, compute="free", echo=False))
    except WorkerFailed as error:
        if all(f.kind in ("mismatch", "wire") or _EXPLAINED.search(f.reason) for f in error.failures):
            return {"failed": str(error)}
        raise


def _judge(name: str, *steps: Callable[[Reduced], None]) -> Callable[..., None]:
    def judge(
        data, world_size, n_elements=None, shape=None, dtype="float64", layout="contiguous", seed=0, calls=1, times=1,
        then="",
    ):  # fmt: skip
        shape = [n_elements] if shape is None else shape
        seen = all_reduce_judge.read(data, name, world_size, shape, dtype, layout, seed, calls, times, then)
        for step in steps:
            step(seen)

    return judge


def _sum(why: Callable[[Reduced], str]) -> Callable[[Reduced], None]:
    return lambda seen: all_reduce_judge.require_sum(seen, why)


def _waits(seen: Reduced) -> None:
    require_waits(seen.trace, seen.what)


# 4 ranks come first: with 2 ranks left is right, a half is a chunk, and every mistake looks like another one.
_SIZES = ({"world_size": 1, "n_elements": 3}, *({"world_size": n, "n_elements": 2 * n} for n in (4, 2, 3, 5)))
_SUM = [
    *_SIZES,
    {"world_size": 8, "n_elements": 8},
    {"world_size": 4, "n_elements": 10},
    {"world_size": 5, "n_elements": 3},
    {"world_size": 4, "n_elements": 6, "dtype": "int64", "times": LARGE[4]},
    {"world_size": 3, "shape": [2, 4], "layout": "transposed", "calls": 3},
    {"world_size": 3, "n_elements": 5, "dtype": "float16"},
    {"world_size": 4, "n_elements": 7, "dtype": "int32"},
    {"world_size": 2, "n_elements": 4, "dtype": "bfloat16"},
    {"world_size": 3, "shape": []},
]
_ALL = [
    *_SIZES,
    {"world_size": 4, "n_elements": 10, "dtype": "float32"},
    {"world_size": 4, "n_elements": 3},
    {"world_size": 3, "n_elements": 0},
    {"world_size": 6, "n_elements": 17, "dtype": "int64", "times": LARGE[6]},
    {"world_size": 7, "n_elements": 9, "calls": 3},
    {"world_size": 8, "n_elements": 19},
    {"world_size": 3, "n_elements": 7, "layout": "strided", "dtype": "float32", "calls": 3},
    {"world_size": 4, "shape": [3, 5], "layout": "transposed", "calls": 3},
    # Numbers that these hold exactly, also with drawn digits.
    {"world_size": 3, "n_elements": 5, "dtype": "float16"},
    {"world_size": 4, "n_elements": 7, "dtype": "int32"},
    {"world_size": 3, "n_elements": 7, "dtype": "int16"},
    {"world_size": 2, "n_elements": 4, "dtype": "int8"},
    {"world_size": 2, "n_elements": 5, "dtype": "bfloat16"},
    {"world_size": 2, "shape": []},
    {"world_size": 3, "n_elements": 6, "dtype": "int64", "then": "float64", "calls": 2},
]
_MANY_RANKS = {"world_size": 18, "n_elements": 1, "dtype": "int64", "seed": 1}
_TREE_HINTS = {
    "hint 2 of exercise 2.1c": "contiguous|side by side",
    "hint 3 of exercise 2.1c": "not a power of two|second phase|the broadcast|root has the sum",
    "hint 1 of exercise 2.1c": "no rank can go on|there is no rank|whole sum|in the first phase",
}
_RING_HINTS = {
    "hint 2 of exercise 2.2b": "stands in (send|recv)|with isend|\\bwait\\b|nothing was ever|added to itself",
    "hint 1 of exercise 2.2b": "tensor_split|evenly|multiple of the number|empty|chunks differ|one chunk a step",
    "hint 3 of exercise 2.2b": "second phase|complete chunk|all-gather|chunk index|step is missing|passes on",
}
_ANY_TENSOR = {
    "0-dim tensor|0-d tensor": "a tensor of any shape may come, also a single number without dimensions, as a loss is: "
    "copy_ writes into any, and tensor.view(-1) is one row of any.",
    "ScalarType BFloat16": "numpy has no bfloat16: stay with tensors of torch, which have every dtype.",
}
_RING_ERRORS = {
    **_ANY_TENSOR,
    "IndexError": "there are fewer chunks than ranks, or a number is no chunk's: they are numbered 0 to N - 1, and of "
    "chunk, split and tensor_split only tensor_split(N) always gives N, some of them empty.",
}
_EVERY_WAY = "for 1 to 8 ranks, lengths of every kind, eight dtypes, in place"


@check(
    "lesson_02.tree_sum",
    judge=_judge("tree_all_reduce", _sum(why_tree), _waits),
    cases=_SUM,
    ok="every rank holds the sum, for 1, 2, 3, 4, 5 and 8 ranks.",
    hint="the hints of exercise 2.1c",
    hints=_TREE_HINTS,
    errors=_ANY_TENSOR,
)
def tree_sum(tree_all_reduce, /, **case):
    """The values alone, by whatever messages."""
    return _reduce(tree_all_reduce, **case)


@check(
    "lesson_02.tree_all_reduce",
    judge=_judge("tree_all_reduce", _sum(why_tree), require_tree),
    cases=[*_ALL, _MANY_RANKS],
    ok=f"the sum and the rounds of a tree, {_EVERY_WAY}, and for 18 ranks.",
    hint="the hints of exercise 2.1c",
    hints=_TREE_HINTS,
    errors=_ANY_TENSOR,
)
def tree_all_reduce(tree_all_reduce, /, **case):
    """A binary tree: values, messages and rounds."""
    return _reduce(tree_all_reduce, **case)


@check(
    "lesson_02.ring_sum",
    judge=_judge("ring_all_reduce", _sum(why_ring), _waits),
    cases=_SUM,
    ok="every rank holds the sum, for 1, 2, 3, 4, 5 and 8 ranks.",
    hint="the hints of exercise 2.2b",
    hints=_RING_HINTS,
    errors=_RING_ERRORS,
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
    hints=_RING_HINTS,
    errors=_RING_ERRORS,
)
def ring_all_reduce(ring_all_reduce, /, **case):
    """A ring of chunks: values, neighbours, bytes and rounds."""
    return _reduce(ring_all_reduce, **case)


@check(
    "lesson_02.halving_doubling_all_reduce",
    judge=_judge("halving_doubling_all_reduce", _sum(why_halving), require_halving),
    cases=[
        *({"world_size": n, "n_elements": 2 * n} for n in (1, 4, 2, 8)),
        {"world_size": 4, "n_elements": 11, "dtype": "int64", "times": LARGE[4]},
        {"world_size": 8, "n_elements": 3},
        {"world_size": 4, "shape": [3, 5], "layout": "transposed"},
        {"world_size": 16, "n_elements": 33, "dtype": "int64"},
        {"world_size": 4, "n_elements": 5, "dtype": "int32"},
        {"world_size": 2, "n_elements": 4, "dtype": "float16"},
    ],
    ok="the bytes of a ring in the rounds of a tree, for 1 to 16 ranks.",
    hint="the hints of the bonus exercise",
    hints={
        "hint 2 of the bonus exercise": "stands in send|then wait|second phase|doubling|replaces",
        "hint 1 of the bonus exercise": "both partners|half|partners at distance",
    },
)
def halving_doubling_all_reduce(halving_doubling_all_reduce, /, **case):
    """Recursive halving and doubling: values, bytes and rounds."""
    return _reduce(halving_doubling_all_reduce, **case)
