"""An answer's stages beside each other in one process, and what is seen of each pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hw_utils.checks.kept_bytes import values_kept
from hw_utils.checks.lesson_08.kept_by_a_stage import Keeper
from hw_utils.core.plain_data import plain
from hw_utils.material.kept.values import depends
from hw_utils.material.models import Part, TinyGPT, parts

SYMBOLS, CONTEXT = 7, 5


ODD = ("frozen", "unused", "twice")  # parameters that a module may have


def modules_of(
    n_layers: int, width: int, cut: list[int], begun: float = 0.0, odd: str = "", only: int = 0, **_: Any
) -> list[Part]:
    """The parts, every second one in evaluation; only that one, if it is not 0.

    begun: what stands in all gradients at the start, if not 0. odd: of `ODD`, what some parameters are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        modules = parts(TinyGPT(n_layers, width, 2, CONTEXT, SYMBOLS).double(), cut)
    for module in modules[1::2]:
        module.eval()
    for place, module in enumerate(modules if odd else ()):
        if odd == "frozen":  # of the first part some, of the second all, of the last some
            for name, p in module.named_parameters():
                p.requires_grad_(place != 1 and not name.startswith(("places", "norm", "blocks.0.out")))
        elif odd == "unused":
            module.spare = torch.nn.Linear(2, 2).double()
        else:
            module.blocks[0].norm2.weight = module.blocks[0].norm1.weight
    modules = modules[only : only + 1] if only else modules
    for p in (p for module in modules for p in module.parameters() if begun):
        p.grad = torch.full_like(p, begun)
    return modules


class Stopped(Exception):
    """What came back is nothing to go on with: [part, method, what came]."""


class Pipe:
    """All stages beside each other, or one alone; what goes from one to the next is copied, as a message is."""

    def __init__(self, make: Any, *, looks: bool, **case: Any) -> None:
        """looks: whether anybody asks for `kept`."""
        self.keepers, self.looks = [Keeper(make, module, looks=looks) for module in modules_of(**case)], looks
        self.same_x, self.only = case["texts"] == "same x", case["only"]
        self.inputs: dict[tuple[int, int], torch.Tensor] = {}  # (part, micro-batch) in flight -> the caller's x
        self.needed: dict[int, list[int]] = {}  # of a micro-batch in flight: what each part keeps more since then
        self.alive: dict[int, list[int]] = {}  # of a micro-batch that went back: its tensors that each part left alive
        self.by_graph: dict[int, list[str]] = {}  # and where on the part's object a graph was left
        self.touched: list[list] = []
        self.graphs: set[int] = set()

    def forward(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """The scores."""
        before = self._n_bytes()
        for place, keeper in enumerate(self.keepers):
            others = [t for (p, _), t in self.inputs.items() if p == place] if self.same_x else []
            x = self.inputs[place, k] = (others or [x])[0]
            x = self._forward(place, keeper, k, x)
        self.needed[k] = [max(0, b - a) for a, b in zip(before, self._n_bytes())]
        return x

    def _n_bytes(self) -> list[int]:
        return [keeper.n_bytes() for keeper in self.keepers] if self.looks else []

    def _forward(self, place: int, keeper: Keeper, k: int, x: torch.Tensor) -> torch.Tensor:
        keeper.now, copy, settings, random = k, x.clone(), (keeper.settings(), keeper.weights()), torch.get_rng_state()
        keeper.watch(k, x)
        y = keeper.stage.forward(k, x)
        self._look(place, "forward", "x", x, copy)
        self._look_at_module(place, "forward", keeper, settings)
        self._look_at_random(place, "forward", random)
        if not isinstance(y, torch.Tensor):
            raise Stopped(place, "forward", plain(y))
        keeper.watch(k, y)
        if y.requires_grad:
            self.graphs.add(place)
        return y.detach().clone()

    def backward(self, k: int, gradient: torch.Tensor) -> None:
        """From the gradient of the scores."""
        gradient = gradient.clone()  # Python 3.10's caller holds the one that it gave until this returns
        self.alive[k], self.by_graph[k] = [0] * len(self.keepers), [""] * len(self.keepers)
        for place, keeper in reversed(list(enumerate(self.keepers))):
            gradient = self._backward(place, keeper, k, gradient)
            self.alive[k][place] = keeper.n_alive(k)  # now: the next part may put its own in the same place
            if self.alive[k][place] and len(self.needed) == 1:  # no other micro-batch's graph may be there
                self.by_graph[k][place] = keeper.graph_kept()
        del self.needed[k]

    def _backward(self, place: int, keeper: Keeper, k: int, gradient: torch.Tensor) -> torch.Tensor | None:
        x, keeper.now = self.inputs.pop((place, k)), k
        before, settings, random = (
            (x.clone(), gradient.clone()),
            (keeper.settings(), keeper.weights()),
            torch.get_rng_state(),
        )
        keeper.watch(k, gradient)
        back = keeper.stage.backward(k, gradient)
        self._look(place, "backward", "x", x, before[0])
        self._look(place, "backward", "gradient", gradient, before[1])
        self._look_at_module(place, "backward", keeper, settings)
        self._look_at_random(place, "backward", random)
        if not place and not self.only:
            return None
        if not isinstance(back, torch.Tensor):
            raise Stopped(place, "backward", plain(back))
        if back.shape != x.shape:
            raise Stopped(place, "backward", [list(back.shape), list(x.shape)])
        keeper.watch(k, back)
        return back.detach().clone()

    def _look(self, place: int, method: str, name: str, now: torch.Tensor, before: torch.Tensor) -> None:
        if now.requires_grad or now.grad is not None:
            self.touched.append([place, method, name, "graph"])
        elif not torch.equal(now, before):
            self.touched.append([place, method, name, "numbers"])

    def _look_at_module(self, place: int, method: str, keeper: Keeper, before: tuple[list, list]) -> None:
        if keeper.settings() != before[0]:
            self.touched.append([place, method, "module", "settings"])
        elif not all(torch.equal(a, b) for a, b in zip(keeper.weights(), before[1], strict=True)):
            self.touched.append([place, method, "module", "weights"])

    def _look_at_random(self, place: int, method: str, before: torch.Tensor) -> None:
        if not torch.equal(torch.get_rng_state(), before):  # nothing in these parts draws
            self.touched.append([place, method, "random state", "random"])

    def kept(self, k: int) -> list[list]:
        """After B of k: bytes too many on each part, how many of k's tensors are alive, where a graph is left, and
        whether one of k's numbers is."""
        too_many = [
            keeper.n_bytes() - keeper.at_first - sum(needed[place] for needed in self.needed.values())
            for place, keeper in enumerate(self.keepers)
        ]
        return [too_many, self.alive.pop(k), self.by_graph.pop(k), [keeper.has_a_value(k) for keeper in self.keepers]]


def held_by_parts(make: Any, case: dict[str, Any], texts_of: Callable, gradient_of: Callable) -> list[str]:
    """Of each part what it holds, after two micro-batches are back, that changes with their numbers, as it is shown.

    texts_of: (k, step, kind) -> what goes in and what is to come out; gradient_of: the loss's, of the scores.
    """
    looks: list[list] = [[] for _ in case["cut"]]
    for drawn in (0, 0, 0, 1, 1):
        modules = modules_of(**case)
        stages, texts = [make(module) for module in modules], [texts_of(k, 90 + drawn, "") for k in range(2)]
        for k, (scores, y) in enumerate([(_through(stages, k, x), y) for k, (x, y) in enumerate(texts)]):
            gradient = gradient_of(scores, y, len(texts))
            for stage in reversed(stages):
                gradient = stage.backward(k, gradient)
        for place, stage in enumerate(stages):
            looks[place].append(values_kept(stage, make, modules[place]))
    return [depends(of_part) for of_part in looks]


def _through(stages: list[Any], k: int, x: torch.Tensor) -> torch.Tensor:
    for stage in stages:
        x = stage.forward(k, x).detach().clone()
    return x
