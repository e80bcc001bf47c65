"""Drivers and judges of lesson 06's tensor-parallel layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.kept_bytes import is_here, kept_tensors, look_at, taken, values_kept
from hw_utils.checks.lesson_06.kept_weights import (
    LARGE_BYTES,
    bytes_of,
    require_little_kept,
    require_little_taken,
    require_no_copy,
)
from hw_utils.checks.lesson_06.layer_causes import (
    COLUMN,
    EARLIER,
    EVERY_NTH,
    ROW,
    crash_cause,
    known_mistakes,
    shape_causes,
)
from hw_utils.checks.lesson_06.shards import (
    DTYPES,
    distance,
    part_on,
    random_tensor,
    require_layers_calls,
    require_parts,
    require_results,
    require_unchanged,
    require_weights_dtype,
    run_ranks,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.material.kept.tensors import n_found
from hw_utils.material.kept.values import depends

_LIMIT = {"float32": 1e-5, "float64": 1e-10}


def _problem(d_in: int, d_out: int, batch: int, dtype: str, seed: int) -> tuple[torch.Tensor, ...]:
    """weight (d_in, d_out), an input that is forgotten, x (batch, d_in), and the gradient of the output."""
    shapes = ((d_in, d_out), (batch, d_in), (batch, d_in), (batch, d_out))
    return tuple(random_tensor(100 * seed + k, *shape, dtype=dtype) for k, shape in enumerate(shapes))


def _in_more_memory(weight: torch.Tensor) -> torch.Tensor:
    """The same with a row behind it in its memory: who keeps all of it, copied nothing."""
    return torch.cat([weight, torch.zeros_like(weight[:1])])[:-1]


def _moved(d_in: int, d_out: int, dtype: str, seed: int) -> torch.Tensor:
    """The weight after what a step of an optimizer is: other numbers in the same memory."""
    return random_tensor(100 * seed + 50, d_in, d_out, dtype=dtype)


def _put(layer: Any, weight: torch.Tensor) -> None:
    if is_here(layer):
        torch.as_tensor(layer.weight).detach().copy_(weight)
    else:  # what is set there is put into the memory that is there
        layer.weight = weight.numpy() if isinstance(layer.weight, np.ndarray) else weight


def drive_layer(
    Layer, axis, world_size, d_in, d_out, batch, dtype, seed, backward, divides=True, stepped=False
) -> dict[str, Any]:
    """Every rank's layer: the weight it keeps, its output, and both gradients if `backward`; what its constructor
    raises if the world size does not divide what is cut.

    stepped: the numbers of `weight` on the layer are changed before its last forward.
    """
    if not divides:
        weight = torch.ones(d_in, d_out, dtype=DTYPES[dtype])
        return run_ranks(lambda rank, context: {"raised": _what_it_raises(Layer, weight, rank, context)}, world_size)
    problem, is_large = _problem(d_in, d_out, batch, dtype, seed), bytes_of(d_in, d_out, dtype) >= LARGE_BYTES
    before = look_at(Layer, world_size) if is_large else None
    weights: list[Any] = [None] * world_size
    stages = ["constructor"] * world_size

    def worker(rank: int, context: Any) -> dict[str, Any]:
        weight, other, x, grad_output = problem
        weight = part_on(rank, weight, world_size, axis, seed)
        if axis == 0:  # of x a rank has use for the features that meet its rows
            other, x = (part_on(rank, t, world_size, 1, seed + 1 + k) for k, t in enumerate((other, x)))
        given = {"x": x.clone(), "grad_output": grad_output.clone(), "weight": _in_more_memory(weight)}
        if not is_large:  # what is kept of another layer is none of this one's
            Layer(-weight, rank, context, "lin")
        layer = Layer(given["weight"], rank, context, "lin")
        weights[rank] = np.array(layer.weight) if isinstance(layer.weight, np.ndarray) else layer.weight
        if isinstance(layer.weight, torch.Tensor):
            weights[rank] = layer.weight.detach().clone()
        stages[rank] = "forward"
        if backward:
            first = [layer.forward(other.clone())]
            stages[rank] = "backward"
            first.append(layer.backward(grad_output.flip(0)))
            was = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in first]
            stages[rank] = "forward"
        twice = _copies(layer) if stepped else []
        if stepped and isinstance(weights[rank], torch.Tensor | np.ndarray):
            _put(layer, _moved(d_in, d_out, dtype, seed).chunk(world_size, axis)[rank])
        result = {"output": layer.forward(given["x"])}
        followed = _followed(layer)  # a graph may be gone after backward
        if backward:
            Layer(weight.clone(), rank, context, "another").forward(other.clone())
            stages[rank] = "backward"
            result["grad_input"] = layer.backward(given["grad_output"])
            named = zip(("forward", "backward"), first, was)
            result["rewritten"] = [n for n, t, old in named if t is not old and not torch.equal(t, old)]
            result["weight_grad"] = getattr(layer, "weight_grad", None)
        kept = layer.weight.untyped_storage().nbytes() if isinstance(layer.weight, torch.Tensor) else 0
        foreign = _foreign(weight, layer.weight) if world_size > 1 and not stepped else weight.new_empty(0)
        whole = [name for name, value in kept_tensors(layer).items() if n_found(foreign, value) > 2]
        rights = {"x": x, "grad_output": grad_output, "weight": weight}
        changed = [name for name, right in rights.items() if not torch.equal(given[name], right)]
        seen_by_all = {**result, "weight": layer.weight, "x": given["x"], "grad_output": given["grad_output"]}
        tracked = [n for n, t in seen_by_all.items() if isinstance(t, torch.Tensor) and t.requires_grad]
        tracked += [f"self.{n}" for n in sorted({*followed, *_followed(layer)} - {*tracked})]
        seen = {"kept_bytes": kept, "tracked": tracked, "whole": whole, "twice": twice, "changed": changed}
        looks_again = world_size == 2 and dtype == "float64" and not stepped
        return {**result, **seen, "of_others": _of_others(Layer, axis, weight, rank, context) if looks_again else ""}

    made = run_ranks(worker, world_size, refuses=lambda rank: stages[rank] == "constructor")
    n_taken = taken(before, look_at(Layer, is_at_rest=True)) if is_large else None
    return {**made, "weights": weights, "stages": stages, "taken": n_taken}


def _followed(layer: Any) -> list[str]:
    """What hangs on the layer and autograd follows."""
    return [name for name, tensor in kept_tensors(layer).items() if tensor.requires_grad]


def _of_others(Layer: Any, axis: int, weight: torch.Tensor, rank: int, context: Any) -> str:
    """What a new layer holds that changes with other ranks' part of the weight, as it is shown."""
    n, looks = context.world_size, []
    for drawn in (0, 0, 0, 1, 1):
        parts = list(random_tensor(7000 + drawn, *weight.shape).to(weight.dtype).chunk(n, axis))
        parts[rank] = weight.chunk(n, axis)[rank]
        looks.append(values_kept(Layer(torch.cat(parts, axis), rank, context, "again"), Layer))
    return depends(looks)


def _what_it_raises(Layer: Any, weight: torch.Tensor, rank: int, context: Any) -> str:
    try:
        Layer(weight, rank, context, "lin")
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _copies(layer: Any) -> list[str]:
    """The names of all but the first memory in which the numbers of the layer's weight lie."""
    mine = torch.as_tensor(layer.weight).detach() if isinstance(layer.weight, torch.Tensor | np.ndarray) else None
    if mine is None or mine.numel() < 3:
        return []
    found: dict[int, str] = {}
    for name, tensor in sorted(kept_tensors(layer).items(), key=lambda one: one[0] != "weight"):
        if n_found(mine, tensor) == mine.numel():
            found.setdefault(tensor.untyped_storage().data_ptr(), name)
    return list(found.values())[1:]


def _foreign(weight: torch.Tensor, mine: Any) -> torch.Tensor:
    """The numbers of the weight that are not in the rank's own part."""
    mine = torch.from_numpy(mine) if isinstance(mine, np.ndarray) else mine
    own = mine.detach().flatten() if isinstance(mine, torch.Tensor) else weight.new_empty(0)
    return weight.flatten()[~torch.isin(weight.flatten(), own.to(weight.dtype))]


def _judge_layer(data: Any, axis: int, causes: dict[str, dict[str, str]], calls: dict, case: dict) -> None:
    n, limit = case["world_size"], _LIMIT[case["dtype"]]
    causes = shape_causes(causes, axis, case)
    if not case.get("divides", True):
        return _require_refused(data, axis, case)
    what = f"{'backward' if case['backward'] else 'forward'} with {n} rank{'s' if n > 1 else ''}, {case['dtype']}"
    what += ", after a step on self.weight" if case.get("stepped") else ""
    weight, other, x, grad_output = (
        t.double() for t in _problem(*(case[k] for k in ("d_in", "d_out", "batch", "dtype", "seed")))
    )
    shards = [part.numpy() for part in weight.chunk(n, axis)]
    made_before = [w for w in data["weights"] if w is not None]  # after a crash, those of the ranks that began
    if made_before:
        first = len(shards) - len(made_before)  # ranks begin in falling order
        strided = [(weight[:, r::n] if axis else weight[r::n]).numpy() for r in range(n)]
        every = {EARLIER: [[-part] for part in shards[first:]]}
        every |= {EVERY_NTH.format(*(("columns",) if axis else ("rows",)) * 2): [[a] for a in strided[first:]]}
        got, right = data["weights"][first:], shards[first:]
        _require_none_of(every, got, right, f"{what}: the weight", limit)
        require_parts(got, right, f"{what}: the weight", limit, causes["weight"])
    stage = data["stages"][data["crash"]["rank"]] if "crash" in data else "forward"
    results, made = require_results(data, what, crash_cause=crash_cause(data, stage, axis, case))
    if len(made_before) != n:
        raise CheckFailed(f"{what}: {len(made_before)} of {n} ranks have a weight")
    given = weight
    if case.get("stepped"):
        weight = _moved(*(case[k] for k in ("d_in", "d_out", "dtype", "seed"))).double()
    require_weights_dtype(data["weights"], case["dtype"], what)
    require_little_kept(results, case, what)
    require_little_taken(data["taken"], case, what)
    require_unchanged(results, what)
    _require_by_hand(results, what)
    if case["backward"]:
        both = [part.numpy() for part in (x.T @ grad_output + other.T @ grad_output.flip(0)).chunk(n, axis)]
        _require_not_added(results, both, limit, what)
        whole = (grad_output @ weight.T).numpy()
        grads = [part.numpy() for part in (x.T @ grad_output).chunk(n, axis)]
        parts = (("weight_grad", grads, "the weight gradient"), ("grad_input", [whole] * n, "the input gradient"))
    else:
        parts = (("output", [(x @ weight).numpy()] * n, "the output"),)
    known = known_mistakes(axis, case, weight, other, x, grad_output, given)
    for name, expected, words in parts:
        _require_none_of(known[name], [r[name] for r in results], expected, f"{what}: {words}", limit)
        require_parts([r[name] for r in results], expected, f"{what}: {words}", limit, causes[name])
    require_no_copy(results, what)
    _require_new_outputs(results, what)
    if n > 1:
        is_right = all(_near(r["output"], (x @ weight).numpy(), limit) for r in results)
        require_layers_calls(made, n, calls, what, causes["calls"], is_right)
        _require_small_parts(made, axis, case, what)


def _require_none_of(known: dict[str, list], got: list, expected: list, what: str, limit: float) -> None:
    """Raises CheckFailed if a known mistake gives what came."""
    wrong = [r for r, (g, e) in enumerate(zip(got, expected)) if not _near(g, e, limit)]
    for cause, arrays in known.items():
        if wrong and all(any(_near(got[r], array, limit) for array in arrays[r]) for r in wrong):
            far = distance(got[wrong[0]], expected[wrong[0]])
            raise CheckFailed(f"{what} on rank {wrong[0]} is wrong: off by {far:.2g} of its largest value", cause=cause)


def _near(got: Any, expected: np.ndarray, limit: float) -> bool:
    return isinstance(got, np.ndarray) and distance(got, expected) <= limit


def _require_small_parts(made: list, axis: int, case: dict, what: str) -> None:
    """What travels is made with the weight, and is no weight: a rank's part of the output (column) or of the input
    gradient (row) is gathered, its share of the other one is summed."""
    out, into = case["batch"] * case["d_out"], case["batch"] * case["d_in"]
    gathered, summed = (out, into) if axis else (into, out)
    due = {"all_gather": gathered // case["world_size"], "all_reduce": summed}
    for call in made:
        if call["numel"] != due.get(call["call"], call["numel"]):
            then = (
                "gather the parts of the product" if call["call"] == "all_gather" else "sum the shares of the product"
            )
            raise CheckFailed(
                f"{what}: rank {call['rank']} brings {call['numel']} numbers to {call['call']}, "
                f"{'its part' if call['call'] == 'all_gather' else 'its share'} has {due[call['call']]}",
                cause=f"the weight stays where it is: multiply first, then {then}",
            )


def _require_by_hand(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        if result["tracked"]:
            raise CheckFailed(
                f"{what}: autograd follows {', '.join(result['tracked'][:3])} on rank {rank} (requires_grad)",
                cause="no autograd and no requires_grad here: both gradients are matrix products, written by hand",
            )


def _require_new_outputs(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        for name in result.get("rewritten", []):
            raise CheckFailed(
                f"{what}: a second {name} changes what the first one returned on rank {rank}",
                cause="each pass returns a tensor of its own: a layer is used twice, or for two batches, before the "
                "first result is done with",
            )


def _require_not_added(results: list, both: list, limit: float, what: str) -> None:
    for rank, (result, added) in enumerate(zip(results, both)):
        if isinstance(result["weight_grad"], np.ndarray) and distance(result["weight_grad"], added) <= limit:
            raise CheckFailed(
                f"{what}: the weight gradient on rank {rank} is that of two backward passes together",
                cause="each backward leaves its own gradient: assign self.weight_grad, do not add to it",
            )


def _require_refused(data: Any, axis: int, case: dict) -> None:
    n, name = case["world_size"], "d_out" if axis else "d_in"
    what = f"weight of {case['d_in']} x {case['d_out']} over {n} ranks"
    results, _ = require_results(data, what)
    for rank, result in enumerate(results):
        if result["raised"] != "ValueError":
            cause = f"the constructor looks at {name} % context.world_size first: `raise ValueError(...)`"
            if results[0]["raised"] == "ValueError":
                cause = "every rank refuses the size: no `if rank == 0`"
            elif result["raised"] == "AssertionError":
                cause = "`raise ValueError(...)`: an assert can be switched off"
            elif result["raised"] == "nothing":
                cause = f"chunk, tensor_split and // cut any size: look at {name} % context.world_size first"
            raise CheckFailed(
                f"{what}, {name} is {case[name]}: expected a ValueError on rank {rank}, got {result['raised']}",
                cause=cause,
            )


def judge_column(data: Any, **case: Any) -> None:
    calls = {"all_gather": 3, "all_reduce": 2} if case["backward"] else {"all_gather": 1}
    _judge_layer(data, 1, COLUMN, calls, case)


def judge_row(data: Any, **case: Any) -> None:
    calls = {"all_reduce": 3, "all_gather": 2} if case["backward"] else {"all_reduce": 1}
    _judge_layer(data, 0, ROW, calls, case)
