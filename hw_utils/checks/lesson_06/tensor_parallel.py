"""Drivers and judges of lesson 06's tensor-parallel layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.lesson_06.shards import (
    distance,
    kept_tensors,
    random_tensor,
    require_calls,
    require_parts,
    require_results,
    run_ranks,
)
from hw_utils.core.errors import CheckFailed

_LIMIT = {"float32": 1e-5, "float64": 1e-10}


def _problem(d_in: int, d_out: int, batch: int, dtype: str, seed: int) -> tuple[torch.Tensor, ...]:
    """weight (d_in, d_out), an input that is forgotten, x (batch, d_in), and the gradient of the output."""
    shapes = ((d_in, d_out), (batch, d_in), (batch, d_in), (batch, d_out))
    return tuple(random_tensor(100 * seed + k, *shape, dtype=dtype) for k, shape in enumerate(shapes))


def drive_layer(Layer, world_size, d_in, d_out, batch, dtype, seed, backward) -> dict[str, Any]:
    """Every rank's layer: the weight it keeps, its output, and both gradients if `backward`."""
    weight, other, x, grad_output = _problem(d_in, d_out, batch, dtype, seed)
    weights: list[Any] = [None] * world_size
    stages = ["forward"] * world_size

    def worker(rank: int, context: Any) -> dict[str, Any]:
        layer = Layer(weight, rank, context, "lin")
        weights[rank] = layer.weight
        given = {"x": x.clone(), "grad_output": grad_output.clone()}
        if backward:
            layer.forward(other.clone())
            stages[rank] = "backward"
            layer.backward(grad_output.flip(0))
            stages[rank] = "forward"
        result = {"output": layer.forward(given["x"])}
        if backward:
            Layer(weight, rank, context, "another").forward(other.clone())
            stages[rank] = "backward"
            result["grad_input"] = layer.backward(given["grad_output"])
            result["weight_grad"] = getattr(layer, "weight_grad", None)
        kept = layer.weight.untyped_storage().nbytes() if isinstance(layer.weight, torch.Tensor) else 0
        whole = [name for name, value in kept_tensors(layer).items() if _has_whole(value, weight)]
        changed = [
            name for name, right in (("x", x), ("grad_output", grad_output)) if not torch.equal(given[name], right)
        ]
        tracked = [
            name
            for name, tensor in {**result, "weight": layer.weight}.items()
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad
        ]
        return {**result, "kept_bytes": kept, "tracked": tracked, "whole": whole, "changed": changed}

    return {**run_ranks(worker, world_size), "weights": weights, "stages": stages}


def _has_whole(value: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether it is a view of the whole weight, or a copy of it."""
    memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    whole = torch.empty(0, dtype=torch.uint8).set_(weight.untyped_storage())
    return torch.equal(memory, whole)


def _judge_layer(data: Any, axis: int, causes: dict[str, dict[str, str]], calls: dict, case: dict) -> None:
    n, limit = case["world_size"], _LIMIT[case["dtype"]]
    what = f"{'backward' if case['backward'] else 'forward'} with {n} rank{'s' if n > 1 else ''}, {case['dtype']}"
    weight, other, x, grad_output = (
        t.double() for t in _problem(*(case[k] for k in ("d_in", "d_out", "batch", "dtype", "seed")))
    )
    shards = [part.numpy() for part in weight.chunk(n, axis)]
    made_before = [w for w in data["weights"] if w is not None]  # after a crash, those of the ranks that began
    if made_before:
        first = len(shards) - len(made_before)  # ranks begin in falling order
        require_parts(data["weights"][first:], shards[first:], f"{what}: the weight", limit, causes["weight"])
    stage = data["stages"][data["crash"]["rank"]] if "crash" in data else "forward"
    results, made = require_results(data, what, crash_cause=causes["crash"][stage])
    if len(made_before) != n:
        raise CheckFailed(f"{what}: {len(made_before)} of {n} ranks have a weight")
    _require_little_kept(results, case, n, what)
    _require_unchanged(results, what)
    _require_by_hand(results, what)
    if case["backward"]:
        both = [part.numpy() for part in (x.T @ grad_output + other.T @ grad_output.flip(0)).chunk(n, axis)]
        _require_not_added(results, both, limit, what)
        whole = (grad_output @ weight.T).numpy()
        grads = [part.numpy() for part in (x.T @ grad_output).chunk(n, axis)]
        parts = (("weight_grad", grads, "the weight gradient"), ("grad_input", [whole] * n, "the input gradient"))
    else:
        parts = (("output", [(x @ weight).numpy()] * n, "the output"),)
    for name, expected, words in parts:
        require_parts([r[name] for r in results], expected, f"{what}: {words}", limit, causes[name])
    if n > 1:
        require_calls(made, n, calls, what, causes["calls"])
        _require_small_parts(made, axis, case, what)


def _require_small_parts(made: list, axis: int, case: dict, what: str) -> None:
    """What is gathered is a rank's part of the output (column) or of the input gradient (row), not of the weight."""
    due = case["batch"] * case["d_out" if axis else "d_in"] // case["world_size"]
    for call in made:
        if call["call"] == "all_gather" and call["numel"] != due:
            raise CheckFailed(
                f"{what}: rank {call['rank']} brings {call['numel']} numbers to all_gather, its part has {due}",
                cause="the weight stays where it is: multiply first, then gather the parts of the product",
            )


def _require_by_hand(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        if result["tracked"]:
            raise CheckFailed(
                f"{what}: autograd follows {', '.join(result['tracked'])} on rank {rank} (requires_grad)",
                cause="no autograd and no requires_grad here: both gradients are matrix products, written by hand",
            )


def _require_not_added(results: list, both: list, limit: float, what: str) -> None:
    for rank, (result, added) in enumerate(zip(results, both)):
        if isinstance(result["weight_grad"], np.ndarray) and distance(result["weight_grad"], added) <= limit:
            raise CheckFailed(
                f"{what}: the weight gradient on rank {rank} is that of two backward passes together",
                cause="each backward leaves its own gradient: assign self.weight_grad, do not add to it",
            )


def _require_little_kept(results: list, case: dict, n: int, what: str) -> None:
    local = case["d_in"] * case["d_out"] // n * (4 if case["dtype"] == "float32" else 8)
    for rank, result in enumerate(results):
        if not result["kept_bytes"] <= local:
            raise CheckFailed(
                f"{what}: rank {rank} keeps {result['kept_bytes']} bytes alive for a weight of {local}",
                cause="a slice is a view of the whole weight; keep a copy of the slice (.clone())",
            )
        if result["whole"] and n > 1:
            raise CheckFailed(
                f"{what}: self.{result['whole'][0]} keeps the whole weight alive on rank {rank}",
                cause="1/N of the weight is kept: a copy of the slice (.clone()), and nothing of the whole",
            )


def _require_unchanged(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        if result["changed"]:
            raise CheckFailed(
                f"{what}: {result['changed'][0]} itself is changed on rank {rank}",
                cause="the caller's tensors stay as they are: *= and copy_ write into them, so work on a copy",
            )


_GATHERED = "the ranks' parts are gathered and put side by side, in rank order, along the feature dimension"
_COLUMN = {
    "crash": {
        "forward": "x (batch, d_in) meets the rank's own columns (d_in, d_out / N)",
        "backward": "the upstream gradient has all columns, the weight only the rank's own: slice the gradient",
    },
    "weight": {
        "shape": "rank r keeps d_out / N whole columns: (d_in, d_out / N)",
        "other": "the slice is another rank's: rank 0 has the first columns",
        "": "rank r keeps one run of neighbouring columns, rank 0 the first",
    },
    "output": {
        "shape": _GATHERED,
        "order": _GATHERED,
        "partial": "the gathered parts are set side by side, not added",
        "times N": "the gathered parts are the whole output; nothing is summed after that",
        "": _GATHERED,
    },
    "weight_grad": {
        "shape": "the upstream gradient is not sliced: only the rank's own columns meet its weight",
        "other": "the slice of the upstream gradient is another rank's",
        "": "it is made of the last forward's input, kept on the object and not on the class, and of the rank's own "
        "columns of the upstream gradient",
        "times N": "the weight gradient is the rank's own: nothing is summed over ranks",
        "summed": "the weight gradient is the rank's own: nothing is summed over ranks",
    },
    "grad_input": {
        "partial": "each rank has its own columns' share of the input gradient: it is not reduced",
        "times N": "it is reduced twice, or every rank adds the whole gradient",
        "mean": "the shares are summed, not averaged",
        "shape": "forgotten transpose, or a gather where a sum belongs",
        "": "every column adds its share to the input gradient",
    },
    "calls": {
        "all_reduce more": "it is reduced more than once",
        "all_reduce none": "in the forward nothing is summed: the columns are set side by side",
        "all_gather more": "the output is gathered more than once",
        "all_reduce fewer": "the sum over ranks is one all_reduce",
        "all_gather fewer": "the columns come together in one all_gather",
    },
}
_SLICED = "a rank's rows meet its own slice of the input only: slice x"
_ROW = {
    "crash": {
        "forward": _SLICED,
        "backward": "the upstream gradient (batch, d_out) meets the rank's (d_in / N, d_out)",
    },
    "weight": {
        "shape": "rank r keeps d_in / N whole rows: (d_in / N, d_out)",
        "other": "the slice is another rank's: rank 0 has the first rows",
        "": "rank r keeps one run of neighbouring rows, rank 0 the first",
    },
    "output": {
        "partial": "every rank has a share of every output: they are not reduced",
        "times N": "the whole product is added on every rank: it is counted N times",
        "mean": "the shares are summed, not averaged",
        "shape": "a gather where a sum belongs: every rank has a share of every output",
        "": _SLICED,
    },
    "weight_grad": {
        "shape": "the cached input is not sliced: only the rank's own slice met its rows",
        "other": "the cached input is the slice of another rank: slice by rank, and cache it on the object, "
        "not on the class",
        "times N": "the upstream gradient is already the same on all ranks: nothing is summed",
        "summed": "the weight gradient is the rank's own: nothing is summed over ranks",
        "mean": "the upstream gradient is already the same on all ranks: nothing is averaged",
        "": "the cached input is of the wrong shard, another forward or another layer: cache it on the object, not on "
        "the class",
        "not rank 0": "the cached input is of the wrong shard: rank 0's slice on every rank",
    },
    "grad_input": {
        "shape": _GATHERED,
        "order": _GATHERED,
        "times N": "each rank has its own part of the input gradient: parts are gathered, not summed",
        "": "each rank has its own part of the input gradient; " + _GATHERED,
    },
    "calls": {
        "all_reduce more": "it is reduced more than once: the upstream gradient is already the same on all ranks",
        "all_gather more": "it is gathered more than once",
        "all_gather none": "in the forward nothing is gathered: the ranks' shares are summed by one all_reduce",
        "all_reduce fewer": "the sum over ranks is one all_reduce",
        "all_gather fewer": "the parts come together in one all_gather",
    },
}


def judge_column(data: Any, **case: Any) -> None:
    calls = {"all_gather": 3, "all_reduce": 2} if case["backward"] else {"all_gather": 1}
    _judge_layer(data, 1, _COLUMN, calls, case)


def judge_row(data: Any, **case: Any) -> None:
    calls = {"all_reduce": 3, "all_gather": 2} if case["backward"] else {"all_reduce": 1}
    _judge_layer(data, 0, _ROW, calls, case)
