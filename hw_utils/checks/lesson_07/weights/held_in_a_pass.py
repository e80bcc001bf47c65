"""What is held of large layers in the middle of a pass, whatever holds it: gathered weights, and gradients.

In this process the run's books of memory tell it; of an answer in another process its memory, seen from outside. What
the driver holds for an answer counts as well: slots that are full, and gathers under way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import require_no_deadlock, require_waits
from hw_utils.checks.kept_bytes import (
    is_here,
    is_under_way,
    look_at,
    moment,
    n_bytes,
    observe_memory,
    share_nothing,
    taken,
)
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07.watched_layers import GATHERS, SCATTERS
from hw_utils.checks.lesson_07.weights.calls_judge import ITEM, judge_bytes, judge_calls, judge_kinds, judge_passes
from hw_utils.checks.lesson_07.weights.sums_judge import Whole, judge_sums, sum_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Event, Trace
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.layers import SlotLayer, drawn_weights
from hw_utils.simulate import simulate

EXAMPLES, HIDDEN, WIDTH = 2, 120, 500
LAYER_BYTES = HIDDEN * WIDTH * ITEM
MANY = {"world_size": 2, "many": 24}
# Layers: two that are gathered, their pieces and what they are put together from; of gradients as many.
_ON_THE_WAY = 4
_BESIDE = 6_000_000  # bytes of an answer's process: right answers have 4 MB of it, all layers are 23
_FORWARD, _BACKWARD = 1, 2  # places of the looks


class _LookedAtLayer(SlotLayer):
    """A layer with a slot that tells of each pass when it begins, and of what comes in."""

    tell: Callable[[str, int, torch.Tensor], None]

    def fill(self, full: torch.Tensor) -> None:
        """As a layer with a slot."""
        super().fill(full)
        self.tell("fill", self.number, full)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As a layer with a slot."""
        self.tell("forward", self.number, x)
        return super().forward(x)

    def backward(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As a layer with a slot."""
        self.tell("backward", self.number, gradient)
        return super().backward(gradient)


def _weights(n_layers: int, hidden: int) -> list[torch.Tensor]:
    return [drawn_weights(hidden, WIDTH, drawn_numbers.seed(k, "large weights")) for k in range(n_layers)]


def _given(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's input, and its gradient of the output."""
    drawn = torch.Generator().manual_seed(drawn_numbers.seed(700 + rank, "large"))
    x, gradient = torch.randn(2, EXAMPLES, WIDTH, generator=drawn, dtype=torch.float64)
    return x.clone(), gradient.clone()


def _layers(
    kind: type[SlotLayer], n_layers: int, hidden: int, rank: int, world_size: int, log: list[tuple[str, int, float]]
) -> list:
    weights = _weights(n_layers, hidden)
    return [kind(k, weight, rank, world_size, 0.0, 0.0, log) for k, weight in enumerate(weights)]


def _step(make: Any, layers: list, rank: int) -> tuple[Any, Any, Any]:
    """The model, and what forward and backward gave."""
    model, (x, gradient) = make([interface(layer) for layer in layers]), _given(rank)
    return model, plain(model.forward(x)), model.backward(gradient)


def _worker(rank: int, world_size: int, make: Any, n_layers: int, seed: int) -> dict[str, Any]:
    """Looks in the first forward pass, in the last one, and in the last backward pass; and what each pass was given."""
    log: list[tuple[str, int, float]] = []
    layers, last = _layers(_LookedAtLayer, n_layers, HIDDEN, rank, world_size, log), n_layers - 1
    looks, places, own, moments, seen = [], [], [0], [], []

    def tell(what: str, k: int, came: torch.Tensor) -> None:
        seen.append([what, k, sum_of(came, seed)])
        if (what, k) in (("forward", 0), ("forward", last), ("backward", 0)):
            own.append(n_bytes(t for layer in layers for t in (layer.full, layer.saved) if t is not None))
            looks.append(look_at(make))
            places.append(list(dist.group.WORLD.engine.rows.order))
            moments.append(moment())

    at_first = [sum_of(layer.shard, seed) for layer in layers]
    for layer in layers:
        layer.tell = tell
    _step(make, _layers(SlotLayer, 2, 1, rank, world_size, []), rank)  # so that the code has run once
    begun = dist.group.WORLD.engine.rows.order[rank]
    moments.append(moment())
    model, output, shards = _step(make, layers, rank)
    found = {"looks": looks, "places": places, "own": own, "moments": moments, "is_here": is_here(model)}
    found |= {"seen": seen, "output": output, "log": log, "begun": begun}
    shards = shards if isinstance(shards, list) else []
    found["shards"] = [sum_of(shard, seed) for shard in shards]
    found["changed"] = [k for k, layer in enumerate(layers) if sum_of(layer.shard, seed) != at_first[k]]
    whole = {s.untyped_storage().data_ptr(): s for s in shards if isinstance(s, torch.Tensor)}
    return found | {"given": n_bytes(whole.values())}


def drive_many(make: Any, world_size: int, n_layers: int) -> dict[str, Any]:
    """One step through layers that are large: some of them are more than all else that is made."""
    share_nothing(make, world_size)
    args = (make, n_layers, seed := drawn_numbers.unknown_seed())
    data = observe_memory(make, partial(simulate, _worker, world_size, args, compute="free", echo=False))
    return data | {"seed": seed}


def judge_many(data: Any, world_size: int, n_layers: int) -> None:
    """Raises where a pass, or what backward gives, holds more than what is in use and under way; or is wrong."""
    what = f"{n_ranks(world_size)}, {n_layers} layers of {LAYER_BYTES} bytes"
    require_no_deadlock(data, what)
    begun = [result["begun"] for result in data["results"]]
    trace = Trace.of([e for e in Trace.from_plain(data["trace"]) if e.order > begun[e.rank]], world_size)
    for rank, result in enumerate(data["results"]):
        judge_passes(f"{what}: rank {rank}", result["log"], n_layers, n_steps=1)
    scatters = list(trace.of_op(*SCATTERS))
    for place in (_FORWARD, _BACKWARD):
        for rank, result in enumerate(data["results"]):
            its_scatters = [e for e in scatters if e.rank == rank]
            if at := data["held"][rank]:
                mine = _allowed(place, result, its_scatters, n_layers, world_size)
                _judge_pass(f"{what}: rank {rank}", place, at[place + 1] - at[0] - result["own"][place + 1], mine)
            _judge_taken(f"{what}: rank {rank}", place, result, its_scatters, n_layers, world_size)
    for rank, result in enumerate(data["results"]):
        shards = n_layers * LAYER_BYTES // world_size
        if result["given"] > shards + 2 * LAYER_BYTES:
            raise CheckFailed(
                f"{what}: the gradient shards that rank {rank} gives keep {result['given']} bytes alive; they have "
                f"{shards}.",
                cause="a shard that is a view keeps all of what it is cut from: give a tensor of its own, or a copy.",
            )
    _judge_work(what, data, trace, world_size, n_layers)


def _judge_work(what: str, data: Any, trace: Trace, world_size: int, n_layers: int) -> None:
    """Raises unless the step is right, each layer travels as often as is needed, and two at most are whole."""
    judge_kinds(what, trace)
    whole = Whole(_weights(n_layers, HIDDEN), _given, world_size)
    for rank, result in enumerate(data["results"]):
        judge_sums(f"{what}: rank {rank}", result, whole, rank, data["seed"])
    require_waits(trace, what)
    sizes = [LAYER_BYTES // ITEM // world_size] * n_layers
    for rank, result in enumerate(data["results"]):
        judge_calls(what, trace, sizes, world_size, 1, rank)
        _judge_whole(f"{what}: rank {rank}", result["log"], list(trace.of_rank(rank).of_op(*GATHERS)))
    judge_bytes(what, trace, sizes, world_size, 1)


def _judge_whole(who: str, log: list, gathers: list[Event]) -> None:
    full: set[int] = set()
    for name, k, _ in log:
        if name in ("fill", "clear"):
            (full.add if name == "fill" else full.discard)(k)
        if len(full) > 2:
            raise CheckFailed(
                f"{who}: the slots of layers {', '.join(map(str, sorted(full)))} are full at once; two may be.",
                cause="a slot is emptied late, or never: layer.clear() comes right after the layer's pass.",
            )
    most = max((sum(is_under_way(other, e.order) for other in gathers) for e in gathers), default=0)
    if most > 2:
        raise CheckFailed(
            f"{who}: {most} gathers are under way at once; two are enough.",
            cause="everything is gathered before it is needed: one layer ahead is enough.",
        )


def _allowed(place: int, result: Any, scatters: list[Event], n_layers: int, world_size: int) -> int:
    """Bytes that one rank may hold beside the layers' own: two copies of each shard, and what is being made."""
    if place == _FORWARD:
        return _ON_THE_WAY * LAYER_BYTES
    shards = 2 * n_layers * LAYER_BYTES // world_size
    return shards + 2 * _ON_THE_WAY * LAYER_BYTES + _under_way(place, result, scatters)


def _under_way(place: int, result: Any, scatters: list[Event]) -> int:
    """Bytes of the whole gradients that travel."""
    return sum(LAYER_BYTES for e in scatters if is_under_way(e, result["places"][place][e.rank]))


def _judge_taken(what: str, place: int, result: Any, scatters: list[Event], n_layers: int, world_size: int) -> None:
    """A rank's process, where it is looked at from outside: what crosses has copies on its way."""
    found = taken(result["looks"][0], result["looks"][place])
    limit = _BESIDE + 2 * _ON_THE_WAY * LAYER_BYTES
    if place == _BACKWARD:
        limit += 3 * n_layers * LAYER_BYTES // (2 * world_size) + 3 * _under_way(place, result, scatters)
    if found is not None:
        _judge_pass(what, place, found, limit)


def _judge_pass(who: str, place: int, held: int, limit: int) -> None:
    if held <= limit:
        return
    if place == _FORWARD:
        raise CheckFailed(
            f"{who}: by the last forward pass {held} bytes more are held than when they began, beside the slots; "
            f"{limit} are enough for two layers a rank, with all that they are put together from.",
            cause="gathered vectors stay until forward is over, in a list for example: once the slot is filled, let "
            "go of what was gathered.",
        )
    raise CheckFailed(
        f"{who}: by the last backward pass {held} bytes more are held than before the first pass, beside the slots; "
        f"{limit} are enough for the shards, for two layers a rank and for what travels.",
        cause="whole gradients, or gathered weights, stay until backward is over: of a gradient whose reduce_scatter "
        "was waited for keep its shard alone, in a tensor of its own.",
    )
