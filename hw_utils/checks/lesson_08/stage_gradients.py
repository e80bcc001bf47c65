"""The check of a Stage's numbers: outputs and gradients are those of one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_06.shards import distance
from hw_utils.checks.lesson_08.pipe import ODD
from hw_utils.checks.lesson_08.random_modules import drive_random, judge_random
from hw_utils.checks.lesson_08.stage_runs import (
    CASES,
    DEFAULTS,
    ERRORS,
    in_one_process,
    passes,
    require_random_state,
    require_tensors,
    run_stages,
    words,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.simulate import simulate


def _judge(data: Any, **given: Any) -> None:
    if "dropout" in given:
        return judge_random(data, given["dropout"])
    case = {**DEFAULTS, **given}
    what, cut = words(**case), case["cut"]
    require_no_deadlock(data, what)
    (result,) = data["results"]
    _require_untouched(what, result)
    require_tensors(what, result, len(cut))
    outputs, gradients = in_one_process(case)
    for number, k, got in result["outputs"]:
        if distance(got, outputs[number, k]) > 1e-10:
            raise CheckFailed(f"{what}: the scores of micro-batch {k} are not those of one process.",
                              cause=_OTHER_WEIGHTS if case["trained"] and number else
                              "forward gives module(x), in the dtype of x.")  # fmt: skip
    for number, (step, right) in enumerate(zip(result["gradients"], gradients)):
        for place in reversed(range(len(cut))):
            for name, expected in right[place].items():
                got = step[place][name]
                if expected is None and (got is None or (case["odd"] != "frozen" and not got.any())):
                    continue
                if expected is None:
                    raise CheckFailed(
                        f"{what}: after step {number} `{name}` in part {place} has a gradient"
                        f"{'' if got.any() else ' of zeros'}, in one process it has none.",
                        cause=_why_any(got, case["odd"] == "frozen"),
                    )
                if got is None or distance(got, expected) > 1e-10:
                    raise CheckFailed(
                        f"{what}: after step {number} the gradient of `{name}` in part {place} is not that of one "
                        "process.",
                        cause=_why(got, expected, number, place, name, case),
                    )
    for place, left in enumerate(result["left"]):
        if left:
            raise CheckFailed(
                f"{what}: at the end the module of part {place} has {left[0]}, which it did not have before.",
                cause="of the caller's module nothing changes but p.grad: what is the stage's hangs on the stage, and "
                "a hook goes with its pass (handle.remove()).",
            )


def _require_untouched(what: str, result: Any) -> None:
    require_random_state(what, result)
    for place, method, name, how in result.get("touched", ()):
        if how == "graph":
            raise CheckFailed(
                f"{what}: after {method} of part {place} the caller's {name} requires a gradient, or has one.",
                cause=f"the graph begins at a new leaf: {name}.detach() first, and requires_grad_() on that.",
            )
        if how == "settings":
            raise CheckFailed(
                f"{what}: {method} of part {place} leaves its module in another state: train(), eval() or "
                "requires_grad_() was called on it.",
                cause="the module is the caller's, who says whether it is in training: a stage changes its "
                "gradients and nothing else.",
            )
        if how == "weights":
            raise CheckFailed(
                f"{what}: {method} of part {place} changes its module's weights.",
                cause="a stage makes gradients; whoever has an optimizer steps, once all micro-batches are back.",
            )
        raise CheckFailed(
            f"{what}: {method} of part {place} changes the numbers of the caller's {name}.",
            cause=f"{name} is the caller's: whatever works on it in place works on a clone().",
        )


def _why_any(got: np.ndarray, is_frozen: bool) -> str:
    """What a gradient comes from where autograd leaves None."""
    if is_frozen and not got.any():
        return (
            "a parameter whose requires_grad is False is frozen, and its gradient stays None: zeros are a gradient, "
            "too, by which an optimizer's weight decay moves it."
        )
    if is_frozen:
        return (
            "a parameter whose requires_grad is False is frozen: whoever asks for gradients asks for those of the "
            "others."
        )
    return "nothing of the output depends on it: its gradient stays None, or is zero."


_OTHER_WEIGHTS = (
    "between the steps an optimizer changes the module's weights: forward goes through the module itself, as it is "
    "now, and not through a copy."
)


def _why(got: Any, right: np.ndarray, number: int, place: int, name: str, case: dict) -> str:
    """What such a gradient comes from."""
    if got is None and case["trained"] and number:
        return (
            "between the steps zero_grad() has set it to None: add to what the parameter's grad is now, and not to a "
            "tensor that was its grad before."
        )
    if got is None:
        return "it has none: backward does not go through the module's graph."
    if not got.any():
        return "it is zero: is it set back to zero between two micro-batches? Gradients of a step add up."
    if case["begun"] and distance(got + case["begun"], right) < 1e-9:
        return "what stood in the module's gradients before is gone: backward adds to it, and __init__ leaves it alone."
    if distance(got, right) < 1e-5:
        return "right to five places: gradients come and go in the dtype that they have."
    if case["odd"] == "twice" and "norm1" in name and distance(got, 2 * right) < 1e-9:
        return "it is counted twice: a parameter may have two names, and autograd has added up what both places make."
    batches = sorted(k for kind, k in passes(case["steps"][number]) if kind == "F")
    back = [k for kind, k in passes(case["steps"][number]) if kind == "B"]
    for other in batches if len(back) == 1 else []:
        if distance(got, in_one_process(case, through=other)[1][number][place][name]) < 1e-9:
            return (
                f"the gradient of micro-batch {back[0]} went back through the graph of micro-batch {other}: keep x and "
                "y under the number k, whole, and take those of k."
            )
    for k in batches if len(back) > 1 else []:
        alone = in_one_process(case, only=k)[1][number][place][name]
        if alone is not None and distance(got, alone) < 1e-9:
            return f"it is that of micro-batch {k} alone: the others' graphs are lost, or their gradients overwritten."
    if distance(got / len(batches), right) < 1e-9 or distance(got * len(batches), right) < 1e-9:
        return "it is right but for the number of micro-batches: backward(k, gradient) takes the gradient as it is."
    limit = float(np.abs(got).max())
    if limit < np.abs(right).max() and distance(got, np.clip(right, -limit, limit)) < 1e-9:
        return f"it is cut off at {limit:g}: gradients come as they are, whoever steps may clip them."
    if distance(got, 2 * right) < 1e-9:
        return "it is twice the right one: each backward goes through the module once."
    factor = float((got * right).sum() / (right * right).sum()) if right.any() else 0.0
    if factor and distance(got, factor * right) < 1e-9:
        return (
            f"it is {factor:.3g} times the right one: gradients come as they are, whoever steps may scale or clip them."
        )
    if place == len(case["cut"]) - 1:
        return (
            "backward(k, gradient) goes back through the graph of micro-batch k, from its output y with y.backward("
            "gradient); is it another one's, or is y summed first?"
        )
    return (
        "the part behind it is right, so what came back from there is not the gradient of that part's input for this "
        "micro-batch alone: x.grad of its own x."
    )


_ODD_CASES = [{"n_layers": 3, "width": 4, "cut": [1, 1, 1], "steps": ["F0 F1 B0 F2 B2 B1"], "odd": odd} for odd in ODD]


@check(
    "lesson_08.stage",
    judge=_judge,
    cases=[*CASES, *_ODD_CASES, {"dropout": 0.5}],
    ok="gradients across the cuts are those of one process to 1e-10, in any order of micro-batches.",
    hint="hint 1 of exercise 8.2",
    hints={
        "hint 2 of exercise 8.2": "any number|under that number|floating|Mismatch in shape|second time|alone|graph of "
        "micro-batch|lost|number k|draws anew",
        "hint 1 of exercise 8.2": "requires_grad|gradient|input|return|leaf",
    },
    errors=ERRORS,
    look="compare p.grad of part 0 with one process's for 2 parts and 1 micro-batch.",
)
def stage(make, /, **case: Any):
    """Steps through a TinyGPT in parts; micro-batches go through all stages in the order given; or a dropout layer."""
    if "dropout" in case:
        return drive_random(make, case["dropout"])
    return observe(lambda: simulate(run_stages, 1, (make, {**DEFAULTS, **case}), compute="free", echo=False))
