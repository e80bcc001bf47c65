"""The checks of Stage: a model in parts, each with a graph of its own, and what is left of the graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, observe
from hw_utils.checks.lesson_06.shards import distance
from hw_utils.checks.lesson_07.holding import bytes_beside, bytes_in_lists, floats_kept
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.material.models import Part, TinyGPT, parts
from hw_utils.simulate import simulate

SYMBOLS, CONTEXT = 7, 5
SLACK = 64


def _model(n_layers: int, width: int) -> TinyGPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return TinyGPT(n_layers, width, 2, CONTEXT, SYMBOLS).double()


def _texts(k: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Micro-batch k of a step, (n, CONTEXT) twice; they differ in n."""
    draw = torch.Generator().manual_seed(100 * step + k)
    rows = 1 + (k + 1) % 3
    return tuple(torch.randint(SYMBOLS, (rows, CONTEXT), generator=draw) for _ in range(2))


def _gradient_of_loss(scores: torch.Tensor, y: torch.Tensor, n_batches: int) -> torch.Tensor:
    with torch.enable_grad():
        scores = scores.detach().clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten()) / n_batches
        return torch.autograd.grad(loss, scores)[0]


def _worker(rank: int, world_size: int, make: Any, n_layers: int, width: int, cut: list[int], steps: list[str]) -> dict:
    """All stages beside each other; what goes from one to the next is copied, as a message is."""
    modules: list[Part] = parts(_model(n_layers, width), cut)
    stages = [make(module) for module in modules]
    outputs, gradients, kept, notes = [], [], [], []
    for number, order in enumerate(steps):
        n_batches = order.count("F")
        scores: dict[int, torch.Tensor] = {}
        shapes: dict[tuple[int, int], torch.Size] = {}
        needed: dict[int, list[int]] = {}  # of a micro-batch in flight: what each part keeps more since its forward
        for kind, k in ((step[0], int(step[1:])) for step in order.split()):
            x, y = _texts(k, number)
            if kind == "F":
                before = [_kept(stage, module) for stage, module in zip(stages, modules)]
                for place, stage in enumerate(stages):
                    shapes[place, k] = x.shape
                    x = stage.forward(k, x)
                    if not isinstance(x, torch.Tensor):
                        return {"stopped": [place, "forward", plain(x)]}
                    if x.requires_grad:
                        notes.append(place)
                    x = x.detach().clone()
                scores[k] = x
                outputs.append([number, k, x])
                now = [_kept(stage, module) for stage, module in zip(stages, modules)]
                needed[k] = [max(0, b - a) for a, b in zip(before, now)]
            else:
                g = _gradient_of_loss(scores[k], y, n_batches)
                for place in reversed(range(len(stages))):
                    g = stages[place].backward(k, g)
                    if place and not isinstance(g, torch.Tensor):
                        return {"stopped": [place, "backward", plain(g)]}
                    if place and g.shape != shapes[place, k]:
                        return {"stopped": [place, "backward", [list(g.shape), list(shapes[place, k])]]}
                    g = g.detach().clone() if place else None
                del needed[k]
                now = [_kept(stage, module) for stage, module in zip(stages, modules)]
                kept.append([number, k, [n - sum(of[p] for of in needed.values()) for p, n in enumerate(now)]])
        gradients.append([{name: plain(p.grad) for name, p in module.named_parameters()} for module in modules])
    return {"stopped": None, "outputs": outputs, "gradients": gradients, "kept": kept, "graphs": sorted(set(notes))}


def _kept(stage: Any, module: torch.nn.Module) -> int:
    return bytes_beside(floats_kept(stage), module) + bytes_in_lists(stage)


def _one_process(
    n_layers: int, width: int, cut: list[int], steps: list[str], only: int | None = None
) -> tuple[dict, list[list[dict[str, np.ndarray]]]]:
    """Outputs, and after each step the sum of gradients so far by part; only: of this micro-batch alone."""
    modules = parts(_model(n_layers, width), cut)
    outputs, gradients = {}, []
    for number, order in enumerate(steps):
        n_batches = order.count("F")
        for k in sorted(int(step[1:]) for step in order.split() if step[0] == "F"):
            x, y = _texts(k, number)
            for module in modules:
                x = module(x)
            outputs[number, k] = x.detach().numpy()
            if only is None or k == only:
                loss = torch.nn.functional.cross_entropy(x.flatten(0, 1), y.flatten()) / n_batches
                loss.backward()
        gradients.append([{n: plain(p.grad) for n, p in module.named_parameters()} for module in modules])
    return outputs, gradients


def _words(n_layers: int, cut: list[int], steps: list[str]) -> str:
    shown = " then ".join(steps)
    return f"TinyGPT of {n_layers} blocks in parts of {', '.join(map(str, cut))}, {shown}"


def _judge(data: Any, n_layers: int, width: int, cut: list[int], steps: list[str]) -> None:
    what = _words(n_layers, cut, steps)
    (result,) = data["results"]
    _require_tensors(what, result, len(cut))
    outputs, gradients = _one_process(n_layers, width, cut, steps)
    for number, k, got in result["outputs"]:
        if distance(got, outputs[number, k]) > 1e-10:
            raise CheckFailed(f"{what}: the scores of micro-batch {k} are not those of one process.",
                              cause="forward gives module(x), in the dtype of x.")  # fmt: skip
    for number, (step, right) in enumerate(zip(result["gradients"], gradients)):
        for place in reversed(range(len(cut))):
            for name, expected in right[place].items():
                got = step[place][name]
                if got is None or distance(got, expected) > 1e-10:
                    raise CheckFailed(
                        f"{what}: after step {number} the gradient of `{name}` in part {place} is not that of one "
                        "process.",
                        cause=_why(got, number, place, name, n_layers, width, cut, steps),
                    )


def _require_tensors(what: str, result: Any, n_parts: int) -> None:
    if result["stopped"] is None:
        return
    place, method, got = result["stopped"]
    said = "None" if got is None else f"{got!r}"[:60]
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


def _why(
    got: Any, number: int, place: int, name: str, n_layers: int, width: int, cut: list[int], steps: list[str]
) -> str:
    if got is None:
        return "it has none: backward does not go through the module's graph."
    if not got.any():
        return "it is zero: is it set back to zero between two micro-batches? Gradients of a step add up."
    batches = sorted(int(step[1:]) for step in steps[0].split() if step[0] == "F")
    for k in batches if len(batches) > 1 else []:
        alone = _one_process(n_layers, width, cut, steps, only=k)[1][number][place][name]
        if alone is not None and distance(got, alone) < 1e-9:
            return f"it is that of micro-batch {k} alone: the others' graphs are lost, or their gradients overwritten."
    right = _one_process(n_layers, width, cut, steps)[1][number][place][name]
    if distance(got / len(batches), right) < 1e-9 or distance(got * len(batches), right) < 1e-9:
        return "it is right but for the number of micro-batches: backward(k, gradient) takes the gradient as it is."
    if distance(got, 2 * right) < 1e-9:
        return "it is twice the right one: each backward goes through the module once."
    if place == len(cut) - 1 or (place == 0 and len(cut) == 1):
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
    {"n_layers": 2, "width": 6, "cut": [1, 1], "steps": ["F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 4, "width": 4, "cut": [1, 1, 1, 1], "steps": ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 B0 B1 B2"]},
    {"n_layers": 3, "width": 6, "cut": [2, 0, 1], "steps": ["F1 F0 F2 B2 B0 B1"]},
]


@check(
    "lesson_08.stage",
    judge=_judge,
    cases=_CASES,
    ok="gradients across the cuts are those of one process to 1e-10, in any order of micro-batches.",
    hint="hint 1 of exercise 8.2",
    hints={
        "hint 2 of exercise 8.2": "floating|Mismatch in shape|second time|alone|graph of micro-batch|lost",
        "hint 1 of exercise 8.2": "requires_grad|gradient|input|return",
    },
    look="compare p.grad of part 0 with one process's for 2 parts and 1 micro-batch.",
)
def stage(make, /, n_layers: int, width: int, cut: list[int], steps: list[str]):
    """Steps through a TinyGPT in parts; micro-batches go through all stages in the order given."""
    args = (make, n_layers, width, cut, steps)
    return observe(lambda: simulate(_worker, 1, args, compute="free", echo=False))


def _judge_kept(data: Any, n_layers: int, width: int, cut: list[int], steps: list[str]) -> None:
    what = _words(n_layers, cut, steps)
    (result,) = data["results"]
    _require_tensors(what, result, len(cut))
    if result["graphs"]:
        raise CheckFailed(
            f"{what}: what forward of part {result['graphs'][0]} returns still hangs on its graph.",
            cause="return y.detach(): what leaves a stage is numbers, and whoever keeps them must not keep the graph.",
        )
    for number, k, kept in result["kept"]:
        for place, n_bytes in enumerate(kept):
            if n_bytes > SLACK:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, part {place} still keeps {n_bytes} bytes of floats, beside "
                    "its module and what is in flight.",
                    cause="pop what was kept for micro-batch k: its graph goes when nobody holds x or y any more.",
                )


@check(
    "lesson_08.stage_lets_go",
    judge=_judge_kept,
    cases=_CASES[1:4],
    ok="outputs leave without their graph, and nothing of a micro-batch is kept once it went back.",
    hint="hint 3 of exercise 8.2",
    look="print what hangs on the object after backward: vars(stage).",
)
def stage_lets_go(make, /, n_layers: int, width: int, cut: list[int], steps: list[str]):
    """The same steps: what an output hangs on, and what hangs on the object when they are over."""
    args = (make, n_layers, width, cut, steps)
    return observe(lambda: simulate(_worker, 1, args, compute="free", echo=False))
