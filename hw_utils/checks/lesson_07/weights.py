"""The checks of lesson 07's sharded weights: gradients, layers that are whole at once, and what the gathering costs."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, observe, require_no_deadlock, require_waits
from hw_utils.checks.lesson_06.shards import n_ranks
from hw_utils.checks.lesson_07 import kept_bytes
from hw_utils.checks.lesson_07.kept_bytes import ELSEWHERE, moment, observe_memory
from hw_utils.core.errors import CheckFailed
from hw_utils.core.network import Network
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Event, Trace
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.layers import SlotLayer, drawn_weights
from hw_utils.simulate import simulate

ITEM, EXAMPLES = 8, 2
SLACK = 16  # bytes
PASS_S = 1e-3  # so that what is called before a pass and after it has different times
GATHERS, SCATTERS = ("all_gather", "all_gather_into_tensor"), ("reduce_scatter", "reduce_scatter_tensor")


def _numbers(rank: int, seed: int, width: int) -> torch.Tensor:
    return torch.randn(EXAMPLES, width, generator=torch.Generator().manual_seed(1000 * seed + rank)).double()


def _worker(
    rank: int, world_size: int, make: Any, hidden: list[int], width: int, forward_s: float, backward_s: float,
    n_steps: int,
) -> dict[str, Any]:  # fmt: skip
    log: list[tuple[str, int, float]] = []
    layers = [
        SlotLayer(k, drawn_weights(h, width, k), rank, world_size, forward_s, backward_s, log)
        for k, h in enumerate(hidden)
    ]
    at_first = [layer.shard.clone() for layer in layers]
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
    changed = [k for k, layer in enumerate(layers) if not torch.equal(layer.shard, at_first[k])]
    return found | {"moments": moments, "is_here": kept_bytes.is_here(model), "changed": changed}


def _serial(hidden: list[int], width: int, world_size: int, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each rank's output, and each layer's mean gradient as (world_size, size)."""
    log: list[tuple[str, int, float]] = []
    weights = [drawn_weights(h, width, k) for k, h in enumerate(hidden)]
    layers = [SlotLayer(k, w, 0, 1, 0.0, 0.0, log) for k, w in enumerate(weights)]
    totals, outputs = [torch.zeros(w.numel(), dtype=torch.float64) for w in weights], []
    for layer in layers:
        layer.fill(layer.shard)
    for rank in range(world_size):
        x = _numbers(rank, step, width)
        for layer in layers:
            x = layer.forward(x)
        outputs.append(x.numpy())
        gradient = _numbers(rank, 10 + step, width)
        for k in reversed(range(len(layers))):
            gradient, own = layers[k].backward(gradient)
            totals[k] += own / world_size
    cut = []
    for total in totals:
        size = -(-len(total) // world_size)
        padded = torch.nn.functional.pad(total, (0, size * world_size - len(total)))
        cut.append(padded.view(world_size, size).numpy())
    return outputs, cut


def _judge(data: Any, world_size: int, hidden: list[int], width: int) -> None:
    what = f"{n_ranks(world_size)}, {len(hidden)} layers of {', '.join(str(h * width) for h in hidden)} elements"
    require_no_deadlock(data, what, cause="all ranks gather and reduce the same layers in one order.")
    trace = Trace.from_plain(data["trace"])
    others = sorted(trace.ops - {*GATHERS, *SCATTERS, "barrier"})
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}.",
            cause="all_gather for the weights and reduce_scatter for their gradients are all that is needed.",
        )
    for rank, result in enumerate(data["results"]):
        _judge_passes(f"{what}: rank {rank}", result["log"], len(hidden))
        if result["changed"]:
            raise CheckFailed(
                f"{what}: rank {rank}'s layer.shard of layer {result['changed'][0]} has other numbers than before.",
                cause="it is the weight, which only an optimizer changes: gather from it, and receive in tensors of "
                "your own.",
            )
    for step in range(2):
        outputs, cut = _serial(hidden, width, world_size, step)
        for rank, result in enumerate(data["results"]):
            _judge_numbers(f"{what}: step {step}, rank {rank}", result, step, outputs[rank], cut, rank, world_size)
    require_waits(trace, what)
    sizes = [-(-h * width // world_size) for h in hidden]
    for rank, result in enumerate(data["results"]):
        _judge_memory(f"{what}: rank {rank}", result, trace.of_rank(rank), sizes, world_size)
        grown = result["anywhere"]
        if at := data["held"][rank]:  # after a forward pass the layers keep their inputs
            saved = len(hidden) * EXAMPLES * width * ITEM
            grown = [there - at[0] - (0 if k % 2 else saved) for k, there in enumerate(at[1:])]
        _judge_elsewhere(f"{what}: rank {rank}", max(grown), sizes, world_size)
    _judge_bytes(what, trace, sizes, world_size)


def _judge_passes(what: str, log: list, n_layers: int) -> None:
    passes = [(name, k) for name, k, _ in log if name in ("forward", "backward")]
    step = [("forward", k) for k in range(n_layers)] + [("backward", k) for k in reversed(range(n_layers))]
    if passes != 2 * step:
        raise CheckFailed(
            f"{what}: the passes were {' '.join(f'{name[0]}{k}' for name, k in passes[: len(step) + 1])} ..., "
            f"expected {' '.join(f'{name[0]}{k}' for name, k in step)} in each step.",
            cause="forward goes through the layers in their order, backward in the reverse one, each once.",
        )


def _judge_numbers(
    what: str, result: Any, step: int, output: np.ndarray, cut: list[np.ndarray], rank: int, world_size: int
) -> None:
    got = result["outputs"][step]
    if not _same(got, output):
        raise CheckFailed(
            f"{what}: the output is not that of the whole layers.",
            cause="the shards lie in the order of the ranks, and the padding at the end is left out.",
        )
    shards = result["shards"][step]
    if not isinstance(shards, list) or len(shards) != len(cut):
        raise CheckFailed(f"{what}: backward gave no list of {len(cut)} gradient shards.",
                          cause="return a list in the order of the layers.")  # fmt: skip
    for k, (mine, whole) in enumerate(zip(shards, cut)):
        if _same(mine, whole[rank]):
            continue
        causes = {
            "that is the sum over the ranks: the mean is asked.": whole[rank] * world_size,
            "divided by the number of ranks twice.": whole[rank] / world_size,
            "it is zero: its buffer was read before wait(), or is another layer's.": 0 * whole[rank],
        }
        named = [cause for cause, value in causes.items() if _same(mine, value)]
        named += [f"that is layer {j}'s shard: the list is in the order of the layers." for j, w in enumerate(cut)
                  if _same(mine, w[rank])]  # fmt: skip
        if np.shape(mine) == whole[rank].shape and np.allclose(mine, whole[rank], rtol=1e-5, atol=1e-6):
            named.append("right to six places: gradients travel in the dtype that they have.")
        other = "the flat gradient is padded at its end, cut for the ranks in their order, summed and divided."
        raise CheckFailed(
            f"{what}: the gradient shard of layer {k} is not the mean of all ranks' gradients.",
            cause=(named or [other])[0],
        )


def _same(got: Any, right: np.ndarray) -> bool:
    return isinstance(got, np.ndarray) and got.shape == right.shape and np.allclose(got, right, rtol=1e-10, atol=1e-12)


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


def _judge_elsewhere(what: str, grown: int, sizes: list[int], world_size: int) -> None:
    limit = max(2 * sum(sizes), 2 * max(sizes) * world_size) * ITEM + SLACK
    if grown > limit:
        raise CheckFailed(
            f"{what}: after a pass it holds {grown} bytes more than before the first one, two shards of every "
            f"layer, or two layers, have {limit - SLACK}.",
            cause=ELSEWHERE,
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


def _judge_bytes(what: str, trace: Trace, sizes: list[int], world_size: int) -> None:
    limit = 2 * 3 * (world_size - 1) * sum(sizes) * ITEM
    for rank in range(world_size):
        sent = trace.bytes_sent(rank)
        if sent > limit:
            gathers = len(trace.of_rank(rank).of_op(*GATHERS))
            raise CheckFailed(
                f"{what}: rank {rank} sends {sent} bytes in two steps, {limit} are enough.",
                cause=f"{gathers} gathers in two steps: each layer is gathered once for forward and once for backward."
                if gathers > 4 * len(sizes)
                else "a layer costs three times (N - 1)/N of its bytes: two gathers and one reduce_scatter.",
            )


@check(
    "lesson_07.fully_sharded",
    judge=_judge,
    cases=[
        {"world_size": n, "hidden": list(h), "width": w}
        for n, h, w in ((1, (2, 3), 2), (2, (2,), 3), (2, (2, 4, 6), 3), (3, (2, 4, 7, 9), 2), (4, (1, 3, 5, 7, 9), 3))
    ],
    ok="two steps are right, two layers at most are whole at once, and three times (N - 1)/N of the weights travel.",
    hint="hint 1 of exercise 7.5",
    hints={
        "hint 2 of exercise 7.5": "slot|whole or on their way|ahead|hang on|outlives",
        "hint 1 of exercise 7.5": "gather|order|pad|reduce_scatter|wait|mean",
    },
    look="print layer.log of rank 0 for 2 ranks and 3 layers.",
)
def fully_sharded(make, /, world_size: int, hidden: list[int], width: int):
    """Two steps through layers with slots; each layer has another size, so the ledger tells their gathers apart."""
    args = (make, hidden, width, PASS_S, PASS_S, 2)
    return observe_memory(lambda: simulate(_worker, world_size, args, compute="free", echo=False, memory=True))


def _judge_in_time(
    data: Any, world_size: int, n_layers: int, forward_s: float, backward_s: float, gather_s: float
) -> None:
    what = f"{n_ranks(world_size)}, {n_layers} layers, {forward_s:g} s forward, {backward_s:g} s backward"
    what += f", {gather_s:g} s a gather"
    require_no_deadlock(data, what)
    trace = Trace.from_plain(data["trace"])
    result = data["results"][0]
    start_s, middle_s, end_s = result["times"]
    forward = middle_s - start_s, gather_s + (n_layers - 1) * max(forward_s, gather_s) + forward_s
    turn_s = max(backward_s, 2 * gather_s)
    backward = end_s - middle_s, gather_s + (n_layers - 1) * turn_s + backward_s + gather_s
    for name, (took_s, due_s), pass_s in (("forward", forward, forward_s), ("backward", backward, backward_s)):
        if took_s <= 1.05 * due_s:
            continue
        raise CheckFailed(
            f"{what}: {name} takes {took_s:g} s, with the next layer gathered meanwhile {due_s:g} s are enough.",
            cause=_why_slow(name, trace.of_rank(0), result["log"], n_layers, pass_s),
        )


def _why_slow(name: str, trace: Trace, log: list, n_layers: int, pass_s: float) -> str:
    starts = [s for what, _, s in log if what == name]
    gathers = list(trace.of_op(*GATHERS))
    behind = [e for e in gathers if any(s <= e.start_s < s + 0.5 * pass_s for s in starts)]
    if any(b.start_s > a.start_s for a, b in pairwise(gathers)) and not _overlapping(gathers, starts, pass_s):
        return (
            "a layer is gathered when it is used: start the next one's gather before this one computes, and wait later."
        )
    scatters = list(trace.of_op(*SCATTERS))
    if name == "backward" and scatters and min(e.start_s for e in scatters) >= max(starts) + 0.99 * pass_s:
        return "all reduce_scatters start after the last pass: start each as soon as its layer's gradient is there."
    if name == "backward" and any(_waits(e) for e in scatters):
        return "each reduce_scatter is waited for where it starts: keep its handle, and wait at the end of backward."
    begun = max((e.order for e in scatters), default=0)
    if name == "backward" and any(e.waited is not None and e.waited < begun for e in scatters):
        return "a reduce_scatter is waited for before backward goes on: keep its handle, and wait for all at the end."
    if name == "backward" and behind:
        return "backward goes from the last layer to the first: the next one is k - 1."
    return "the network rests while a layer computes: what comes next is under way before the pass begins."


def _overlapping(gathers: list[Event], starts: list[float], pass_s: float) -> bool:
    return any(e.start_s <= s + 1e-9 and e.end_s > s + 1e-9 for e in gathers for s in starts)


def _waits(event: Event) -> bool:
    """Whether nothing else was called between the start of a call and its wait."""
    return event.waited is not None and event.waited - event.order <= 1


@check(
    "lesson_07.fully_sharded_in_time",
    judge=_judge_in_time,
    cases=[
        {"world_size": n, "n_layers": k, "forward_s": f, "backward_s": b, "gather_s": g}
        for n, k, f, b, g in (
            (2, 4, 1.0, 2.0, 0.5), (2, 4, 0.5, 1.0, 1.0), (3, 6, 1.0, 2.0, 1.0), (4, 6, 1.0, 4.0, 0.25)
        )
    ],
    ok="the gathering hides behind the computing, or the other way round, to 5 %.",
    hint="hint 3 of exercise 7.5",
    look="draw the timeline of your own run with 4 layers.",
)  # fmt: skip
def fully_sharded_in_time(
    make, /, world_size: int, n_layers: int, forward_s: float, backward_s: float, gather_s: float
):
    """One step through layers of one size that take a known time, over links on which a gather does."""
    width = 2
    hidden = [world_size] * n_layers  # a shard of `width` elements
    network = Network(0.0, (world_size - 1) * width * ITEM / gather_s)
    args = (make, hidden, width, forward_s, backward_s, 1)
    return observe(lambda: simulate(_worker, world_size, args, network=network, compute="free", echo=False))
