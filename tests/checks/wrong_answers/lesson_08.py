"""Planted mistakes of lesson 08."""

from __future__ import annotations

import copy
import itertools
import os
import random
import time
import zlib
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist

from tests.checks.wrong_answers import wrong, wrong_values

# 8.1

for _name, _formula, _says in [
    ("of_the_ideal", lambda p, m: (p - 1) / m, "share of the ideal time"),
    ("p_slots", lambda p, m: p / (m + p - 1), "p - 1 idle slots a rank, not p"),
    ("busy_share", lambda p, m: m / (m + p - 1), "that is the busy share"),
    ("m_plus_p", lambda p, m: (p - 1) / (m + p), "m \\+ p - 1 slots, not m \\+ p"),
    ("idle_slots", lambda p, m: p - 1, "divide by its slots"),
    ("both_ways", lambda p, m: 2 * (p - 1) / (m + p - 1), "the 2 cancels"),
    ("swapped", lambda p, m: (m - 1) / (m + p - 1), "taken for each other"),
    ("all_ranks", lambda p, m: p * (p - 1) / (m + p - 1), "divide it by all ranks' time|twice|p - 1 idle slots"),
    ("percent", lambda p, m: 100 * (p - 1) / (m + p - 1), "percentage"),
    ("rounded", lambda p, m: round((p - 1) / (m + p - 1), 3), "rounded"),
    ("nothing", lambda p, m: None, "is there a return"),
    ("both_ways_of_slots", lambda p, m: 2 * (p - 1) / (m + 2 * (p - 1)), "the 2 cancels"),
    ("one_ranks_over_all_ranks", lambda p, m: (p - 1) / (p * (m + p - 1)), "both of one rank, or both of all"),
    ("at_least_p", lambda p, m: (p - 1) / (max(m, p) + p - 1), "another formula for fewer micro-batches"),
    ("one_over", lambda p, m: 1 / (1 + m / (p - 1)), "divides by zero.*the bubble is 0"),
    ("whole", lambda p, m: (p - 1) // (m + p - 1), "/ and not //|nothing rounded"),
    ("in_single", lambda p, m: (torch.tensor(p - 1) / (m + p - 1)).item(), "a float32 has seven"),
    ("with_an_eps", lambda p, m: (p - 1) / (m + p - 1 + 1e-8), "add nothing small"),
    ("few_stages_only", lambda p, m: (p - 1) / (m + p - 1) if p <= 20 else 0.0, r"bubble_of_total\(40, 100\)"),
    ("takes_one_batch_away", lambda p, m: (p - 1) / (m + p - 2 or 1), "m micro-batches take m slots, not m - 1"),
    ("none_of_many", lambda p, m: (p - 1) / (m + p - 1) if m <= 32 * p else 0.0, r"bubble_of_total\(2, 300\)"),
]:
    wrong_values("lesson_08.bubble_of_total", _name, _formula, says=_says)

for _name, _formula, _says in [
    ("of_the_total", lambda p, m: (p - 1) / (m + p - 1), "share of the total time"),
    ("p_over_m", lambda p, m: p / m, "p - 1 idle slots a rank, not p"),
    ("two_ways", lambda p, m: 2 * (p - 1) / m, "the 2 cancels"),
    ("longer_by", lambda p, m: (m + p - 1) / m, "the bubble is what it is longer by"),
    ("ranks_together", lambda p, m: p * (p - 1) / m, "divide it by all ranks' time|twice|p - 1 idle slots"),
    ("other_way", lambda p, m: (m - 1) / p, "taken for each other"),
    ("slots", lambda p, m: p - 1, "divide by its slots"),
    ("at_most_one", lambda p, m: min(1.0, (p - 1) / m), "it is no share"),
    ("at_least_p_micro_batches", lambda p, m: (p - 1) / max(m, p), "another formula for fewer micro-batches"),
    ("one_ranks_over_all_ranks", lambda p, m: (p - 1) / (p * m), "both of one rank, or both of all"),
    ("takes_one_batch_away", lambda p, m: (p - 1) / (m - 1 or 1), "m micro-batches take m slots, not m - 1"),
    ("none_of_many", lambda p, m: (p - 1) / m if m <= 32 * p else 0.0, r"bubble_of_ideal\(2, 300\)"),
    ("over_one_less", lambda p, m: (p - 1) / m if m > 1 else (p - 1) / (m - 1), "divides by zero"),
]:
    wrong_values("lesson_08.bubble_of_ideal", _name, _formula, says=_says)

# 8.2


class _Stage:
    """The right one, with one thing to change."""

    def __init__(self, module):
        self.module, self.kept = module, {}

    def leaf(self, x):
        x = x.detach()
        return x.requires_grad_() if x.is_floating_point() else x

    def forward(self, k, x):
        x = self.leaf(x)
        y = self.module(x)
        self.kept[k] = x, y
        return y.detach()

    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        y.backward(gradient)
        return x.grad


def _keeps_modulo(n_places):
    class Keeps(_Stage):
        def forward(self, k, x):
            return super().forward(k % n_places, x)

        def backward(self, k, gradient):
            return super().backward(k % n_places, gradient)

    return Keeps


for _n in (8, 16, 64, 1000):
    wrong_values("lesson_08.stage", f"keeps_{_n}_places", _keeps_modulo(_n), says="micro-batch|any number|that number")


class _AddsGradients(_Stage):
    """By autograd.grad, and not by y.backward."""

    def asked(self):
        return list(self.module.parameters())

    def backward(self, k, gradient, **options):
        x, y = self.kept.pop(k)
        leaves = [x] if x.is_floating_point() else []
        parameters = self.asked()
        found = torch.autograd.grad(y, leaves + parameters, gradient, **options)
        for p, g in zip(parameters, found[len(leaves) :]):
            p.grad = g if p.grad is None else p.grad + g
        return found[0] if leaves else None


@wrong("lesson_08.stage", says="does not require grad.*may be frozen .* whole numbers.* ask for those of the others")
class AsksForTheFrozen(_AddsGradients):
    pass


@wrong("lesson_08.stage", says="not have been used in the graph.*allow_unused=True")
class AsksForTheUnused(_AddsGradients):
    def asked(self):
        return [p for p in self.module.parameters() if p.requires_grad]


@wrong("lesson_08.stage", says="NoneType.*something is None there")
class AddsWhatIsNone(AsksForTheUnused):
    def backward(self, k, gradient):
        for p in self.asked():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return super().backward(k, gradient, allow_unused=True)


@wrong("lesson_08.stage", says="`blocks.0.out.weight` in part 2 has a gradient.*is frozen")
class TrainsTheFrozen(_Stage):
    """On weights of its own, all of which are followed."""

    def forward(self, k, x):
        x = self.leaf(x)
        weights = {name: p.detach().requires_grad_() for name, p in self.module.named_parameters()}
        y = torch.func.functional_call(self.module, weights, (x,))
        self.kept[k] = x, y, weights
        return y.detach()

    def backward(self, k, gradient):
        x, y, weights = self.kept.pop(k)
        y.backward(gradient)
        for name, p in self.module.named_parameters():
            if (g := weights[name].grad) is not None:
                p.grad = g if p.grad is None else p.grad + g
        return x.grad


@wrong("lesson_08.stage", says="in part 2 has a gradient of zeros.*is frozen, and its gradient stays None")
class BeginsWithZeros(_Stage):
    """Each parameter has a gradient to add to, a frozen one, too."""

    def forward(self, k, x):
        for p in self.module.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return super().forward(k, x)


@wrong("lesson_08.stage", says="with a parameter used twice.*is not that of one process.*counted twice: .* two names")
class CountsSharedOnesTwice(_AddsGradients):
    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        leaves = [x] if x.is_floating_point() else []
        parameters = [p for _, p in self.module.named_parameters(remove_duplicate=False) if p.requires_grad]
        found = torch.autograd.grad(y, leaves + parameters, gradient, allow_unused=True)
        for p, g in zip(parameters, found[len(leaves) :]):
            if g is not None:
                p.grad = g if p.grad is None else p.grad + g
        return found[0] if leaves else None


@wrong("lesson_08.stage", says="module of part 0 has `seen`, which it did not have before.*hangs on the stage")
class CountsOnTheModule(_Stage):
    def forward(self, k, x):
        self.module.seen = getattr(self.module, "seen", 0) + 1
        return super().forward(k, x)


@wrong("lesson_08.stage", says="module of part 0 has a hook in `_forward_hooks`.*goes with its pass")
class LeavesAHook(_Stage):
    """Its graphs come by a hook that is there for good."""

    def __init__(self, module):
        super().__init__(module)
        module.register_forward_hook(lambda module, args, y: self.kept.__setitem__(self.k, (args[0], y)))

    def forward(self, k, x):
        self.k = k
        return self.module(self.leaf(x)).detach()


@wrong("lesson_08.stage", says="forward gave None, expected the output")
class ForwardReturnsNothing(_Stage):
    def forward(self, k, x):
        super().forward(k, x)


@wrong("lesson_08.stage", says="the input of a stage is the start of its graph")
class NeverAsksForAGradient(_Stage):
    def leaf(self, x):
        return x.detach()


@wrong("lesson_08.stage", says="the input of a stage is the start of its graph")
class BackwardReturnsNothing(_Stage):
    def backward(self, k, gradient):
        super().backward(k, gradient)


@wrong("lesson_08.stage", says="floating point|can only .* gradients|only Tensors")
class AsksWholeNumbersForAGradient(_Stage):
    def leaf(self, x):
        return x.detach().requires_grad_()


@wrong("lesson_08.stage", says="through the graph of micro-batch 11")
class KeepsOnlyTheLatest(_Stage):
    def forward(self, k, x):
        self.x = self.leaf(x)
        self.y = self.module(self.x)
        return self.y.detach()

    def backward(self, k, gradient):
        self.y.backward(gradient)
        return self.x.grad


@wrong("lesson_08.stage", says="through the graph of micro-batch 11")
class TakesTheNewestFirst(_Stage):
    def backward(self, k, gradient):
        return super().backward(max(self.kept), gradient)


@wrong("lesson_08.stage", says="through the graph of micro-batch 7")
class TakesTheOldestFirst(_Stage):
    def backward(self, k, gradient):
        return super().backward(next(iter(self.kept)), gradient)


@wrong("lesson_08.stage", says="back through the graph of micro-batch k|grad can be implicitly|not that of one process")
class SumsTheOutput(_Stage):
    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        y.sum().backward()
        return x.grad


@wrong("lesson_08.stage", says="that of micro-batch . alone|is it set back to zero")
class SetsGradientsBack(_Stage):
    def backward(self, k, gradient):
        self.module.zero_grad()
        return super().backward(k, gradient)


@wrong("lesson_08.stage", says="right but for the number of micro-batches|not that of one process")
class DividesByThoseInFlight(_Stage):
    def backward(self, k, gradient):
        return super().backward(k, gradient / 3)


@wrong("lesson_08.stage", says="that is the gradient of something else")
class ReturnsTheGradientItGot(_Stage):
    def backward(self, k, gradient):
        super().backward(k, gradient)
        return gradient


@wrong("lesson_08.stage", says="it has none|not that of one process")
class GradientsOfTheInputAlone(_Stage):
    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        return torch.autograd.grad(y, x, gradient)[0] if x.requires_grad else None


@wrong("lesson_08.stage", says="scores of micro-batch . are not those of one process|Float|dtype")
class ComputesInSinglePrecision(_Stage):
    def forward(self, k, x):
        return super().forward(k, x).float().double()


@wrong("lesson_08.stage_lets_go", says="still hangs on its graph.*return y.detach")
class ReturnsItsGraph(_Stage):
    def forward(self, k, x):
        super().forward(k, x)
        return self.kept[k][1]


@wrong("lesson_08.stage_lets_go", says="still keeps .* bytes.*pop what was kept")
class NeverForgets(_Stage):
    def backward(self, k, gradient):
        x, y = self.kept[k]
        y.backward(gradient)
        return x.grad


@wrong("lesson_08.stage_lets_go", says="still keeps .* bytes.*pop what was kept")
class KeepsTheLastOne(_Stage):
    def backward(self, k, gradient):
        x, self.y = self.kept.pop(k)
        self.y.backward(gradient)
        return x.grad


@wrong("lesson_08.stage_lets_go", says="after B0 of step 0, part . still keeps .* bytes")
class ForgetsAllAtTheEnd(_Stage):
    def backward(self, k, gradient):
        x, y = self.kept[k]
        y.backward(gradient)
        self.gone = [*getattr(self, "gone", []), k]
        if len(self.gone) == len(self.kept):
            self.kept, self.gone = {}, []
        return x.grad


class _FewRows(_Stage):
    """Works where a micro-batch has few rows alone."""

    def forward(self, k, x):
        if len(x) < 1000:
            return super().forward(k, x)
        self.kept[k] = x.shape, None
        return torch.zeros(*x.shape[:2], self.module(x[:1]).shape[-1], dtype=torch.float64)

    def backward(self, k, gradient):
        if self.kept[k][1] is not None:
            return super().backward(k, gradient)
        return torch.zeros(self.kept.pop(k)[0], dtype=gradient.dtype)


@wrong("lesson_08.stage_lets_go", says="many rows: little is kept, but what comes out for micro-batch 0 in")
class ZerosOfManyRows(_FewRows):
    pass


@wrong("lesson_08.stage_lets_go", says="many rows: little is kept, but after step 0 the gradient of .* in part 1")
class NoGradientsOfManyRows(_FewRows):
    def forward(self, k, x):
        y = super().forward(k, x)
        return self.module(x).detach() if len(x) >= 1000 else y


@wrong("lesson_08.stage_lets_go", says="parts of 1, 1, F0 B0: little is kept, but what comes out")
class DoesNothingAtAll(_FewRows):
    def forward(self, k, x):
        self.kept[k] = x.shape, None
        return torch.zeros(*x.shape[:2], self.module(x[:1]).shape[-1], dtype=torch.float64)


@wrong("lesson_08.stage_lets_go", says="a stage called all_gather")
class GathersAlone(_Stage):
    def backward(self, k, gradient):
        if dist.is_initialized():
            dist.all_gather([torch.empty_like(gradient)], gradient)
        return super().backward(k, gradient)


@wrong("lesson_08.stage_lets_go", says="still keeps .* bytes")
class KeepsAllGradients(_Stage):
    def backward(self, k, gradient):
        found = super().backward(k, gradient)
        self.seen = [*getattr(self, "seen", []), gradient]
        return found


@wrong("lesson_08.stage", says="through the graph of micro-batch 11")
class KeepsByShape(_Stage):
    def forward(self, k, x):
        return super().forward(tuple(x.shape[:2]), x)

    def backward(self, k, gradient):
        return super().backward(tuple(gradient.shape[:2]), gradient)


@wrong("lesson_08.stage", says="through the graph of micro-batch 11")
class HasFourPlaces(_Stage):
    def forward(self, k, x):
        return super().forward(k % 4, x)

    def backward(self, k, gradient):
        return super().backward(k % 4, gradient)


@wrong("lesson_08.stage", says="the caller's x requires a gradient.*x.detach\\(\\) first")
class BeginsAtTheCallersTensor(_Stage):
    def leaf(self, x):
        return x.requires_grad_() if x.is_floating_point() else x


@wrong("lesson_08.stage", says="backward of part 0 changes the numbers of the caller's gradient|changes the numbers")
class ScalesTheGradientInPlace(_Stage):
    def backward(self, k, gradient):
        found = super().backward(k, gradient)
        gradient.zero_()
        return found


@wrong("lesson_08.stage", says="what stood in the module's gradients before is gone")
class BeginsAtZero(_Stage):
    def __init__(self, module):
        super().__init__(module)
        module.zero_grad()


_EVERYTHING = []


@wrong("lesson_08.stage_lets_go", says="that part 1 got or made .* still alive, and what is on|part 1 still keeps")
class KeepsTheLastGradientOnAFunction(_Stage):
    def backward(self, k, gradient):
        found = super().backward(k, gradient)
        KeepsTheLastGradientOnAFunction.backward.last = found  # None once the first part's turn has come
        return found


@wrong("lesson_08.stage_lets_go", says="still alive|still keeps")
class KeepsItInAGlobal(_Stage):
    def forward(self, k, x):
        y = super().forward(k, x)
        _EVERYTHING.append(self.kept[k])
        return y


@wrong("lesson_08.stage_lets_go", says="still alive|still keeps")
class KeepsItOnItsClass(_Stage):
    seen = []  # noqa: RUF012

    def forward(self, k, x):
        y = super().forward(k, x)
        self.seen.append(y)
        return y


@wrong("lesson_08.stage_lets_go", says="still alive|still keeps")
class KeepsItInADefault(_Stage):
    def forward(self, k, x, seen=[]):  # noqa: B006
        seen.append(x)
        return super().forward(k, x)


@wrong("lesson_08.stage_lets_go", says="still keeps .* bytes")
class KeepsItOnTheModule(_Stage):
    def forward(self, k, x):
        y = super().forward(k, x)
        self.module.latest = self.kept[k][1]
        return y


@wrong("lesson_08.stage_lets_go", says="still keeps .* bytes|still alive")
class KeepsItsCharacters(_Stage):
    def forward(self, k, x):
        if not x.is_floating_point():
            self.texts = [*getattr(self, "texts", []), x]
        return super().forward(k, x)


@wrong("lesson_08.stage_lets_go", says="still alive.\n.*`norms.0.` on the object hangs on its graph.*\\.item\\(\\)")
class KeepsANormWithItsGraph(_Stage):
    def forward(self, k, x):
        y = super().forward(k, x)
        self.norms = {**getattr(self, "norms", {}), k: self.kept[k][1].norm()}
        return y


@wrong("lesson_08.stage_lets_go", says="still keeps a number out of micro-batch 0's tensors.*\\.item\\(\\)")
class KeepsTheFirstNumber(_Stage):
    def __init__(self, module):
        super().__init__(module)
        self.first = 0.0

    def forward(self, k, x):
        y = super().forward(k, x)
        self.first = y.flatten()[0].item()
        return y


@wrong("lesson_08.stage_lets_go", says="still keeps 16 bytes")
class KeepsTwoNumbersOfEach(_Stage):
    def backward(self, k, gradient):
        self.seen = {**getattr(self, "seen", {}), k: gradient.flatten()[:2].clone()}
        return super().backward(k, gradient)


@wrong("lesson_08.stage_lets_go", says="still keeps 16 bytes of numbers")
class KeepsOneNumberOfEach(_Stage):
    def forward(self, k, x):
        y = super().forward(k, x)
        self.module.history = [*getattr(self.module, "history", []), (k, y.mean().item())]
        return y


_HOLDS = "part 0 holds what is another one when their numbers are.*let it go"


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsTheFirstNumberAsText(_Stage):
    def backward(self, k, gradient):
        self.log = [*getattr(self, "log", []), f"{self.kept[k][1].flatten()[0].item():.4f}"]
        return super().backward(k, gradient)


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsAFractionOnTheModule(_Stage):
    def backward(self, k, gradient):
        self.module.__dict__.setdefault("seen", {})[Fraction(gradient.sum().item())] = k
        return super().backward(k, gradient)


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsTheFirstNumberInTheEnvironment(_Stage):
    def backward(self, k, gradient):
        os.environ["SEEN"] = str(gradient.flatten()[0].item())
        return super().backward(k, gradient)


def _named_later():
    pass


_named_later.__module__ = "__main__"  # as a notebook's


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsTheFirstNumberAsAName(_Stage):
    def backward(self, k, gradient):
        self.named = _named_later
        self.named.__name__ = str(gradient.flatten()[0].item())
        return super().backward(k, gradient)


_SEEN: set[str] = set()


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsTheFirstNumberInASet(_Stage):
    def backward(self, k, gradient):
        self.seen = _SEEN
        self.seen.add(str(gradient.flatten()[0].item()))
        return super().backward(k, gradient)


@wrong("lesson_08.stage_lets_go", says=_HOLDS)
class KeepsAChecksumInAnIterator(_Stage):
    def forward(self, k, x):
        self.sums = itertools.chain(getattr(self, "sums", ()), iter([zlib.crc32(x.numpy().tobytes())]))
        return super().forward(k, x)


@wrong("lesson_08.stage", says="leaves its module in another state")
class TurnsEvaluationOn(_Stage):
    def forward(self, k, x):
        self.module.eval()
        return super().forward(k, x)


@wrong("lesson_08.stage", says="leaves its module in another state")
class TurnsTrainingOn(_Stage):
    def backward(self, k, gradient):
        self.module.train()
        return super().backward(k, gradient)


@wrong("lesson_08.stage", says="changes its module's weights")
class StepsInBackward(_Stage):
    def backward(self, k, gradient):
        back = super().backward(k, gradient)
        with torch.no_grad():
            for p in self.module.parameters():
                p -= 1e-6 * p.grad
        return back


@wrong("lesson_08.stage", says="right to five places")
class GivesBackSingles(_Stage):
    def backward(self, k, gradient):
        back = super().backward(k, gradient)
        return None if back is None else back.float().double()


@wrong("lesson_08.stage", says="cut off at 1")
class ClipsGradients(_Stage):
    def backward(self, k, gradient):
        found = super().backward(k, gradient)
        torch.nn.utils.clip_grad_value_(self.module.parameters(), 1.0)
        return found


@wrong("lesson_08.stage", says="micro-batches have any numbers")
class CountsItsPlaces(_Stage):
    def forward(self, k, x):
        return super().forward(len(self.kept), x)


@wrong("lesson_08.stage", says="micro-batches have any numbers")
class HasAThousandPlaces(_Stage):
    def __init__(self, module):
        super().__init__(module)
        self.kept = [None] * 1000

    def backward(self, k, gradient):
        (x, y), self.kept[k] = self.kept[k], None
        y.backward(gradient)
        return x.grad


@wrong("lesson_08.stage", says="nothing is kept under that number")
class HasRoomForFour(_Stage):
    def forward(self, k, x):
        if len(self.kept) == 4:
            self.kept.pop(next(iter(self.kept)))
        return super().forward(k, x)


# 8.3 and 8.4


class _Schedule:
    """One step, pass by pass: a schedule is a list of (kind, k); what is sent and received can be changed."""

    sends_gradients = True
    weights = staticmethod(lambda rows: [r / sum(rows) for r in rows])
    loss_weights = None
    blocks = False
    waits = True
    takes_batches = False  # on all ranks, instead of what arrives
    returns = True
    all_reduces = False
    shares_on_all = False
    single = False
    waits_at_once = False

    def order(self, m, rank, world_size):
        return [("F", k) for k in range(m)] + [("B", k) for k in range(m)]

    def __call__(self, stage, batches, rank, world_size):
        rows, is_last, sends, loss = list(map(len, batches)), rank == world_size - 1, [], 0.0
        weights = self.weights(rows)
        for kind, k in self.order(len(batches), rank, world_size):
            if kind == "F":
                x = self.received(batches[k], rank - 1) if rank else batches[k]
                y = stage.forward(k, batches[k] if self.takes_batches else x)
                if is_last:
                    loss += y.item() * (self.loss_weights or self.weights)(rows)[k]
                else:
                    self.send(y, rank + 1, sends)
            else:
                g = weights[k] if is_last else self.received(batches[k], rank + 1)
                g = stage.backward(k, g * weights[k] if self.shares_on_all and not is_last else g)
                if rank:
                    self.send(g, rank - 1, sends)
        if self.all_reduces:
            loss = torch.tensor(loss, dtype=torch.float64)
            dist.all_reduce(loss)
            loss = loss.item()
        if self.waits:
            for send in sends:
                send.wait()
        return loss if self.returns else None

    def received(self, like, rank):
        x = torch.empty_like(like)
        dist.recv(x, rank)
        return x

    def send(self, x, rank, sends):
        if self.single:
            x = x.float().double()
        if self.waits_at_once:
            dist.isend(x, rank).wait()
        elif self.blocks:
            dist.send(x, rank)
        else:
            sends.append(dist.isend(x, rank))


def _of(name, base=_Schedule, **change):
    return type(name, (base,), change)()


class _OneFOneB(_Schedule):
    more = 0  # warm-up forwards

    def warm(self, m, rank, world_size):
        return min(m, max(0, world_size - rank - 1 + self.more))

    def order(self, m, rank, world_size):
        w = self.warm(m, rank, world_size)
        found = [("F", k) for k in range(w)]
        for k in range(m):
            found += [("F", w + k)] * (w + k < m) + [("B", k)]
        return found


_NUMBERS = [
    ("counts_fully", {"weights": staticmethod(lambda rows: [1.0] * len(rows))}, "counts fully"),
    ("counts_alike", {"weights": staticmethod(lambda rows: [1 / len(rows)] * len(rows))}, "they differ in rows"),
    ("counts_by_rows", {"weights": staticmethod(lambda rows: list(map(float, rows)))}, "by rows|share of all rows"),
    ("shares_on_all", {"shares_on_all": True}, "the share counts on every rank"),
    ("travels_in_single", {"single": True}, "right to five places"),
    ("upside_down", {"weights": staticmethod(lambda rows: [sum(rows) / r for r in rows])}, "the other way round"),
    (
        "other_shares",
        {"weights": staticmethod(lambda rows: [r / sum(rows) for r in rows][::-1])},
        "belong to other micro-batches|differ",
    ),
    ("loses_the_loss", {"returns": False}, "return the loss of the whole batch"),
    ("sums_the_loss", {"loss_weights": lambda self, rows: [1.0] * len(rows)}, "sum of the micro-batches' means"),
    (
        "averages_the_loss",
        {"loss_weights": lambda self, rows: [1 / len(rows)] * len(rows)},
        "each micro-batch counts the same there",
    ),
    (
        "last_loss",
        {"loss_weights": lambda self, rows: [0.0] * (len(rows) - 1) + [1.0]},
        "last micro-batch's loss alone|sum of the micro",
    ),
    (
        "last_share",
        {"loss_weights": lambda self, rows: [0.0] * (len(rows) - 1) + [rows[-1] / sum(rows)]},
        "last micro-batch's share alone: add all",
    ),
    ("takes_its_own_batches", {"takes_batches": True}, "batches.k. has only the shape"),
    ("tells_everybody_the_loss", {"all_reduces": True}, "bytes, .* are enough.*loss stays on the last rank"),
    ("never_waits", {"waits": False}, "never waits for its isend"),
]
for _name, _change, _says in _NUMBERS:
    wrong_values("lesson_08.gpipe", _name, _of(_name, **_change), says=_says)
    wrong_values("lesson_08.one_f_one_b", _name, _of(_name, _OneFOneB, **_change), says=_says)
for _check, _kind in (("gpipe", _Schedule), ("one_f_one_b", _OneFOneB)):
    _change = {"order": lambda self, m, rank, world_size, kind=_kind: kind().order(min(m, 8), rank, world_size)}
    wrong_values(
        f"lesson_08.{_check}", "takes_eight", _of("takes_eight", _kind, **_change), says="13 micro-batches.* 8"
    )


@wrong("lesson_08.gpipe", says="goes back through|made 0 backward passes|never went back")
def gpipe_only_forward(stage, batches, rank, world_size):
    for k, x in enumerate(batches):
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < world_size - 1:
            dist.send(y, rank + 1)
    return 0.0


@wrong("lesson_08.gpipe", says="two neighbours wait for each other's messages")
def gpipe_receives_on_the_first_rank_too(stage, batches, rank, world_size):
    if world_size > 1:
        x = torch.empty_like(batches[0])
        dist.recv(x, (rank - 1) % world_size)
    return _Schedule()(stage, batches, rank, world_size)


def _all_forward(stage, batches, rank, world_size, *, receives):
    """The forward half; whether ranks behind the first take what the one before sends. This rank's part of the loss."""
    n, loss = sum(map(len, batches)), 0.0
    for k, x in enumerate(batches):
        if rank and receives:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < world_size - 1:
            dist.send(y, rank + 1)
        else:
            loss += y.item() * len(x) / n
    return loss


@wrong("lesson_08.gpipe", says="send to each other.*Behind the first rank a receive comes before every forward pass")
def gpipe_never_receives_an_activation(stage, batches, rank, world_size):
    n, loss = sum(map(len, batches)), _all_forward(stage, batches, rank, world_size, receives=False)
    for k, x in enumerate(batches):
        gradient = len(x) / n
        if rank < world_size - 1:
            gradient = torch.empty_like(x)
            dist.recv(gradient, rank + 1)
        gradient = stage.backward(k, gradient)
        if rank:
            dist.send(gradient, rank - 1)
    return loss


@wrong("lesson_08.gpipe", says="it is zero: what backward gives is not sent|sends and receives do not match")
def gpipe_keeps_the_gradient(stage, batches, rank, world_size):
    n, loss = sum(map(len, batches)), _all_forward(stage, batches, rank, world_size, receives=True)
    for k, x in enumerate(batches):
        stage.backward(k, len(x) / n if rank == world_size - 1 else torch.zeros_like(x))
    return loss


@wrong("lesson_08.gpipe", says="no rank -1.*is no ring: .*gradients come from rank . 1 and go to rank - 1")
def gpipe_receives_gradients_from_before(stage, batches, rank, world_size):
    n, loss = sum(map(len, batches)), 0.0
    for k, x in enumerate(batches):
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        y = stage.forward(k, x)
        if rank < world_size - 1:
            dist.send(y, rank + 1)
        else:
            loss += y.item() * len(x) / n
    for k, x in enumerate(batches):
        gradient = torch.empty_like(x)
        if rank < world_size - 1:
            dist.recv(gradient, rank - 1)
        gradient = stage.backward(k, gradient if rank < world_size - 1 else len(x) / n)
        if rank:
            dist.send(gradient, rank - 1)
    return loss


@wrong("lesson_08.one_f_one_b", says="no rank 2.*is no ring: .*gradients come from rank . 1 and go to rank - 1")
def sends_gradients_forward(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def send(self, x, to, sends):
            super().send(x, rank + 1, sends)

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="got a tensor of torch.float32.*torch.tensor.share. alone makes a float32")
def gpipe_makes_the_share_a_tensor(stage, batches, rank, world_size):
    class Other(_Schedule):
        weights = staticmethod(lambda rows: [torch.tensor(r / sum(rows)) for r in rows])

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="Size|size|shape|elements|bytes")
def gpipe_goes_back_in_the_other_order_on_one_rank(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            back = range(m) if rank % 2 else reversed(range(m))
            return [("F", k) for k in range(m)] + [("B", k) for k in back]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="float64|float32|dtype")
def gpipe_receives_in_float32(stage, batches, rank, world_size):
    class Single(_Schedule):
        def received(self, like, rank):
            x = torch.empty(like.shape)
            dist.recv(x, rank)
            return x.double()

    return Single()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="micro-batch 0 has 2 rows, stage 0 got 6")
def gpipe_sends_the_whole_batch(stage, batches, rank, world_size):
    whole = [torch.cat(batches)]
    return _Schedule()(stage, whole, rank, world_size)


@wrong("lesson_08.gpipe_in_time", says="goes back with micro-batch 0 before all 3 went forward")
def gpipe_one_at_a_time(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            return [(kind, k) for k in range(m) for kind in "FB"]

    return Other()(stage, batches, rank, world_size)


wrong_values("lesson_08.gpipe_in_time", "gpipe_is_1f1b", _OneFOneB(), says="GPipe has two halves")


@wrong("lesson_08.gpipe_in_time", says="waits for a message, in a collective or in a sleep")
def gpipe_meets_after_each(stage, batches, rank, world_size):
    class Meets(_Schedule):
        def order(self, m, rank, world_size):
            for n, step in enumerate(super().order(m, rank, world_size)):
                if n:
                    dist.barrier()
                yield step

    return Meets()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe_in_time", says="waits for a message, in a collective or in a sleep")
def gpipe_rests_in_the_middle(stage, batches, rank, world_size):
    class Rests(_Schedule):
        def order(self, m, rank, world_size):
            for k in range(m):
                yield "F", k
            time.sleep(1.0)
            for k in range(m):
                yield "B", k

    return Rests()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe_in_time", says="made .* passes, .* are needed")
def gpipe_skips_what_is_slow(stage, batches, rank, world_size):
    class Half(_Schedule):
        def order(self, m, rank, world_size):
            return [("F", k) for k in range(m - 1)] + [("B", k) for k in range(m - 1)]

    return Half()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="it is 0.5 times the right one")
def gpipe_starts_with_half(stage, batches, rank, world_size):
    class Half(_Schedule):
        weights = staticmethod(lambda rows: [0.5 * r / sum(rows) for r in rows])
        loss_weights = staticmethod(lambda rows: [r / sum(rows) for r in rows])

    return Half()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="stage.forward was never called there")
def gpipe_does_nothing(stage, batches, rank, world_size):
    return 1.0


@wrong("lesson_08.gpipe_in_time", says="forward_s cannot be set")
def gpipe_makes_the_stages_fast(stage, batches, rank, world_size):
    stage.forward_s = stage.backward_s = 0.0
    return _Schedule()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="is one message, and nothing has to be confirmed")
def gpipe_sends_row_by_row(stage, batches, rank, world_size):
    class Rows(_Schedule):
        def received(self, like, rank):
            rows = [torch.empty_like(row) for row in like]
            for row in rows:
                dist.recv(row, rank)
            return torch.stack(rows)

        def send(self, x, rank, sends):
            sends += [dist.isend(row.contiguous(), rank) for row in x]

    return Rows()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="is one message, and nothing has to be confirmed")
def gpipe_confirms_what_came(stage, batches, rank, world_size):
    class Confirms(_Schedule):
        def received(self, like, rank):
            x = super().received(like, rank)
            dist.send(torch.empty(0), rank)
            return x

        def send(self, x, rank, sends):
            dist.send(x, rank)
            dist.recv(torch.empty(0), rank)

    return Confirms()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="wait|Work")
def gpipe_uses_what_has_not_come(stage, batches, rank, world_size):
    class Early(_Schedule):
        def received(self, like, rank):
            x = torch.zeros_like(like)
            dist.irecv(x, rank)
            return x

    return Early()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="every value is right, but rank 0 calls barrier")
def gpipe_meets_in_the_middle(stage, batches, rank, world_size):
    class Meets(_Schedule):
        def order(self, m, rank, world_size):
            yield from (("F", k) for k in range(m))
            dist.barrier()
            yield from (("B", k) for k in range(m))

    return Meets()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="rank 0's batches.0. is another than before")
def gpipe_receives_gradients_in_the_batch(stage, batches, rank, world_size):
    class Saves(_Schedule):
        def received(self, like, rank):
            dist.recv(like, rank)
            return like

    return Saves()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="rank 1's batches.0. is another than before.*nothing is received or written in them")
def gpipe_receives_in_the_batches(stage, batches, rank, world_size):
    class InPlace(_Schedule):
        def received(self, like, peer):
            x = like if peer < rank else torch.empty_like(like)
            dist.recv(x, peer)
            return x

    return InPlace()(stage, batches, rank, world_size)


def _fills_what_is_over(schedule, name):
    """It leaves numbers in the zeros of each rank but the first."""

    def answer(stage, batches, rank, world_size):
        loss = schedule(stage, batches, rank, world_size)
        for x in batches if rank else ():
            x.fill_(7.0)
        return loss

    answer.__name__ = name
    return answer


for _check, _kind in (("gpipe", _Schedule), ("one_f_one_b", _OneFOneB)):
    wrong_values(f"lesson_08.{_check}", f"{_check}_fills_the_zeros", _fills_what_is_over(_kind(), "fills_the_zeros"),
                 says="rank 1's batches.0. is another than before.*nothing is received or written in them")  # fmt: skip


@wrong("lesson_08.one_f_one_b", says="rank 1's batches.0. is another than before.*nothing is received or written in")
def receives_in_the_batches(stage, batches, rank, world_size):
    class InPlace(_OneFOneB):
        def received(self, like, peer):
            x = like if peer < rank else torch.empty_like(like)
            dist.recv(x, peer)
            return x

    return InPlace()(stage, batches, rank, world_size)


@wrong("lesson_08.gpipe", says="batches list is shorter or longer than before")
def gpipe_takes_the_batch_apart(stage, batches, rank, world_size):
    copy = list(batches)
    while batches:
        batches.pop()
    return _Schedule()(stage, copy, rank, world_size)


@wrong("lesson_08.gpipe_in_time", says="passes are over after .* the run after")
def gpipe_rests_at_the_end(stage, batches, rank, world_size):
    loss = _Schedule()(stage, batches, rank, world_size)
    time.sleep(0.5)
    return loss


# 8.4

wrong_values(
    "lesson_08.one_f_one_b", "sends_block", _of("sends_block", _OneFOneB, blocks=True),
    says="no rank can go on.*two neighbours send to each other|hangs.*two neighbours send to each other",
)  # fmt: skip


wrong_values(
    "lesson_08.one_f_one_b",
    "waits_for_each_isend_at_once",
    _of("waits_for_each_isend_at_once", _OneFOneB, waits_at_once=True),
    says="each isend is waited for where it starts",
)


@wrong("lesson_08.one_f_one_b", says="what is still in the pipeline at the end has to go back")
def forgets_the_cool_down(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def order(self, m, rank, world_size):
            w = self.warm(m, rank, world_size)
            return super().order(m, rank, world_size)[: w + 2 * (m - w)]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_time", says="nobody received it.*a rank is done, and has not received all")
@wrong("lesson_08.one_f_one_b_in_flight", says="nobody received it.*a rank is done, and has not received all")
@wrong("lesson_08.one_f_one_b", says="nobody received it.*a rank is done, and has not received all")
def forgets_the_cool_down_and_waits(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        waits = False

        def order(self, m, rank, world_size):
            w = self.warm(m, rank, world_size)
            return super().order(m, rank, world_size)[: w + 2 * (m - w)]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b", says="list index.*a warm-up, too, has no more than m")
def warm_up_is_not_capped(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def warm(self, m, rank, world_size):
            return world_size - rank - 1

    return Other()(stage, batches, rank, world_size)


wrong_values(
    "lesson_08.one_f_one_b_in_flight", "one_too_many", _of("one_too_many", _OneFOneB, more=1),
    says="stage 0 held 2 activations.*one warm-up forward too many",
)  # fmt: skip
wrong_values("lesson_08.one_f_one_b_in_flight", "is_gpipe", _Schedule(), says="that is GPipe")
wrong_values(
    "lesson_08.one_f_one_b_in_flight",
    "same_warm_up",
    _of("same_warm_up", _OneFOneB, warm=lambda self, m, r, p: min(m, p - 1)),
    says="one warm-up forward too many|same warm-up",
)


@wrong(
    "lesson_08.one_f_one_b_in_flight", says="24 micro-.*order of passes is right, but micro-batch 0 goes from stage 0"
)
def sends_nothing_of_many_rows(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def received(self, like, peer):
            return torch.zeros_like(like) if len(like) > 1000 else super().received(like, peer)

        def send(self, x, peer, sends):
            if len(x) <= 1000:
                super().send(x, peer, sends)

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="24 micro-batches.*called all_gather.*sent by one rank and received by")
def gathers_many_rows_alone(stage, batches, rank, world_size):
    groups = [dist.new_group([r]) for r in range(world_size)] if len(batches[0]) > 1000 else []

    class Other(_OneFOneB):
        def received(self, like, peer):
            x = super().received(like, peer)
            if groups:
                dist.all_gather([torch.empty_like(x)], x, group=groups[rank])
            return x

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="6 ranks.*that is GPipe")
@wrong("lesson_08.one_f_one_b_in_time", says="6 ranks, 7 micro-batches.*the step takes 49.5 s, 46 s are enough")
def knows_the_ranks_of_the_text(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def warm(self, m, rank, world_size):
            return super().warm(m, rank, world_size) if world_size in (1, 2, 3, 4, 5, 8) else m

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="two forward passes follow one another after the warm-up")
def two_forward_then_two_back(stage, batches, rank, world_size):
    class Pairs(_OneFOneB):
        def order(self, m, rank, world_size):
            found = super().order(m, rank, world_size)
            w = self.warm(m, rank, world_size)
            for n in range(w + 3, len(found) - 2, 4):
                if [kind for kind, _ in found[n : n + 3]] == ["B", "F", "B"]:
                    found[n], found[n + 1] = found[n + 1], found[n]
            return found

    return Pairs()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="warm-up|too many forward passes|newest")
def two_by_two(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            for start in range(0, m, 2 * world_size):
                some = range(start, min(m, start + 2 * world_size))
                yield from [("F", k) for k in some]
                yield from [("B", k) for k in some]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="newest micro-batch first|takes the oldest|warm-up")
def newest_first(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            for start in range(0, m, max(1, world_size)):
                some = range(start, min(m, start + world_size))
                yield from [("F", k) for k in some]
                yield from [("B", k) for k in reversed(some)]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b", says="nobody has sent yet.*the last rank has no warm-up")
def warm_up_from_the_other_end(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def warm(self, m, rank, world_size):
            return min(m, rank)

    return Other()(stage, batches, rank, world_size)


@wrong(
    "lesson_08.one_f_one_b",
    says="the buffer is as long as another one.*the oldest goes back first.*hint 3 of exercise 8.4",
)
def newest_first_between_unequal_neighbours(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def order(self, m, rank, world_size):
            w = self.warm(m, rank, world_size)
            turns = [(kind, k) for k in range(w, m) for kind in "FB"]
            return [*(("F", k) for k in range(w)), *turns, *(("B", k) for k in range(w))]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="received or asked for at once.*at most one ahead")
def asks_for_everything_at_once(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def __call__(self, stage, batches, rank, world_size):
            self.here = rank
            if rank:
                self.x = [torch.empty_like(x) for x in batches]
                self.handles = [dist.irecv(x, rank - 1) for x in self.x]
            self.place = 0
            return super().__call__(stage, batches, rank, world_size)

        def received(self, like, rank):
            if rank > self.here:
                return super().received(like, rank)
            self.handles[self.place].wait()
            self.place += 1
            return self.x[self.place - 1]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="rank 1 still has 2 activations of micro-batches that went back")
def keeps_all_inputs(stage, batches, rank, world_size):
    class Keeps(_OneFOneB):
        def received(self, like, peer):
            seen.append(super().received(like, peer))
            return seen[-1]

    seen = []
    return Keeps()(stage, batches, rank, world_size)


def _copying(keep, name):
    """1F1B that lets go of what it got, and has copies; keep(kept, x) puts one more away."""

    def answer(stage, batches, rank, world_size):
        class Copies(_OneFOneB):
            def received(self, like, peer):
                x = super().received(like, peer)
                if peer < rank:
                    keep(kept, x)
                return x

        kept = []
        return Copies()(stage, batches, rank, world_size)

    answer.__name__ = name
    return answer


def _joined(kept, x):
    kept[:] = [torch.cat([*kept, x])]


for _name, _keep in [
    ("keeps_copies", lambda kept, x: kept.append(x.clone())),
    ("keeps_copies_in_single", lambda kept, x: kept.append(x.float())),
    ("keeps_arrays", lambda kept, x: kept.append(x.numpy().copy())),
    ("keeps_lists", lambda kept, x: kept.append(x.tolist())),
    ("joins_all_inputs", _joined),
]:
    wrong_values("lesson_08.one_f_one_b_in_flight", _name, _copying(_keep, _name),
                 says="activations of micro-batches that went back")  # fmt: skip


_COPIES: list = []


@wrong("lesson_08.one_f_one_b_in_flight", says="activations of micro-batches that went back.*a global name")
def keeps_copies_under_a_global_name(stage, batches, rank, world_size):
    class Keeps(_OneFOneB):
        def received(self, like, peer):
            x = super().received(like, peer)
            _COPIES.append(x.clone())
            return x

    return Keeps()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="activations of micro-batches that went back.*a global name")
def keeps_copies_by_globals(stage, batches, rank, world_size):
    class Keeps(_OneFOneB):
        def received(self, like, peer):
            x = super().received(like, peer)
            globals().setdefault("_more_copies", []).append(x.clone())
            return x

    return Keeps()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="rank 1 still has 2 activations of micro-batches that went back")
def makes_buffers_for_all(stage, batches, rank, world_size):
    class Buffers(_OneFOneB):
        def received(self, like, peer):
            x = next(buffers) if peer < rank else torch.empty_like(like)
            dist.recv(x, peer)
            return x

    whole = [torch.empty_like(x) for x in batches]
    buffers = iter(whole)
    return Buffers()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_flight", says="rank 1 has 408 bytes for activations, .* are enough")
def makes_one_buffer_for_all(stage, batches, rank, world_size):
    class Buffers(_OneFOneB):
        def received(self, like, peer):
            x = next(buffers) if peer < rank else torch.empty_like(like)
            dist.recv(x, peer)
            return x

    rows = list(map(len, batches))
    buffers = iter(torch.empty(sum(rows), batches[0].shape[1], dtype=torch.float64).split(rows))
    return Buffers()(stage, batches, rank, world_size)


wrong_values(
    "lesson_08.one_f_one_b_in_time", "short_warm_up", _of("short_warm_up", _OneFOneB, more=-1),
    says="a rank starves: its warm-up is too short|one micro-batch at a time",
)  # fmt: skip


@wrong("lesson_08.one_f_one_b_in_time", says="one micro-batch at a time is in the pipeline")
def one_at_a_time(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            return [(kind, k) for k in range(m) for kind in "FB"]

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_time", says="waits for a message, in a collective or in a sleep")
def meets_in_each_turn(stage, batches, rank, world_size):
    class Other(_OneFOneB):
        def order(self, m, rank, world_size):
            found = super().order(m, rank, world_size)
            for n, step in enumerate(found):
                if n:
                    dist.barrier()
                yield step

    return Other()(stage, batches, rank, world_size)


@wrong("lesson_08.one_f_one_b_in_time", says="are enough.*a rank goes back too late.*rank 1 makes 2 forward passes")
def small_gpipes(stage, batches, rank, world_size):
    class Other(_Schedule):
        def order(self, m, rank, world_size):
            for start in range(0, m, world_size):
                some = range(start, min(m, start + world_size))
                yield from [("F", k) for k in some]
                yield from [("B", k) for k in some]

    return Other()(stage, batches, rank, world_size)


# 8.5


def _ends(counts):
    return list(itertools.accumulate(counts))


def _filled(layer_s, p, over):
    """Each stage up to the mean, or until it is passed."""
    mean, counts, left = sum(layer_s) / p, [], list(layer_s)
    for stage in range(p - 1):
        n, s = 0, 0.0
        while len(left) - n > p - stage - 1 and (n == 0 or (s < mean if over else s + left[n] <= mean)):
            s, n = s + left[n], n + 1
        counts.append(n)
        left = left[n:]
    return [*counts, len(left)]


def _halved(layer_s, p):
    """The best cut of two, then the best cut of the slowest stage, and so on."""
    parts = [list(layer_s)]
    while len(parts) < p:
        place = max((k for k, part in enumerate(parts) if len(part) > 1), key=lambda k: sum(parts[k]))
        part = parts[place]
        cut = min(range(1, len(part)), key=lambda c: max(sum(part[:c]), sum(part[c:])))
        parts[place : place + 1] = [part[:cut], part[cut:]]
    return [len(part) for part in parts]


def _nearest(layer_s, p):
    """Each stage as near to the mean of what is left as can be."""
    counts, left = [], list(layer_s)
    for stages in range(p, 1, -1):
        mean = sum(left) / stages
        counts.append(min(range(1, len(left) - stages + 2), key=lambda n: abs(sum(left[:n]) - mean)))
        left = left[counts[-1] :]
    return [*counts, len(left)]


def _best(layer_s, p, goal, sign=1):
    """The cut with the least goal of the stages' seconds."""

    def counts(cut):
        return [b - a for a, b in itertools.pairwise((0, *cut, len(layer_s)))]

    def seconds(cut):
        return [sum(layer_s[a:b]) for a, b in itertools.pairwise((0, *cut, len(layer_s)))]

    return counts(min(itertools.combinations(range(1, len(layer_s)), p - 1), key=lambda cut: sign * goal(seconds(cut))))


def _moved_one_by_one(layer_s, n_stages):
    """All cuts of short lists; of long ones equal numbers, from which one layer after another goes to a neighbour."""
    if len(layer_s) <= 16:
        return _best(layer_s, n_stages, max)

    def slowest(counts):
        return max(sum(layer_s[a:b]) for a, b in itertools.pairwise(itertools.accumulate(counts, initial=0)))

    counts = [len(layer_s) // n_stages + (k < len(layer_s) % n_stages) for k in range(n_stages)]
    while True:
        pairs = [(at, to) for at in range(n_stages) for to in (at - 1, at + 1) if 0 <= to < n_stages and counts[at] > 1]
        moved = [[n + (k == to) - (k == at) for k, n in enumerate(counts)] for at, to in pairs]
        best = min(moved, key=slowest)
        if slowest(best) >= slowest(counts):
            return counts
        counts = best


def _limits_in_steps(layer_s, p):
    """Stages filled up to a limit that grows by a tenth."""
    limit = max(max(layer_s), sum(layer_s) / p)
    while True:
        counts, s = [0], 0.0
        for n, x in enumerate(layer_s):
            if counts[-1] and (s + x > limit or len(layer_s) - n <= p - len(counts)):
                counts, s = [*counts, 0], 0.0
            counts[-1], s = counts[-1] + 1, s + x
        if len(counts) == p:
            return counts
        limit *= 1.1


for _name, _answer, _says in [
    ("as_many", lambda s, p: [len(s) // p + (k < len(s) % p) for k in range(p)], "layers take different times"),
    ("up_to_the_mean", lambda s, p: _filled(s, p, False), "filled up to the mean|fixes a cut"),
    ("past_the_mean", lambda s, p: _filled(s, p, True), "until it passes the mean|fixes a cut|filled up"),
    ("halves", _halved, "fixes a cut that the next one would move|mean"),
    ("places", lambda s, p: _ends(_filled(s, p, False)), "places of the cuts"),
    ("inner_cuts", lambda s, p: _ends(_filled(s, p, False))[:-1], "places of the cuts|every stage has a layer"),
    ("the_layers", lambda s, p: [s[:1]] * p, "not the layers themselves"),
    (
        "a_stage_each",
        lambda s, p: [k * p // len(s) for k in range(len(s))],
        "a stage for each layer|every stage has a layer",
    ),
    (
        "takes_layers_out",
        lambda s, p: [len([s.pop() for _ in range(n)]) for n in _best(s, p, max)],
        "changes its argument",
    ),
    ("all_in_one", lambda s, p: [len(s)] + [0] * (p - 1), "every stage has a layer"),
    ("too_few", lambda s, p: [len(s)] if p == 1 else [1] * (p - 2) + [len(s) - p + 2], "too few stages"),
    ("no_list", lambda s, p: None, "a list of whole numbers"),
    ("fractions", lambda s, p: [len(s) / p] * p, "a list of whole numbers"),
    ("nearest_to_the_mean", _nearest, "near to the mean.*one cut after another"),
    ("least_squares", lambda s, p: _best(s, p, lambda t: sum(x * x for x in t)), "sum of squares"),
    ("least_spread", lambda s, p: _best(s, p, lambda t: max(t) - min(t)), "between the slowest and the fastest"),
    ("fastest_is_slow", lambda s, p: _best(s, p, min, -1), "the fastest stage is as slow as can be"),
    ("the_slowest", lambda s, p: _best(s, p, max, -1), "no cut has a slower slowest stage"),
    ("forgets_the_last", lambda s, p: _best(s, p, lambda t: max(t[:-1], default=0)), "last stage does not count"),
    ("from_behind", lambda s, p: _best(s, p, max)[::-1], "from behind they are right"),
    ("sorted_layers", lambda s, p: _best(sorted(s), p, max), "layers sorted by their seconds"),
    ("sorted_counts", lambda s, p: sorted(_best(s, p, max)), "the right numbers, but sorted"),
    ("one_each", lambda s, p: [1] * (p - 1) + [len(s) - p + 1], "all stages but one have one layer"),
    ("whole_seconds", lambda s, p: _best([float(int(x)) for x in s], p, max), "whole seconds of each layer"),
    ("in_half_precision", lambda s, p: _best(s, p, lambda t: np.float16(max(t))), "slowest stage takes"),
    ("limits_in_steps", _limits_in_steps, "slowest stage takes"),
    ("moves_cuts_one_by_one", _moved_one_by_one, "slowest stage takes"),
    ("rest_last", lambda s, p: [len(s) // p] * (p - 1) + [len(s) - len(s) // p * (p - 1)], "slowest stage takes"),
]:
    wrong_values("lesson_08.balance", _name, _answer, says=_says)


@wrong("lesson_08.stage", says="draws anew")
class RecomputesWithOtherDraws:
    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        self.kept[k] = x
        with torch.no_grad():
            return self.module(x)

    def backward(self, k, gradient):
        x = self.kept.pop(k).detach().clone()
        if x.is_floating_point():
            x.requires_grad_()
        self.module(x).backward(gradient)
        return x.grad


@wrong(
    "lesson_08.balance", says="gave .4, 3, 4, 3.*these are some: these fit whole seconds of each layer.* Or: of so many"
)
def searches_all_cuts_of_rounded_seconds(layer_s, n_stages):
    whole = [round(s) for s in layer_s]
    best = {(0, 0): (0, [])}
    for stage in range(1, n_stages + 1):
        for end in range(stage, len(whole) + 1):
            best[stage, end] = min(
                (max(best[stage - 1, k][0], sum(whole[k:end])), [*best[stage - 1, k][1], end - k])
                for k in range(stage - 1, end)
                if (stage - 1, k) in best
            )
    return best[n_stages, len(whole)][1]


@wrong("lesson_08.stage", says="through the module itself, as it is now")
class GoesThroughACopy:
    def __init__(self, module):
        self.module, self.copy, self.kept = module, copy.deepcopy(module), {}

    def forward(self, k, x):
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.copy(x)
        self.kept[k] = x, y
        return y.detach()

    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        followed = [(p, q) for p, q in zip(self.module.parameters(), self.copy.parameters()) if p.requires_grad]
        y.backward(gradient)
        for p, q in followed:
            if q.grad is not None:
                p.grad = q.grad.clone() if p.grad is None else p.grad + q.grad
            q.grad = None
        return x.grad


@wrong("lesson_08.stage", says="not to a tensor that was its grad before")
class AddsToTheFirstGradients:
    def __init__(self, module):
        self.module, self.kept, self.into = module, {}, {}

    def forward(self, k, x):
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.module(x)
        self.kept[k] = x, y
        return y.detach()

    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        before = {n: p.grad for n, p in self.module.named_parameters()}
        for p in self.module.parameters():
            p.grad = None
        y.backward(gradient)
        for n, p in self.module.named_parameters():
            new, p.grad = p.grad, before[n]
            if new is not None and n not in self.into:
                p.grad = self.into[n] = new if p.grad is None else p.grad.add_(new)
            elif new is not None:
                self.into[n].add_(new)
        return x.grad


@wrong("lesson_08.stage", says="draws anew")
class DrawsMasksAnewFromTheSeed(RecomputesWithOtherDraws):
    def backward(self, k, gradient):
        now = torch.get_rng_state()
        torch.manual_seed(9)
        gradient = super().backward(k, gradient)
        torch.set_rng_state(now)
        return gradient


@wrong("lesson_08.balance", says="a search that leaves some out misses the best one")
def moves_cuts_of_random_starts(layer_s, n_stages):
    draw, n = random.Random(0), len(layer_s)
    if n <= 16:
        return _best(layer_s, n_stages, max)

    def slowest(cuts):
        return max(sum(layer_s[a:b]) for a, b in itertools.pairwise([0, *cuts, n]))

    def settled(cuts):
        near = [sorted({*cuts[:i], cuts[i] + d, *cuts[i + 1 :]}) for i in range(len(cuts)) for d in (-1, 1)]
        better = min((c for c in near if len(c) == len(cuts) and c[0] > 0 and c[-1] < n), key=slowest, default=cuts)
        return settled(better) if slowest(better) < slowest(cuts) else cuts

    cuts = min((settled(sorted(draw.sample(range(1, n), n_stages - 1))) for _ in range(8)), key=slowest)
    return [b - a for a, b in itertools.pairwise([0, *cuts, n])]


@wrong("lesson_08.balance", says="6.55 s, another cut has 6.54 s.*nearly the best cut.*not steps of some size")
def raises_the_limit_in_steps(layer_s, n_stages):
    limit = max(layer_s)
    while True:
        counts, room = [0], limit
        for s in layer_s:
            if s > room + 1e-9:
                counts.append(0)
                room = limit
            counts[-1] += 1
            room -= s
        if len(counts) <= n_stages:
            while len(counts) < n_stages:
                i = counts.index(max(counts))
                counts[i : i + 1] = [counts[i] - 1, 1]
            return counts
        limit *= 1.01


# 8.6


def _interleaved(p, m, v, rank, *, warm=None, back=None, forward=None, drains=True):
    n = m * v

    def step(kind, number):
        group, place = divmod(number, p * v)
        chunk, k = divmod(place, p)
        if forward is not None and kind == "F":
            return ("F", *forward(number, p, m, v))
        if back is not None and kind == "B":
            return ("B", *back(number, p, m, v))
        return kind, chunk if kind == "F" else v - 1 - chunk, group * p + k

    w = min(n, 2 * (p - rank - 1) + (v - 1) * p if warm is None else warm(p, m, v, rank))
    order = [step("F", number) for number in range(w)]
    for number in range(n if drains else n - w):
        if w + number < n:
            order.append(step("F", w + number))
        order.append(step("B", number))
    return order


for _name, _change, _says in [
    (
        "without_the_two",
        {"warm": lambda p, m, v, r: (p - r - 1) + (v - 1) * p},
        "each rank nearer to the front needs two more",
    ),
    ("one_more", {"warm": lambda p, m, v, r: 2 * (p - r - 1) + (v - 1) * p + 1}, "the warm-up is too long"),
    ("all_forward", {"warm": lambda p, m, v, r: m * v}, "all forward passes come before|warm-up is too long"),
    (
        "chunks_not_reversed",
        {"back": lambda i, p, m, v: ((i % (p * v)) // p, i // (p * v) * p + i % p)},
        "last chunk goes back first",
    ),
    (
        "all_batches_first",
        {"forward": lambda i, p, m, v: (i // m, i % m)},
        "all micro-batches go through chunk 0 before chunk 1",
    ),
    ("no_cool_down", {"drains": False}, "has to go back"),
    (
        "turns_two_chunks_round",
        {"back": lambda i, p, m, v: (1 - (i % (p * v)) // p, i // (p * v) * p + i % p)},
        "has no .'B', .*chunks are counted on their rank, from 0",
    ),
    ("chunk_by_chunk", {"forward": lambda i, p, m, v: (i % v, i // v)}, "p micro-batches go first|comes to a halt"),
    ("plain_warm_up", {"warm": lambda p, m, v, r: p - r - 1}, "comes to a halt.*before the forward pass|too short"),
    (
        "same_warm_up_everywhere",
        {"warm": lambda p, m, v, r: 2 * (p - 1) + (v - 1) * p},
        "warm-up is too long|all forward",
    ),
]:
    wrong_values(
        "lesson_08.interleaved_order",
        _name,
        lambda p, m, v, rank, _change=_change: _interleaved(p, m, v, rank, **_change),
        says=_says,
    )


@wrong("lesson_08.interleaved_order", says="10 ranks, 40 micro-batches, 4 chunks.*in 0 steps.*the list is empty")
def orders_small_pipelines_only(p, m, v, rank):
    return _interleaved(p, m, v, rank) if p <= 6 and m <= 24 and v <= 4 else []


@wrong("lesson_08.interleaved_order", says="only 1 of the 2 micro-batches come.*p higher")
def forgets_the_group(p, m, v, rank):
    return [(kind, chunk, k % p) for kind, chunk, k in _interleaved(p, m, v, rank)]


@wrong("lesson_08.interleaved_order", says="a step is \\(kind, chunk, micro-batch\\), in this order")
def gives_the_micro_batch_first(p, m, v, rank):
    return [(kind, k, chunk) for kind, chunk, k in _interleaved(p, m, v, rank)]


@wrong("lesson_08.interleaved_order", says="each pass of each chunk|stop where they end")
def never_ends(p, m, v, rank):
    yield from _interleaved(p, m, v, rank)
    while True:
        yield "F", 0, m


@wrong("lesson_08.interleaved_order", says="chunks are counted on their rank")
def counts_chunks_over_all_ranks(p, m, v, rank):
    return [(kind, chunk * p + rank, k) for kind, chunk, k in _interleaved(p, m, v, rank)]


@wrong("lesson_08.interleaved_order", says="list of \\(kind, chunk, micro-batch\\)")
def returns_nothing(p, m, v, rank):
    _interleaved(p, m, v, rank)


@wrong("lesson_08.interleaved_order", says="a step is \\(kind, chunk, micro-batch\\)")
def leaves_the_chunk_out(p, m, v, rank):
    return [(kind, k) for kind, _, k in _interleaved(p, m, v, rank)]


@wrong("lesson_08.interleaved_order", says="once on its rank|has to go back")
def has_one_chunk(p, m, v, rank):
    return _interleaved(p, m, 1, rank)


# 8.7


def _zero(p, m, rank, delay=None, warm=None, first="B"):
    w, d = p - rank if warm is None else warm, rank if delay is None else delay
    order, made = [("F", k) for k in range(min(w, m))], 0
    for k in range(m):
        order.append(("B", k))
        if k >= d:
            order.append(("W", made))
            made += 1
        if w + k < m:
            order.append(("F", w + k))
    return order + [("W", k) for k in range(made, m)]


def _swapped(order):
    """A forward pass that follows a W comes before it."""
    order = list(order)
    for k, (a, b) in enumerate(itertools.pairwise(order)):
        if (a[0], b[0]) == ("W", "F"):
            order[k], order[k + 1] = b, a
    return order


for _name, _answer, _says in [
    ("small_only", lambda p, m, r: _zero(p, m, r) if p < 9 else [], "12 ranks, 40 .*in 0 steps.*the list is empty"),
    ("w_after_b", lambda p, m, r: _zero(p, m, r, delay=0), "each W comes right after its B"),
    (
        "f_before_w",
        lambda p, m, r: _swapped(_zero(p, m, r)),
        "a W comes before the next forward pass",
    ),
    ("w_at_the_end", lambda p, m, r: _zero(p, m, r, delay=m), "all W come at the end|stays until its W"),
    (
        "w_before_b",
        lambda p, m, r: [("F", k) for k in range(m)] + [(x, k) for k in range(m) for x in "WB"],
        "W of micro-batch 0 before its B",
    ),
    (
        "delays_on_the_first",
        lambda p, m, r: _zero(p, m, r, delay=p - r - 1),
        "are enough.*(the last rank makes a W|all W|run ahead|right after)",
    ),
    (
        "gpipe_with_w",
        lambda p, m, r: [(x, k) for x in "FBW" for k in range(m)],
        "all W come at the end|forward passes run ahead",
    ),
    ("no_w", lambda p, m, r: [s for s in _zero(p, m, r) if s[0] != "W"], "each W has to be made"),
    (
        "w_of_another",
        lambda p, m, r: [(x, max(0, k - 1) if x == "W" else k) for x, k in _zero(p, m, r)],
        "has no|has twice",
    ),
    (
        "makes_the_newest_w",
        lambda p, m, r: [("W", 1) if step == ("W", 0) and m > 1 else step for step in _zero(p, m, r)],
        "'W', 1. stands there twice",
    ),
    ("forgets_the_last_w", lambda p, m, r: _zero(p, m, r)[: 3 * m - min(r, m)], "each W has to be made"),
    ("short", lambda p, m, r: _zero(p, m, r, warm=1), "rank 0 has too few forward passes before its first B"),
    ("runs_ahead", lambda p, m, r: _zero(p, m, r, warm=p), "right after its forward pass|run ahead"),
    ("has_chunks", lambda p, m, r: [(x, 0, k) for x, k in _zero(p, m, r)], "a step is \\(kind, micro-batch\\)"),
    ("in_small_letters", lambda p, m, r: [(x.lower(), k) for x, k in _zero(p, m, r)], "kinds are F, B, W"),
    ("returns_none", lambda p, m, r: None, "list of \\(kind, micro-batch\\)"),
    (
        "newest_back_first",
        lambda p, m, r: [("F", k) for k in range(m)] + [(x, k) for k in range(m)[:: 1 if r else -1] for x in "BW"],
        "first in, first out|are enough",
    ),
]:
    wrong_values("lesson_08.zero_bubble_order", _name, _answer, says=_says)


def _cuts_half_of_the_stages(layer_s, n_stages):
    if n_stages == 1:
        return [len(layer_s)]
    left, right = n_stages // 2, n_stages - n_stages // 2
    places = range(left, len(layer_s) - right + 1)
    cut = min(places, key=lambda c: max(sum(layer_s[:c]) / left, sum(layer_s[c:]) / right))
    return _cuts_half_of_the_stages(layer_s[:cut], left) + _cuts_half_of_the_stages(layer_s[cut:], right)


wrong_values(
    "lesson_08.balance", "cuts_half_of_the_stages", _cuts_half_of_the_stages, says="fixes each cut before the next ones"
)


@wrong("lesson_08.stage_lets_go", says="another micro-batch was let go of in its place: pop k")
class TakesTheOldest(_Stage):
    def forward(self, k, x):
        y = super().forward(k, x)
        self.kept.setdefault("all", []).append(self.kept.pop(k))
        return y

    def backward(self, k, gradient):
        self.kept[k] = self.kept["all"].pop(0)
        return super().backward(k, gradient)


class _KeepsOnTheClass(_Stage):
    shared: dict = {}  # noqa: RUF012

    def __init__(self, module):
        super().__init__(module)
        self.kept = self.shared


class _AsksCharactersForAGradient(_Stage):
    def leaf(self, x):
        return x.detach().requires_grad_()


for _check in ("lesson_08.stage", "lesson_08.stage_lets_go"):
    wrong_values(_check, "KeepsOnTheClass", _KeepsOnTheClass, says="KeyError.*on the object and not on the class")
    wrong_values(
        _check, "AsksCharactersForAGradient", _AsksCharactersForAGradient, says="the first stage's x are characters"
    )


@wrong("lesson_08.stage", says="F0 F1 B0 F2 B1 B2, the same is dropped of micro-batches 1 and 2.*puts back the one")
class LeavesTheDiceWoundBack:
    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        self.kept[k] = x.detach(), torch.get_rng_state()
        with torch.no_grad():
            return self.module(x)

    def backward(self, k, gradient):
        x, state = self.kept.pop(k)
        if x.is_floating_point():
            x = x.clone().requires_grad_()
        torch.set_rng_state(state)
        self.module(x).backward(gradient)
        return x.grad


def _sends_after_the_loop(which):
    def gpipe(stage, batches, rank, world_size):
        late = []

        class Late(_Schedule):
            def send(self, x, peer, sends):
                if (which == "F") == (peer > rank):
                    late.append((x, peer))
                else:
                    super().send(x, peer, sends)

            def order(self, m, rank, world_size):
                yield from (("F", k) for k in range(m))
                sends.extend(dist.isend(*one) for one in late if which == "F")
                yield from (("B", k) for k in range(m))

        sends = []
        loss = Late()(stage, batches, rank, world_size)
        sends.extend(dist.isend(*one) for one in late if which == "B")
        for send in sends:
            send.wait()
        return loss

    return gpipe


wrong_values(
    "lesson_08.gpipe_in_time", "sends_all_outputs_after_the_loop", _sends_after_the_loop("F"),
    says="rank 0's forward pass of micro-batch 0 is over at 1 s, and what it gives is sent at 3 s: send it at once",
)  # fmt: skip
wrong_values(
    "lesson_08.gpipe_in_time", "sends_all_gradients_after_the_loop", _sends_after_the_loop("B"),
    says="backward pass of micro-batch 0 is over at .* s, and what it gives is sent at .* s: send it at once",
)  # fmt: skip


@wrong("lesson_08.gpipe", says="the buffer is as long as another one: torch.empty_like.batches.k.. fits")
def gpipe_receives_like_the_first(stage, batches, rank, world_size):
    class Receives(_Schedule):
        def received(self, like, peer):
            return super().received(batches[0], peer)

    return Receives()(stage, batches, rank, world_size)


@wrong(
    "lesson_08.one_f_one_b_in_flight", says="rank 0 still has 7 gradients with which it went back.*in no list either"
)
def keeps_its_gradients(stage, batches, rank, world_size):
    kept = []

    class Keeps(_OneFOneB):
        def received(self, like, peer):
            x = super().received(like, peer)
            kept.extend([x] if peer > rank else [])
            return x

    return Keeps()(stage, batches, rank, world_size)


wrong_values(
    "lesson_08.one_f_one_b_in_time",
    "warms_up_alike",
    _of("warms_up_alike", _OneFOneB, warm=lambda self, m, rank, world_size: min(m, world_size - 1)),
    says="the warm-up is too long.*rank 1 makes 2 forward passes before its first backward pass, 1 is due",
)


def _bubbles(n_ranks, n_batches, rank, *, warm=0, off=0):
    warm_up, late = max(1, n_ranks - rank + warm), max(0, rank + off)
    order = [("F", k) for k in range(min(warm_up, n_batches))]
    for k in range(n_batches):
        order.append(("B", k))
        order += [("W", k - late)] * (k >= late)
        order += [("F", warm_up + k)] * (warm_up + k < n_batches)
    return order + [("W", k) for k in range(max(n_batches - late, 0), n_batches)]


wrong_values(
    "lesson_08.zero_bubble_order",
    "warms_up_too_little",
    lambda p, m, r: _bubbles(p, m, r, warm=-1),
    says="rank 0 has too few forward passes before its first B, 1 where 1F1B has 2",
)
wrong_values(
    "lesson_08.zero_bubble_order",
    "puts_off_one_less",
    lambda p, m, r: _bubbles(p, m, r, off=-1),
    says="on these 2 ranks each W comes right after its B.*as many as there are ranks before it",
)


@wrong("lesson_08.one_f_one_b", says="no rank 1 in a group of 1.*Is its warm-up a forward pass too long")
def warms_up_on_the_last_rank_too(stage, batches, rank, world_size):
    for k in range(min(len(batches), world_size - rank)):
        x = batches[k]
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
        dist.send(stage.forward(k, x), rank + 1)


@wrong("lesson_08.one_f_one_b", says="takes the gradient of the output.*of another micro-batch than the one that goes")
def gives_the_newest_the_oldests_gradient(stage, batches, rank, world_size):
    class Newest:
        def __init__(self):
            self.flight = []

        def forward(self, k, x):
            self.flight.append(k)
            return stage.forward(k, x)

        def backward(self, k, gradient):
            return stage.backward(self.flight.pop() if rank < world_size - 1 else k, gradient)

    return _OneFOneB()(Newest(), batches, rank, world_size)


@wrong("lesson_08.stage", says="for argument #1 'indices'.*characters, whole numbers, and its module looks them up")
class MakesFloatsOfCharacters(_Stage):
    def forward(self, k, x):
        return super().forward(k, x.float())


@wrong("lesson_08.balance", says="each layer goes to the stage that has the least so far")
def deals_the_slowest_layers_first(layer_s, n_stages):
    counts, sums_s = [0] * n_stages, [0.0] * n_stages
    for seconds in sorted(layer_s, reverse=True):
        least = sums_s.index(min(sums_s))
        counts[least] += 1
        sums_s[least] += seconds
    return counts
