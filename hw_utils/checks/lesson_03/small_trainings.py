"""Small trainings that lesson 03 is judged on, and what one process makes of them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import observe, require_no_deadlock
from hw_utils.checks.lesson_04.own_shares import Iteration, iteration
from hw_utils.core.errors import CheckFailed
from hw_utils.material import data
from hw_utils.material.models import LeNet5
from hw_utils.material.recipe import Recipe
from hw_utils.simulate import simulate


def on_ranks(world_size: int, worker):
    """What `worker` did on so many virtual ranks, as plain data."""
    return observe(lambda: simulate(worker, world_size, compute="free", echo=False))


def results_of(data: Any, world_size: int, what: str, *, hang: str) -> list[Any]:
    """Each rank's result of an observed run; nothing in the data is trusted. hang: the likely cause of a deadlock.

    Raises:
        CheckFailed: the run ended in a deadlock, or this is not what a run gives.
    """
    if not isinstance(data, dict) or data.get("deadlock", ...) is ...:
        raise CheckFailed(f"{what}: there is no run to look at.")
    require_no_deadlock(data, what, cause=hang)
    results = data.get("results")
    if not isinstance(results, list) or len(results) != world_size:
        raise CheckFailed(f"{what}: expected the results of {ranks_of(world_size)}.")
    return results


def require_given(n_calls: int, n_all_reduces: int, rank: int, what: str, cause: str) -> None:
    """Raises CheckFailed unless every all-reduce of a rank went through the function that was given."""
    if n_calls >= max(n_all_reduces, 1):
        return
    times = f"did {n_calls} of {n_all_reduces} all-reduces of rank {rank}" if n_calls else "was never called"
    raise CheckFailed(f"{what} is right, but the all_reduce that was given {times}.", cause=cause)


def ranks_of(n: int) -> str:
    """`1 rank`, `4 ranks`."""
    return "1 rank" if n == 1 else f"{n} ranks"


def flat(model: nn.Module) -> torch.Tensor:
    """Every parameter of the model in one vector, copied."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def load_flat(model: nn.Module, vector: np.ndarray) -> None:
    """Puts the vector back into the model's parameters."""
    vector = torch.as_tensor(vector)
    nn.utils.vector_to_parameters(vector.to(next(model.parameters()).dtype), model.parameters())


def owner(model: nn.Module, place: int) -> str:
    """The name of the parameter that holds that place of the vector."""
    for name, parameter in model.named_parameters():
        if place < parameter.numel():
            return name
        place -= parameter.numel()
    raise IndexError(place)


@dataclass(frozen=True)
class Problem:
    """A model, examples and the batches of every iteration; the same in the driver and in the judge."""

    net: str  # "small" (float64, so that only mistakes differ) or "lenet"
    n_examples: int
    batch_size: int
    world_size: int
    n_steps: int
    momentum: float = 0.0
    decay: float = 0.0  # of the weights, by the optimizer
    begun: float = 0.0  # what stands in every gradient when the first step comes
    stretch: float = 1.0  # times the small model's last weights: the first gradients are as many times longer

    @property
    def step(self) -> float:
        return 0.2 if self.net == "small" else 0.05

    def model(self) -> nn.Module:
        torch.manual_seed(17)
        if self.net == "lenet":
            return LeNet5()
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        model[2].weight.data *= self.stretch
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters = list(model.parameters())
        groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]  # a step is that of all its groups
        return torch.optim.SGD(groups, self.step, momentum=self.momentum, weight_decay=self.decay)

    def examples(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.net == "lenet":
            return data.digits(say=False).train[: self.n_examples]
        generator = torch.Generator().manual_seed(drawn_numbers.seed(23))
        x = torch.randn(self.n_examples, 6, generator=generator, dtype=torch.float64)
        # The first feature drifts, so that every rank's share has a gradient of its own.
        x[:, 0] += torch.linspace(-2, 2, self.n_examples, dtype=torch.float64)
        return x, torch.randint(3, (self.n_examples,), generator=generator)

    def chunks(self) -> Iterator[torch.Tensor]:
        """The places that all ranks take together, iteration by iteration; the last of an epoch may be short."""
        n_taken = 0
        while True:
            for chunk in torch.arange(self.n_examples).split(self.world_size * self.batch_size):
                if n_taken == self.n_steps:
                    return
                n_taken += 1
                yield chunk

    def shares(self, chunk: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each rank's part of a chunk; they differ by at most one in length."""
        return chunk.tensor_split(self.world_size)

    def in_one_process(self) -> list[np.ndarray]:
        """The weights before the first step and after every step of one worker that takes the whole batches."""
        model, (x, y) = self.model(), self.examples()
        optimizer = self.optimizer(model)
        states = [flat(model).numpy()]
        for chunk in self.chunks():
            optimizer.zero_grad()
            cross_entropy(model(x[chunk]), y[chunk]).backward()
            optimizer.step()
            states.append(flat(model).numpy())
        return states

    def shares_at(self, states: Sequence[np.ndarray]) -> list[Iteration]:
        """What each step of one worker is made of, from these weights."""
        model, (x, y), found = self.model(), self.examples(), []
        for weights, chunk in zip(states, self.chunks()):
            load_flat(model, weights)
            found.append(iteration(model, x[chunk], y[chunk]))
        return found

    def gradient(self, weights: np.ndarray, places: torch.Tensor) -> np.ndarray:
        """The gradient of the mean loss over these examples at these weights; zero for no examples."""
        if not len(places):
            return np.zeros_like(weights)
        model, (x, y) = self.model(), self.examples()
        load_flat(model, weights)
        cross_entropy(model(x[places]), y[places]).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()


class Softmax(nn.Module):
    """One linear layer on pictures halved in size: the smallest model that learns digits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(196, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(nn.functional.avg_pool2d(x, 2).flatten(1))


def few_digits() -> data.Data:
    """The first 203 training and 101 test digits."""
    whole = data.digits(say=False)
    parts = [data.Images(s.pixels[:n], s.labels[:n], s.mean, s.std) for s, n in ((whole.train, 203), (whole.test, 101))]
    return data.Data(*parts, "few digits", "data: a few digits")


def small_recipe(**settings) -> Recipe:
    """A training of a few milliseconds an iteration."""
    return Recipe(model=Softmax, data=few_digits, **settings)


def curve_in_one_process(
    recipe: Recipe, world_size: int, *, on: str = "test", starts: str = "rank 0",
    steps: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] | None = None, shares: Callable | None = None,
) -> list[list[float]]:  # fmt: skip
    """[iteration, accuracy] of one worker that takes whole batches.

    on: the set that is looked at. starts: "rank 0" its weights; "mean" those of all ranks' different starts.
    steps: makes another optimizer than the recipe's. shares: of a batch; the loss is the mean of their means.
    """
    models = [recipe.start(rank) for rank in range(world_size)]
    model, optimizer, train_set, test_set = models[0]
    optimizer = steps(model.parameters()) if steps else optimizer
    if starts == "mean":
        load_flat(model, torch.stack([flat(m[0]) for m in models]).mean(0))
    x, y = test_set[:] if on == "test" else train_set[:]
    curve: list[list[float]] = []
    loss = partial(_mean_of_means, shares) if shares else cross_entropy
    for k in _iterations(recipe, world_size, model, optimizer, train_set, loss=loss):
        if k % recipe.every == 0:
            with torch.no_grad():
                accuracy = float((model(x).argmax(1) == y).double().mean())
            curve.append([k, accuracy])
            if accuracy >= recipe.target:
                return curve
    return curve


def _mean_of_means(shares: Callable, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack([cross_entropy(scores[part], labels[part]) for part in shares(torch.arange(len(labels)))]).mean()


def may_travel(recipe: Recipe, world_size: int) -> list[list[np.ndarray]]:
    """For each iteration of one worker, flat: its weights after the step, how far that goes, and the gradient."""
    model, optimizer, train_set, _ = recipe.start(0)
    before, found = flat(model), []
    for _ in _iterations(recipe, world_size, model, optimizer, train_set):
        after, gradient = flat(model), torch.cat([p.grad.flatten() for p in model.parameters()])
        found.append([after.numpy(), (after - before).numpy(), gradient.numpy()])
        before = after
    return found


def shares_of(recipe: Recipe, world_size: int) -> list[Iteration]:
    """What each iteration of one worker is made of; none with momentum, which brings what was before."""
    model, optimizer, train_set, _ = recipe.start(0)
    found: list[Iteration] = []
    if recipe.momentum:
        return found

    def look(x: torch.Tensor, y: torch.Tensor) -> None:
        found.append(iteration(model, x, y))

    deque(_iterations(recipe, world_size, model, optimizer, train_set, look), maxlen=0)
    return found


def _iterations(
    recipe: Recipe,
    world_size: int,
    model: Any,
    optimizer: Any,
    train_set: Any,
    look: Callable[[torch.Tensor, torch.Tensor], None] = lambda x, y: None,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy,
) -> Iterator[int]:
    """Trains with whole batches, each of which `look` gets first; the number of each iteration, after its step."""
    k = 0
    for epoch in itertools.count():
        for chunk in recipe.order(epoch, len(train_set)).split(world_size * recipe.batch_size):
            if k == recipe.max_iterations:
                return
            images, labels = train_set[chunk]
            look(images, labels)
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
            k += 1
            yield k
