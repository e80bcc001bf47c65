"""Drivers and judges of lesson 06's models of tensor-parallel layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import mse_loss

from hw_utils.checks import drawn_numbers
from hw_utils.checks.kept_bytes import look_at, taken
from hw_utils.checks.lesson_06.given_layers import calls_alone, noted, require_given
from hw_utils.checks.lesson_06.kept_weights import LARGE_BYTES
from hw_utils.checks.lesson_06.refusal_causes import (
    CUT_AGAIN,
    CUT_THEN_COPIED,
    NOT_IN_PLAN,
    OTHER_SIZE,
    TRANSPOSED,
    fits_alone,
    refuses_none,
    replaced_beside,
)
from hw_utils.checks.lesson_06.shards import (
    n_ranks,
    part_on,
    random_tensor,
    require_calls,
    require_results,
    run_ranks,
)
from hw_utils.core.errors import CheckFailed, WorkerFailed
from hw_utils.material.kept.tensors import kept_tensors, n_found
from hw_utils.material.models import SimpleMLP

_LIMIT_S, _LARGE_LIMIT_S = 8.0, 30.0  # who goes through large layers row by row is slow, and right


def _training(d_hidden: int, seed: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model = SimpleMLP(2, d_hidden, 1).double()
    for k, p in enumerate(model.parameters()):
        p.data.copy_(random_tensor(seed + 10 + k, *p.shape))
    x = random_tensor(seed, 20, 2)
    return model, x, (x[:, :1] * x[:, 1:]).tanh()


def _train(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, n_steps: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(n_steps):
        optimizer.zero_grad()
        output = model(x)
        if isinstance(output, torch.Tensor) and output.shape != y.shape:
            raise RuntimeError(f"the model's output has shape {tuple(output.shape)}, expected {tuple(y.shape)}")
        loss = mse_loss(output, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def _turned(model: SimpleMLP) -> SimpleMLP:
    """The model, whose numbers have the other sign now."""
    for p in model.parameters():
        p.neg_()
    return model


def _axis(name: str, by_rows: bool) -> int:
    """Along which dimension of (d_in, d_out) the plan has a layer cut."""
    return int(name == "lin1" and not by_rows)


def _known_on(rank: int, world_size: int, base: SimpleMLP, plan: dict[str, Any], seed: int, by_rows: bool) -> SimpleMLP:
    """A copy of the model for one rank alone: of the layers to cut only this rank's part is true."""
    model = copy.deepcopy(base)
    for name in plan:
        weight = getattr(model, name).weight  # (d_out, d_in): columns of W are its rows
        weight.data = part_on(rank, weight.data, world_size, _axis(name, by_rows) ^ 1, seed)
    return model


def drive_parallelize(parallelize, Column, Row, world_size, d_hidden, layers, n_steps, seed, by_rows=False) -> dict:
    """Losses, weights kept and calls of the models that it makes; or that it refuses. by_rows: lin1 is, too."""
    _train(SimpleMLP(2, 2, 1), torch.zeros(1, 2), torch.zeros(1, 1), 1)  # imports much: not on a rank's time
    is_refused = d_hidden % world_size != 0  # then no numbers matter
    base, x, y = _training(d_hidden, seed) if not is_refused else (SimpleMLP(2, d_hidden, 1), *torch.zeros(2, 20, 1))
    is_apart = not is_refused and drawn_numbers.are_salted()
    before = [p.detach().clone() for p in base.parameters()]
    made_with: list[str] = []
    plan = {name: (Row, Column)[_axis(name, by_rows)] for name in layers}
    if sees_classes := world_size == 1 and isinstance(Row, type) and isinstance(Column, type):  # and none is far away
        plan = {name: noted(Layer, name, made_with) for name, Layer in plan.items()}
    models: list[torch.nn.Module | None] = [None] * world_size if is_apart else []
    plans: list[list[str]] = []  # what calls have made of theirs
    shapes: list[dict[str, list[int]]] = [{} for _ in range(world_size)]
    is_large = 3 * 8 * d_hidden >= LARGE_BYTES
    looks = [  # before the models are made, after that, and at the end
        look_at(parallelize, world_size) if is_large else None
    ]

    def worker(rank: int, context: Any) -> dict[str, Any]:
        if is_apart:
            models[rank] = made_again(_known_on(rank, world_size, base, plan, seed, by_rows), context)[rank]
        elif n_models() != world_size:
            return {"losses": [], "n_kept": 0, "whole": []}
        shapes[rank] = _shapes(models[rank], plan)
        n_kept, kept = sum(p.numel() for p in models[rank].parameters()), kept_tensors(models[rank])
        for name in plan:
            kept |= {f"{name}.{path}": t for path, t in kept_tensors(getattr(models[rank], name, None)).items()}
        weights = [getattr(base, name).weight.detach() for name in plan if world_size > 1]
        whole = [path for path, t in kept.items() if any(n_found(weight, t) == weight.numel() for weight in weights)]
        return {"losses": _train(models[rank], x, y, n_steps), "n_kept": n_kept, "whole": whole}

    def made_again(model: SimpleMLP, context: Any) -> Any:
        """What it makes of the model after it was called with other numbers in it, and on another one."""
        if not is_large and not is_refused:
            made_of(_turned(copy.deepcopy(model)), context)
            _turned(model)
            made_of(model, context)
            _turned(model)
        return made_of(model, context)

    def made_of(model: SimpleMLP, context: Any) -> Any:
        given = dict(plan)
        made = parallelize(model, given, context)
        if given != plan:
            plans.append(sorted(given))
        return made

    def n_models() -> int:
        return len({id(model) for model in models if isinstance(model, torch.nn.Module)})

    def prepare(context: Any) -> None:
        made = [] if is_apart else made_again(base, context)
        models.extend(made if isinstance(made, Sequence) else [])
        looks.append(look_at(parallelize, is_at_rest=True) if is_large else None)

    try:
        made = run_ranks(worker, world_size, prepare, timeout_s=_LARGE_LIMIT_S if is_large else _LIMIT_S)
    except (ValueError, AssertionError) as error:
        said = {"refused": str(error), "by": type(error).__name__, "without plan": refuses_none(parallelize, base)}
        said["others"] = [] if is_refused else replaced_beside(parallelize, base, plan)
        return {**said, "alone": is_refused or fits_alone(parallelize, *_training(d_hidden, seed)[:2], plan)}
    except TypeError as error:
        if "cannot pickle" not in str(error):
            raise
        return {"refused": str(error), "by": "TypeError", "copied": True}
    except WorkerFailed:
        if d_hidden % world_size == 0:
            raise
        made = {"crash": {}}  # it came late: a rank had started
    replaced = base in models or not all(isinstance(getattr(base, name), torch.nn.Linear) for name in plan)
    changed = replaced or any(not torch.equal(p, q) for p, q in zip(base.parameters(), before))
    pairs = [
        {id(p): name for name, p in model.named_parameters()}
        for model in models[:2]
        if hasattr(model, "named_parameters")
    ]
    shared = [name for key, name in pairs[0].items() if key in pairs[-1]] if len(pairs) > 1 else []
    if "crash" in made and world_size == 1:
        made["fresh"] = fits_alone(parallelize, *_training(d_hidden, seed)[:2], plan)
    ids = {call["group_id"] for call in made.get("calls", [])}
    made["made"] = sorted({*made_with}) if sees_classes else None
    made["alone"] = calls_alone([*plan.values()]) if "results" in made and len(ids) < len(plan) else []
    made["plans"] = plans
    made |= {"shared": shared, "n_models": n_models(), "base_changed": changed, "base_replaced": replaced}
    return {**made, "shapes": shapes, "taken": taken(looks[0], looks[-1])}


def _shapes(model: torch.nn.Module, plan: dict[str, Any]) -> dict[str, list[int]]:
    """Of the weights of the layers that stand in the plan's places."""
    layers = {name: getattr(model, name, None) for name in plan}
    weights = {n: getattr(layer, "weight", None) for n, layer in layers.items() if type(layer) is not torch.nn.Linear}
    return {name: list(weight.shape) for name, weight in weights.items() if isinstance(weight, torch.Tensor)}


def judge_parallelize(
    data: Any, *, world_size: int, d_hidden: int, layers: list, n_steps: int, seed: int, by_rows: bool = False
) -> None:
    what = f"parallelize of {' and '.join(layers)}{', both by rows,' * by_rows} over {n_ranks(world_size)}"
    divisible = d_hidden % world_size == 0
    if "refused" in data:
        if data.get("copied"):
            raise CheckFailed(f"{what}: {data['by']}: {data['refused']}", cause=CUT_THEN_COPIED)
        if divisible:
            is_beside = data.get("without plan") or data.get("others")
            cause = NOT_IN_PLAN if is_beside else CUT_AGAIN if data.get("alone") else OTHER_SIZE
            raise CheckFailed(f"{what}, {d_hidden} hidden units: {data['by']}: {data['refused']}", cause=cause)
        if data["by"] != "ValueError":
            raise CheckFailed(
                f"{what}, {d_hidden} hidden units: expected a ValueError, got an {data['by']}",
                cause="`raise ValueError(...)` in the layer's constructor: an assert can be switched off",
            )
        return
    if not divisible:
        raise CheckFailed(
            f"{what}, {d_hidden} hidden units: expected a ValueError before any rank starts, got none",
            cause="the layers' constructors refuse a size that N does not divide, and all are made in parallelize",
        )
    if data["plans"]:
        left = ", ".join(data["plans"][0]) or "nothing"
        raise CheckFailed(
            f"{what}: after the call the plan names {left}, before it named {', '.join(layers)}",
            cause="the plan is the caller's: go through plan.items(), and leave the dictionary as it is",
        )
    if "crash" in data:  # shapes that do not fit come of this, too
        _require_base_whole(data, what)
    cause = _BASE_CUT if data.get("fresh") else _why_crash(data, world_size, d_hidden, by_rows)
    results, calls = require_results(data, what, crash_cause=cause)
    if data["n_models"] != world_size:
        raise CheckFailed(
            f"{what}: {data['n_models']} different models for {n_ranks(world_size)}",
            cause="return a list with a model of its own for every rank: copy the plain one (copy.deepcopy)",
        )
    if data["shared"]:
        raise CheckFailed(
            f"{what}: {data['shared'][0]} is one parameter in the models of ranks 0 and 1",
            cause="each rank trains a model of its own: copy the whole plain one for each (copy.deepcopy)",
        )
    _require_base_whole(data, what)
    if data["base_changed"]:
        raise CheckFailed(
            f"{what}: training it changes the plain model",
            cause="the ranks' weights are views of the plain ones, or a shallow copy shares its layers with the plain "
            "model: copies are needed (copy.deepcopy)",
        )
    _require_little_taken(data["taken"], world_size, d_hidden, layers, what)
    shape = data["shapes"][0].get("lin1") if by_rows else None
    if shape and shape != [2 // world_size, d_hidden]:
        raise CheckFailed(
            f"{what}: lin1's weight has shape {tuple(shape)} on rank 0, expected {(2 // world_size, d_hidden)}",
            cause="the plan says with which class a layer is cut, and may say another one than the lesson's: make each "
            "layer with its own, plan[name]",
        )
    _judge_training(data, results, calls, world_size, d_hidden, layers, n_steps, seed, what)


def _why_crash(data: dict[str, Any], world_size: int, d_hidden: int, by_rows: bool) -> str:
    """Why shapes did not fit, by those of the weights of the first rank that crashed."""
    shapes = data["shapes"][data["crash"]["rank"]] if data.get("crash") else {}
    if not shapes:
        return TRANSPOSED
    whole = {"lin1": (2, d_hidden), "lin2": (d_hidden, 1)}
    axes = {name: _axis(name, by_rows) for name in whole}

    def cut(size: tuple[int, int], axis: int) -> list[int]:
        return [n // world_size if k == axis else n for k, n in enumerate(size)]

    for name, shape in shapes.items():
        (other,) = set(whole) - {name}
        if shape == cut(whole[name], axes[name]):
            continue
        if shape == cut(whole[name][::-1], axes[name]):
            return TRANSPOSED
        if shape in (cut(whole[other], axes[name]), cut(whole[other][::-1], axes[name])):
            return f"{name} is made with {other}'s weight: getattr(model, name) is the layer of that name"
        return f"{name}'s weight has shape {tuple(shape)}, expected {tuple(cut(whole[name], axes[name]))}"
    return "the layers' weights have the right shapes: the layers themselves may be wrong. Do their own checks pass?"


def _require_base_whole(data: dict[str, Any], what: str) -> None:
    if data["base_replaced"]:
        raise CheckFailed(
            f"{what}: the plain model itself is cut, or given to a rank",
            cause=_BASE_CUT,
        )


_BASE_CUT = (
    "the plain model itself is cut, and a second call finds it so: copy it first (copy.deepcopy), and replace the "
    "copy's layers; copy.copy shares them"
)


def _require_little_taken(n_bytes: int | None, world_size: int, d_hidden: int, layers: list, what: str) -> None:
    """n_bytes: what the ranks' models have left in use, and a copy of the plain one."""
    whole = sum(d_hidden * n * 8 for name, n in (("lin1", 2), ("lin2", 1)) if name in layers)
    if n_bytes is None or len(layers) < 2 or whole < LARGE_BYTES or n_bytes <= 13 * whole:
        return
    raise CheckFailed(
        f"{what}: all ranks' models together keep {n_bytes / whole:.3g} times the plain model's bytes, 1 is enough",
        cause="1/N of each weight is kept, in whatever form: nothing of the rest, not as a text or in a file either",
    )


def _judge_training(data, results, calls, world_size, d_hidden, layers, n_steps, seed, what) -> None:
    base, x, y = _training(d_hidden, seed)
    sizes = {name: getattr(base, name).weight.numel() for name in ("lin1", "lin2")}
    n_kept = sum(size // world_size if name in layers else size for name, size in sizes.items())
    earlier = _train(_turned(copy.deepcopy(base)), x, y, 1)
    right = _train(base, x, y, n_steps)
    for rank, result in enumerate(results):
        if result["n_kept"] != n_kept:
            raise CheckFailed(
                f"{what}: rank {rank} keeps {result['n_kept']} weights, expected {n_kept}",
                cause=_why_kept(result["n_kept"], sizes, world_size, layers, data["shapes"][rank]),
            )
        if result["whole"]:
            raise CheckFailed(
                f"{what}: {result['whole'][0]} of rank {rank}'s model keeps a whole weight alive",
                cause="1/N of the weight is kept: hand it to the layer, and hang nothing of it on anything else",
            )
        for step, (loss, expected) in enumerate(zip(result["losses"], right)):
            if not (type(loss) is float and abs(loss - expected) <= 1e-6):
                first = "the slices are not those of the plain model's weights, or are of the wrong rank"
                later = "the first loss is right: a gradient is wrong, or it never reaches the weight that is used"
                if isinstance(loss, float) and not step and abs(loss - earlier[0]) <= 1e-6:
                    first = (
                        "these are the weights of an earlier call, of this model or one like it: look at the model's "
                        "own in each call"
                    )
                if not isinstance(loss, float):
                    first = later = "the loss is no float: the model's output has another form than the plain one's"
                raise CheckFailed(
                    f"{what}: loss {step + 1} on rank {rank} is {loss!r:.12}, the plain model's {expected:.6f}",
                    cause=later if step else first,
                )
        if len(result["losses"]) != n_steps:
            raise CheckFailed(f"{what}: rank {rank} made {len(result['losses'])} of {n_steps} steps")
    require_given(data, calls, layers, what)
    if world_size > 1:
        each = n_steps * len(layers)
        cause = "in each step a cut layer makes one collective forward and one backward, and nothing else does"
        causes = {f"{call} {how}": cause for call in ("all_gather", "all_reduce") for how in ("more", "fewer")}
        require_calls(calls, world_size, {"all_gather": each, "all_reduce": each}, what, causes)


def _why_kept(n_kept: int, sizes: dict[str, int], world_size: int, layers: list[str], shapes: dict) -> str:
    """Which layers must have been cut for a rank to keep so many weights; shapes: of those that are cut."""
    if any(math.prod(shape) * world_size != sizes[name] for name, shape in shapes.items()):
        return "the model that is cut is not the given one, its layers have other sizes: copy.deepcopy(model)"
    for cut in ([], ["lin1"], ["lin2"], ["lin1", "lin2"]):
        if n_kept == sum(size // world_size if name in cut else size for name, size in sizes.items()):
            left, more = [n for n in layers if n not in cut], [n for n in cut if n not in layers]
            found = [f"{' and '.join(left)}: a layer of the plan is not replaced"] if left else []
            found += [f"{' and '.join(more)}: a layer that is not in the plan is replaced"] if more else []
            return "; ".join(found)
    if n_kept > sum(sizes.values()):
        return "the plain layers are kept beside the cut ones: setattr under the same name replaces a layer"
    return ""
