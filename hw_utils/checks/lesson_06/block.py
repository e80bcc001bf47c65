"""Driver and judge of lesson 06's block: a column layer, GELU, a row layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import gelu

from hw_utils.checks.lesson_06.shards import (
    distance,
    n_ranks,
    random_tensor,
    require_calls,
    require_parts,
    require_results,
    require_unchanged,
    run_ranks,
)
from hw_utils.core.errors import CheckFailed


def drive_block(column_then_row, world_size, d_in, d_hidden, d_out, seed) -> dict[str, Any]:
    """Every rank's output of the block."""
    x, w1, w2 = _block(d_in, d_hidden, d_out, seed)

    def worker(rank: int, context: Any) -> dict[str, Any]:
        right = {"x": x, "w1": w1.chunk(world_size, 1)[rank], "w2": w2.chunk(world_size, 0)[rank]}
        given = {name: tensor.clone() for name, tensor in right.items()}
        column_then_row(*(-tensor for tensor in right.values()), rank, context)  # nobody's: it is all anew
        output = column_then_row(*given.values(), rank, context)
        return {"output": output, "changed": [name for name in right if not torch.equal(given[name], right[name])]}

    return run_ranks(worker, world_size)


def _block(d_in: int, d_hidden: int, d_out: int, seed: int) -> tuple[torch.Tensor, ...]:
    shapes = ((5, d_in), (d_in, d_hidden), (d_hidden, d_out))
    return tuple(random_tensor(100 * seed + k, *shape) for k, shape in enumerate(shapes))


def judge_block(data: Any, *, world_size: int, d_in: int, d_hidden: int, d_out: int, seed: int) -> None:
    what = f"column_then_row with {n_ranks(world_size)}"
    causes = {
        "shape": "the output is (batch, d_out) on every rank: shares of it are added up, not set side by side",
        "partial": "every rank has a share of the output: they are not reduced, or what all_reduce gives is lost",
        "times N": "the block's output is reduced twice",
        "mean": "the shares are summed, not averaged",
    }
    calls = {
        "all_gather more": "no gather is needed: the columns that a rank has are what its rows need",
        "all_reduce more": "one all_reduce at the end is enough",
        "all_reduce fewer": "the shares come together in one all_reduce",
    }
    results, made = require_results(data, what, crash_cause=f"{calls['all_gather more']}; nothing is cut again")
    require_unchanged(results, what)
    x, w1, w2 = _block(d_in, d_hidden, d_out, seed)
    outputs = [r["output"] for r in results]
    for found, cause, output in (
        ("that of two linear layers", "the GELU between them is missing", x @ w1 @ w2),
        ("right with a ReLU between the layers", "the activation is GELU", (x @ w1).relu() @ w2),
        ("right with the approximate GELU", "plain gelu(x) is the exact one", gelu(x @ w1, approximate="tanh") @ w2),
        ("GELU of two linear layers", "GELU acts on the rank's own columns, before they meet its rows",
         gelu(x @ w1 @ w2)),
        ("right with the GELU of w2", "GELU acts on x @ w1, the activations, and on no weight", x @ w1 @ gelu(w2)),
        ("that of an earlier call, with other numbers", "each call computes with what it is given: nothing is kept",
         gelu(x @ w1) @ -w2),
        ("right before another GELU", "nothing comes after the second layer", gelu(gelu(x @ w1) @ w2)),
    ):  # fmt: skip
        if isinstance(outputs[0], np.ndarray) and distance(outputs[0], output.numpy()) <= 1e-10:
            raise CheckFailed(f"{what}: the output is {found}", cause=cause)
    _require_no_mix(outputs, x, w1, w2, what)
    if any(call["call"] == "all_gather" for call in made):
        causes[""] = causes["times N"] = f"{calls['all_gather more']}; w1 and w2 are cut already"
    require_parts(outputs, [(gelu(x @ w1) @ w2).numpy()] * world_size, f"{what}: the output", 1e-10, causes)
    if world_size > 1:
        require_calls(made, world_size, {"all_reduce": 2}, f"{what}, called twice,", calls)
        n_due = outputs[0].size
        wrong = next((call for call in made if call["numel"] != n_due), None)
        if wrong:
            raise CheckFailed(
                f"{what}: the output is right, but rank {wrong['rank']} brings {wrong['numel']} numbers to all_reduce; "
                f"its share of the output, (batch, d_out), has {n_due}",
                cause="the weights stay where they are: each rank multiplies by its own, and only its share of the "
                "output travels",
            )


def _require_no_mix(outputs: list, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, what: str) -> None:
    n = len(outputs)
    if n == 1 or not all(isinstance(output, np.ndarray) for output in outputs):
        return
    columns, rows = w1.chunk(n, 1), w2.chunk(n, 0)
    hidden = gelu(sum(x @ mine for mine in columns))
    examples = [gelu(part @ a) @ b for part, a, b in zip(x.tensor_split(n), columns, rows)]
    for found, cause, right in (
        ("GELU of the sum of all ranks' x @ w1", "the ranks' x @ w1 are different columns, which nobody adds: the "
         "all_reduce comes after w2", [hidden @ mine for mine in rows]),
        ("made of GELU of the sum of all ranks' x @ w1", "the ranks' x @ w1 are different columns, which nobody adds: "
         "one all_reduce, after w2, is enough", [sum(hidden @ mine for mine in rows)] * n),
        ("each rank's own examples through its own weights", "every rank has the whole batch: cut weights, not x",
         [torch.cat(examples)] * n),
    ):  # fmt: skip
        if all(distance(output, mine.numpy()) <= 1e-10 for output, mine in zip(outputs, right)):
            raise CheckFailed(f"{what}: the output is {found}", cause=cause)
