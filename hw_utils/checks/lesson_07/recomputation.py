"""The check of lesson 07's recomputation: gradients, inputs that are kept, passes that are made again."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.kept_bytes import (
    MOMENT_S,
    bytes_in_lists,
    floats_anywhere,
    is_here,
    look_at,
    moment,
    n_bytes,
    observe_memory,
    taken,
)
from hw_utils.checks.lesson_07 import second_objects
from hw_utils.core.errors import CheckFailed
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.layers import KeepingLayer, drawn_weights
from hw_utils.simulate import simulate

FORWARD_S, BACKWARD_S = 1.0, 2.0
N, WIDTH, HIDDEN = 3, 4, 5
MANY = 16_384  # examples, whose input has more bytes than many random states


def _layers(n_layers: int, dropout: float) -> list[KeepingLayer]:
    return [KeepingLayer(drawn_weights(HIDDEN, WIDTH, k), FORWARD_S, BACKWARD_S, dropout) for k in range(n_layers)]


def _numbers(seed: int, n_examples: int) -> torch.Tensor:
    return torch.randn(n_examples, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _worker(
    rank: int, world_size: int, make: Any, n_layers: int, n_segments: int, dropout: float, n_examples: int,
    evaluates: bool,
) -> dict[str, Any]:  # fmt: skip
    layers = _layers(n_layers, dropout)
    calls: list[tuple[str, int]] = []
    most = [0]

    began: list[list[Any]] = []  # with what each segment's first layer went back through, a step

    def watch(k: int, what: str) -> None:
        calls.append((what, k))
        if what == "backward" and began and n_examples == N and k % -(-n_layers // n_segments) == 0:
            began[-1].append([k, layers[k].saved.clone()])
        most[0] = max(most[0], sum(layer.saved is not None for layer in layers))

    for k, layer in enumerate(layers):
        layer.watch = partial(watch, k)
    moments, taken_after = [moment()], []
    model, found = make([interface(layer) for layer in layers], n_segments), []
    if n_examples == MANY:  # what first passes make this process look up is nothing that they keep
        model.backward(model.forward(_numbers(300, N)))
        for layer in layers:
            layer.gradient.zero_()
        calls.clear()
    before = look_at(make) if n_examples == MANY else None
    for step in range(2):
        if evaluates and step:
            n_calls = len(calls)
            model.forward(_numbers(300, n_examples))
            del calls[n_calls:]
        drawn_numbers.set_random_state(7 + step, "forward")
        began.append([])
        y = model.forward(_numbers(100 + step, n_examples))
        kept = -(-(n_bytes(floats_anywhere(model)) + bytes_in_lists(model)) // (8 * n_examples * WIDTH))
        taken_after.append(taken(before, look_at(make, is_at_rest=True) if n_examples == MANY else None))
        in_layers = sum(layer.saved is not None for layer in layers)
        moments.append(moment())
        with torch.random.fork_rng(devices=[]):
            next_draw = torch.rand(1).item()
        drawn_numbers.set_random_state(70 + step, "backward")  # what came before it, nobody works out from it
        gradient = model.backward(_numbers(200 + step, n_examples))
        after = sum(layer.saved is not None for layer in layers)
        found.append({"y": y, "x": gradient, "kept": kept, "in_layers": in_layers, "after": after})
        found[-1] |= {"draw": torch.rand(1).item(), "draw_between": next_draw}
    return {
        "steps": found,
        "moments": moments,
        "taken": taken_after,
        "is_here": is_here(model),
        "weights": [layer.gradient for layer in layers],
        "began": began,
        "most": most[0],
        "n_forward": sum(what == "forward" for what, _ in calls),
        "n_backward": sum(what == "backward" for what, _ in calls),
        "most_often": max((calls.count(("forward", k)) for k in range(n_layers)), default=0),
        "n_last": calls.count(("forward", n_layers - 1)),
    }


def _plain(n_layers: int, dropout: float, n_examples: int) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
    """Without recomputation: each step's output and input gradient, and the weights' gradients."""
    layers, found = _layers(n_layers, dropout), []
    for layer in layers:
        layer.forward_s = layer.backward_s = 0.0
    with torch.random.fork_rng(devices=[]):
        for step in range(2):
            drawn_numbers.set_random_state(7 + step, "forward")
            x, inputs = _numbers(100 + step, n_examples), []
            for layer in layers:
                inputs.append(x.numpy())
                x = layer.forward(x)
            with torch.random.fork_rng(devices=[]):
                next_draw = torch.rand(1).item()
            drawn_numbers.set_random_state(70 + step, "backward")
            gradient = _numbers(200 + step, n_examples)
            for layer in reversed(layers):
                gradient = layer.backward(gradient)
            draws = {"draw": torch.rand(1).item(), "draw_between": next_draw}
            found.append({"y": x.numpy(), "x": gradient.numpy(), "inputs": inputs, **draws})
    return found, [layer.gradient for layer in layers]


def _judge(
    data: Any, n_layers: int = 0, n_segments: int = 0, dropout: float = 0.0, n_examples: int = N,
    evaluates: bool = False, second: bool = False,
) -> None:  # fmt: skip
    if second:
        return second_objects.judge_recompute(data)
    what = f"{n_layers} layers in {n_segments} segment{'' if n_segments == 1 else 's'}"
    what += f", dropout {dropout:g}" if dropout else ""
    what += ", a forward without a backward between the steps" if evaluates else ""
    require_no_deadlock(data, what)
    (result,) = data["results"]
    _judge_numbers(what, result, n_layers, dropout, n_examples, evaluates)
    longest = math.ceil(n_layers / n_segments)
    kept = max(step["kept"] for step in result["steps"])
    if kept > n_segments:
        raise CheckFailed(
            f"{what}: after forward the object keeps {kept} inputs, {n_segments} are enough.",
            cause="only the first input of each segment is kept; forget those of the step before.",
        )
    if n_examples == MANY and (held := data["held"][0]):  # of few examples a random state is more than an input
        inputs = [  # the worker keeps this step's output, and both results of the step before
            (at - held[0]) / (8 * n_examples * WIDTH) - step["in_layers"] - 1 - 2 * k
            for k, (at, step) in enumerate(zip(held[1:], result["steps"]))
        ]
        if max(inputs) > n_segments + 0.5:
            raise CheckFailed(
                f"{what}: after forward {max(inputs):.3g} inputs are kept beside the layers and the output, "
                f"{n_segments} are enough.",
                cause="something keeps them outside the object: under a global name, on the class or in a function.",
            )
    if n_examples == MANY and None not in result["taken"]:
        _judge_taken(what, max(result["taken"]) / (8 * n_examples * WIDTH), n_segments)
    if result["most"] > longest:
        raise CheckFailed(
            f"{what}: {result['most']} layers keep their input at once, {longest} at most is asked.",
            cause="the forward pass keeps every input: keep=False in all segments but the last."
            if result["steps"][0]["in_layers"] == n_layers
            else "recompute one segment, go back through it, and only then the one before it.",
        )
    again, least = result["n_forward"] / 2 - n_layers, (n_segments - 1) * longest
    if again > least:
        raise CheckFailed(
            f"{what}: {again:g} forward passes are made again in a step, {least} are enough.",
            cause="the last segment is recomputed, too: its backward comes right after its forward, so let it keep its "
            "inputs at once."
            if result["n_last"] > 2
            else "no layer is recomputed twice, so segments are cut otherwise: each of ceil(n_layers / n_segments) "
            "layers, and the last one of what is left."
            if result["most_often"] <= 4
            else "each segment is recomputed once, from its own first input, and not from the model's.",
        )
    if after := max(step["after"] for step in result["steps"]):
        raise CheckFailed(f"{what}: {after} layers still keep an input after backward.", cause="a layer is "
                          "recomputed after its own backward pass.")  # fmt: skip
    n_steps = 2 + (n_examples == MANY)
    seconds = n_steps * (n_layers * (FORWARD_S + BACKWARD_S) + least * FORWARD_S)
    seconds += len(result["moments"]) * MOMENT_S + evaluates * n_layers * FORWARD_S
    if data["seconds"] > seconds * (1 + 1e-6):
        raise CheckFailed(f"{what}: two steps take {data['seconds']:g} s, at most {seconds:g} s are asked.",
                          cause="something else takes time between the passes.")  # fmt: skip


def _judge_taken(what: str, n_inputs: float, n_segments: int) -> None:
    if n_inputs > n_segments + 20:  # right ones of many kinds 16 to 18, the least of those that keep 33
        raise CheckFailed(
            f"{what}: after forward as much memory is in use as {n_inputs:.3g} inputs take, {n_segments} are enough.",
            cause="something keeps inputs, or numbers of theirs, in another form: as a text, in a list, in a file.",
        )


_STALE = {
    False: "step 0 is right, so something of it is used again: forward begins with no starts kept.",
    True: "what a forward without a backward has kept, as in an evaluation, is used again: forward begins with none "
    "kept.",
}


_FORWARD_DRAWS = (
    "forward leaves another random state already: it reads it (get_rng_state), and neither sets nor seeds it nor draws "
    "anything."
)


def _judge_numbers(what: str, result: Any, n_layers: int, dropout: float, n_examples: int, evaluates: bool) -> None:
    steps, weights = _plain(n_layers, dropout, n_examples)
    if result["n_backward"] != 2 * n_layers:
        raise CheckFailed(
            f"{what}: {result['n_backward']} backward passes in two steps, expected {2 * n_layers}.",
            cause="every layer goes back once a step, the last one first.",
        )
    for k, (got, right) in enumerate(zip(result["steps"], steps)):
        for name, said in (("y", "the output"), ("x", "the gradient of the input")):
            method = "forward" if name == "y" else "backward"
            if got[name] is None:
                raise CheckFailed(f"{what}: {method} gave None, expected {said}.", cause=f"{method} has no return.")
            if not isinstance(got[name], np.ndarray):
                raise CheckFailed(f"{what}: {method} gave {came(got[name])}, expected {said}.", cause="it is a tensor.")
            if not _same(got[name], right[name]):
                cause = (
                    "recomputed layers draw other dropout masks: keep torch.get_rng_state() with a segment's input, "
                )
                cause += "and set it before the segment is recomputed."
                draws_alike = got["draw_between"] == right["draw_between"]
                raise CheckFailed(
                    f"{what}: {said} in step {k} is not that of the plain layers.",
                    cause=_FORWARD_DRAWS
                    if dropout and name == "y" and not draws_alike
                    else cause
                    if dropout and name == "x" and _begin_alike(result["began"][k], right["inputs"])
                    else _STALE[evaluates]
                    if k
                    else "layers go in their order, and back in the reverse one, each with the input it had.",
                )
    for k, (got, right) in enumerate(zip(result["weights"], weights)):
        if not _same(got, right.numpy()):
            raise CheckFailed(
                f"{what}: the weight gradient of layer {k} is not that of the plain layers.",
                cause="the layer went back through another input than that of its forward pass.",
            )
    for k, (got, right) in enumerate(zip(result["steps"], steps)):
        if got["draw"] != right["draw"]:
            raise CheckFailed(
                f"{what}: after step {k} torch draws other random numbers than without recomputation.",
                cause="backward leaves the random state as it finds it: put the random state back after a segment is "
                "recomputed, and draw or seed nothing else there."
                if got["draw_between"] == right["draw_between"]
                else _FORWARD_DRAWS,
            )


def _begin_alike(began: list[Any], inputs: list[np.ndarray]) -> bool:
    """Whether the first layers of the segments went back in the reverse order, each through its own input."""
    order = [k for k, _ in began]
    return order == sorted(order, reverse=True) and all(_same(x, inputs[k]) for k, x in began)


def _same(got: Any, right: np.ndarray) -> bool:
    return isinstance(got, np.ndarray) and got.shape == right.shape and np.allclose(got, right, rtol=1e-12, atol=1e-13)


@check(
    "lesson_07.recomputed",
    judge=_judge,
    cases=[
        {"n_layers": n, "n_segments": s, "dropout": p}
        for n, s, p in ((2, 2, 0.0), (4, 1, 0.0), (9, 3, 0.0), (16, 4, 0.0), (10, 3, 0.0), (9, 3, 0.5))
    ]
    + [
        {"n_layers": 32, "n_segments": 4, "dropout": 0.0, "n_examples": MANY},
        {"n_layers": 9, "n_segments": 3, "dropout": 0.0, "evaluates": True},
        {"second": True},
    ],
    ok="gradients are exact, inputs of one segment and the first of each are kept, the last segment runs once.",
    hint="hint 1 of exercise 7.2",
    hints={"hint 2 of exercise 7.2": "random|dropout", "hint 1 of exercise 7.2": "keep|last segment|kept no input"},
    look="print each call of forward and backward with its layer, for 4 layers in 2 segments.",
)
def recomputed(
    make, /, n_layers: int = 0, n_segments: int = 0, dropout: float = 0.0, n_examples: int = N,
    evaluates: bool = False, second: bool = False,
):  # fmt: skip
    """Two steps through layers that say when they keep an input, each pass taking a known time."""
    if second:
        return second_objects.drive(second_objects.recompute, make, 1)
    args = (make, n_layers, n_segments, dropout, n_examples, evaluates)
    return observe_memory(make, partial(simulate, _worker, 1, args, compute="free", echo=False))
