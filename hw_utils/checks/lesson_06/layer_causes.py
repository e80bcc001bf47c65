"""Likely causes for lesson 06's tensor-parallel layers, by what is wrong with a shape, a number or a call."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

_NO_GRADIENT = "backward leaves the local weight gradient on the layer: self.weight_grad = ..."
_WHOLE_X = "x is whole in a column layer: all its features meet the rank's columns; only a row layer slices x"
_SLICED = "a rank's rows meet its own slice of the input only: slice x"
_SLICED_GRADIENT = "the upstream gradient has all columns, the weight only the rank's own: slice the gradient"
_TOO_MANY_COLUMNS = "the upstream gradient is not sliced: only the rank's own columns meet its weight"
_WHOLE_GRADIENT = (
    "the upstream gradient is whole in a row layer: all its columns meet the rank's rows; only a column layer slices it"
)
_BY_HAND = "for y = x @ W, with W as it is kept, the gradients are x.T @ g and g @ W.T"
_EXAMPLES_CUT = "the examples are cut: x[k:l] takes rows of x, its examples; x[:, k:l] takes features, of all examples"
_FROM_ELSEWHERE = (
    "no matrix of this case has {} rows or columns: is a variable of the notebook used here? What backward needs of "
    "forward is kept on self"
)
_MATRICES = re.compile(r"\((\d+)x(\d+) and (\d+)x(\d+)\)")


def crash_cause(data: Any, stage: str, axis: int, case: dict) -> str:
    """Why two shapes did not fit, by the shapes; "" if nothing crashed."""
    if "crash" not in data:
        return ""
    cut = "d_out = weight.shape[1]" if axis else "d_in = weight.shape[0]"
    if stage == "constructor" and data["crash"]["reason"].startswith("ValueError"):
        n, (mine, other) = case["world_size"], ("d_out", "d_in") if axis else ("d_in", "d_out")
        if case[other] % n:
            return (
                f"{n} divides {mine}, {case[mine]}: the other dimension is looked at; the constructor cuts along {cut}"
            )
    if stage == "constructor":
        return f"the constructor cuts along {cut}, and refuses only what N does not divide"
    found = _MATRICES.search(data["crash"]["reason"])
    left, right = ((0, 0), (0, 0)) if found is None else (tuple(map(int, found.groups()[k : k + 2])) for k in (0, 2))
    batch, d_in, d_out, n = case["batch"], case["d_in"], case["d_out"], case["world_size"]
    known = {1} | {size * n for size in (batch, d_in, d_out)}
    known |= {(size + more) // parts for size in (batch, d_in, d_out) for parts in (1, n) for more in (0, parts - 1)}
    strange = [size for size in (*left, *right) if found and size not in known]
    if strange:
        return _FROM_ELSEWHERE.format(max(strange))
    if stage == "backward" and right == (batch, d_out) and left == (d_in, min(d_in // n, batch)) and not axis:
        return _EXAMPLES_CUT
    whole, rest = (d_in, d_in) if stage == "forward" else (d_out, d_out)
    if left == (batch, whole) and right == (d_in, d_out)[::-1]:
        return _BY_HAND
    if left[0] == batch and right[0] != batch:
        is_whole = left[1] == rest
        if stage == "forward" and bool(axis) != is_whole:
            return _WHOLE_X if axis else _SLICED
        if stage == "backward" and bool(axis) == is_whole:
            return _SLICED_GRADIENT if axis else _WHOLE_GRADIENT
    if found:
        return "x @ W, with W as it is kept: no transpose, unlike nn.Linear's" if stage == "forward" else _BY_HAND
    return {
        (1, "forward"): "x (batch, d_in) meets the rank's own columns (d_in, d_out / N)",
        (1, "backward"): _SLICED_GRADIENT,
        (0, "forward"): _SLICED,
        (0, "backward"): "the upstream gradient (batch, d_out) meets the rank's (d_in / N, d_out)",
    }[axis, stage]


def shape_causes(causes: dict, axis: int, case: dict) -> dict:
    """The same causes, with what a wrong shape of this case's gradients says."""
    n, d_in, d_out = case["world_size"], case["d_in"], case["d_out"]

    def of_the_weight(shape: tuple) -> str:
        if axis:
            return _WHOLE_X if shape[:1] != (d_in,) else _TOO_MANY_COLUMNS
        if shape[:1] != (d_in // n,) and shape[1:] == (d_out,):
            return (
                "the cached input is not sliced, where only the rank's own slice met its rows; or the ranks' weight "
                "gradients are gathered, and each rank keeps its own rows"
                if shape == (d_in, d_out)
                else "the cached input is not sliced: only the rank's own slice met its rows"
            )
        return _WHOLE_GRADIENT if shape[:1] == (d_in // n,) else _BY_HAND

    def of_the_input(shape: tuple) -> str:
        if not axis:
            return _GATHERED
        gathered = "a gather where a sum belongs: each rank's columns give a share of the whole input gradient"
        return gathered if shape[-1:] == (n * d_in,) or shape[:1] == (n * case["batch"],) else _BY_HAND

    def of_the_output(shape: tuple) -> str:
        if axis:
            return _GATHERED
        if shape == (min(d_in // n, case["batch"]), d_out):
            return _EXAMPLES_CUT
        is_gathered = n > 1 and shape in ((n * case["batch"], d_out), (case["batch"], n * d_out))
        return "a gather where a sum belongs: every rank has a share of every output" if is_gathered else ""

    shapes = {"output": of_the_output, "weight_grad": of_the_weight, "grad_input": of_the_input}
    return causes | {name: causes[name] | {"shape": found} for name, found in shapes.items()}


_GATHERED = "the ranks' parts are gathered and put side by side, in rank order, along the feature dimension"
COLUMN: dict[str, dict[str, Any]] = {
    "weight": {
        "shape": "rank r keeps d_out / N whole columns: (d_in, d_out / N)",
        "other": "the slice is another rank's: rank 0 has the first columns",
    },
    "output": {
        "shape": _GATHERED,
        "order": _GATHERED,
        "partial": "the gathered parts are set side by side, not added",
        "times N": "the gathered parts are the whole output; nothing is summed after that",
    },
    "weight_grad": {
        "none": _NO_GRADIENT,
        "transpose": "it is the transpose: x.T @ g, in the shape of the weight",
        "other": "the slice of the upstream gradient is another rank's",
        "times N": "the weight gradient is the rank's own: nothing is summed over ranks",
        "summed": "the weight gradient is the rank's own: nothing is summed over ranks",
    },
    "grad_input": {
        "partial": "each rank has its own columns' share of the input gradient: it is not reduced",
        "times N": "it is reduced twice, or every rank adds the whole gradient",
        "mean": "the shares are summed, not averaged",
    },
    "calls": {
        "all_reduce more": "it is reduced more than once",
        "all_reduce none": "in the forward nothing is summed: the columns are set side by side",
        "all_gather more": "the output is gathered more than once",
        "all_reduce fewer": "the sum over ranks is one all_reduce",
        "all_gather fewer": "the columns come together in one all_gather",
    },
}
ROW: dict[str, dict[str, Any]] = {
    "weight": {
        "shape": "rank r keeps d_in / N whole rows: (d_in / N, d_out)",
        "other": "the slice is another rank's: rank 0 has the first rows",
    },
    "output": {
        "partial": "every rank has a share of every output: they are not reduced, or what all_reduce gives is lost",
        "times N": "the whole product is added on every rank: it is counted N times",
        "mean": "the shares are summed, not averaged",
    },
    "weight_grad": {
        "none": _NO_GRADIENT,
        "transpose": "it is the transpose: x.T @ g, in the shape of the weight",
        "part": _WHOLE_GRADIENT,
        "other": "the cached input is the slice of another rank: slice by rank, and cache it on the object, "
        "not on the class",
        "times N": "the upstream gradient is already the same on all ranks: nothing is summed",
        "summed": "the weight gradient is the rank's own: nothing is summed over ranks",
        "mean": "the upstream gradient is already the same on all ranks: nothing is averaged",
        "not rank 0": "the cached input is of the wrong shard: rank 0's slice on every rank",
    },
    "grad_input": {
        "shape": _GATHERED,
        "order": _GATHERED,
        "part": "a rank has the gradient of its own features alone: the ranks' parts are gathered, side by side",
        "times N": "each rank has its own part of the input gradient: parts are gathered, not summed",
    },
    "calls": {
        "all_reduce more": "it is reduced more than once: the upstream gradient is already the same on all ranks",
        "all_gather more": "it is gathered more than once",
        "all_gather none": "in the forward nothing is gathered: the ranks' shares are summed by one all_reduce",
        "all_reduce fewer": "the sum over ranks is one all_reduce",
        "all_gather fewer": "the parts come together in one all_gather",
    },
}

EARLIER = "it is an earlier layer's, of the same shape and name: each layer cuts the weight that it is given"
EVERY_NTH = "rank r keeps one run of neighbouring {}, rank 0 the first; not every N-th of the {}"
_OTHER_INPUT = (
    "it is made of another forward's input, or another layer's: keep the last forward's, on the object and not on the "
    "class"
)
_OWN_GRADIENT = "the weight gradient is the rank's own: nothing is summed or averaged over ranks"
_OVER_BATCH = "nothing is divided by the batch: the mean is in the upstream gradient already"
_OLD_NUMBERS = (
    "it is made with the weight that the constructor was given: self.weight has been changed in place since, as a step "
    "of an optimizer does. Compute with self.weight, and keep no second copy of it"
)


def known_mistakes(axis: int, case: dict, weight, other, x, grad_output, given) -> dict[str, dict[str, list]]:
    """For each result, cause -> what a rank then has: for each rank the arrays, one of which it is.

    given: the weight that the constructor got, if it has other numbers now.
    """
    n, batch = case["world_size"], case["batch"]

    def cut(tensor: torch.Tensor) -> list[np.ndarray]:
        return [part.numpy() for part in tensor.chunk(n, axis)]

    whole = (grad_output @ weight.T).numpy()
    of_other = cut(other.T @ grad_output)
    output, old = {}, {}
    if case.get("stepped"):
        output[_OLD_NUMBERS] = [[(x @ given).numpy()]] * n
        old[_OLD_NUMBERS] = [[(grad_output @ given.T).numpy()]] * n
    if n > 1 and not axis:
        slices, rows = x.chunk(n, 1), weight.chunk(n, 0)
        shifted = [sum(slices[order(r)] @ rows[r] for r in range(n)).numpy() for order in _orders(n)]
        output |= {"each rank's rows meet another rank's slice of x: cut x where the weight is cut": [shifted] * n}
    return {
        "output": output,
        "weight_grad": {
            _OTHER_INPUT: [[mine] if axis else of_other for mine in of_other],
            _OVER_BATCH: [[part / batch] for part in cut(x.T @ grad_output)],
            **({_OWN_GRADIENT: [[sum(cut(x.T @ grad_output)) / n]] * n} if n > 1 else {}),
        },
        "grad_input": {_OVER_BATCH: [[whole / batch]] * n, **old},
    }


def _orders(n: int) -> list:
    return [lambda r: (r + 1) % n, lambda r: (r - 1) % n, lambda r: n - 1 - r, lambda r: 0]
