"""Whether lesson 06's `parallelize` makes its layers with what it is given: the plan's classes, the context, names."""

from __future__ import annotations

from typing import Any

import torch

from hw_utils.checks.lesson_06.shards import run_ranks
from hw_utils.core.errors import CheckFailed


def noted(Layer: type, name: str, made: list[str]) -> type:
    """A layer's class that notes that it is made, under this name in the plan, and is called like none of the
    lesson's."""

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        made.append(name)
        Layer.__init__(self, *args, **options)

    return type("Layer", (Layer,), {"__init__": __init__, "__module__": Layer.__module__})


def calls_alone(layers: list[Any]) -> list[str]:
    """The group_ids in the calls of one rank's layers with a name each, which no model holds."""

    def worker(rank: int, context: Any) -> None:
        for k, Layer in enumerate(layers):
            Layer(torch.ones(2, 2), rank, context, f"layer {k}").forward(torch.ones(1, 2))

    return sorted({call["group_id"] for call in run_ranks(worker, 1).get("calls", [])})


def require_given(data: dict[str, Any], calls: list, layers: list[str], what: str) -> None:
    """Raises CheckFailed for layers that are made with something else than what the plan and the call say."""
    plain = [name for name in layers if name not in data["shapes"][0]]
    if plain:
        raise CheckFailed(
            f"{what}: {plain[0]} is the plain layer in the models",
            cause="a layer of the plan is not replaced: go through the whole of plan.items()",
        )
    other = [name for name in layers if data["made"] is not None and name not in data["made"]]
    if other:
        raise CheckFailed(
            f"{what}: {other[0]} is made with another class than plan[{other[0]!r}]",
            cause="the plan says with which class a layer is cut, under whatever name: Layer(weight, rank, context, "
            "name) for name, Layer in plan.items()",
        )
    if data["alone"] and not calls:
        raise CheckFailed(
            f"{what}: no layer calls the context that parallelize was given",
            cause="all layers of all ranks have that one, so that they meet: make no context of your own",
        )
    if len(data["alone"]) > 1 and len(layers) > 1:
        raise CheckFailed(
            f"{what}: all layers have one group_id, {calls[0]['group_id']!r}",
            cause="each layer has its own, its name in the plan: Layer(weight, rank, context, name). A context may "
            "pair calls by it",
        )
