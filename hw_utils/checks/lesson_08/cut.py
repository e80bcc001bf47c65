"""The checks of Stage: a model in parts, each with a graph of its own, and what is left of the graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_06.shards import distance, look_at, taken
from hw_utils.checks.lesson_08.pipe import CONTEXT, ODD, SYMBOLS, Pipe, Stopped, held_by_parts, modules_of
from hw_utils.checks.lesson_08.random_modules import drive_random, judge_random
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.material.models import Part
from hw_utils.simulate import simulate

SLACK = 8  # bytes: one number
MANY_ROWS = 3000
_DEFAULTS = {"texts": "", "begun": 0.0, "odd": "", "only": 0}


def _texts(k: int, step: int, texts: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Micro-batch k of a step, (n, CONTEXT) twice; n differs, or is equal, or large, or even x is the same."""
    draw = torch.Generator().manual_seed(100 * step + k)
    rows = (MANY_ROWS if texts == "many rows" else 2) if texts else 1 + (k + 1) % 3
    x, y = (torch.randint(SYMBOLS, (rows, CONTEXT), generator=draw) for _ in range(2))
    return (torch.arange(rows * CONTEXT).reshape(rows, CONTEXT) % SYMBOLS if texts == "same x" else x), y


def _edges(k: int, step: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(input, gradient of the output) of micro-batch k, where a part in the middle is alone."""
    draw = torch.Generator().manual_seed(100 * step + k)
    x, gradient = (torch.randn(2, CONTEXT, width, generator=draw, dtype=torch.float64) for _ in range(2))
    return x, gradient


def _gradient_of_loss(scores: torch.Tensor, y: torch.Tensor, n_batches: int) -> torch.Tensor:
    with torch.enable_grad():
        scores = scores.detach().clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()) / n_batches
        return torch.autograd.grad(loss, scores)[0]


def _passes(order: str) -> list[tuple[str, int]]:
    return [(step[0], int(step[1:])) for step in order.split()]


def _worker(rank: int, world_size: int, make: Any, case: dict, looks_again: bool = False) -> dict:
    pipe = Pipe(make, **case)
    outputs, gradients, kept, looks = [], [], [], []
    try:
        for number, order in enumerate(case["steps"]):
            scores = {}
            for kind, k in _passes(order):
                x, y = _edges(k, number, case["width"]) if case["only"] else _texts(k, number, case["texts"])
                if kind == "F":
                    scores[k] = pipe.forward(k, x)
                    outputs.append([number, k, scores[k]])
                else:
                    pipe.backward(k, y if case["only"] else _gradient_of_loss(scores[k], y, order.count("F")))
                    kept.append([number, k, *pipe.kept(k)])
            modules = [keeper.module for keeper in pipe.keepers]
            looks.append(look_at(make) if case["texts"] == "many rows" else None)
            gradients.append([{n: plain(p.grad) for n, p in module.named_parameters()} for module in modules])
    except Stopped as stopped:
        return {"stopped": list(stopped.args)}
    held = held_by_parts(make, case, _texts, _gradient_of_loss) if looks_again else []
    return {
        "stopped": None, "outputs": outputs, "gradients": gradients, "kept": kept, "graphs": sorted(pipe.graphs),
        "held": held, "left": [keeper.left_on_module() for keeper in pipe.keepers],
        "touched": pipe.touched, "taken": taken(looks[0], looks[-1]),
    }  # fmt: skip


def _one_process(
    case: dict, only: int | None = None, through: int | None = None
) -> tuple[dict, list[list[dict[str, np.ndarray]]]]:
    """Outputs, and after each step the sum of gradients so far by part.

    only: of this micro-batch alone. through: its gradient goes back through the graph of this other one.
    """
    modules = modules_of(**case)
    outputs, gradients = {}, []
    for number, order in enumerate(case["steps"]):
        texts = {k: _texts(k, number, case["texts"]) for kind, k in _passes(order) if kind == "F"}
        scores = {k: _through_all(modules, x) for k, (x, _) in texts.items()}
        outputs |= {(number, k): y.detach().numpy() for k, y in scores.items()}
        for k in sorted(k for kind, k in _passes(order) if kind == "B" and only in (None, k)):
            gradient = _gradient_of_loss(scores[k], texts[k][1], order.count("F"))
            scores[k if through is None else through].backward(gradient)
        gradients.append([{n: plain(p.grad) for n, p in module.named_parameters()} for module in modules])
    return outputs, gradients


def _through_all(modules: list[Part], x: torch.Tensor) -> torch.Tensor:
    for module in modules:
        x = module(x)
    return x


_ODD = {"frozen": "frozen parameters", "unused": "parameters that no pass uses", "twice": "a parameter used twice"}


def _words(
    cut: list[int], steps: list[str], n_layers: int, texts: str, begun: float, odd: str, only: int, **_: Any
) -> str:
    shown = " then ".join(steps)
    more = f", {texts}" * bool(texts) + ", a module with gradients" * bool(begun)
    more += f", with {_ODD[odd]}" if odd else f", part {only} alone" * bool(only)
    return f"TinyGPT of {n_layers} blocks in parts of {', '.join(map(str, cut))}, {shown}{more}"


def _judge(data: Any, **given: Any) -> None:
    if "dropout" in given:
        return judge_random(data, given["dropout"])
    case = {**_DEFAULTS, **given}
    what, cut = _words(**case), case["cut"]
    require_no_deadlock(data, what)
    (result,) = data["results"]
    _require_untouched(what, result)
    _require_tensors(what, result, len(cut))
    outputs, gradients = _one_process(case)
    for number, k, got in result["outputs"]:
        if distance(got, outputs[number, k]) > 1e-10:
            raise CheckFailed(f"{what}: the scores of micro-batch {k} are not those of one process.",
                              cause="forward gives module(x), in the dtype of x.")  # fmt: skip
    for number, (step, right) in enumerate(zip(result["gradients"], gradients)):
        for place in reversed(range(len(cut))):
            for name, expected in right[place].items():
                got = step[place][name]
                if expected is None and (got is None or not got.any()):
                    continue
                if expected is None:
                    raise CheckFailed(
                        f"{what}: after step {number} `{name}` in part {place} has a gradient, in one process it has "
                        "none.",
                        cause="a parameter whose requires_grad is False is frozen: whoever asks for gradients asks for "
                        "those of the others."
                        if case["odd"] == "frozen"
                        else "nothing of the output depends on it: its gradient stays None, or is zero.",
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


def _require_random_state(what: str, result: Any) -> None:
    for place, method, _, how in result.get("touched", ()):
        if how == "random":
            raise CheckFailed(
                f"{what}: {method} of part {place} leaves another random state.",
                cause="nothing in this model draws a number: whoever sets the state puts back the one that was there.",
            )


def _require_untouched(what: str, result: Any) -> None:
    _require_random_state(what, result)
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


def _require_tensors(what: str, result: Any, n_parts: int, only: int = 0) -> None:
    if result["stopped"] is None:
        return
    place, method, got = result["stopped"]
    place += only
    said = "None" if got is None else f"{came(got)}"[:60]
    cause = f"{method} has no return, or returns something else than one tensor."
    if method == "backward" and got is None:
        cause = (
            "the input of a stage is the start of its graph: x.detach().requires_grad_() before the module, and "
            "backward returns that x's .grad."
        )
    if method == "backward" and isinstance(got, list) and len(got) == 2:
        raise CheckFailed(
            f"{what}: part {place} of {n_parts}: backward gave a tensor of {tuple(got[0])}, its input had "
            f"{tuple(got[1])}.",
            cause="that is the gradient of something else: x.grad of the x of micro-batch k has its shape.",
        )
    wanted = "the output" if method == "forward" else "the gradient of its input"
    raise CheckFailed(f"{what}: part {place} of {n_parts}: {method} gave {said}, expected {wanted}.", cause=cause)


def _why(got: Any, right: np.ndarray, number: int, place: int, name: str, case: dict) -> str:
    """What such a gradient comes from."""
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
    batches = sorted(k for kind, k in _passes(case["steps"][number]) if kind == "F")
    back = [k for kind, k in _passes(case["steps"][number]) if kind == "B"]
    for other in batches if len(back) == 1 else []:
        if distance(got, _one_process(case, through=other)[1][number][place][name]) < 1e-9:
            return (
                f"the gradient of micro-batch {back[0]} went back through the graph of micro-batch {other}: keep x and "
                "y under the number k, whole, and take those of k."
            )
    for k in batches if len(back) > 1 else []:
        alone = _one_process(case, only=k)[1][number][place][name]
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


_CASES = [
    {"n_layers": 1, "width": 4, "cut": [1], "steps": ["F0 B0"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 B0"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F7 F3 F11 B3"], "texts": "equal rows"},
    {"n_layers": 2, "width": 6, "cut": [1, 1], "steps": ["F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F7 F3 F11 B3 B11 B7"], "texts": "equal rows"},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 F1 B0 B1"], "texts": "same x"},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 B0"], "begun": 2.0},
    {"n_layers": 4, "width": 4, "cut": [1, 1, 1, 1], "steps": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 3, "width": 6, "cut": [2, 0, 1], "steps": ["F1 F0 F720720 F64000 F4 F5 B720720 B0 B1 B5 B4 B64000"]},
]
_ODD_CASES = [{"n_layers": 3, "width": 4, "cut": [1, 1, 1], "steps": ["F0 F1 B0 F2 B2 B1"], "odd": odd} for odd in ODD]
_ERRORS = {
    r"differentiated Tensors does not require grad": "a parameter may be frozen (requires_grad is False): autograd is "
    "asked for the gradients of the others.",
    r"not have been used in the graph": "a parameter may be one that no pass uses: with allow_unused=True its gradient "
    "is None, which is added to nothing.",
    r"KeyError|IndexError": "nothing is kept under that number: micro-batches have any numbers, several are in flight, "
    "and they come back in any order. forward(k, x) keeps in a dictionary under k, backward(k, ...) pops k, and nobody "
    "else does.",
}
# Then so many rows that nobody overlooks what is left of a micro-batch, in whatever form.
_MANY = {
    "n_layers": 2, "width": 32, "cut": [1, 1], "steps": ["F0 B0", "F0 B0 F1 B1 F2 B2 F3 B3"], "texts": "many rows"
}  # fmt: skip
# A part alone: nobody after it puts something else where it has left something.
_ALONE = {"n_layers": 3, "width": 4, "cut": [1, 1, 1], "steps": ["F0 F1 B1 B0"], "only": 1}
_KEPT_CASES = [_CASES[1], _CASES[3], _CASES[4], _CASES[7], _ALONE, _MANY]
_TAKEN = 12_000_000  # bytes: a good deal less than what _MANY's second step brings to part 1 more than the first


@check(
    "lesson_08.stage",
    judge=_judge,
    cases=[*_CASES, *_ODD_CASES, {"dropout": 0.5}],
    ok="gradients across the cuts are those of one process to 1e-10, in any order of micro-batches.",
    hint="hint 1 of exercise 8.2",
    hints={
        "hint 2 of exercise 8.2": "any number|under that number|floating|Mismatch in shape|second time|alone|graph of "
        "micro-batch|lost|number k|draws anew",
        "hint 1 of exercise 8.2": "requires_grad|gradient|input|return|leaf",
    },
    errors=_ERRORS,
    look="compare p.grad of part 0 with one process's for 2 parts and 1 micro-batch.",
)
def stage(make, /, **case: Any):
    """Steps through a TinyGPT in parts; micro-batches go through all stages in the order given; or a dropout layer."""
    if "dropout" in case:
        return drive_random(make, case["dropout"])
    return observe(lambda: simulate(_worker, 1, (make, {**_DEFAULTS, **case}), compute="free", echo=False))


def _judge_kept(data: Any, **given: Any) -> None:
    case = {**_DEFAULTS, **given}
    what = _words(**case)
    require_no_deadlock(data, what)
    (result,) = data["results"]
    only = case["only"]
    _require_tensors(what, result, len(case["cut"]), only)
    if result["graphs"]:
        raise CheckFailed(
            f"{what}: what forward of part {result['graphs'][0] + only} returns still hangs on its graph.",
            cause="return y.detach(): what leaves a stage is numbers, and whoever keeps them must not keep the graph.",
        )
    _require_random_state(what, result)
    for number, k, too_many, n_alive, by_graph, has_a_value in result["kept"]:
        for place, n_bytes in enumerate(too_many):
            part = place + only
            if n_bytes > SLACK:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, part {part} still keeps {n_bytes} bytes of numbers, beside "
                    "its module and what is in flight.",
                    cause="pop what was kept for micro-batch k: its graph goes when nobody holds x or y any more.",
                )
            if has_a_value[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, part {part} still keeps a number out of micro-batch {k}'s "
                    "tensors.",
                    cause="a single value of theirs, read with .item(), is kept as well: let go of it in backward.",
                )
            if by_graph[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, {n_alive[place]} tensors that part {part} got or made for "
                    f"micro-batch {k} are still alive.",
                    cause=f"`{by_graph[place]}` on the object hangs on its graph, and keeps what that was made from: "
                    "a number without it is .item() or .detach(), and goes with micro-batch k.",
                )
            if n_alive[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, {n_alive[place]} tensors that part {part} got or made for "
                    f"micro-batch {k} are still alive, though not on the object.",
                    cause="something outlives backward: on the class, on the module, in a default or under a global "
                    "name.",
                )
    for place, held in enumerate(result["held"]):
        if held:
            raise CheckFailed(
                f"{what}: once micro-batches are back, part {place} holds what is another one when their numbers are: "
                f"{held}",
                cause="a value of theirs, or what was made of it, is kept as well, as a number or a text: let it go.",
            )
    _judge_taken(what, result)


def _judge_taken(what: str, result: Any) -> None:
    if result["taken"] is not None and result["taken"] > _TAKEN:
        raise CheckFailed(
            f"{what}: after the last step {result['taken']} bytes more are in use than after the first one.",
            cause="something of each micro-batch stays in another form: as a text, in a list, in a file.",
        )


@check(
    "lesson_08.stage_lets_go",
    judge=_judge_kept,
    cases=_KEPT_CASES,
    ok="outputs leave without their graph, and nothing of a micro-batch is kept once it went back.",
    hint="hint 3 of exercise 8.2",
    errors=_ERRORS,
    look="print what hangs on the object after backward: vars(stage).",
)
def stage_lets_go(make, /, **case: Any):
    """The same steps: what an output hangs on, and what is left of a micro-batch when it is back."""
    return observe(
        lambda: simulate(
            _worker, 1, (make, {**_DEFAULTS, **case}, case["steps"] == ["F0 B0"]), compute="free", echo=False
        )
    )
