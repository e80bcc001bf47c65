"""The checks of lesson 07's sharded weights: gradients, layers that are whole at once, and what the gathering costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers, kept_bytes
from hw_utils.checks.check import check, require_no_deadlock, require_waits
from hw_utils.checks.kept_bytes import ELSEWHERE, moment, observe_memory
from hw_utils.checks.lesson_04.collective_contents import note_inputs
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07 import second_objects, watched_layers
from hw_utils.checks.lesson_07.watched_layers import GATHERS, WatchedLayer
from hw_utils.checks.lesson_07.weights import held_in_a_pass
from hw_utils.checks.lesson_07.weights.calls_judge import (
    ITEM,
    judge_bytes,
    judge_calls,
    judge_kinds,
    judge_passes,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Trace
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.layers import SlotLayer, drawn_weights
from hw_utils.simulate import simulate

EXAMPLES = 6  # examples: as many as there are ranks in no case
SLACK = 16  # bytes
PASS_S = 1e-3  # so that what is called before a pass and after it has different times


def _numbers(rank: int, seed: int, width: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(drawn_numbers.seed(1000 * seed + rank))
    return torch.randn(EXAMPLES, width, generator=drawn).double()


def train_steps(
    rank: int, world_size: int, make: Any, hidden: list[int], width: int, forward_s: float, backward_s: float,
    n_steps: int,
) -> dict[str, Any]:  # fmt: skip
    """What the layers saw, what came back, and what is kept between the passes."""
    log: list[tuple[str, int, float]] = []
    seen: list[tuple] = []
    layers = [
        WatchedLayer(k, w, rank, world_size, forward_s, backward_s, log, seen=seen)
        for k, w in enumerate(_weights(hidden, width))
    ]
    at_first, carried = [layer.shard.clone() for layer in layers], note_inputs()
    moments = [moment()]
    model = make([interface(layer) for layer in layers])
    outputs, shards, kept, anywhere, times = [], [], [], [], [time.perf_counter()]
    for step in range(n_steps):
        for passed, found, seed in ((model.forward, outputs, step), (model.backward, shards, 10 + step)):
            found.append(plain(passed(_numbers(rank, seed, width))))
            times.append(time.perf_counter())
            kept.append(kept_bytes.n_bytes(kept_bytes.floats_kept(model)) + kept_bytes.bytes_in_lists(model))
            anywhere.append(kept_bytes.n_bytes(kept_bytes.floats_anywhere(model)) + kept_bytes.bytes_in_lists(model))
            moments.append(moment())
    found = {"outputs": outputs, "shards": shards, "kept": kept, "anywhere": anywhere, "times": times, "log": log}
    found |= {"seen": plain(seen), "carried": carried, "owns": [own for layer in layers for own in layer.owns]}
    found["at_first"] = at_first
    changed = [k for k, layer in enumerate(layers) if not torch.equal(layer.shard, at_first[k])]
    return found | {"moments": moments, "is_here": kept_bytes.is_here(model), "changed": changed}


def _serial(hidden: list[int], width: int, world_size: int, step: int) -> tuple[list, list[list[np.ndarray]]]:
    """Each rank's output, and of each layer all ranks' own gradients, whole and flat."""
    log: list[tuple[str, int, float]] = []
    layers = [SlotLayer(k, w, 0, 1, 0.0, 0.0, log) for k, w in enumerate(_weights(hidden, width))]
    outputs: list[np.ndarray] = []
    owns: list[list[np.ndarray]] = [[] for _ in layers]
    for layer in layers:
        layer.fill(layer.shard)
    for rank in range(world_size):
        x, gradient = _numbers(rank, step, width), _numbers(rank, 10 + step, width)
        for layer in layers:
            x = layer.forward(x)
        outputs.append(x.numpy())
        for k in reversed(range(len(layers))):
            gradient, own = layers[k].backward(gradient)
            owns[k].append(own.numpy())
    return outputs, owns


def _weights(hidden: list[int], width: int) -> list[torch.Tensor]:
    return [drawn_weights(h, width, drawn_numbers.seed(k, "weights")) for k, h in enumerate(hidden)]


def _judge(
    data: Any, world_size: int, hidden: Sequence[int] = (), width: int = 0, second: bool = False, many: int = 0,
    dtype: str = "float64",
) -> None:  # fmt: skip
    if second:
        return second_objects.judge_weights(data, world_size, dtype)
    if many:
        return held_in_a_pass.judge_many(data, world_size, many)
    what = f"{n_ranks(world_size)}, {len(hidden)} layers of {', '.join(str(h * width) for h in hidden)} elements"
    require_no_deadlock(data, what, cause="all ranks gather and reduce the same layers in one order.")
    trace = Trace.from_plain(data["trace"])
    judge_kinds(what, trace)
    for rank, result in enumerate(data["results"]):
        judge_passes(f"{what}: rank {rank}", result["log"], len(hidden))
        if result["changed"]:
            raise CheckFailed(
                f"{what}: rank {rank}'s layer.shard of layer {result['changed'][0]} has other numbers than before.",
                cause="it is the weight, which only an optimizer changes: gather from it, and receive in tensors of "
                "your own.",
            )
    judge_numbers(what, data, trace, hidden, width, n_steps=2)
    require_waits(trace, what)
    sizes = [-(-h * width // world_size) for h in hidden]
    judge_calls(what, trace, sizes, world_size, 2)
    for rank, result in enumerate(data["results"]):
        _judge_memory(f"{what}: rank {rank}", result, trace.of_rank(rank), sizes, world_size)
        grown = result["anywhere"]
        if at := data["held"][rank]:  # after a forward pass the layers keep their inputs
            saved = len(hidden) * EXAMPLES * width * ITEM
            grown = [there - at[0] - (0 if k % 2 else saved) for k, there in enumerate(at[1:])]
        _judge_elsewhere(f"{what}: rank {rank}", max(grown), max(result["kept"]), sizes, world_size)
    judge_bytes(what, trace, sizes, world_size, 2)


def judge_numbers(what: str, data: Any, trace: Trace, hidden: Sequence[int], width: int, n_steps: int) -> None:
    """Raises unless slots are filled with the weights, and passes and results are those of layers that are whole."""
    world_size = len(data["results"])
    weights = [w.flatten().numpy() for w in _weights(hidden, width)]
    for rank, result in enumerate(data["results"]):
        watched_layers.judge_fills(f"{what}: rank {rank}", result["seen"], weights, trace, rank, world_size)
    for step in range(n_steps):
        outputs, owns = _serial(hidden, width, world_size, step)
        for rank, result in enumerate(data["results"]):
            passes = [row for row in result["seen"] if row[0] != "fill"][2 * step * len(hidden) :][: 2 * len(hidden)]
            given = _numbers(rank, step, width).numpy(), _numbers(rank, 10 + step, width).numpy()
            watched_layers.judge_handed_on(f"{what}: step {step}, rank {rank}", passes, *given)
            _judge_results(f"{what}: step {step}, rank {rank}", result, step, outputs[rank], len(hidden))
        _judge_shards(f"{what}: step {step}", [result["shards"] for result in data["results"]], step, owns)


def _judge_results(what: str, result: Any, step: int, output: np.ndarray, n_layers: int) -> None:
    if not watched_layers.same(result["outputs"][step], output):
        raise CheckFailed(
            f"{what}: forward returned something else than the output of the last layer.",
            cause="return what layer.forward of the last layer gave.",
        )
    shards = result["shards"][step]
    if not isinstance(shards, list) or len(shards) != n_layers:
        raise CheckFailed(f"{what}: backward gave no list of {n_layers} gradient shards.",
                          cause="return a list in the order of the layers.")  # fmt: skip


def _judge_shards(what: str, shards: list, step: int, owns: list[list[np.ndarray]]) -> None:
    for k, own in enumerate(owns):
        got, right = [mine[step][k] for mine in shards], watched_layers.cut(np.mean(own, axis=0), len(own))
        wrong = [rank for rank, mine in enumerate(got) if not watched_layers.same(mine, right[rank])]
        if wrong:
            raise CheckFailed(
                f"{what}, rank {wrong[0]}: the gradient shard of layer {k} is not the mean of all ranks' gradients.",
                cause=watched_layers.why_shards(
                    got, k, owns, [mine[step - 1][k] for mine in shards] if step else None, EXAMPLES
                ),
            )


def _judge_memory(what: str, result: Any, trace: Trace, sizes: list[int], world_size: int) -> None:
    if world_size > 1:
        most, at_s, names = _most_whole(result["log"], trace, sizes, world_size)
        if most > 2:
            cause = "everything is gathered before it is needed: one layer ahead is enough."
            if _cleared_late(result["log"]):
                cause = "a slot is emptied late: layer.clear() comes right after the layer's pass, before the next one."
            if _never_cleared(result["log"]):
                cause = "a slot is never emptied: layer.clear() after each pass, forward and backward."
            raise CheckFailed(
                f"{what}: layers {names} are whole or on their way at once, after {at_s} gathers; two are allowed.",
                cause=cause,
            )
    if uncleared := _never_cleared(result["log"]):
        raise CheckFailed(
            f"{what}: the slot of layer {uncleared[0]} is full when the step is over.",
            cause="a slot is never emptied: layer.clear() after each pass, forward and backward.",
        )
    limit = 2 * sum(sizes) * ITEM + SLACK
    if max(result["kept"]) > max(limit, 2 * max(sizes) * world_size * ITEM):
        raise CheckFailed(
            f"{what}: between the passes the object keeps {max(result['kept'])} bytes of floats, two shards of every "
            f"layer have {limit}.",
            cause="whole weights or gradients hang on an attribute: let the gathered tensor go once the slot is clear.",
        )


def _judge_elsewhere(what: str, grown: int, kept: int, sizes: list[int], world_size: int) -> None:
    limit = max(2 * sum(sizes), 2 * max(sizes) * world_size) * ITEM + SLACK
    if grown > limit:
        raise CheckFailed(
            f"{what}: after a pass it holds {grown} bytes more than before the first one, two shards of every "
            f"layer, or two layers, have {limit - SLACK}.",
            cause="what an attribute keeps outlives the step: handles, and the flat vectors that they carry. Wait for "
            "them, and let them go."
            if 2 * kept >= grown
            else ELSEWHERE,
        )


def _most_whole(log: list, trace: Trace, sizes: list[int], world_size: int) -> tuple[int, int, str]:
    """The most layers that were gathered and not cleared yet, after how many gathers, and which they were."""
    number = {(world_size - 1) * size * ITEM: k for k, size in enumerate(sizes)}
    marks = [(e.start_s, 1, number.get(e.sent_bytes)) for e in trace.of_op(*GATHERS)]
    # a pass takes time: what is called at the moment at which a slot is cleared comes after its pass, too
    marks += [(s, 0, k) for name, k, s in log if name == "clear"]
    alive: set[int | None] = set()
    worst: tuple[int, int, str] = (0, 0, "")
    for n, (_, starts, k) in enumerate(sorted(marks, key=lambda mark: mark[:2])):
        (alive.add if starts else alive.discard)(k)
        if len(alive) > worst[0]:
            worst = len(alive), sum(mark[1] for mark in sorted(marks, key=lambda m: m[:2])[: n + 1]), _named(alive)
    return worst


def _named(layers: set) -> str:
    return " and ".join(str(k) for k in sorted(layers, key=str))


def _never_cleared(log: list) -> list[int]:
    last = {k: name for name, k, _ in log if name in ("fill", "clear")}
    return sorted(k for k, name in last.items() if name == "fill")


def _cleared_late(log: list) -> bool:
    """Whether a layer is still full at another layer's pass, after its own."""
    passed: set[int] = set()
    for name, k, _ in log:
        if name in ("forward", "backward"):
            if passed - {k}:
                return True
            passed.add(k)
        elif name == "clear":
            passed.discard(k)
    return False


ERRORS = {
    r"size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dimension 0|must have "
    r"one shape, got \w+ of shape \(\d+\) for \w+ of shape \(\d+\)": "two flat "
    "tensors of different lengths meet. In reduce_scatter each piece is as long as the shard: the gradient is padded "
    "at its end, to as many shards as there are ranks, before it is cut.",
    r"Mismatch in shape: grad_output\[0\] has a shape of torch\.Size\(\[\d+\]\)": "a flat vector goes back into a "
    "layer. layer.backward returns the gradient of x first, which the layer before takes, then the flat weight's.",
    "KeyError": "no gather of that layer is under way: it starts before use, also for the first of a pass.",
    r"expand\(torch\.\w+\{\[\d+, \d+\]\}|Tensor sizes: \[\d+, \d+\]": "a matrix stands where a flat vector belongs. "
    "layer.backward returns the gradient of x first, a matrix, then that of the flat weight: are they swapped?",
}


@check(
    "lesson_07.fully_sharded",
    judge=_judge,
    cases=[
        {"world_size": n, "hidden": list(h), "width": w}
        for n, h, w in ((1, (2, 3), 2), (2, (2,), 3), (2, (2, 4, 6), 3), (3, (2, 4, 7, 9), 2), (4, (1, 3, 5, 7, 9), 3))
    ]
    + [{"world_size": 2, "second": True}, {"world_size": 3, "second": True, "dtype": "float32"}, held_in_a_pass.MANY],
    ok="two steps are right, two layers at most are whole at once, and three times (N - 1)/N of the weights travel.",
    hint="hint 1 of exercise 7.5",
    hints={
        "hint 2 of exercise 7.5": "slot is|whole or on their way|ahead|hang on|outlives|stay until",
        "hint 1 of exercise 7.5": "gather|order|pad|reduce_scatter|wait|mean|is a view",
    },
    errors=ERRORS,
    look="print layer.log of rank 0 for 2 ranks and 3 layers.",
)
def fully_sharded(
    make, /, world_size: int, hidden: Sequence[int] = (), width: int = 0, second: bool = False, many: int = 0,
    dtype: str = "float64",
):  # fmt: skip
    """Two steps through layers with slots; each layer has another size, so the ledger tells their gathers apart."""
    if second:
        return second_objects.drive(second_objects.weights, make, world_size, dtype)
    if many:
        return held_in_a_pass.drive_many(make, world_size, many)
    args = (make, hidden, width, PASS_S, PASS_S, 2)
    return observe_memory(make, partial(simulate, train_steps, world_size, args, compute="free", echo=False))
