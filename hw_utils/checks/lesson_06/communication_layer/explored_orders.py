"""Drives lesson 06's communication layer through many orders of its threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks.lesson_06.communication_layer.points_passed import Evidence
from hw_utils.checks.lesson_06.communication_layer.race_causes import (
    OTHER_SHAPE,
    RANKS_OF_WHOLE_NUMBERS,
    tensor_of,
    whole_numbers_of,
)
from hw_utils.threads.interleavings.calls_in_orders import CallsInOrders
from hw_utils.threads.interleavings.explorer import Outcome, explored

_OF_TWO_OBJECTS = 2  # ranks of each
_ORDERS_OF_TWO = 60


def outcomes(kind: Callable[[int], Any], method: str, args: list[tuple], case: dict) -> dict[str, Any]:
    """Plain data on every outcome of `method`, called by each rank as often as `args` has entries, in a row.

    Rank r brings 10**r * 7**k, 7**k, and a number whose sum shows in which order it is made, to its call number k.
    `evidence`: why one cannot believe that other ranks were let in wherever the text of the answer gives a chance;
    empty if one can. `reshaped`: how two calls in the plainest order end, of which the second brings another
    shape and dtype. `whole numbers`: the results of a call that brings large ones. `two objects`: how calls end on two
    objects of the class at a time, where their results differ from those of each alone, or else None.
    """
    world_size = case["world_size"]
    brought = [[tensor_of(rank, k) for k in range(len(args))] for rank in range(world_size)]
    explorer = _explorer(kind, world_size, method, brought, args)
    is_elsewhere, evidence = not isinstance(explorer, CallsInOrders), Evidence()
    plain: list[dict] = []

    def run(orders: list[tuple]) -> list[Outcome]:
        said = explorer.run(orders)
        if is_elsewhere:
            evidence.look_at(said, orders, world_size, len(args))
        plain.extend(said["outcomes"])
        return [Outcome(o["results"], o["kind"], n_points=o["n_points"]) for o in said["outcomes"]]

    with explorer:
        explored_ = explored(run, world_size, case["n_interleavings"], case.get("seed", 0), _told_apart, True)
        first = plain[0]
        is_not_written = first.get("error") == "NotImplementedError"
        if is_not_written or (world_size == 1 and first["results"] is None and first["kind"] == "raised"):
            error = explorer.error
            raise (
                error
                if isinstance(error, Exception)
                else NotImplementedError
                if is_not_written
                else RuntimeError(first["text"])
            )
    found = [{**plain[o.number - 1], "number": o.number, "count": o.count} for o in explored_.outcomes]
    data = {"n": explored_.n_interleavings, "outcomes": found, "evidence": evidence.problem}
    for outcome in found:
        del outcome["passed"], outcome["n_points"], outcome["turns"]
    brought = [[tensor_of(rank, 0), tensor_of(rank, 1, OTHER_SHAPE, torch.float32)] for rank in range(world_size)]
    with _explorer(kind, world_size, method, brought, args[:1] * 2) as explorer:
        (outcome,) = explorer.run([(-1, 0, None)])["outcomes"]
    data["reshaped"] = {name: outcome[name] for name in ("results", "kind", "text", "line")}
    is_pair = world_size == _OF_TWO_OBJECTS and case["n_interleavings"] > 1  # a race is to be told as one, before this
    is_pair = is_pair and all(o["results"] is not None for o in found)
    are_three = world_size == RANKS_OF_WHOLE_NUMBERS and all(o["results"] is not None for o in found)
    data["whole numbers"] = _of_whole_numbers(kind, method, args) if are_three else None
    return {**data, "two objects": _two_objects(kind, method, args) if is_pair else None}


def _of_whole_numbers(kind: Any, method: str, args: list[tuple]) -> list | None:
    """The results of one call that brings them, in the plainest order."""
    brought = [[torch.tensor([whole_numbers_of(rank)])] for rank in range(RANKS_OF_WHOLE_NUMBERS)]
    with _explorer(kind, RANKS_OF_WHOLE_NUMBERS, method, brought, [args[0][:1]]) as explorer:
        (outcome,) = explorer.run([(-1, 0, None)])["outcomes"]
    return outcome["results"]


def _two_objects(kind: Any, method: str, args: list[tuple]) -> dict[str, Any] | None:
    """The first outcome of calls on two objects at a time that is not what each gives alone."""
    n = _OF_TWO_OBJECTS
    brought = [[tensor_of(rank, k) for k in range(len(args))] for rank in range(2 * n)]
    alone: list = []
    for mine in (brought[:n], brought[n:]):
        with _explorer(kind, n, method, mine, args) as explorer:
            (outcome,) = explorer.run([(-1, 0, None)])["outcomes"]
        alone += outcome["results"] or []
    with _explorer(kind, n, method, brought, args) as explorer:
        together = explorer.run([(-1, 0, None), *((-1, 0, seed) for seed in range(_ORDERS_OF_TWO))])["outcomes"]
    for outcome in together:
        if outcome["results"] is None or _rounded(outcome["results"]) != _rounded(alone):
            return {name: outcome[name] for name in ("kind", "text")}
    return None


def _explorer(kind: Any, world_size: int, method: str, brought: list, args: list[tuple]) -> Any:
    setting = (world_size, method, brought, args, 4.0)
    return kind.in_orders(*setting) if hasattr(kind, "in_orders") else CallsInOrders(kind, *setting)


def raised_alone(kind: Callable[[int], Any], world_size: int, op: str) -> list[str]:
    """What all_reduce with this op raises on each rank, called by that rank alone: the error's name, or "nothing", or
    "waits" if it never ends."""
    said = []
    for rank in range(world_size):
        brought = [[tensor_of(r, 0)] if r == rank else [] for r in range(world_size)]
        with _explorer(kind, world_size, "all_reduce", brought, [("loss", op)]) as explorer:
            (outcome,) = explorer.run([(-1, 0, None)])["outcomes"]
        if outcome.get("error") == "NotImplementedError":
            raise NotImplementedError
        kinds = {"raised": outcome.get("error", ""), "returned": "nothing"}
        said.append(str(kinds.get(outcome["kind"], "waits")))
    return said


def _told_apart(results: Any) -> str:
    """The results as text to five digits, and whether all ranks have the same bits in a call: the order of a sum may
    differ from run to run, but not from rank to rank."""
    try:
        calls = list(zip(*([entry["got"] for entry in mine] for mine in results)))
    except (KeyError, TypeError):  # made up, in the answer's process
        calls = []
    return f"{_rounded(results)} {[all(got == call[0] for got in call) for call in calls]}"


def _rounded(results: Any) -> str:
    if isinstance(results, dict):
        return repr({name: _rounded(value) for name, value in results.items()})
    if isinstance(results, list):
        return repr([_rounded(value) for value in results])
    return f"{results:.5g}" if isinstance(results, float) else repr(results)
