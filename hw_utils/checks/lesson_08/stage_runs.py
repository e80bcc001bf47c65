"""Steps of micro-batches through the stages of a model, and the same in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.common_mistakes import came
from hw_utils.checks.kept_bytes import look_at, taken
from hw_utils.checks.lesson_08.pipe import CONTEXT, SYMBOLS, Pipe, Stopped, held_by_parts, modules_of
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.material.models import Part

MANY_ROWS, SOME_ROWS = 3000, 30
DEFAULTS = {"texts": "", "begun": 0.0, "odd": "", "only": 0, "trained": False}


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


def _given(k: int, step: int, case: dict) -> tuple[torch.Tensor, torch.Tensor]:
    return _edges(k, step, case["width"]) if case["only"] else _texts(k, step, case["texts"])


def _rows(k: int, step: int, case: dict, seed: int) -> Any:
    """All rows of a micro-batch that has few; of many some, which nobody knows before: the loss is theirs alone, and
    one process need not go through the others."""
    if case["texts"] != "many rows":
        return slice(None)
    return torch.randperm(MANY_ROWS, generator=torch.Generator().manual_seed(seed + 100 * step + k))[:SOME_ROWS]


def _gradient_of_loss(scores: torch.Tensor, y: torch.Tensor, n_batches: int, rows: Any = slice(None)) -> torch.Tensor:
    """Of the loss of these rows: the others have none."""
    with torch.enable_grad():
        chosen, gradient = scores.detach()[rows].clone().requires_grad_(), torch.zeros_like(scores)
        loss = torch.nn.functional.cross_entropy(chosen.flatten(0, 1), y[rows].flatten()) / n_batches
        gradient[rows] = torch.autograd.grad(loss, chosen)[0]
    return gradient


def passes(order: str) -> list[tuple[str, int]]:
    return [(step[0], int(step[1:])) for step in order.split()]


def run_stages(
    rank: int, world_size: int, make: Any, case: dict, looks: bool = False, looks_again: bool = False, seed: int = 0
) -> dict:
    """looks: at what is kept; again: of stages that are made for that alone. seed: of the rows of many that count."""
    pipe = Pipe(make, looks=looks, **case)
    outputs, gradients, kept, in_use = [], [], [], []
    try:
        for number, order in enumerate(case["steps"]):
            scores = {}
            for kind, k in passes(order):
                x, y = _given(k, number, case)
                if kind == "F":
                    scores[k] = pipe.forward(k, x)
                    outputs.append([number, k, scores[k][_rows(k, number, case, seed)]])
                else:
                    rows = _rows(k, number, case, seed)
                    pipe.backward(k, y if case["only"] else _gradient_of_loss(scores[k], y, order.count("F"), rows))
                    kept += [[number, k, *pipe.kept(k)]] if looks else []
            modules = [keeper.module for keeper in pipe.keepers]
            in_use.append(look_at(make, is_at_rest=True) if case["texts"] == "many rows" else None)
            gradients.append([{n: plain(p.grad) for n, p in module.named_parameters()} for module in modules])
            _train(modules, case)
    except Stopped as stopped:
        return {"stopped": list(stopped.args)}
    held = held_by_parts(make, case, _texts, _gradient_of_loss) if looks_again else []
    return {
        "stopped": None, "outputs": outputs, "gradients": gradients, "kept": kept, "graphs": sorted(pipe.graphs),
        "held": held, "left": [keeper.left_on_module() for keeper in pipe.keepers],
        "touched": pipe.touched, "taken": taken(in_use[0], in_use[-1]),
    }  # fmt: skip


def in_one_process(
    case: dict, only: int | None = None, through: int | None = None, seed: int = 0
) -> tuple[dict, list[list[dict[str, np.ndarray]]]]:
    """Outputs, and after each step the sum of gradients so far by part.

    only: of this micro-batch alone. through: its gradient goes back through the graph of this other one. seed: as
    in `run_stages`; of many rows those alone that count are here.
    """
    modules = modules_of(**case)
    outputs, gradients = {}, []
    for number, order in enumerate(case["steps"]):
        texts = {k: _given(k, number, case) for kind, k in passes(order) if kind == "F"}
        texts = {k: [t[_rows(k, number, case, seed)] for t in both] for k, both in texts.items()}
        scores = {k: _through_all(modules, x) for k, (x, _) in texts.items()}
        outputs |= {(number, k): y.detach().numpy() for k, y in scores.items()}
        for k in sorted(k for kind, k in passes(order) if kind == "B" and only in (None, k)):
            y = texts[k][1]
            gradient = y if case["only"] else _gradient_of_loss(scores[k], y, order.count("F"))
            scores[k if through is None else through].backward(gradient)
        gradients.append([{n: plain(p.grad) for n, p in module.named_parameters()} for module in modules])
        _train(modules, case)
    return outputs, gradients


def _train(modules: list[torch.nn.Module], case: dict) -> None:
    """A step of an optimizer's where the case asks for one; the gradients are gone then."""
    if case["trained"]:
        optimizer = torch.optim.SGD({id(p): p for module in modules for p in module.parameters()}.values(), lr=0.5)
        optimizer.step()
        optimizer.zero_grad()


def _through_all(modules: list[Part], x: torch.Tensor) -> torch.Tensor:
    for module in modules:
        x = module(x)
    return x


_ODD = {"frozen": "frozen parameters", "unused": "parameters that no pass uses", "twice": "a parameter used twice"}


def words(
    cut: list[int],
    steps: list[str],
    n_layers: int,
    texts: str,
    begun: float,
    odd: str,
    only: int,
    trained: bool,
    **_: Any,
) -> str:
    shown = " then ".join(steps)
    more = f", {texts}" * bool(texts) + ", a module with gradients" * bool(begun)
    more += ", with an optimizer's step between" * trained
    more += f", with {_ODD[odd]}" if odd else f", part {only} alone" * bool(only)
    return f"TinyGPT of {n_layers} blocks in parts of {', '.join(map(str, cut))}, {shown}{more}"


def require_random_state(what: str, result: Any) -> None:
    for place, method, _, how in result.get("touched", ()):
        if how == "random":
            raise CheckFailed(
                f"{what}: {method} of part {place} leaves another random state.",
                cause="nothing in this model draws a number: whoever sets the state puts back the one that was there.",
            )


def require_tensors(what: str, result: Any, n_parts: int, only: int = 0) -> None:
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


CASES = [
    {"n_layers": 1, "width": 4, "cut": [1], "steps": ["F0 B0"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 B0"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F7 F3 F11 B3"], "texts": "equal rows"},
    {"n_layers": 2, "width": 6, "cut": [1, 1], "steps": ["F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F7 F-7 F11 B-7 B11 B7"], "texts": "equal rows"},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 F1 B0 B1"], "texts": "same x"},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 B0"], "begun": 2.0},
    {"n_layers": 4, "width": 4, "cut": [1, 1, 1, 1], "steps": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 2, "width": 4, "cut": [1, 1], "steps": ["F0 F1 B0 B1", "F0 B0"], "trained": True},
    {"n_layers": 3, "width": 6, "cut": [2, 0, 1], "steps": ["F1 F0 F720720 F64000 F4 F5 B720720 B0 B1 B5 B4 B64000"]},
]
ERRORS = {
    r"differentiated Tensors does not require grad": "a parameter may be frozen (requires_grad is False), and an x of "
    "whole numbers, characters, has no gradient either: ask for those of the others.",
    r"implicitly created only for scalar": "an output of many numbers goes back with the gradient that backward(k, "
    "gradient) is given: y.backward(gradient).",
    r"not have been used in the graph": "a parameter may be one that no pass uses: with allow_unused=True its gradient "
    "is None, which is added to nothing.",
    r"KeyError|IndexError": "nothing is kept under that number: micro-batches have any numbers, several are in flight, "
    "and they come back in any order. forward(k, x) keeps in a dictionary under k, on the object and not on the class, "
    "backward(k, ...) pops k, and nobody else does.",
    r"for argument #1 'indices' to have one of the following scalar types|to have scalar type Long": "the first "
    "stage's x are characters, whole numbers, and its module looks them up in a table: they go in as they came. Ask "
    "x.is_floating_point() before you make a leaf that has a gradient.",
    r"only Tensors of floating point": "the first stage's x are characters, whole numbers, and only floating point "
    "numbers have a gradient: ask x.is_floating_point() before you ask for it.",
}
