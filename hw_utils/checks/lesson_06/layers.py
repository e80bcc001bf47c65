"""Checks of lesson 06: a communication layer on threads, data parallelism, tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.checks.check import check
from hw_utils.checks.lesson_06.block import drive_block, judge_block
from hw_utils.checks.lesson_06.communication_layer.explored_orders import outcomes, raised_alone
from hw_utils.checks.lesson_06.communication_layer.outcomes_judge import IN_RANKS, judge_outcomes, judge_unknown_op
from hw_utils.checks.lesson_06.communication_layer.race_causes import explain_gather, explain_reduce
from hw_utils.checks.lesson_06.data_parallel import drive_dp, judge_dp
from hw_utils.checks.lesson_06.shards import strict
from hw_utils.checks.lesson_06.splits import judge_split
from hw_utils.checks.lesson_06.tensor_models import drive_parallelize, judge_parallelize
from hw_utils.checks.lesson_06.tensor_parallel import drive_layer, judge_column, judge_row
from hw_utils.core.source.unseen_calls import STARTED, UNSEEN

_RACES = [
    {"world_size": 1, "calls": 2, "n_interleavings": 1},
    {"world_size": 2, "calls": 2, "n_interleavings": 1},  # the plainest orders: what is wrong in them is told at once
    {"world_size": 3, "calls": 2, "n_interleavings": 1},
    {"world_size": 2, "calls": 2, "n_interleavings": 500},
    {"world_size": 3, "calls": 2, "n_interleavings": 500},
]


_RACE_HINTS = {
    "hint 2 of exercise 6.1": "under one lock|removed the buffer|Clear between",
    "hint 3 of exercise 6.1": "no rank can go on",
    "hint 1 of exercise 6.1": "between writing and reading|second barrier|list.rank|give each rank copies"
    "|starts afresh",
}
_STORY = "read the steps above upwards: which line reads what another rank has not written, or still uses?"


def _judge_gather(data: Any, **case: Any) -> None:
    judge_outcomes(data, "all_gather", case, explain_gather(case["world_size"]))


@check(
    "lesson_06.all_gather",
    judge=strict(_judge_gather),
    cases=_RACES,
    ok="all_gather is right in every interleaving that was tried",
    hints=_RACE_HINTS,
    hint="hint 1 of exercise 6.1",
    errors={f"{STARTED}|{UNSEEN}": IN_RANKS},
    look=_STORY,
    in_orders=True,
)
def all_gather(DistributedContext, /, **case):
    """Runs two all_gathers in a row, on one group_id, under many interleavings."""
    return outcomes(DistributedContext, "all_gather", [("weights",)] * case["calls"], case)


def _judge_reduce(data: Any, **case: Any) -> None:
    judge_outcomes(data, "all_reduce", case, explain_reduce(case["world_size"], case["ops"]))
    judge_unknown_op(data["unknown op"], case["world_size"])


@check(
    "lesson_06.all_reduce",
    judge=strict(_judge_reduce),
    cases=[{**case, "ops": ["sum", "mean"]} for case in _RACES],
    ok="all_reduce is right in every interleaving that was tried",
    hints=_RACE_HINTS,
    hint="hint 1 of exercise 6.1",
    errors={f"{STARTED}|{UNSEEN}": IN_RANKS},
    look=_STORY,
    in_orders=True,
)
def all_reduce(DistributedContext, /, **case):
    """Runs all_reduces in a row, on one group_id, under many interleavings; then one with an unknown op."""
    ops = case["ops"]
    args = [("loss", *_said(ops[k % len(ops)])) for k in range(case["calls"])]
    found = outcomes(DistributedContext, "all_reduce", args, case)
    unknown = {op: raised_alone(DistributedContext, case["world_size"], op) for op in ("max", "average", "me", "MEAN")}
    return {**found, "unknown op": unknown}


def _said(op: str) -> tuple[str, ...]:
    """A sum is what all_reduce gives if it is told nothing."""
    return () if op == "sum" else (op,)


_EVEN = [
    {"n_examples": n, "world_size": size, "n_steps": 3, "seed": 5}
    for n, size in [(4, 1), (4, 2), (12, 3), (8, 4), (20, 5), (12, 6), (14, 7), (16, 8), (18, 9), (20, 10)]
]


def _apart(n_examples: int, world_size: int) -> list[dict]:
    """A case in which every rank begins with weights of its own, and steps with Adam: an update of the mean gradient
    leaves them as far apart, and it is not the mean of their updates."""
    return [{"n_examples": n_examples, "world_size": world_size, "n_steps": 2, "seed": 9, "apart": True}]


def _resized(sizes: list[int], world_size: int) -> dict:
    """A case in which each step has another number of examples."""
    return {"n_examples": max(sizes), "world_size": world_size, "n_steps": len(sizes), "seed": 5, "sizes": sizes}


def _begun(n_examples: int, world_size: int) -> dict:
    """A case in which gradients of something else stand in p.grad when the first step comes."""
    return {"n_examples": n_examples, "world_size": world_size, "n_steps": 2, "seed": 5, "begun": 3.0}


@check(
    "lesson_06.split_batch",
    judge=strict(judge_split),
    cases=[
        {"n_examples": n, "world_size": size}
        for n, size in [(6, 1), (8, 2), (12, 4), (10, 4), (15, 11), (3, 8), (200, 7), (1001, 40)]
    ]
    + [{"n_examples": 5, "world_size": 2, "n_dims": 1}],
    ok="no example is lost or doubled, and the parts' sizes differ by at most 1",
    hint="hint 1 of exercise 6.2a",
    look="print where each rank starts and where it ends; one ends where the next one starts.",
)
def split_batch(split_batch, /, n_examples, world_size, n_dims=2):
    """The part of every rank; row i of x is [i, -i], or i alone."""
    x = torch.arange(n_examples, dtype=torch.float64)[:, None] * torch.tensor([1.0, -1.0])
    x = x[:, 0] if n_dims == 1 else x
    parts = [split_batch(x, rank, world_size) for rank in range(world_size)]
    return [p if p is None or isinstance(p, torch.Tensor) else {"unknown": type(p).__name__} for p in parts]


@check(
    "lesson_06.dp_step",
    judge=strict(judge_dp),
    cases=[*_EVEN, *_apart(12, 3), _begun(8, 2), _resized([4, 12, 8], 2)],
    ok="N = 1 to 10 ranks follow one process with the whole batch, with one all_reduce of the gradient a step",
    hints={
        "hint 2 of exercise 6.2b": "flat vector|p.numel|p.grad|where it came from|own shard: every",
        "hint 1 of exercise 6.2b": "sum is used|divided by N twice|not their sum",
    },
    hint="hint 1 of exercise 6.2b",
    look="compare p.grad on rank 0 after the all_reduce with the gradient of the whole batch on one process.",
)
def dp_step(dp_step, /, n_examples, world_size, n_steps, seed, apart=False, begun=0.0, sizes=None):
    """A few steps on every rank's shard: losses, and the weights after."""
    return drive_dp(dp_step, n_examples, world_size, n_steps, seed, apart, begun, sizes)


@check(
    "lesson_06.weighted_dp_step",
    judge=strict(judge_dp),
    cases=[
        {"n_examples": n, "world_size": size, "n_steps": 3, "seed": 6}
        for n, size in [(7, 2), (6, 2), (10, 4), (11, 3), (3, 4), (1, 6)]
    ]
    + [*_apart(7, 3), _begun(7, 2), _resized([7, 3, 8], 2)],
    ok="uneven and empty shards follow one process with the whole batch, with one all_reduce of the gradient a step",
    hints={
        "hint 1 of exercise 6.2c": "nan|has 0 examples|empty shard|that not all ranks call",
        "hint 2 of exercise 6.2c": "weigh each|number of all examples|by their number|in the same vector|after the sum"
        "|must count the|as large as the largest",
        "hint 2 of exercise 6.2b": "p.numel|p.grad|where it came from",
    },
    hint="hint 2 of exercise 6.2c",
    look="work out for shards of 2 and 1 examples, by hand, what each rank's vector must hold for the sum to be right.",
)
def weighted_dp_step(weighted_dp_step, /, n_examples, world_size, n_steps, seed, apart=False, begun=0.0, sizes=None):
    """The same on shards of different sizes, empty ones included."""
    return drive_dp(weighted_dp_step, n_examples, world_size, n_steps, seed, apart, begun, sizes)


def _layer_cases(axis: int, **settings: Any) -> list[dict]:
    """N divides only what is cut, so that who looks at the other size shows."""
    large = [(4, 504, 512) if axis else (4, 512, 504)]  # a weight that nobody overlooks, in whatever form it is kept
    sizes = ((1, 3, 4), (2, 7, 6), (4, 6, 8), (8, 7, 16)) if axis else ((1, 3, 4), (2, 6, 7), (4, 8, 6), (8, 16, 7))
    cases = [
        {"world_size": n, "d_in": d_in, "d_out": d_out, "batch": 5, "dtype": dtype, **settings}
        for dtype in ("float64", "float32")
        for n, d_in, d_out in [*sizes, *large[: dtype == "float64"]]
    ]
    return [*cases, {**cases[1], "stepped": True}]


def _forward_cases(axis: int) -> list[dict]:
    cases = _layer_cases(axis, seed=3, backward=False)
    uneven = [(3, 6, 4), (4, 8, 6), (4, 8, 2)] if axis else [(3, 4, 6), (4, 6, 8), (4, 2, 8)]
    refused = [
        {**cases[0], "world_size": n, "d_in": d_in, "d_out": d_out, "divides": False} for n, d_in, d_out in uneven
    ]
    return [*cases[:4], *refused, *cases[4:]]


_COLUMN_HINTS = {
    "hint 3 of exercise 6.3a": "on the object and not on the class|objects and ranks share it",
    "hint 2 of exercise 6.3a": "cannot be multiplied|is kept on self|upstream gradient|slice the gradient|x is whole"
    "|x.T @ g|share of the|columns' share",
    "hint 1 of exercise 6.3a": "clone|constructor|columns|the transpose|slice is another|no second copy",
}
_ROW_HINTS = {
    "hint 3 of exercise 6.3a": "on the object|objects and ranks share it",
    "hint 1 of exercise 6.3b": "examples are cut|slice x|slice of x|upstream gradient|own slice|wrong shard"
    "|share of every output|not reduced",
    "hint 2 of exercise 6.3b": "gathered|part of the input gradient",
    "hint 2 of exercise 6.3a": "x.T @ g|is kept on self",
    "hint 1 of exercise 6.3a": "clone|constructor|rows|the transpose|slice is another|no second copy",
}
_BY_EYE = (
    "print the shapes of x, of self.weight and of what is gathered or reduced, and write the product out for N = 2."
)


@check(
    "lesson_06.column_forward",
    judge=strict(judge_column),
    cases=_forward_cases(1),
    ok="N = 1, 2, 4, 8: each rank keeps 1/N of the columns and has the plain layer's output, with one all_gather",
    hints=_COLUMN_HINTS,
    hint="hint 1 of exercise 6.3a",
    look=_BY_EYE,
)
def column_forward(ColumnParallelLinear, /, **case):
    """One forward on every rank: the weight it keeps, and its output."""
    return drive_layer(ColumnParallelLinear, 1, **case)


@check(
    "lesson_06.column_backward",
    judge=strict(judge_column),
    cases=_layer_cases(1, seed=4, backward=True),
    ok="N = 1, 2, 4, 8: both gradients are the plain layer's, with one all_reduce",
    hints=_COLUMN_HINTS,
    hint="hint 1 of exercise 6.3a",
    look=_BY_EYE,
)
def column_backward(ColumnParallelLinear, /, **case):
    """Two forwards and the backward of the second: both gradients."""
    return drive_layer(ColumnParallelLinear, 1, **case)


@check(
    "lesson_06.row_forward",
    judge=strict(judge_row),
    cases=_forward_cases(0),
    ok="N = 1, 2, 4, 8: each rank keeps 1/N of the rows and has the plain layer's output, with one all_reduce",
    hints=_ROW_HINTS,
    hint="hint 1 of exercise 6.3b",
    look=_BY_EYE,
)
def row_forward(RowParallelLinear, /, **case):
    """One forward on every rank: the weight it keeps, and its output."""
    return drive_layer(RowParallelLinear, 0, **case)


@check(
    "lesson_06.row_backward",
    judge=strict(judge_row),
    cases=_layer_cases(0, seed=4, backward=True),
    ok="N = 1, 2, 4, 8: both gradients are the plain layer's, with one all_gather",
    hints=_ROW_HINTS,
    hint="hint 1 of exercise 6.3b",
    look=_BY_EYE,
)
def row_backward(RowParallelLinear, /, **case):
    """Two forwards and the backward of the second: both gradients."""
    return drive_layer(RowParallelLinear, 0, **case)


@check(
    "lesson_06.column_then_row",
    judge=strict(judge_block),
    cases=[{"world_size": n, "d_in": 3, "d_hidden": 8, "d_out": 2, "seed": 7} for n in (1, 2, 4, 8)],
    ok="the block's output is the plain one's, with one all_reduce and no all_gather",
    hint="hint 1 of exercise 6.3c",
    look="take N = 2, and write down the shapes of x @ w1 and of what w2 makes of it on both ranks.",
)
def column_then_row(column_then_row, /, **case):
    """One forward of the block on every rank."""
    return drive_block(column_then_row, **case)


@check(
    "lesson_06.parallelize",
    judge=strict(judge_parallelize),
    cases=[
        {"world_size": 1, "d_hidden": 8, "layers": ["lin1", "lin2"], "n_steps": 4, "seed": 8},
        {"world_size": 2, "d_hidden": 8, "layers": ["lin1", "lin2"], "n_steps": 4, "seed": 8, "by_rows": True},
        {"world_size": 4, "d_hidden": 8, "layers": ["lin2"], "n_steps": 4, "seed": 8},
        {"world_size": 8, "d_hidden": 16, "layers": ["lin1", "lin2"], "n_steps": 4, "seed": 8},
        {"world_size": 4, "d_hidden": 6, "layers": ["lin1", "lin2"], "n_steps": 1, "seed": 8},
        # weights that nobody overlooks, in whatever form they are kept
        {"world_size": 4, "d_hidden": 80_000, "layers": ["lin1", "lin2"], "n_steps": 1, "seed": 8},
    ],
    ok="1, 2, 4 and 8 ranks train like the plain model, each with 1/N of the weights",
    hints={
        "hint 1 of exercise 6.4": "cannot be multiplied|nn.Linear stores",
        "hint 2 of exercise 6.4": "deepcopy|views of the plain|setattr",
    },
    errors={
        "as child module|empty parameter list": "a model's layer is a module, which yours is not: Handmade(layer) "
        "makes one of it, with layer.weight as its parameter."
    },
    hint="hint 1 of exercise 6.4",
    look="compare models[0](x) with model(x), then each layer's weight with its slice of the plain one.",
)
def parallelize(parallelize, ColumnParallelLinear, RowParallelLinear, /, **case):
    """A few training steps of the models that it makes, or what it raises for a size that N does not divide."""
    return drive_parallelize(parallelize, ColumnParallelLinear, RowParallelLinear, **case)
