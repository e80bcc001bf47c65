"""Checks of lesson 07: bytes on paper, against tensors of these sizes that take no memory."""

from __future__ import annotations

import math
from typing import Any

import torch

from hw_utils.checks.check import check
from hw_utils.checks.lesson_05.expected_numbers import require
from hw_utils.core.errors import CheckFailed

GB = 1e9
BYTES = 12, 2, 2  # a parameter's: optimizer, gradient, weight


def _n_bytes(n: int, *dtypes: torch.dtype) -> int:
    return sum(torch.empty(n, dtype=dtype, device="meta").nbytes for dtype in dtypes)


def _require_number(what: str, data: Any) -> None:
    """Raises if a formula gives something that is neither number, text nor tensor, such as a complex number."""
    if isinstance(data, dict) and (kind := data.get("unknown")):
        raise CheckFailed(f"{what} gave a {kind}.", cause=f"a {kind} is no plain number: return float(...) of it.")


def _judge_state(data: Any, n_parameters: int, world_size: int, stage: int) -> None:
    parts = {
        "optimizer": _n_bytes(n_parameters, torch.float32, torch.float32, torch.float32),
        "gradients": _n_bytes(n_parameters, torch.float16),
        "weights": _n_bytes(n_parameters, torch.float16),
    }

    def held(cut: int, size: int = world_size, **bytes_of: int) -> float:
        sizes = {**parts, **bytes_of}
        return sum(n / size if k < cut else n for k, n in enumerate(sizes.values()))

    right = held(stage)
    whole_parts = sum(n // world_size if k < stage else n for k, n in enumerate(parts.values()))
    whole_ones = [right - n / world_size + n // world_size for n in list(parts.values())[:stage]]
    whole_bytes = sum(n_parameters * (b // world_size if k < stage else b) for k, b in enumerate(BYTES))
    least = sum(n_parameters // world_size * b if k < stage else n_parameters * b for k, b in enumerate(BYTES))
    most = sum(-(-n_parameters // world_size) * b if k < stage else n_parameters * b for k, b in enumerate(BYTES))
    what = f"state_bytes({n_parameters}, {world_size}, {stage})"
    _require_number(what, data)
    causes = {
        "the optimizer has two moments and float32 weights: 12 bytes a parameter, not 8.": held(
            stage, optimizer=_n_bytes(n_parameters, torch.float32, torch.float32)
        ),
        "the optimizer has two moments and the weights once more, float32 all three: 12 bytes a parameter.": tuple(
            held(stage, optimizer=k * n_parameters) for k in (4, 6, 16)
        ),
        "weights and gradients are float16 here, 2 bytes a parameter each.": held(
            stage, gradients=2 * parts["gradients"], weights=2 * parts["weights"]
        ),
        "weights and gradients are float16 too, 2 bytes a parameter each: one of them has 4.": (
            held(stage, gradients=2 * parts["gradients"]),
            held(stage, weights=2 * parts["weights"]),
        ),
        "stage 1 cuts the optimizer alone, stage 2 gradients too, stage 3 weights too: one stage too many.": held(
            min(stage + 1, 3)
        ),
        "stage 1 cuts the optimizer, stage 2 gradients too, stage 3 weights too: one stage too few.": held(
            max(stage - 1, 0)
        ),
        "every stage keeps what the stages before it cut: the optimizer stays cut in stages 2 and 3.": sum(
            n / world_size if k == stage - 1 else n for k, n in enumerate(parts.values())
        ),
        "that is cut by everything: stage 0 cuts nothing, and stages 1 and 2 leave a part whole.": held(3),
        "nothing is cut there: from stage 1 on each rank has 1/N of the optimizer.": held(0),
        "that is all ranks together: one rank is asked.": world_size * right,
        "that is in GB: bytes are asked.": right / GB,
        "that is counted in numbers: bytes are asked.": right / 16 * 5 if stage == 0 else float("nan"),
        "weights are cut first there: the optimizer goes first, the weights last.": sum(
            n / world_size if 2 - k < stage else n for k, n in enumerate(parts.values())
        ),
        "the weights' float32 copy belongs to the optimizer, and is cut with it.": held(stage)
        + (parts["optimizer"] / 3 * (1 - 1 / world_size) if stage else 0),
        "the optimizer is missing: 12 bytes a parameter, divided by the number of ranks from stage 1 on.": right
        - (parts["optimizer"] / world_size if stage else parts["optimizer"]),
        "the gradients are missing: from stage 2 on a rank has 1/N of them, and they are not gone.": (
            right - parts["gradients"] / world_size if stage == 2 else math.nan
        ),
        "weights or gradients are missing: both are there in every stage, whole or 1/N of them.": (
            right - parts["weights"] / (world_size if stage == 3 else 1) if stage else math.nan,
            right - parts["weights"] - parts["gradients"] if stage < 2 else math.nan,
        ),
        "fractions are allowed: divide with /, and round nothing.": (
            whole_parts, whole_bytes, least, most, *whole_ones, math.floor(right), math.ceil(right)
        ),
    }  # fmt: skip
    require(what, data, right, causes, rel_tol=1e-9)


@check(
    "lesson_07.state_bytes",
    judge=_judge_state,
    cases=[
        {"n_parameters": n, "world_size": size, "stage": stage}
        for n, size, stage in (
            # 11 ranks and stage 1 first: of others two mistakes make the same number
            (1000, 11, 1), (1000, 11, 2), (1000, 11, 3), (1000, 4, 0), (1000, 4, 1), (1000, 4, 2), (1000, 4, 3),
            (1000, 1, 3), (7_500_000_000, 64, 0), (7_500_000_000, 64, 1), (7_500_000_000, 64, 2),
            (7_500_000_000, 64, 3), (1_000_000_000_000, 3072, 2),
        )
    ],
    ok="each rank holds what the tensors of these sizes take, in all stages.",
    hint="hint 1 of exercise 7.1",
    look="write down the three parts for 1,000 parameters, then divide those that the stage cuts.",
)  # fmt: skip
def state_bytes(formula, /, n_parameters: int, world_size: int, stage: int):
    """The formula's value; the judge makes the tensors on torch's meta device."""
    return formula(n_parameters, world_size, stage)


def _judge_activations(data: Any, sequence: int, batch: int, width: int, heads: int, recompute: bool) -> None:
    def size(*shape: int, dtype: torch.dtype = torch.float16) -> int:
        return torch.empty(shape, dtype=dtype, device="meta").nbytes

    plain, mask = size(batch, sequence, width), size(batch, sequence, width, dtype=torch.bool)
    scores = size(batch, heads, sequence, sequence)
    bits = size(batch, heads, sequence, sequence, dtype=torch.bool)
    attention = 2 * plain + 2 * plain + plain + plain + mask  # inputs of norm and q, k, v; q, k; v; of `out`; its mask
    up = size(batch, sequence, 4 * width)
    linear = attention + 2 * plain + 2 * up + mask  # inputs of norm and `up`, of GELU and `down`; its mask
    square = 2 * scores + bits  # softmax, its dropout and the mask
    right = linear + (0 if recompute else square)
    causes = {
        "what is recomputed is not kept: softmax, its dropout and its mask go.": (
            linear + square,
            linear + scores,
            linear + 2 * scores,
            linear + scores + bits,
        )
        if recompute
        else (),
        "with recompute the square mask is not kept, either.": linear + bits if recompute else (),
        "the square of the sequence is missing: softmax, its dropout and its mask, a head at a time; with "
        "recompute alone they are not kept.": linear,
        "these numbers are float16, 2 bytes each, but a dropout mask has 1 byte a place.": (
            right + 2 * mask + (0 if recompute else bits),
            right / 2,
        ),
        "the masks of dropout are kept, too.": math.nan if recompute else right - 2 * mask - bits,
        "each of the two dropouts outside of the square keeps a mask.": right - mask,
        "GELU and `down` keep their inputs both, of 4 times the width.": right - up,
        "every head has its own square of the sequence.": linear + square / heads,
        "softmax, its dropout and its mask have a place for each pair of positions: sequence squared.": (
            linear + square / sequence if not recompute else ()
        ),
        "softmax's output and its dropout's are two tensors.": linear + (0 if recompute else scores + bits),
        "the square has three tensors: softmax's output, a mask of 1 byte a place, what the dropout gives.": (
            (right - bits, right + bits) if not recompute else ()
        ),
        "the second half has 4 times the width inside: inputs of GELU and of `down`.": right - 2 * up + 2 * plain,
        "each example of the batch has its own activations.": right / batch,
        "recomputing leaves what the linear layers and norms keep.": 0.0,
        "tensors of (b, s, h) are missing: q, k and v are three, their shared input is a fourth, and both norms keep "
        f"theirs.{' Or both masks are.' if recompute else ''}": (right - 3 * plain, right - 2 * plain, right - plain),
        "that is in GB: bytes are asked.": right / GB,
        "that is counted in numbers: bytes are asked, 2 of each, and 1 of a mask's.": (linear - 2 * mask) / 2
        + 2 * mask
        + (0 if recompute else scores + bits),
        "that is float32: these numbers are float16, 2 bytes each.": 2 * (linear - 2 * mask)
        + 2 * mask
        + (0 if recompute else 4 * scores + bits),
        "that is GPT-3's own ratio: a s / h is another one for other sizes.": 114 / 2 * plain,
        "the squares belong to each example of the batch, once.": (linear + square / batch, linear + square * batch),
        "that is bytes a number of the input: bytes of the layer are asked.": right / (plain / 2),
        "a s / h need not be whole: divide with /, or not at all.": linear
        + 5 * heads * sequence // width * sequence * batch * width,
    }
    what = f"activation_bytes({sequence}, {batch}, {width}, {heads}, {recompute})"
    _require_number(what, data)
    require(what, data, right, causes, rel_tol=1e-9)


@check(
    "lesson_07.activation_bytes",
    judge=_judge_activations,
    cases=[
        {"sequence": s, "batch": b, "width": h, "heads": a, "recompute": r}
        for s, b, h, a, r in (  # a s is no multiple of h, so that no square tensor can be taken for another one
            (8, 1, 14, 2, False), (8, 1, 14, 2, True), (8, 3, 14, 4, False), (8, 3, 56, 2, False),
            (2048, 1, 12_288, 96, False), (2048, 1, 12_288, 96, True),
            (131_072, 16, 20_480, 160, False), (9_973, 7, 20_491, 13, False),  # odd: a float32 does not hold it
        )
    ],
    ok="a layer keeps what the tensors of the table take, 114 and 34 for GPT-3.",
    hint="hint 2 of exercise 7.1",
    look="add up the table for a sequence of 1, one example, one head and a width of 1.",
)  # fmt: skip
def activation_bytes(formula, /, sequence: int, batch: int, width: int, heads: int, recompute: bool):
    """The formula's value; the judge makes the tensors of the table on torch's meta device."""
    return formula(sequence, batch, width, heads, recompute)
