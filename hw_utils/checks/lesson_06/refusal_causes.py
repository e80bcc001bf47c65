"""Why `parallelize` refuses what it should take: what it makes of an empty plan, and of a single rank."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.checks.lesson_06.shards import distance, run_ranks

NOT_IN_PLAN = "a layer that the plan does not name is cut: go through plan.items(), and leave all others as they are"
TRANSPOSED = "nn.Linear stores its weight as (d_out, d_in), the transpose of what the layers take"
CUT_AGAIN = (
    "a single rank's model is right: with more, a layer that one rank's part was cut from is cut again for the next. "
    "Copy the plain model anew for each rank (copy.deepcopy)"
)
CUT_THEN_COPIED = (
    "a model whose layers are cut already is copied, and they hold the context, which has no copy. Copy the plain "
    "model anew for each rank (copy.deepcopy), then replace the copy's layers"
)
OTHER_SIZE = (
    f"N divides the hidden units, so the layer is given another size: {TRANSPOSED}. Or it is another layer's weight"
)


def refuses_none(parallelize: Any, base: torch.nn.Module) -> str:
    """The error that an empty plan ends in, in which no layer is cut; "" if it ends in none."""
    try:
        run_ranks(lambda rank, context: None, 4, lambda context: list(parallelize(base, {}, context)))
    except Exception as error:
        return type(error).__name__
    return ""


def replaced_beside(parallelize: Any, base: torch.nn.Module, plan: dict[str, Any]) -> list[str]:
    """The layers that a single rank's model has replaced, although the plan does not name them."""
    models: list[Any] = []
    try:
        run_ranks(lambda rank, context: None, 1, lambda context: models.extend(parallelize(base, dict(plan), context)))
    except Exception:
        return []
    beside = [name for name in ("lin1", "lin2") if name not in plan]
    return [n for model in models[:1] for n in beside if type(getattr(model, n, None)) is not torch.nn.Linear]


def fits_alone(parallelize: Any, base: torch.nn.Module, x: torch.Tensor, plan: dict[str, Any]) -> bool:
    """Whether a single rank's model, none of whose layers loses a part, gives what the plain one gives."""
    models: list[Any] = []
    right = base(x).detach()

    def prepare(context: Any) -> None:
        models.extend(parallelize(base, dict(plan), context))

    try:
        made = run_ranks(lambda rank, context: models[rank](x), 1, prepare)
    except Exception:
        return False
    return "results" in made and distance(made["results"][0].detach().numpy(), right) <= 1e-6
