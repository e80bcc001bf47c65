"""Planted mistakes of lesson 07."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist

from tests.checks.wrong_answers import wrong, wrong_values

# 7.1


def _state(n, size, stage, *, optimizer=12, gradients=2, weights=2, cut=None):
    first, second, third = cut or (1, 2, 3)
    parts = (optimizer, first), (gradients, second), (weights, third)
    return sum(b * n / (size if stage >= k else 1) for b, k in parts)


for _name, _formula, _says in [
    ("forgets_the_copy", lambda n, s, k: _state(n, s, k, optimizer=8), "12 bytes a parameter, not 8"),
    ("in_single_precision", lambda n, s, k: _state(n, s, k, gradients=4, weights=4), "float16 here, 2 bytes"),
    ("float32_gradients", lambda n, s, k: _state(n, s, k, gradients=4), "one of them has 4"),
    ("float32_weights", lambda n, s, k: _state(n, s, k, weights=4), "one of them has 4"),
    ("one_stage_early", lambda n, s, k: _state(n, s, k, cut=(0, 1, 2)), "one stage too many"),
    ("one_stage_late", lambda n, s, k: _state(n, s, k, cut=(2, 3, 4)), "one stage too few"),
    ("only_one_part", lambda n, s, k: 16 * n - (12, 12, 2, 2)[k] * n * (k > 0) * (1 - 1 / s), "stays cut in stages"),
    ("all_or_nothing", lambda n, s, k: 16 * n / s if k else 16 * n, "leave a part whole"),
    ("weights_first", lambda n, s, k: _state(n, s, k, cut=(3, 2, 1)), "the weights last"),
    ("all_ranks", lambda n, s, k: s * _state(n, s, k), "that is all ranks together"),
    (
        "few_ranks_only",
        lambda n, s, k: _state(n, s, k) if s < 100 else None,
        "1000000000000, 3072, 2.*is there a return",
    ),
    ("in_gigabytes", lambda n, s, k: _state(n, s, k) / 1e9, "that is in GB"),
    ("nothing", lambda n, s, k: None, "is there a return"),
    ("rounds_down", lambda n, s, k: int(_state(n, s, k)), "divide with /, and round nothing"),
    (
        "whole_bytes_of_gradients",
        lambda n, s, k: _state(n, s, k, gradients=0) + (2 * n // s if k >= 2 else 2 * n),
        "divide with /, and round nothing",
    ),
    (
        "whole_bytes_of_weights",
        lambda n, s, k: _state(n, s, k, weights=0) + (2 * n // s if k >= 3 else 2 * n),
        "divide with /, and round nothing",
    ),
    (
        "forgets_the_gradients_in_stage_2",
        lambda n, s, k: _state(n, s, k) - (k == 2) * 2 * n / s,
        "gave 3090.91.*the gradients are missing: from stage 2 on",
    ),
    ("forgets_the_optimizer", lambda n, s, k: _state(n, s, k, optimizer=0), "gave 4000.*the optimizer is missing"),
    ("forgets_the_weights", lambda n, s, k: _state(n, s, k, weights=0), "weights or gradients are missing"),
    ("forgets_all_but_the_optimizer", lambda n, s, k: 12 * n / (s if k else 1), "weights or gradients are missing"),
    ("has_the_copy_alone", lambda n, s, k: _state(n, s, k, optimizer=4), "two moments and the weights once more"),
    (
        "whole_bytes_a_parameter",
        lambda n, s, k: n * sum(b // (s if c <= k else 1) for b, c in ((12, 1), (2, 2), (2, 3))),
        "gave 5000.*divide with /, and round nothing",
    ),
    ("drops_parameters", lambda n, s, k: 16 * (n // s) if k == 3 else _state(n, s, k), "gave 1440.*round nothing"),
    ("cuts_whole_parameters", lambda n, s, k: _state(-(-n // s) * s, s, k) if k else 16 * n, "divide with /|no known"),
    ("gives_a_complex_number", lambda n, s, k: complex(_state(n, s, k)), "is no plain number"),
    ("computes_in_single", lambda n, s, k: torch.tensor(_state(n, s, k)).item(), "a float32 has seven"),
    ("the_copy_stays", lambda n, s, k: _state(n, s, k) + 4 * n * (1 - 1 / s) * (k > 0), "float32 copy belongs to"),
]:
    wrong_values("lesson_07.state_bytes", _name, _formula, says=_says)

for _name, _formula, _says in [
    ("keeps_what_is_recomputed", lambda s, b, h, a, r: 34 * s * b * h + 5 * a * b * s * s, "what is recomputed is not"),
    ("forgets_the_square", lambda s, b, h, a, r: 34 * s * b * h, "square of the sequence is missing"),
    ("one_head", lambda s, b, h, a, r: 34 * s * b * h + (0 if r else 5 * b * s * s), "every head has its own square"),
    ("one_softmax", lambda s, b, h, a, r: 34 * s * b * h + (0 if r else 3 * a * b * s * s), "are two tensors"),
    (
        "masks_of_two",
        lambda s, b, h, a, r: 36 * s * b * h + (0 if r else 6 * a * b * s * s),
        "a dropout mask has 1 byte",
    ),
    ("one_tensor_fewer", lambda s, b, h, a, r: 32 * s * b * h + (0 if r else 5 * a * b * s * s), r"of \(b, s, h\) are"),
    ("no_inputs_of_norms", lambda s, b, h, a, r: 30 * s * b * h + (0 if r else 5 * a * b * s * s), "both norms keep"),
    ("one_mask_fewer", lambda s, b, h, a, r: 33 * s * b * h + (0 if r else 5 * a * b * s * s), "keeps a mask"),
    ("no_input_of_gelu", lambda s, b, h, a, r: 26 * s * b * h + (0 if r else 5 * a * b * s * s), "their inputs both"),
    ("counts_numbers", lambda s, b, h, a, r: 18 * s * b * h + (0 if r else 3 * a * b * s * s), "counted in numbers"),
    ("in_float32", lambda s, b, h, a, r: 66 * s * b * h + (0 if r else 9 * a * b * s * s), "that is float32"),
    ("gpt_3_alone", lambda s, b, h, a, r: (34 if r else 114) * s * b * h, "another one for other sizes"),
    ("no_masks", lambda s, b, h, a, r: 32 * s * b * h + (0 if r else 4 * a * b * s * s), "masks of dropout are kept"),
    ("narrow_inside", lambda s, b, h, a, r: 22 * s * b * h + (0 if r else 5 * a * b * s * s), "4 times the width"),
    ("one_example", lambda s, b, h, a, r: 34 * s * h + (0 if r else 5 * a * s * s), "each example of the batch"),
    ("nothing_is_kept", lambda s, b, h, a, r: 0 if r else 34 * s * b * h + 5 * a * b * s * s, "recomputing leaves"),
    (
        "whole_ratio",
        lambda s, b, h, a, r: s * b * h * (34 + (0 if r else 5 * a * s // h)),
        "a s / h need not be whole",
    ),
    ("no_square", lambda s, b, h, a, r: 34 * s * b * h + (0 if r else 5 * a * b * s), "sequence squared"),
    (
        "short_sequences_only",
        lambda s, b, h, a, r: 34 * s * b * h + (0 if r else 5 * a * b * s * s) if s < 10_000 else None,
        "131072, 16, 20480, 160.*is there a return",
    ),
    ("one_square", lambda s, b, h, a, r: 34 * s * b * h + (0 if r else 5 * a * s * s), "belong to each example"),
    ("keeps_one_mask", lambda s, b, h, a, r: 34 * s * b * h + (1 if r else 5) * a * b * s * s, "mask is not kept"),
    ("gives_the_ratio", lambda s, b, h, a, r: 34 + (0 if r else 5 * a * s / h), "bytes a number of the input"),
    (
        "joint_qkv",
        lambda s, b, h, a, r: 28 * s * b * h + (0 if r else 5 * a * b * s * s),
        "their shared input is a fourth",
    ),
]:
    wrong_values("lesson_07.activation_bytes", _name, _formula, says=_says)

# 7.2


class _Recomputed:
    keep = False  # in all segments but the last
    restores = True
    puts_back = True
    last_too = False
    one_by_one = True
    from_the_start = False
    clears = True

    def __init__(self, layers, n_segments):
        size = -(-len(layers) // n_segments)
        self.segments = [layers[k : k + size] for k in range(0, len(layers), size)]
        self.starts = []

    def forward(self, x):
        if self.clears:
            self.starts = []
        for k, segment in enumerate(self.segments):
            is_last = k == len(self.segments) - 1 and not self.last_too
            if not is_last:
                self.starts.append((x, torch.get_rng_state()))
            for layer in segment:
                x = layer.forward(x, keep=is_last or self.keep)
        return x

    def again(self, k):
        x, state = self.starts[k]
        now = torch.get_rng_state()
        if self.restores:
            torch.set_rng_state(state)
        for layer in self.segments[k]:
            x = layer.forward(x)
        if self.puts_back:
            torch.set_rng_state(now)

    def backward(self, gradient):
        n = len(self.segments) if self.last_too else len(self.segments) - 1
        if not self.one_by_one:
            for k in range(n):
                self.again(k)
        for k in reversed(range(len(self.segments))):
            if k < n and self.one_by_one:
                self.again(k)
            for layer in reversed(self.segments[k]):
                gradient = layer.backward(gradient)
        return gradient


for _name, _change, _says in [
    ("KeepsEverything", {"keep": True}, "the forward pass keeps every input"),
    ("DrawsNewMasks", {"restores": False}, "draw other dropout masks"),
    ("LeavesTheOldState", {"puts_back": False}, "put the random state back"),
    ("RecomputesTheLast", {"last_too": True}, "the last segment is recomputed, too"),
    ("RecomputesAllAtOnce", {"one_by_one": False}, "go back through it, and only then the one before"),
]:
    wrong_values("lesson_07.recomputed", _name, type(_name, (_Recomputed,), _change), says=_says)


@wrong("lesson_07.recomputed", says="forward gave None, expected the output")
class ReturnsNothing(_Recomputed):
    def forward(self, x):
        super().forward(x)


@wrong("lesson_07.recomputed", says="forward leaves another random state already")
class SeedsInForward(_Recomputed):
    """And puts back after each segment what it found before it."""

    def forward(self, x):
        torch.manual_seed(5)
        return super().forward(x)


@wrong("lesson_07.recomputed", says="keeps .* inputs, .* are enough")
class KeepsEveryInputItself(_Recomputed):
    def forward(self, x):
        self.inputs = []
        for k, segment in enumerate(self.segments):
            for layer in segment:
                self.inputs.append(x)
                x = layer.forward(x, keep=k == len(self.segments) - 1)
        return x

    def backward(self, gradient):
        layers = [layer for segment in self.segments for layer in segment]
        for k in reversed(range(len(layers))):
            if k < len(layers) - len(self.segments[-1]):
                layers[k].forward(self.inputs[k])
            gradient = layers[k].backward(gradient)
        return gradient


@wrong("lesson_07.recomputed", says="keeps .* inputs, .* are enough.*forget those of the step before")
class NeverForgets(_Recomputed):
    clears = False

    def again(self, k):
        self.starts[k] = self.starts[len(self.starts) - len(self.segments) + 1 + k]
        super().again(k)


@wrong("lesson_07.recomputed", says="backward gave an? .*, expected the gradient of the input")
class GivesTheLayerBack(_Recomputed):
    def backward(self, gradient):
        super().backward(gradient)
        return self.segments[0][0]


@wrong("lesson_07.recomputed", says="between the steps.*has kept, as in an evaluation, is used again")
class TakesTheFirstStartsAndClearsOnlyWhatItTakes(_Recomputed):
    clears = False

    def backward(self, gradient):
        gradient = super().backward(gradient)
        del self.starts[: len(self.segments) - 1]
        return gradient


@wrong("lesson_07.recomputed", says="between the steps: after forward the object keeps 4 inputs, 3 are enough")
class TakesStartsOneByOneAndClearsNone(_Recomputed):
    clears = False

    def again(self, k):
        self.starts, own = self.starts[:-1], self.starts[-1]
        before, self.starts = self.starts, [own] * (k + 1)
        super().again(k)
        self.starts = before


@wrong("lesson_07.recomputed", says="each segment is recomputed once, from its own first input")
class RecomputesFromTheBeginning(_Recomputed):
    def forward(self, x):
        self.start = (x, torch.get_rng_state())
        for k, segment in enumerate(self.segments):
            for layer in segment:
                x = layer.forward(x, keep=k == len(self.segments) - 1)
        return x

    def again(self, k):
        x, state = self.start
        now = torch.get_rng_state()
        torch.set_rng_state(state)
        for j in range(k + 1):
            for layer in self.segments[j]:
                x = layer.forward(x, keep=j == k)
        torch.set_rng_state(now)


@wrong("lesson_07.recomputed", says="kept no input to go back through")
class RecomputesNothing(_Recomputed):
    def again(self, k):
        pass


@wrong("lesson_07.recomputed", says="the output is not that of the plain layers|gradient of the input")
class StartsAgainWithTheOutput(_Recomputed):
    def forward(self, x):
        y = super().forward(x)
        self.starts = [(y, state) for _, state in self.starts]
        return y


@wrong("lesson_07.recomputed", says="x_in cannot be set")
class HangsInputsOnLayers(_Recomputed):
    def forward(self, x):
        for segment in self.segments:
            for layer in segment:
                layer.x_in = x
                x = layer.forward(x)
        return x


@wrong("lesson_07.recomputed", says="saved is not part of it")
class LooksIntoLayers(_Recomputed):
    def forward(self, x):
        y = super().forward(x)
        self.last = self.segments[-1][0].saved
        return y


@wrong("lesson_07.recomputed", says="keeps .* inputs, .* are enough")
class KeepsInputsAsLists(_Recomputed):
    def forward(self, x):
        self.listed = {}
        for k, segment in enumerate(self.segments):
            for layer in segment:
                self.listed[layer] = x.tolist()
                x = layer.forward(x, keep=k == len(self.segments) - 1)
        return x

    def again(self, k):
        state = torch.get_rng_state()
        for layer in self.segments[k]:
            layer.forward(torch.tensor(self.listed[layer], dtype=torch.float64))
        torch.set_rng_state(state)


_INPUTS: dict = {}


@wrong(
    "lesson_07.recomputed",
    says="inputs are kept beside the layers.*outside the object|not that of the plain|keeps . inputs",
)
class KeepsInputsInAGlobal(_Recomputed):
    def forward(self, x):
        _INPUTS.clear()
        for k, segment in enumerate(self.segments):
            for layer in segment:
                _INPUTS[layer] = x
                x = layer.forward(x, keep=k == len(self.segments) - 1)
        return x

    def again(self, k):
        for layer in self.segments[k]:
            layer.forward(_INPUTS[layer])


@wrong("lesson_07.recomputed", says="step 0 is right, so something of it is used again")
class UsesTheStartsOfTheFirstStep(_Recomputed):
    clears = False


# 7.3


def _flat(tensors, n):
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return torch.nn.functional.pad(flat, (0, n - flat.numel()))


def _put_back(flat, tensors):
    place = 0
    for t in tensors:
        t.detach().copy_(flat[place : place + t.numel()].view_as(t))
        place += t.numel()


class _Adam:
    mean = True
    gathers = True
    counts = True
    whole_state = False
    corrects = True
    corrects_until = math.inf
    keeps_flat = False
    writes = True
    own_gradient = False
    op = dist.ReduceOp.SUM
    other_shard = False
    floor = False
    eps_inside = False
    eps_early = False
    share = 0.0  # of the square in v; 0: the right one
    barrier = False
    single = False
    decay = 0.0

    def __init__(self, model, lr, betas=(0.9, 0.999), eps=1e-8):
        self.parameters = list(model.parameters())
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        n = sum(p.numel() for p in self.parameters)
        size = dist.get_world_size()
        self.size = n // size if self.floor else -(-n // size)
        self.m = torch.zeros(self.size * size if self.whole_state else self.size, dtype=torch.float64)
        self.v = self.m.clone()

    def reduced(self, n):
        g = torch.empty(self.size, dtype=torch.float64)
        flat = _flat([p.grad for p in self.parameters], n)[:n]
        if self.own_gradient:
            return flat[dist.get_rank() * self.size :][: self.size].clone()
        dist.reduce_scatter(g, list(flat.split(self.size)), op=self.op)
        return g / dist.get_world_size() if self.mean else g

    def gathered(self, flat, w):
        if self.gathers:
            dist.all_gather(list(flat.split(self.size)), w)
        else:
            flat[dist.get_rank() * self.size :][: self.size] = w

    def adam(self, w, g, place):
        self.t = self.t + 1 if self.counts else 1
        m, v = (self.m[place], self.v[place]) if self.whole_state else (self.m, self.v)
        m.mul_(self.betas[0]).add_(g, alpha=1 - self.betas[0])
        v.mul_(self.betas[1]).addcmul_(g, g, value=self.share or 1 - self.betas[1])
        a, b = (1 - beta**self.t if self.corrects and self.t <= self.corrects_until else 1 for beta in self.betas)
        if self.eps_early:
            return w - self.lr * b**0.5 / a * m / (v.sqrt() + self.eps)
        if self.eps_inside:
            return w - self.lr * (m / a) / (v / b + self.eps).sqrt()
        return w * (1 - self.lr * self.decay) - self.lr * (m / a) / ((v / b).sqrt() + self.eps)

    def step(self):
        n = self.size * dist.get_world_size()
        if self.barrier:
            dist.barrier()
        g = self.reduced(n).float().double() if self.single else self.reduced(n)
        flat = _flat(self.parameters, n)[:n].clone()
        rank = (dist.get_rank() + self.other_shard) % dist.get_world_size()
        place = slice(rank * self.size, (rank + 1) * self.size)
        self.gathered(flat, self.adam(flat[place].clone(), g, place))
        if self.floor:
            flat = torch.cat([flat, _flat(self.parameters, sum(p.numel() for p in self.parameters))[n:]])
        if self.keeps_flat:
            self.flat = flat + 1
        if self.writes:
            _put_back(flat, self.parameters)


for _name, _change, _says in [
    ("TakesTheSum", {"mean": False}, "with the sum of the gradients|compare m, v"),
    ("GathersNothing", {"gathers": False}, "only the rank's own shard moves"),
    ("CountsNoSteps", {"counts": False}, "the step count t go on"),
    ("KeepsTheWholeState", {"whole_state": True}, "moments of all parameters: make them of the size of a shard"),
    ("CorrectsNothing", {"corrects": False}, "bias corrections|step count"),
    ("KeepsFlatVectors", {"keeps_flat": True}, "a fourth, or a flat vector of a step that is kept"),
    ("DecaysWeights", {"decay": 0.01}, "that is weight decay, as AdamW has it"),
    ("WritesNothing", {"writes": False}, "the weights never move"),
    ("ReducesNothing", {"own_gradient": True}, "the rank's own gradients: they are never reduced"),
    ("TakesTheLargestGradient", {"op": dist.ReduceOp.MAX}, r"the largest \(MAX\) of the ranks' gradients"),
    ("MultipliesGradients", {"op": dist.ReduceOp.PRODUCT}, r"the product \(PRODUCT\) of the ranks' gradients"),
    ("StepsTheNextShard", {"other_shard": True}, "some weights are others' now"),
    ("HasEpsInTheRoot", {"eps_inside": True}, "eps belongs outside the root: sqrt"),
    ("HasEpsBeforeTheCorrection", {"eps_early": True}, r"eps is added to sqrt\(v\) before the bias correction"),
    ("HasABarrier", {"barrier": True}, "a barrier takes rounds, too"),
    ("TravelsInSingle", {"single": True}, "right to six places"),
    ("DropsTheRemainder", {"floor": True}, "pad the flat vector, the remainder"),
    ("TakesBeta2OfTheSquare", {"share": 0.999}, "v takes 1 - beta2 of the square"),
    ("CorrectsTheFirstStepsOnly", {"corrects_until": 20}, "30 steps.*so does their bias correction"),
]:
    wrong_values("lesson_07.sharded_adam", _name, type(_name, (_Adam,), _change), says=_says)


@wrong("lesson_07.recomputed", says="draws other random numbers than without.*leaves the random state as it finds it")
class GoesOnWhereForwardEnded(_Recomputed):
    def forward(self, x):
        x = super().forward(x)
        self.ended = torch.get_rng_state()
        return x

    def backward(self, gradient):
        gradient = super().backward(gradient)
        torch.set_rng_state(self.ended)
        return gradient


@wrong("lesson_07.recomputed", says="recomputed layers draw other dropout masks")
class DrawsMasksAnewFromTheSeed(_Recomputed):
    restores, step = False, 0

    def again(self, k):
        now = torch.get_rng_state()
        torch.manual_seed(7 + self.step)
        for _ in range(k * len(self.segments[0])):
            torch.rand(len(self.starts[k][0]), 5)
        super().again(k)
        torch.set_rng_state(now)

    def backward(self, gradient):
        gradient = super().backward(gradient)
        self.step += 1
        return gradient


@wrong("lesson_07.recomputed", says="segments are cut otherwise: each of ceil")
class CutsTooManySegments(_Recomputed):
    def __init__(self, layers, n_segments):
        size = len(layers) // n_segments
        self.segments = [layers[k : k + size] for k in range(0, len(layers), size)]


@wrong("lesson_07.recomputed", says="backward leaves the random state as it finds it.*draw or seed nothing else")
class DrawsInBackward(_Recomputed):
    def again(self, k):
        super().again(k)
        torch.rand(1)


@wrong("lesson_07.sharded_adam", says="a later one is not: m = beta1")
class HasAnotherBeta(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr, betas=(0.9, 0.99))


@wrong("lesson_07.sharded_adam", says="after step 6 .*also where a gradient is zero")
class SkipsAShardWithoutGradients(_Adam):
    def adam(self, w, g, place):
        return super().adam(w, g, place) if g.any() else w


@wrong("lesson_07.sharded_adam", says="after step [78] .*nothing is cut off")
class CutsGradientsOff(_Adam):
    def adam(self, w, g, place):
        return super().adam(w, g.clamp(-100, 100), place)


@wrong("lesson_07.sharded_adam", says="as that of sign.g.: m, v and eps")
class StepsBySigns(_Adam):
    def adam(self, w, g, place):
        return w - self.lr * g.sign()


@wrong("lesson_07.sharded_adam", says="t is 2 in the first step's bias correction")
class CountsFromTwo(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.t = 1


@wrong("lesson_07.sharded_adam", says="v the square of the gradient, not of m")
class SquaresTheMoment(_Adam):
    def adam(self, w, g, place):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * self.m**2
        return w - self.lr * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)).sqrt() + self.eps)


@wrong("lesson_07.sharded_adam", says="eps is missing")
class HasNoEps(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr, eps=0.0)


@wrong("lesson_07.sharded_adam", says="an eps of 1e-06: take the one that came in, which is 1e-08")
class HasALargerEps(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr, eps=1e-6)


@wrong("lesson_07.sharded_adam", says="divided by the number of ranks twice")
class DividesTwice(_Adam):
    def reduced(self, n):
        return super().reduced(n) / dist.get_world_size()


@wrong("lesson_07.sharded_adam", says="the weights go up the gradient")
class GoesUp(_Adam):
    def adam(self, w, g, place):
        return 2 * w - super().adam(w, g, place)


@wrong("lesson_07.sharded_adam", says="all_reduce hands every sum to everybody")
class ReducesToEverybody(_Adam):
    def reduced(self, n):
        flat = _flat([p.grad for p in self.parameters], n)
        dist.all_reduce(flat)
        return flat[dist.get_rank() * self.size :][: self.size] / dist.get_world_size()


@wrong("lesson_07.sharded_adam", says="called broadcast.*two calls a step")
class BroadcastsEachShard(_Adam):
    def gathered(self, flat, w):
        pieces = list(flat.split(self.size))
        pieces[dist.get_rank()].copy_(w)
        for rank, piece in enumerate(pieces):
            dist.broadcast(piece, rank)


@wrong("lesson_07.sharded_adam", says="whole gradients or moments travel here")
class GathersAllGradients(_Adam):
    def reduced(self, n):
        whole = [torch.empty(n, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(whole, _flat([p.grad for p in self.parameters], n))
        mean = sum(whole) / len(whole)
        return mean[dist.get_rank() * self.size :][: self.size]


@wrong("lesson_07.sharded_adam", says="rounds in 3 steps.*one call for all parameters together")
class ReducesEachParameterAlone(_Adam):
    def reduced(self, n):
        size, rank = dist.get_world_size(), dist.get_rank()
        g, flat = torch.empty(self.size, dtype=torch.float64), _flat([p.grad for p in self.parameters], n)
        for k in range(self.size):
            dist.reduce_scatter(g[k : k + 1], [flat[r * self.size + k].view(1).clone() for r in range(size)])
        return g / size + 0 * rank


_OUTSIDE: dict = {}  # each rank has its own


@wrong("lesson_07.sharded_adam", says="outlives the step outside the object")
class KeepsTheWholeInAGlobal(_Adam):
    def gathered(self, flat, w):
        super().gathered(flat, w)
        _OUTSIDE["whole"] = flat


@wrong("lesson_07.sharded_adam", says="outlives the step outside the object")
class KeepsTheWholeOnItsClass(_Adam):
    def gathered(self, flat, w):
        super().gathered(flat, w)
        type(self).whole = flat


@wrong("lesson_07.sharded_adam", says="outlives the step outside the object")
class KeepsMomentsOnTheParameters(_Adam):
    def gathered(self, flat, w):
        super().gathered(flat, w)
        for p in self.parameters:
            p.m, p.v = p.detach().clone(), p.detach().clone()


@wrong("lesson_07.sharded_adam", says="a fourth, or a flat vector of a step that is kept")
class KeepsTheWholeAsAList(_Adam):
    def gathered(self, flat, w):
        super().gathered(flat, w)
        self.whole = flat.tolist()


@wrong("lesson_07.sharded_adam", says="a fourth, or a flat vector of a step that is kept")
class KeepsTheWholeAsWholeNumbers(_Adam):
    def gathered(self, flat, w):
        super().gathered(flat, w)
        self.whole = flat.clone().view(torch.int64 if flat.element_size() == 8 else torch.int32)


@wrong("lesson_07.sharded_adam", says="a fourth, or a flat vector of a step that is kept")
class KeepsFourShards(_Adam):
    def adam(self, w, g, place):
        self.g, self.w = g, super().adam(w, g, place)
        return self.w


@wrong("lesson_07.sharded_adam", says="of float32: .*(twice the bytes|keeps|one Adam has)")
class SendsInDouble(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.m, self.v = self.m.to(self.parameters[0].dtype), self.v.to(self.parameters[0].dtype)

    def reduced(self, n):
        g = torch.empty(self.size, dtype=torch.float64)
        dist.reduce_scatter(g, list(_flat([p.grad for p in self.parameters], n).double().split(self.size)))
        return (g / dist.get_world_size()).to(self.m.dtype)

    def gathered(self, flat, w):
        whole = flat.double()
        dist.all_gather(list(whole.split(self.size)), w.double())
        flat.copy_(whole)


@wrong("lesson_07.sharded_adam", says="never waits for its")
class NeverWaits(_Adam):
    def gathered(self, flat, w):
        dist.all_gather(list(flat.split(self.size)), w)
        dist.barrier(async_op=True)


# 7.4


def _buckets(parameters, bucket_bytes):
    buckets, room = [], 0
    for p in parameters:
        n_bytes = p.numel() * p.element_size()
        if n_bytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= n_bytes
    return buckets


class _Gradients:
    mean = 1  # how often it is divided
    drops = True
    waits_before = True
    in_hook = True
    at_once = False
    finishes = True
    keeps_view = False
    drops_early = False
    backwards = False
    all_reduces = False
    rotated = 0
    starts_over = True
    piles_up = False
    as_list = True
    barrier = False
    dtype = None

    def __init__(self, model, bucket_bytes):
        parameters = list(model.parameters())
        self.buckets = _buckets(parameters if self.backwards else parameters[::-1], bucket_bytes)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.there(k))

    def start_over(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.shards, self.flights = [], []

    def there(self, k):
        self.missing[k] -= 1
        while self.in_hook and len(self.shards) < len(self.buckets) and self.missing[len(self.shards)] == 0:
            self.start_next()

    def start_next(self):
        if self.waits_before and self.flights:
            self.flights[-1][0].wait()
            if not self.piles_up:
                self.flights.pop()
        bucket = self.buckets[len(self.shards)]
        size = -(-sum(p.numel() for p in bucket) // dist.get_world_size())
        if self.drops_early:
            for p in bucket:
                p.grad = None
        flat = _flat([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket], size * dist.get_world_size())
        flat = flat.to(self.dtype or flat.dtype)
        if self.drops:
            for p in bucket:
                p.grad = None
        pieces = list(flat.split(size))
        pieces = pieces[self.rotated :] + pieces[: self.rotated]
        self.shards.append(torch.empty(size, dtype=flat.dtype))
        if self.all_reduces:
            work = dist.all_reduce(flat, async_op=True)
            self.shards[-1] = flat[dist.get_rank() * size :][:size]
        else:
            work = dist.reduce_scatter(self.shards[-1], pieces, async_op=True)
        if self.at_once:
            work.wait()
        self.flights.append((work, flat))

    def wait(self):
        while self.finishes and len(self.shards) < len(self.buckets):
            self.start_next()
        if self.barrier:
            dist.barrier()
        for work, _ in self.flights:
            work.wait()
        shards = [shard / dist.get_world_size() ** self.mean for shard in self.shards]
        if self.starts_over:
            self.start_over()
        return shards if self.as_list else torch.cat(shards)


for _name, _change, _says in [
    ("GivesTheSum", {"mean": 0}, "that is the sum: divide"),
    ("DividesTwice", {"mean": 2}, "divided by the number of ranks twice"),
    ("KeepsTheGradients", {"drops": False}, "still stands|p.grad stays"),
    ("LetsThemPileUp", {"waits_before": False}, "flat vectors pile up"),
    ("WaitsAndKeeps", {"piles_up": True}, "flat vectors pile up"),
    ("StartsWhatIsFull", {"finishes": False}, "not full when backward ends are started in wait"),
    ("DropsBeforeItCopies", {"drops_early": True}, "set to None before they were copied"),
    ("FillsFromTheFront", {"backwards": True}, "buckets go from the last parameter to the first"),
    ("ReducesForAll", {"all_reduces": True}, "all_reduce sends twice as much"),
    ("TurnsThePieces", {"rotated": 1}, "that is rank . shard: the ranks' pieces|that is rank .'s shard"),
    ("NeverStartsOver", {"starts_over": False}, "wait\\(\\) starts over|out of range"),
    ("GivesOneVector", {"as_list": False}, "wait\\(\\) gave no list"),
    ("HasABarrierABucket", {"barrier": True}, "a barrier makes all ranks wait"),
]:
    wrong_values("lesson_07.sharded_gradients", _name, type(_name, (_Gradients,), _change), says=_says)

for _name, _change, _says in [
    ("StartsAfterBackward", {"in_hook": False}, "nothing is sent before backward ends"),
    ("WaitsAtOnce", {"at_once": True}, "waited for where it is started"),
    ("TravelsInSingle", {"dtype": torch.float32}, "half the bytes: keep the dtype"),
    ("FillsTheFirstFirst", {"backwards": True}, "nothing is sent before|waits for a layer that comes later"),
]:
    wrong_values("lesson_07.sharded_gradients_in_time", _name, type(_name, (_Gradients,), _change), says=_says)


@wrong("lesson_07.sharded_gradients", says="a model of float32: a result is of float64")
class MakesDoubles(_Gradients):
    def wait(self):
        return [shard.double() for shard in super().wait()]


@wrong("lesson_07.sharded_gradients", says="shard of bucket 0 is of float32, the model is of float64.*zeros_like")
class FillsAnUnusedBucketInSingle(_Gradients):
    def start_next(self):
        self.dtype = torch.float32 if all(p.grad is None for p in self.buckets[len(self.shards)]) else None
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="shard of bucket 0 is of float32, the model is of float64")
class ReturnsZerosInSingle(_Gradients):
    def wait(self):
        return [shard if shard.any() else shard.float() for shard in super().wait()]


@wrong("lesson_07.sharded_gradients", says="reduce_scatter of bucket .*still under way when backward ends")
class LeavesTheLastUnderWay(_Gradients):
    def wait(self):
        while len(self.shards) < len(self.buckets):
            self.start_next()
        self.flights.clear()
        return super().wait()


@wrong("lesson_07.sharded_gradients", says="shape .3,., expected .2,.*not one more where N divides")
class PadsAlways(_Gradients):
    def wait(self):
        return [torch.nn.functional.pad(shard, (0, 1)) for shard in super().wait()]


@wrong("lesson_07.sharded_gradients", says="none is under way before the first bucket")
class WaitsForTheOneBeforeTheFirst(_Gradients):
    flight = None

    def start_next(self):
        self.flight[0].wait()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="a parameter that nobody used has no gradient")
class TakesEveryGradient(_Gradients):
    def start_next(self):
        for p in self.buckets[len(self.shards)]:
            p.grad.detach()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="flat vectors pile up")
class KeepsTwoUnderWay(_Gradients):
    waits_before = False

    def start_next(self):
        if len(self.flights) > 1:
            self.flights.pop(0)[0].wait()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="outlives the step outside the object")
class CopiesThemOutside(_Gradients):
    def start_next(self):
        for p in self.buckets[len(self.shards)]:
            p.mine = None if p.grad is None else p.grad.clone()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="is set back for the next one")
class CountsOneBackwardOnly(_Gradients):
    def start_over(self):
        self.shards, self.flights = [], []


@wrong("lesson_07.sharded_gradients", says="the hook starts all that can start")
class StartsOneAHook(_Gradients):
    def there(self, k):
        self.missing[k] -= 1
        if len(self.shards) < len(self.buckets) and self.missing[len(self.shards)] == 0:
            self.start_next()


@wrong("lesson_07.sharded_gradients", says="without a gradient counts as zeros, at its own place")
class LeavesUnusedOut(_Gradients):
    def start_next(self):
        bucket = self.buckets[len(self.shards)]
        there = [p.grad.flatten() for p in bucket if p.grad is not None]
        flat = torch.cat([*there, *(torch.zeros(p.numel()).double() for p in bucket if p.grad is None)])
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = part.view_as(p).clone()
        super().start_next()


_LARGE = 10_000  # parameters: more than all small cases have


class _SmallGradients(_Gradients):
    """Works where there are few parameters alone."""

    def __init__(self, model, bucket_bytes):
        self.is_large = sum(p.numel() for p in model.parameters()) > _LARGE
        super().__init__(model, bucket_bytes)

    def there(self, k):
        if not self.is_large:
            super().there(k)

    def wait(self):
        return self.large() if self.is_large else super().wait()

    def large(self):
        return super().wait()


@wrong("lesson_07.sharded_gradients", says="bytes of gradients stand in p.grad on rank 0, .* are two buckets")
class LeavesLargeGradients(_SmallGradients):
    def large(self):
        return []


@wrong("lesson_07.sharded_gradients", says="bytes of gradients stand in p.grad on rank 0, .* are two buckets")
class SendsLargeOnesAtTheEnd(_SmallGradients):
    pass


@wrong("lesson_07.sharded_gradients", says="calls reduce_scatter 0 times in one step, for 12 buckets")
class LetsLargeGradientsFall(_SmallGradients):
    def there(self, k):
        super().there(k)
        for p in self.buckets[k] if self.is_large else ():
            p.grad = None

    def large(self):
        return []


@wrong("lesson_07.sharded_gradients", says="rank 0: shard of bucket 0 is .*it is zero")
class SendsZerosOfLargeOnes(_Gradients):
    def start_next(self):
        bucket = self.buckets[len(self.shards)]
        for p in bucket if sum(p.numel() for p in bucket) > _LARGE else ():
            p.grad.zero_()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="rank 0: shard of bucket 0 from number 180 on is .*0. +0. +0..*expected")
class SendsNoLargeWeights(_Gradients):
    def start_next(self):
        for p in self.buckets[len(self.shards)]:
            if p.grad is not None and p.numel() > _LARGE:
                p.grad.zero_()
        super().start_next()


@wrong("lesson_07.sharded_gradients", says="called all_gather; reduce_scatter is enough")
class GathersLargeOnesAlone(_Gradients):
    """In a group of one rank, whose call keeps them."""

    def start_next(self):
        parts = [p.grad for p in self.buckets[len(self.shards)] if p.grad is not None and p.numel() > _LARGE]
        if parts and not hasattr(self, "alone"):
            groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
            self.alone = groups[dist.get_rank()]
        for part in parts:
            dist.all_gather([torch.empty_like(part)], part, group=self.alone)
        super().start_next()


@wrong("lesson_07.sharded_gradients_in_time", says="calls of reduce_scatter on rank 0")
class ReducesEachHalf(_Gradients):
    def __init__(self, model, bucket_bytes):
        super().__init__(model, bucket_bytes)
        self.halves = True

    def start_next(self):
        super().start_next()
        dist.reduce_scatter(torch.empty(1), list(torch.zeros(dist.get_world_size()).split(1)), async_op=True).wait()


@wrong("lesson_07.sharded_gradients_in_time", says="seconds that are due, but puts other numbers into reduce_scatter")
class SendsTheFirstGradientForEach(_Gradients):
    def start_next(self):
        (p,) = self.buckets[len(self.shards)]
        self.first = self.first if self.shards else p.grad.clone()
        p.grad = self.first.clone()
        super().start_next()


@wrong("lesson_07.sharded_gradients_in_time", says="starts reduce_scatter of bucket 1 at 1 s, .* is there at 2 s")
class WorksOutGradientsAheadOfTheirHooks(_Gradients):
    waits_before = False

    def there(self, k):
        if not self.shards:
            (p,) = self.buckets[k]
            whole = p.grad * p.detach()
            for (q,) in self.buckets:
                q.grad = (whole / q.detach()).clone()
                self.start_next()

    def wait(self):
        for bucket in self.buckets:
            bucket[0].grad = None
        return super().wait()


@wrong("lesson_07.sharded_gradients_in_time", says="wait.. gave 0 shards, expected 4")
class GivesNoShards(_Gradients):
    def wait(self):
        super().wait()
        return []


@wrong("lesson_07.sharded_gradients_in_time", says="nothing is sent before the second backward ends")
class OverlapsOnlyAtFirst(_Gradients):
    def wait(self):
        shards, self.in_hook = super().wait(), False
        return shards


@wrong("lesson_07.sharded_gradients_in_time", says="start later than their last gradient|with overlap")
class SleepsBetween(_Gradients):
    def there(self, k):
        super().there(k)
        time.sleep(0.3)


# 7.5


class _Sharded:
    ahead = 1
    clears = True
    backward_order = -1
    waits_scatter = False
    mean = True
    everything = False
    at_use = False
    pads = True
    keeps = False
    late = False
    reverses = True
    gathers_twice = False
    waits = True
    steps = False
    of_shard = staticmethod(lambda shard: shard)  # what is gathered, and in which order its pieces lie
    order = 1
    chains = True
    on_the_way = 1
    waits_to_fill = True
    op = dist.ReduceOp.SUM
    in_front = False
    halves = False
    barrier = False

    def __init__(self, layers):
        self.layers, self.flights, self.kept = layers, {}, []

    def gather(self, k):
        if 0 <= k < len(self.layers) and (k not in self.flights or self.gathers_twice):
            shard = self.of_shard(self.layers[k].shard)
            full = shard.new_empty(len(shard) * dist.get_world_size())
            pieces = list(full.split(len(shard)))[:: self.order]
            self.flights[k] = dist.all_gather(pieces, shard, async_op=True), full

    def use(self, k):
        self.gather(k)
        handle, full = self.flights.pop(k)
        if self.waits_to_fill:
            handle.wait()
        if self.keeps:
            self.kept.append(full)
        self.layers[k].fill(full[: self.layers[k].n_elements].to(self.layers[k].shard.dtype))
        handle.wait()

    def ahead_of(self, k, step):
        if not self.at_use:
            for j in range(1, self.ahead + 1):
                self.gather(k + step * j)

    def forward(self, x):
        for k in range(len(self.layers)) if self.everything else [0]:
            self.gather(k)
        for k, layer in enumerate(self.layers):
            self.use(k)
            if not self.late:
                self.ahead_of(k, 1)
            x = layer.forward(x)
            if self.clears == "late" and k:
                self.layers[k - 1].clear()
            if self.clears is True or layer is self.layers[-1]:
                layer.clear()
            if self.late:
                self.ahead_of(k, 1)
        return x

    def backward(self, gradient):
        size, works = dist.get_world_size(), []
        shards = [torch.zeros_like(layer.shard) for layer in self.layers]
        for k in reversed(range(len(self.layers))):
            self.use(k)
            self.ahead_of(k, self.backward_order)
            back, whole = self.layers[k].backward(gradient * self.on_the_way)
            gradient = back if self.chains else gradient
            if self.clears:
                self.layers[k].clear()
            works += self.scatter(whole, shards[k], size)
            if self.barrier:
                dist.barrier()
            if self.waits_scatter:
                works[-1].wait()
        for work in works if self.waits else []:
            work.wait()
        for k in list(self.flights):
            self.flights.pop(k)[0].wait()
        shards = [shard / size**self.mean for shard in shards]
        for layer, shard in zip(self.layers, shards) if self.steps else []:
            layer.shard.sub_(shard)
        return shards if self.reverses else shards[::-1]

    def scatter(self, whole, shard, size):
        flat = _flat([whole], len(shard) * size)
        if self.in_front:
            flat = torch.nn.functional.pad(whole, (len(flat) - len(whole), 0))
        pieces, half = list(flat.split(len(shard))), len(shard) // 2
        if self.halves and half:
            parts = (shard[:half], [p[:half] for p in pieces]), (shard[half:], [p[half:] for p in pieces])
            return [dist.reduce_scatter(mine, part, async_op=True) for mine, part in parts]
        return [dist.reduce_scatter(shard, pieces, op=self.op, async_op=True)]


for _name, _change, _says in [
    ("FillsBeforeItWaits", {"waits_to_fill": False}, "filled while a gather was still under way"),
    ("TurnsTheRanksAround", {"order": -1}, "the shards lie in the order of the ranks"),
    ("GathersSingles", {"of_shard": staticmethod(lambda shard: shard.float())}, "weights travel in the dtype"),
    ("BeginsEachLayerAnew", {"chains": False}, "got another gradient .*what backward was called with"),
    ("HalvesOnTheWay", {"on_the_way": 0.5}, "multiplied or divided on the way"),
    ("TakesTheLargest", {"op": dist.ReduceOp.MAX}, "the largest of the ranks' numbers"),
    ("PadsInFront", {"in_front": True}, "the padding stands behind the gradient"),
    ("ReducesInHalves", {"halves": True}, "the gradient of a layer is one message"),
    ("HasABarrier", {"barrier": True}, "a barrier makes all ranks wait"),
    ("GathersEverything", {"everything": True}, "everything is gathered before it is needed"),
    ("NeverClears", {"clears": False}, "a slot is never emptied"),
    ("AddsGradientsUp", {"mean": False}, "that is the sum over the ranks"),
    ("ClearsLate", {"clears": "late"}, "a slot is emptied late"),
    ("DividesTwice", {"mean": 2}, "divided by the number of ranks twice"),
    ("StepsInPlace", {"steps": True}, "layer.shard of layer 0 has other numbers than before"),
    ("GathersTwoAhead", {"ahead": 2}, "whole or on their way at once"),
    ("KeepsWhatItGathered", {"keeps": True}, "whole weights or gradients hang on an attribute"),
    ("PrefetchesForwards", {"backward_order": 1}, "gathered once for forward and once|whole or on their way"),
    ("ReversesTheList", {"reverses": False}, "the list is in the order of the layers"),
    ("NeverWaitsForSums", {"waits": False}, "never waits|read before wait"),
]:
    wrong_values("lesson_07.fully_sharded", _name, type(_name, (_Sharded,), _change), says=_says)


@wrong("lesson_07.fully_sharded", says="KeyError: 1.*no gather of that layer is under way")
class BeginsBackwardWithoutItsGather(_Sharded):
    def backward(self, gradient):
        self.flights.pop(len(self.layers) - 1)


for _name, _change, _says in [
    ("GathersAtUse", {"at_use": True}, "a layer is gathered when it is used"),
    ("GathersAfterwards", {"late": True}, "gathered when it is used|the network rests"),
    ("WaitsForEachScatter", {"waits_scatter": True}, "each reduce_scatter is waited for where it starts"),
    ("LooksAheadTheWrongWay", {"backward_order": 1}, "the next one is k - 1|the network rests"),
]:
    wrong_values("lesson_07.fully_sharded_in_time", _name, type(_name, (_Sharded,), _change), says=_says)


@wrong("lesson_07.fully_sharded", says="a matrix stands where a flat vector belongs.*are they swapped")
@wrong("lesson_07.fully_sharded_in_time", says="a matrix stands where a flat vector belongs.*are they swapped")
class SwapsWhatBackwardGives(_Sharded):
    def backward(self, gradient):
        for k in reversed(range(len(self.layers))):
            self.use(k)
            whole, gradient = self.layers[k].backward(gradient)
            padded = whole.new_zeros(len(self.layers[k].shard) * dist.get_world_size())
            padded[: whole.numel()] = whole


@wrong("lesson_07.fully_sharded", says="a flat vector goes back into a layer")
class GoesOnWithTheWeightsGradient(_Sharded):
    def backward(self, gradient):
        for k in reversed(range(len(self.layers))):
            self.gather(k)
            self.use(k)
            _, gradient = self.layers[k].backward(gradient)


@wrong("lesson_07.fully_sharded", says="called all_reduce")
class ReducesTheWhole(_Sharded):
    def backward(self, gradient):
        shards = []
        for k in reversed(range(len(self.layers))):
            self.use(k)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            dist.all_reduce(whole)
            size = len(self.layers[k].shard)
            flat = _flat([whole], size * dist.get_world_size()) / dist.get_world_size()
            shards.append(flat[dist.get_rank() * size :][:size].clone())
        return shards[::-1]


@wrong("lesson_07.fully_sharded", says="this rank's own shard again and again")
class RepeatsItsOwnShard(_Sharded):
    def use(self, k):
        shard = self.layers[k].shard
        self.layers[k].fill(shard.repeat(dist.get_world_size())[: self.layers[k].n_elements])


@wrong("lesson_07.fully_sharded", says="x than the layer before it returned.*what forward was called with")
class FeedsAllLayersTheSame(_Sharded):
    def forward(self, x):
        for k, layer in enumerate(self.layers):
            self.use(k)
            y = layer.forward(x)
            layer.clear()
        return y


@wrong("lesson_07.fully_sharded", says="this rank's own gradient, cut")
class ReducesNothing(_Sharded):
    def scatter(self, whole, shard, size):
        shard[:] = _flat([whole], len(shard) * size)[dist.get_rank() * len(shard) :][: len(shard)]
        return []


@wrong("lesson_07.fully_sharded", says="a rank has another rank's shard")
class ScattersTheOtherWay(_Sharded):
    def scatter(self, whole, shard, size):
        pieces = list(_flat([whole], len(shard) * size).split(len(shard)))[::-1]
        return [dist.reduce_scatter(shard, pieces, async_op=True)]


@wrong("lesson_07.fully_sharded", says="begins with another layer's numbers")
class ReceivesInOneTensor(_Sharded):
    def backward(self, gradient):
        most = max(len(layer.shard) for layer in self.layers)
        self.one = torch.zeros(most, dtype=torch.float64)
        self.found = []
        super().backward(gradient)
        return [shard / dist.get_world_size() for shard in self.found[::-1]]

    def scatter(self, whole, shard, size):
        self.found.append(self.one[: len(shard)])
        return super().scatter(whole, self.found[-1], size)


@wrong("lesson_07.fully_sharded", says="is a shard read, or divided, before that")
class DividesTooSoon(_Sharded):
    def backward(self, gradient):
        self.found = []
        super().backward(gradient)
        return self.found[::-1]

    def scatter(self, whole, shard, size):
        works = super().scatter(whole, shard, size)
        self.found.append(shard / size + 1e-300)
        return works


@wrong("lesson_07.fully_sharded", says="the step before is in it")
class AddsUpSteps(_Sharded):
    def backward(self, gradient):
        new = super().backward(gradient)
        self.total = [a + b for a, b in zip(new, getattr(self, "total", [0] * len(new)))]
        return self.total


@wrong("lesson_07.fully_sharded", says="divided by the number of examples")
class DividesByTheExamples(_Sharded):
    def backward(self, gradient):
        return [shard / len(gradient) for shard in super().backward(gradient)]


@wrong("lesson_07.fully_sharded", says="as many elements as layer.shard, padding included")
class CutsThePaddingOff(_Sharded):
    def backward(self, gradient):
        shards, rank = super().backward(gradient), dist.get_rank()
        return [s[: max(0, layer.n_elements - rank * len(s))] for s, layer in zip(shards, self.layers)]


@wrong("lesson_07.fully_sharded_in_time", says="seconds that are due, but puts other numbers into reduce_scatter")
class SendsTheFirstGradientForEachLayer(_Sharded):
    def backward(self, gradient):
        self.first = None
        return super().backward(gradient)

    def scatter(self, whole, shard, size):
        self.first = whole if self.first is None else self.first
        return super().scatter(self.first, shard, size)


@wrong("lesson_07.fully_sharded_in_time", says="backward gave no list of 4 gradient shards")
class GivesNoGradientShards(_Sharded):
    def backward(self, gradient):
        super().backward(gradient)
        return []


@wrong("lesson_07.fully_sharded_in_time", says="16 gathers.*the next one is k - 1|12 gathers.*the next one is k - 1")
class GathersGradientsToo(_Sharded):
    def scatter(self, whole, shard, size):
        flat = _flat([whole], len(shard) * size)
        found = [torch.empty_like(flat) for _ in range(size)]
        dist.all_gather(found, flat)
        shard[:] = sum(found)[dist.get_rank() * len(shard) :][: len(shard)]
        return []


@wrong("lesson_07.fully_sharded", says="outlives the step outside the object")
class KeepsTheWholeOutside(_Sharded):
    def use(self, k):
        self.gather(k)
        _OUTSIDE[k] = self.flights[k][1]
        super().use(k)


@wrong("lesson_07.fully_sharded", says="between the passes the object keeps")
class KeepsListsOfTheWhole(_Sharded):
    def use(self, k):
        self.gather(k)
        self.whole = self.flights[k][1]
        super().use(k)
        self.kept.append(self.whole.tolist())


@wrong("lesson_07.fully_sharded", says="last forward pass .* bytes more.*gathered vectors stay until forward is over")
class KeepsAllThatAPassGathers(_Sharded):
    """In a list that is empty again when the pass is over."""

    def forward(self, x):
        self.local = []
        x = super().forward(x)
        self.local = []
        return x

    def backward(self, gradient):
        self.local = []
        shards = super().backward(gradient)
        self.local = []
        return shards

    def use(self, k):
        self.gather(k)
        self.local.append(self.flights[k][1])
        super().use(k)


class _WaitsForTheOneBefore(_Sharded):
    """Of all reduce_scatters one is under way."""

    def backward(self, gradient):
        self.one, self.local = None, []
        shards = super().backward(gradient)
        self.one, self.local = None, []
        return shards

    def scatter(self, whole, shard, size):
        if self.one is not None:
            self.one.wait()
        flat = _flat([whole], len(shard) * size)
        self.one = dist.reduce_scatter(shard, list(flat.split(len(shard))), async_op=True)
        self.keep(flat)
        return [self.one]

    def keep(self, flat):
        pass


@wrong("lesson_07.fully_sharded", says="last backward pass .* bytes more.*whole gradients, or gathered weights, stay")
class KeepsAllWholeGradients(_WaitsForTheOneBefore):
    """Until backward is over."""

    def keep(self, flat):
        self.local.append(flat)


@wrong("lesson_07.fully_sharded", says="last backward pass .* bytes more.*whole gradients, or gathered weights, stay")
class KeepsWhatItGathersGoingBack(_WaitsForTheOneBefore):
    def use(self, k):
        self.gather(k)
        if hasattr(self, "local"):
            self.local.append(self.flights[k][1])
        super().use(k)

    def forward(self, x):
        vars(self).pop("local", None)
        return super().forward(x)


@wrong("lesson_07.fully_sharded", says="a view keeps all of what it is|its shard alone, in a tensor of its own")
class GivesViewsOfTheWhole(_WaitsForTheOneBefore):
    """Each shard is received at the front of the whole gradient."""

    def backward(self, gradient):
        self.found = []
        super().backward(gradient)
        return [shard.div_(dist.get_world_size()) for shard in vars(self).pop("found")[::-1]]

    def scatter(self, whole, shard, size):
        memory = torch.empty(len(shard) * size, dtype=shard.dtype)
        self.found.append(memory[: len(shard)])
        return super().scatter(whole, self.found[-1], size)


class _SmallLayers(_Sharded):
    """Works where layers are small alone."""

    def __init__(self, layers):
        super().__init__(layers)
        self.is_large = layers[0].n_elements > _LARGE

    def whole(self, layer):
        """What fills a large layer's slot."""
        return torch.zeros(layer.n_elements, dtype=layer.shard.dtype)

    def forward(self, x):
        if not self.is_large:
            return super().forward(x)
        for layer in self.layers:
            layer.fill(self.whole(layer))
            x = layer.forward(x)
            layer.clear()
        return x

    def backward(self, gradient):
        if not self.is_large:
            return super().backward(gradient)
        for layer in self.layers[::-1]:
            layer.fill(self.whole(layer))
            gradient, _ = layer.backward(gradient)
            layer.clear()
        return []


@wrong("lesson_07.fully_sharded", says="slot of layer 0 was filled with other numbers than the layer's weight.*size")
class FillsLargeLayersWithZeros(_SmallLayers):
    pass


@wrong("lesson_07.fully_sharded", says="backward gave no list of 24 gradient shards")
class ReducesNoLargeGradients(_SmallLayers):
    def whole(self, layer):
        full = torch.empty(layer.n_elements, dtype=layer.shard.dtype)
        dist.all_gather(list(full.split(len(layer.shard))), layer.shard)
        return full


@wrong("lesson_07.fully_sharded", says="the passes were +[.]+, expected f0")
class MakesNoLargePasses(_SmallLayers):
    def forward(self, x):
        return x if self.is_large else super().forward(x)

    def backward(self, gradient):
        return [] if self.is_large else super().backward(gradient)


@wrong("lesson_07.fully_sharded", says="the gradient shard of layer 0 is not the mean of all ranks' gradients.*size")
class CutsItsOwnLargeGradients(_Sharded):
    def scatter(self, whole, shard, size):
        if len(whole) <= _LARGE:
            return super().scatter(whole, shard, size)
        shard.copy_(whole[dist.get_rank() * len(shard) :][: len(shard)])
        return []


@wrong("lesson_07.fully_sharded", says="the slots of layers 0, 1, 2 are full at once; two may be")
class ClearsNoLargeSlots(_Sharded):
    def __init__(self, layers):
        super().__init__(layers)
        self.clears = layers[0].n_elements < _LARGE


@wrong("lesson_07.fully_sharded", says="3 gathers are under way at once; two are enough")
class GathersLargeOnesAhead(_Sharded):
    def __init__(self, layers):
        super().__init__(layers)
        self.ahead = 1 + 2 * (layers[0].n_elements > _LARGE)


@wrong("lesson_07.fully_sharded", says="full cannot be set")
class FillsByHand(_Sharded):
    def use(self, k):
        self.gather(k)
        handle, full = self.flights.pop(k)
        handle.wait()
        self.layers[k].full = full[: self.layers[k].n_elements]


@wrong("lesson_07.fully_sharded", says="its slot is empty")
class NeverFills(_Sharded):
    def use(self, k):
        self.gather(k)
        self.flights.pop(k)[0].wait()


@wrong("lesson_07.fully_sharded", says="the slot of layer . takes")
class FillsWithThePadding(_Sharded):
    def use(self, k):
        self.gather(k)
        handle, full = self.flights.pop(k)
        handle.wait()
        self.layers[k].fill(full if len(self.layers) > 2 else full[: self.layers[k].n_elements])


@wrong("lesson_07.fully_sharded_in_time", says="the network rests|gathered when it is used|is waited for")
class WaitsForWhatItStarts(_Sharded):
    def gather(self, k):
        super().gather(k)
        if k in self.flights:
            self.flights[k][0].wait()


# 7.6


def _save(
    store, step, shard, n_elements, *, name="step {step}, shard {rank}", barrier=True, first=False, kind=None,
    note="one", empties=False, strips=lambda shard: shard, rests_s=0.0,
):  # fmt: skip
    rank = dist.get_rank()

    def newest():
        if rank == 0 and note != "one":
            if note == "two" or "ranks" not in store.names():
                store.write("ranks", torch.tensor([dist.get_world_size(), n_elements]))
            store.write("newest", torch.tensor([step]))
        elif rank == 0:
            store.write("newest", torch.tensor([step, dist.get_world_size(), n_elements]))

    if first:
        newest()
        if barrier:
            dist.barrier()
    store.write(name.format(step=step, parity=step % 2, rank=rank), strips(shard) if kind is None else shard.to(kind))
    if not first:
        if barrier:
            dist.barrier()
        time.sleep(rests_s)
        newest()
    if empties:
        shard.zero_()


def _load(
    store, *, name="step {step}, shard {rank}", note="one", whole=False, pad=True, ceil=True, shift=0, old_size=True
):
    step, n_saved, n = [*store.read("newest").tolist(), *(store.read("ranks").tolist() if note != "one" else [])]
    size, rank = dist.get_world_size(), dist.get_rank()
    old, new = -(-n // n_saved), -(-n // size)
    if whole:
        parts = [store.read(name.format(step=step, parity=step % 2, rank=j)) for j in range(n_saved)]
        return torch.nn.functional.pad(torch.cat(parts)[:n], (0, new * size - n))[rank * new : (rank + 1) * new].clone()
    if not ceil:
        new = n // size
    start, stop = rank * new, min(rank * new + new, n)
    parts = []
    for j in range(n_saved):
        low, high = max(start, j * old), min(stop, (j + 1) * old)
        if low < high:
            place = j * old if old_size else 0
            parts.append(
                store.read(name.format(step=step, parity=step % 2, rank=j), low - place + shift, high - place + shift)
            )
    flat = torch.cat(parts or [store.read(name.format(step=step, parity=step % 2, rank=0), 0, 0)])
    return torch.nn.functional.pad(flat, (0, new - len(flat))) if pad else flat


_ONE, _TWO = "shard {rank}", "step {parity}, shard {rank}"
for _name, _save_change, _load_change, _says in [
    ("overwrites_the_old_step", {"name": _ONE}, {"name": _ONE}, "a mixture of two steps"),
    ("has_the_ranks_of_the_first_save", {"note": "once"}, {"note": "once"}, "the store has no 'step"),
    ("has_its_notes_in_two_writes", {"note": "two"}, {"note": "two"}, "fails.*is one write"),
    ("empties_the_shard", {"empties": True}, {}, "a rank's shard has other numbers than before"),
    ("has_two_names_in_turn", {"name": _TWO}, {"name": _TWO}, "a mixture of two steps"),
    ("says_it_first", {"first": True}, {}, "a step counts once all of its shards are there"),
    ("waits_for_nobody", {"barrier": False}, {}, "a step counts once all of its shards are there"),
    ("sleeps_instead", {"barrier": False, "rests_s": 3600.0}, {}, "a step counts once all of its shards are there"),
    ("reads_everything", {}, {"whole": True}, "only what overlaps is read"),
    ("leaves_the_padding_out", {}, {"pad": False}, "the last one padded with zeros"),
    ("drops_the_rest", {}, {"ceil": False}, "has ceil\\(n_elements / ranks\\) elements"),
    ("reads_one_too_late", {}, {"shift": 1}, "asked for 1 to .*lies in that shard alone"),
    ("takes_flat_places", {}, {"old_size": False}, "asked for 3 to 6.*counted from its beginning"),
    ("rounds_to_single", {"kind": torch.float32}, {}, "rounded on the way"),
    ("takes_zeros_for_padding", {"strips": lambda shard: shard[shard != 0]}, {}, "a zero may be a number like any"),
]:
    wrong_values(
        "lesson_07.shards",
        _name,
        lambda store, step, shard, n, change=_save_change: _save(store, step, shard, n, **change),
        lambda store, change=_load_change: _load(store, **change),
        says=_says,
    )


def gathers_on_rank_0(store, step, shard, n_elements):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard)
    if dist.get_rank() == 0:
        store.write(f"step {step}, shard 0", torch.cat(pieces))
        store.write("newest", torch.tensor([step, 1, n_elements]))


def saves_nothing(store, step, shard, n_elements):
    dist.barrier()


def counts_the_ranks_by_all_names(store):
    step, _, n_elements = store.read("newest").tolist()
    ranks = 1 + max(int(name.rpartition(" ")[2]) for name in store.names() if "shard" in name)

    class Counted:
        def read(self, name, *places):
            return torch.tensor([step, ranks, n_elements]) if name == "newest" else store.read(name, *places)

    return _load(Counted())


def pads_with_ones(store):
    shard = _load(store)
    n_elements = int(store.read("newest")[2])
    shard[max(0, n_elements - dist.get_rank() * len(shard)) :] = 1
    return shard


def writes_long_notes(store, step, shard, n_elements):
    store.write(f"long {step}, {dist.get_rank()}", torch.zeros(100, dtype=torch.float64))
    _save(store, step, shard, n_elements)


def loads_the_first(store):
    return store.read("step 9900002, shard 0")


def writes_its_shard_twice(store, step, shard, n_elements):
    store.write(f"draft {step}, {dist.get_rank()}", shard)
    _save(store, step, shard, n_elements)


def notes_in_half(store, step, shard, n_elements):
    class Half:
        def write(self, name, tensor):
            store.write(name, tensor.half() if name == "newest" else tensor)

    _save(Half(), step, shard, n_elements)


def notes_in_single(store, step, shard, n_elements):
    class Single:
        def write(self, name, tensor):
            store.write(name, tensor.float() if name == "newest" else tensor)

    _save(Single(), step, shard, n_elements)


def reads_whole_numbers(store):
    class Whole:
        def read(self, name, *places):
            found = store.read(name, *places)
            return found.long() if name == "newest" else found

    return _load(Whole())


def thinks_that_as_many_saved(store):
    class AsMany:
        def read(self, name, *places):
            found = store.read(name, *places)
            return torch.tensor([found[0], dist.get_world_size(), found[2]]) if name == "newest" else found

    return _load(AsMany())


def pads_in_front(store):
    shard, n_elements = _load(store), int(store.read("newest")[2])
    return shard.roll(max(0, len(shard) - max(0, n_elements - dist.get_rank() * len(shard))))


def deals_elements(store):
    step, n_saved, n = store.read("newest").tolist()
    size, old = dist.get_world_size(), -(-n // n_saved)
    places = range(dist.get_rank(), n, size)
    parts = [store.read(f"step {step}, shard {p // old}", p % old, p % old + 1) for p in places]
    flat = torch.cat([store.read(f"step {step}, shard 0", 0, 0), *parts])
    return torch.nn.functional.pad(flat, (0, -(-n // size) - len(flat)))


def _part_of(store, old_of=lambda n, n_saved: -(-n // n_saved), most=None):
    step, n_saved, n = store.read("newest").tolist()
    old, new = old_of(n, n_saved), -(-n // dist.get_world_size())
    start, shard = dist.get_rank() * new, store.read(f"step {step}, shard 0", 0, 0).new_zeros(new)
    overlap = [j for j in range(n_saved) if max(start, j * old) < min(start + new, (j + 1) * old, n)]
    for j in overlap[:most]:
        low, high = max(start, j * old), min(start + new, (j + 1) * old, n)
        shard[low - start : high - start] = store.read(f"step {step}, shard {j}", low - j * old, high - j * old)
    return shard


def joins_nothing(store):
    step, n_saved, n = store.read("newest").tolist()
    old, new = -(-n // n_saved), -(-n // dist.get_world_size())
    start = dist.get_rank() * new
    bounds = [(j, max(start - j * old, 0), min(start + new, n, (j + 1) * old) - j * old) for j in range(n_saved)]
    flat = torch.cat([store.read(f"step {step}, shard {j}", low, high) for j, low, high in bounds if low < high])
    return torch.nn.functional.pad(flat, (0, new - len(flat)))


def names_hold_the_shard(store, step, shard, n_elements):
    raw = shard.view(torch.uint8).numpy().tobytes().hex()
    store.write(f"{step} {dist.get_world_size()} {n_elements} {dist.get_rank()} {raw}", shard)


def reads_names(store):
    rows = [name.split(" ") for name in store.names()]
    kind = store.read(" ".join(rows[0]), 0, 0).dtype
    saves: dict = {}
    for step, n_saved, n, rank, *raw in rows:
        saves.setdefault((int(step), int(n_saved), int(n)), {})[int(rank)] = "".join(raw)
    (_, n_saved, n), shards = max((key, found) for key, found in saves.items() if len(found) == key[1])
    whole = torch.frombuffer(bytearray.fromhex("".join(shards[r] for r in range(n_saved))), dtype=kind)[:n]
    size, rank = -(-n // dist.get_world_size()), dist.get_rank()
    return torch.nn.functional.pad(whole, (0, size * dist.get_world_size() - n))[rank * size :][:size].clone()


for _name, _saves, _loads, _says in [
    ("names_hold_the_shard", names_hold_the_shard, reads_names, "names hold what belongs into the tensors"),
    ("writes_its_shard_twice", writes_its_shard_twice, _load, "a shard is written twice"),
    ("notes_in_half", notes_in_half, _load, "a tensor of floats gives floats"),
    ("notes_in_single", notes_in_single, reads_whole_numbers, "keeps whole numbers as they are, large ones too"),
    ("thinks_that_as_many_saved", _save, thinks_that_as_many_saved, "how many ranks have saved, not on how many load"),
    ("pads_in_front", _save, pads_in_front, "the padding stands behind the elements"),
    ("deals_elements", _save, deals_elements, "dealt like cards"),
    ("reads_one_shard_alone", _save, lambda store: _part_of(store, most=1), "may need parts of two, of three, or more"),
    ("reads_two_shards_at_most", _save, lambda store: _part_of(store, most=2), "may need parts of two, of three, or"),
    ("rounds_old_shards_down", _save, lambda store: _part_of(store, lambda n, k: n // k), "old shards have ceil"),
    ("joins_nothing", _save, joins_nothing, "for some ranks the list is empty"),
]:
    wrong_values("lesson_07.shards", _name, _saves, _loads, says=_says)


def loads_in_double(store):
    return _load(store).double()


def loads_into_doubles(store):
    shard = _load(store)
    return shard.double().to(shard.dtype)


def reads_whole_shards(store):
    class Whole:
        def read(self, name, start=0, stop=None):
            return store.read(name)[start:stop]

    return _load(Whole())


def loads_the_newest_by_text(store):
    step = max(name.split(",")[0].split()[1] for name in store.names() if name.startswith("step"))

    class Newest:
        def read(self, name, *places):
            found = store.read(name, *places)
            return torch.tensor([int(step), *found[1:].tolist()]) if name == "newest" else found

    return _load(Newest())


def names_say_all(store, step, shard, n_elements):
    store.write(f"shard-{step}-{dist.get_rank()}-{dist.get_world_size()}-{n_elements}", shard)


def finds_a_step_by_what_its_names_begin_with(store):
    for step in sorted({int(name.split("-")[1]) for name in store.names()}, reverse=True):
        names = [name for name in store.names() if name.startswith(f"shard-{step}")]
        n_saved, n = (int(number) for number in names[0].split("-")[3:])
        if len(names) >= n_saved:
            break

    class Found:
        def read(self, name, *places):
            if name == "newest":
                return torch.tensor([step, n_saved, n])
            wanted = name.split()[-1]
            return store.read(next(name for name in reversed(names) if name.split("-")[2] == wanted), *places)

    return _load(Found())


wrong_values("lesson_07.shards", "finds_a_step_by_what_its_names_begin_with", names_say_all,
             finds_a_step_by_what_its_names_begin_with, says="may be that of step 33554442")  # fmt: skip
wrong_values("lesson_07.shards", "loads_in_double", _save, loads_in_double, says="change their dtype on the way")
wrong_values("lesson_07.shards", "loads_into_doubles", _save, loads_into_doubles, says="rounded on the way")
wrong_values("lesson_07.shards", "reads_whole_shards", _save, reads_whole_shards, says="only what overlaps is read")
wrong_values("lesson_07.shards", "loads_the_newest_by_text", _save, loads_the_newest_by_text, says="older step")
wrong_values("lesson_07.shards", "gathers_on_rank_0", gathers_on_rank_0, _load, says="a rank writes .* its shard has")
wrong_values("lesson_07.shards", "saves_nothing", saves_nothing, _load, says="nothing is written")
wrong_values("lesson_07.shards", "counts_the_ranks_by_all_names", _save, counts_the_ranks_by_all_names,
             says="fails|mixture|places")  # fmt: skip
wrong_values("lesson_07.shards", "pads_with_ones", _save, pads_with_ones, says="is padding: zeros")
wrong_values("lesson_07.shards", "writes_long_notes", writes_long_notes, _load, says="beside the shard has 8.. bytes")
wrong_values("lesson_07.shards", "loads_the_first", _save, loads_the_first, says="that is an older step")
wrong_values("lesson_07.shards", "returns_nothing", _save, lambda store: None, says="load returns the rank's new shard")


@wrong("lesson_07.activation_bytes", says="what is recomputed is not kept")
def keeps_the_softmax(sequence, batch, width, heads, recompute):
    square = (2 if recompute else 5) * heads * sequence**2 * batch
    return 34 * sequence * batch * width + square


@wrong("lesson_07.activation_bytes", says="the square has three tensors")
def forgets_the_squares_mask(sequence, batch, width, heads, recompute):
    square = 0 if recompute else 4 * heads * sequence**2 * batch
    return 34 * sequence * batch * width + square


def _times_as_long(times: float):
    """An Adam whose step differs from the right one by its length alone."""

    class Longer(_Adam):
        def __init__(self, model, lr, **more):
            super().__init__(model, lr * times, **more)

    return Longer


for _times, _says in ((0.1, "m / \\(1 - beta1"), (3.1623, "both bias corrections"), (7, "7 times as long")):
    wrong_values("lesson_07.sharded_adam", f"step_{_times}", _times_as_long(_times), says=_says)


# What belongs to one object, on the class or kept by shape: right for the first one of a process


_SECOND = "a second {} in one process, .*another one was made and used before in this process"


@wrong("lesson_07.recomputed", says=_SECOND.format("Recomputed"))
class SharesItsLayers(_Recomputed):
    made = {}  # noqa: RUF012

    def __init__(self, layers, n_segments):
        super().__init__(layers, n_segments)
        self.segments = self.made.setdefault((len(layers), n_segments), self.segments)


@wrong("lesson_07.recomputed", says=_SECOND.format("Recomputed"))
class CutsOnceForAll(_Recomputed):
    cut = []  # noqa: RUF012

    def __init__(self, layers, n_segments):
        super().__init__(layers, n_segments)
        self.cut.extend(self.segments)
        self.segments = self.cut[: len(self.segments)]


@wrong("lesson_07.sharded_adam", says=_SECOND.format("ShardedAdam"))
class SharesItsMoments(_Adam):
    moments = {}  # noqa: RUF012

    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.m, self.v = self.moments.setdefault((dist.get_rank(), self.size), (self.m, self.v))


@wrong("lesson_07.sharded_adam", says=_SECOND.format("ShardedAdam"))
class CountsStepsOnItsClass(_Adam):
    steps = {}  # noqa: RUF012

    def adam(self, w, g, place):
        self.t = self.steps.get(dist.get_rank(), 0)
        self.steps[dist.get_rank()] = self.t + 1
        return super().adam(w, g, place)


@wrong("lesson_07.sharded_gradients", says=_SECOND.format("ShardedGradients"))
class FillsBucketsOnce(_Gradients):
    filled = {}  # noqa: RUF012

    def __init__(self, model, bucket_bytes):
        super().__init__(model, bucket_bytes)
        self.buckets = self.filled.setdefault((dist.get_rank(), len(self.buckets)), self.buckets)


@wrong("lesson_07.sharded_gradients", says=_SECOND.format("ShardedGradients"))
class FillsItsFlatVectorsOnce(_Gradients):
    """Of the parameters that were the first ones of their sizes; its hooks are on its own."""

    first = {}  # noqa: RUF012

    def start_next(self):
        bucket = self.buckets[len(self.shards)]
        key = (dist.get_rank(), *(p.shape for p in bucket))
        first = self.first.setdefault(key, bucket)
        for p, q in zip(bucket, first):
            p.grad = q.detach() if first is not bucket else p.grad
        super().start_next()


@wrong("lesson_07.fully_sharded", says=_SECOND.format("FullySharded"))
class SharesItsSlots(_Sharded):
    made = {}  # noqa: RUF012

    def __init__(self, layers):
        super().__init__(layers)
        self.layers = self.made.setdefault((dist.get_rank(), len(layers)), layers)


@wrong("lesson_07.fully_sharded", says=_SECOND.format("FullySharded"))
class KeepsShardsBySize(_Sharded):
    shards = {}  # noqa: RUF012

    def of_shard(self, shard):
        return self.shards.setdefault((dist.get_rank(), len(shard)), shard)


@wrong("lesson_07.fully_sharded", says="what an attribute keeps outlives the step: handles, and the flat vectors")
class KeepsItsHandles(_Sharded):
    def backward(self, gradient):
        shards, self.handles, n = [], [], dist.get_world_size()
        for k in reversed(range(len(self.layers))):
            self.use(k)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            size = len(self.layers[k].shard)
            flat = torch.nn.functional.pad(whole, (0, size * n - whole.numel()))
            shards.append(torch.empty(size, dtype=flat.dtype))
            self.handles.append((dist.reduce_scatter(shards[-1], list(flat.split(size)), async_op=True), flat))
        for handle, _ in self.handles:
            handle.wait()
        return [shard / n for shard in reversed(shards)]


def rank_0_writes_all(store, step, shard, n_elements):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard)
    if dist.get_rank() == 0:
        for rank, piece in enumerate(pieces):
            store.write(f"step {step}, shard {rank}", piece)
        store.write("newest", torch.tensor([step, len(pieces), n_elements]))


wrong_values(
    "lesson_07.shards", "rank_0_writes_all", rank_0_writes_all, _load,
    says="a rank writes .* its shard has.*every rank writes its own shard, and nobody gathers",
)  # fmt: skip


class ForgetsToPad(_Sharded):
    def scatter(self, whole, shard, size):
        return [dist.reduce_scatter(shard, list(whole.split(len(shard))), async_op=True)]


wrong_values("lesson_07.fully_sharded", "ForgetsToPad", ForgetsToPad, says="the gradient is padded at its end")


@wrong("lesson_07.sharded_adam", says="a fourth, or a flat vector of a step that is kept")
class KeepsAFourthShard(_Adam):
    def __init__(self, model, lr):
        super().__init__(model, lr)
        self.largest_v = self.m + 1
        self.w = self.m + 2


@wrong("lesson_07.activation_bytes", says="9973.*loses its last digits")
def activation_bytes_in_single(sequence, batch, width, heads, recompute):
    s, b, h, a = (torch.tensor(float(k)) for k in (sequence, batch, width, heads))
    return (34 * s * b * h + (0 if recompute else 5 * b * a * s * s)).item()


@wrong("lesson_07.state_bytes", says="loses its last digits")
def state_bytes_in_single(n_parameters, world_size, stage):
    parts = torch.tensor([2.0, 2.0, 12.0]) * n_parameters
    shares = torch.tensor([1 if stage < k else world_size for k in (3, 2, 1)])
    return (parts / shares).sum().item()


class _WithAnotherSquare(_Adam):
    times = staticmethod(lambda n: 1.0)  # of the mean gradient, in the square

    def adam(self, w, g, place):
        self.t += 1
        self.m.mul_(0.9).add_(g, alpha=0.1)
        scaled = g * self.times(dist.get_world_size())
        self.v.mul_(0.999).addcmul_(scaled, scaled, value=0.001)
        return w - self.lr * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)).sqrt() + 1e-8)


@wrong("lesson_07.sharded_adam", says="v is N times too large: it takes the square of the mean")
class SquaresTheSumOverN(_WithAnotherSquare):
    times = staticmethod(lambda n: n**0.5)


@wrong("lesson_07.sharded_adam", says="1/N of the right one: m and v take the same gradient")
class SquaresTheSum(_WithAnotherSquare):
    times = staticmethod(lambda n: n)


@wrong("lesson_07.sharded_adam", says="0.333 times as long in every weight. There each is lr long")
class HasAThirdOfItsStep(_WithAnotherSquare):
    times = staticmethod(lambda n: 3)


@wrong("lesson_07.sharded_adam", says="must have one shape.*the pieces of one call are not equally long: pad")
class CutsWithoutPadding(_Adam):
    def reduced(self, n):
        g = torch.empty(self.size, dtype=torch.float64)
        dist.reduce_scatter(g, list(torch.cat([p.grad.flatten() for p in self.parameters]).split(self.size)))
        return g / dist.get_world_size()
