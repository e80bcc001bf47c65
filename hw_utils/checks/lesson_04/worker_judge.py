"""Judges of lesson 04: the worker, alone and with DistributedDataParallel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_04 import own_shares
from hw_utils.checks.lesson_04.collective_contents import require_together
from hw_utils.checks.lesson_04.loop_judge import close, examples, first_difference, number, numbers, result
from hw_utils.checks.lesson_04.softmax import Softmax, descend
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

N_EXAMPLES, LR, MOMENTUM = 96, 0.2, 0.5
_FLOAT32 = 2e-5  # a training of 22 iterations in float32 is nearer; a weight decay of 1e-4 is not


def small_model() -> nn.Module:
    """Softmax regression with torch's own random weights."""
    return nn.Linear(4, 3)


def test_set(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The points on which a rank's model is tested, and their labels."""
    return examples(60, seed=2 + rank)


def judge_worker(data: Any, method: str, world_size: int, total_batch: int, n_iterations: int, seed: int) -> None:
    who = f"worker with method {method!r} on {world_size} {'ranks' if world_size > 1 else 'rank'}"
    require_no_deadlock(data, who, cause="every rank must call the same collectives in the same order.")
    said = [numbers(_field(data, r, "losses", who), f"losses of rank {r}") for r in range(world_size)]
    if any(len(losses) > n_iterations for losses in said):
        n = max(map(len, said))
        cause = "job.n_iterations stops the epoch early: islice(batches(...), job.n_iterations)."
        raise CheckFailed(f"{who}: {n} iterations, expected {n_iterations}.", cause=cause)
    if world_size > 1 and {len(losses) for losses in said} == {n_iterations // world_size}:
        cause = "every rank takes all of job.n_iterations: its batches are smaller, not fewer."
        raise CheckFailed(f"{who}: {n_iterations // world_size} iterations, expected {n_iterations}.", cause=cause)
    each = [numbers(_field(data, r, "losses", who), f"losses of rank {r}", n_iterations) for r in range(world_size)]
    x, y = examples(N_EXAMPLES)
    order = torch.randperm(N_EXAMPLES, generator=torch.Generator().manual_seed(seed)).numpy()
    batches = [order[i * total_batch : (i + 1) * total_batch] for i in range(n_iterations)]
    whole = _seeded(seed)
    expected = descend(whole, [(x[b].astype("f8"), y[b]) for b in batches], LR, momentum=MOMENTUM)
    got = np.mean(each, axis=0)
    if not close(got, expected, _FLOAT32):
        raise CheckFailed(
            first_difference(got.tolist(), expected, f"{who}, mean over the ranks", _FLOAT32)
            + " One process with the whole batch computes that.",
            cause=_why_losses(each, got, expected, _Others(seed, [(x[b].astype("f8"), y[b]) for b in batches], order,
                                                            world_size, n_iterations, total_batch)),
        )  # fmt: skip
    trace = Trace.from_plain(data["trace"])
    a_sync = {"all_reduce": 2, "gather_scatter": 4}.get(method)  # calls a rank: one, or two, for weight and bias
    calls = sum(e.op in _SYNCS for e in trace.of_rank(0))
    if world_size > 1 and calls == (a_sync or 0) * n_iterations and all(close(one, each[0], 1e-6) for one in each[1:]):
        raise CheckFailed(
            f"{who}: every rank has the losses of the whole batch, and so computed all of it.",
            cause="N ranks share the work: hand rank and world_size to batches.",
        )
    tests = [test_set(rank) for rank in range(world_size)]
    for rank, (test_x, test_y) in enumerate(tests):
        loss, share = (_tested(data, rank, name, who) for name in ("test_loss", "accuracy"))
        if not (
            close(loss, whole.loss(test_x, test_y), _FLOAT32) and close(share, whole.accuracy(test_x, test_y), 1e-3)
        ):
            raise CheckFailed(
                f"{who}: rank {rank} ends with test loss {loss:.6f} and accuracy {share:.3f}, expected"
                f" {whole.loss(test_x, test_y):.6f} and {whole.accuracy(test_x, test_y):.3f}.",
                cause="(accuracy, loss) the wrong way round: evaluate gives the loss first."
                if close(loss, whole.accuracy(test_x, test_y), 1e-3) and close(share, whole.loss(test_x, test_y), 1e-3)
                else _why_test(loss, share, whole, _seeded(seed), (x, y), tests, rank),
            )
    _judge_method(trace, method, who)
    if world_size > 1:
        parts = [(x[b].astype("f8"), y[b]) for b in batches]
        gradients, made_of = _gradients(seed, parts)
        can_tell = total_batch <= _INDEPENDENT
        share = total_batch // world_size
        require_together(who, data, [[g] for g in gradients], made_of=made_of if can_tell else (), at_most=share)
    if method in ("gather_scatter", "all_reduce"):
        _judge_iteration_s(data, trace, who, n_iterations)
    _judge_output(data.get("output"), who, n_iterations)


_INDEPENDENT = 8  # examples whose gradients to 3 x 4 weights and 3 biases, each of them adding up to 0, tell them apart


def _gradients(
    seed: int, batches: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[list[np.ndarray], list[own_shares.Iteration]]:
    """Of one process with whole batches, flat, one an iteration, and of each of their examples."""
    model, speed, found, made_of = _seeded(seed), [0.0, 0.0], [], []
    for x, y in batches:
        weights = _flat(model.weight, model.bias)
        each = [_flat(*model.gradient(x[k : k + 1], y[k : k + 1])) for k in range(len(x))]
        made_of.append(own_shares.Iteration(weights, np.stack(each)))
        gradients = model.gradient(x, y)
        speed = [MOMENTUM * v + g for v, g in zip(speed, gradients)]
        model.weight, model.bias = model.weight - LR * speed[0], model.bias - LR * speed[1]
        found.append(_flat(*gradients))
    return found, made_of


def _flat(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


def _judge_method(trace: Trace, method: str, who: str) -> None:
    """job.method says which collectives bring the gradients together."""
    used, other = {
        "gather_scatter": ({"gather", "scatter"}, set()),
        "all_reduce": ({"all_reduce"}, {"scatter"}),
    }.get(method, (set(), set()))
    if "broadcast" in trace.ops and method != "ddp":
        calls = sorted(trace.of_rank(0).of_op("broadcast", *_SYNCS), key=lambda e: e.order)
        wraps = calls[0].op == "broadcast" and trace.world_size > 1
        raise CheckFailed(
            f"{who}: every loss is right, but the ledger has broadcast"
            f"{': DistributedDataParallel begins so. Is it at work as well?' if wraps else '.'}",
            cause='wrap the model only if job.method is "ddp"; the same seed makes the weights equal.'
            if wraps
            else "only gradients travel, by sync: each rank tests the model itself, and sends nothing of what it finds",
        )
    if not used <= trace.ops or other & trace.ops:
        raise CheckFailed(
            f"{who}: every loss is right, but the ledger has {', '.join(sorted(trace.ops)) or 'no call at all'}.",
            cause="job.method chooses: gather_scatter or all_reduce_mean is the sync that train gets.",
        )


def _judge_output(output: Any, who: str, n_iterations: int) -> None:
    """Rank 0 reports every 20 iterations, the others print nothing."""
    texts = output if isinstance(output, list) else []
    for rank, text in enumerate(texts):
        if rank and text.strip():
            raise CheckFailed(
                f"{who}: rank {rank} printed {came(text.strip())}; rank 0 reports, the others are silent.",
                cause="train reports by print if it is given nothing else: give the other ranks a report that does"
                " nothing.",
            )
    if n_iterations >= 20 and texts and "iteration 20: loss" not in texts[0]:
        raise CheckFailed(
            f"{who}: rank 0 printed {came(texts[0].strip()) if texts[0].strip() else 'nothing'} in {n_iterations} "
            "iterations; it reports every 20.",
            cause="give train a report that prints on rank 0: print itself.",
        )


def _seeded(seed: int) -> Softmax:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_model()
    return Softmax(model.weight.detach().double().numpy(), model.bias.detach().double().numpy())


def _field(data: Any, rank: int, name: str, who: str) -> Any:
    got = result(data, rank)
    if not isinstance(got, dict) or name not in got:
        raise CheckFailed(
            f"{who}: rank {rank} must return a dictionary with {name!r}, got {came(got)}.",
            cause="every rank returns losses, iteration_s, test_loss and accuracy, under these names.",
        )
    return got[name]


def _tested(data: Any, rank: int, name: str, who: str) -> float:
    """What the rank's own test on the whole test set gave."""
    value = _field(data, rank, name, who)
    if rank and not isinstance(value, int | float | np.ndarray):
        raise CheckFailed(
            f"{who}: {name} of rank {rank} is {came(value)}, rank 0 has a number.",
            cause="every rank evaluates the trained model on the whole test set, not rank 0 alone.",
        )
    return number(value, f"{name} of rank {rank}")


@dataclass
class _Others:
    """What a worker with a known mistake would have: losses of SGD from the same start."""

    seed: int
    batches: list
    order: np.ndarray
    world_size: int
    n_iterations: int
    total_batch: int

    def losses(self, factor: float = 1.0, momentum: float = MOMENTUM, shrink: float = 1.0) -> list[float]:
        return descend(_seeded(self.seed), self.batches, factor * LR, momentum=momentum, shrink=shrink)

    def apart(self) -> list[list[float]]:
        """Each rank on its own examples, nothing synchronised."""
        x, y = examples(N_EXAMPLES)
        size, found = self.total_batch // self.world_size, []
        for rank in range(self.world_size):
            mine = self.order[rank :: self.world_size]
            parts = [mine[i * size : (i + 1) * size] for i in range(self.n_iterations)]
            found.append(descend(_seeded(self.seed), [(x[p].astype("f8"), y[p]) for p in parts], LR, momentum=MOMENTUM))
        return found


def _judge_iteration_s(data: Any, trace: Trace, who: str, n_iterations: int) -> None:
    """Compute is free here, so an iteration is its calls: what `train` measured is in the ledger too."""
    for rank in range(trace.world_size):
        got = number(_field(data, rank, "iteration_s", who), f"iteration_s of rank {rank}")
        mine = sorted((e for e in trace.of_rank(rank) if e.op in _SYNCS), key=lambda e: e.start_s)
        a_time = len(mine) // n_iterations
        spans = [mine[i * a_time + a_time - 1].end_s - mine[i * a_time].start_s for i in range(1, n_iterations)]
        expected = float(np.mean(spans[:39]))
        if len(mine) % n_iterations == 0 and not math.isclose(got, expected, rel_tol=1e-3, abs_tol=1e-9):
            causes = {
                "seconds are asked, these are milliseconds.": 1e3 * expected,
                "that is the sum of the iterations: the mean is asked.": sum(spans[:39]),
            }
            raise CheckFailed(
                f"{who}: iteration_s of rank {rank} is {got:g} s, the ledger says {expected:g} s.",
                cause=next(
                    (cause for cause, value in causes.items() if math.isclose(got, value, rel_tol=1e-3)),
                    "return what train gives back as its second value: it times sync as well.",
                ),
            )


_SYNCS = ("gather", "scatter", "all_reduce")


def _why_test(loss: float, share: float, whole: Softmax, start: Softmax, trained_on, tests: list, rank: int) -> str:
    """tests: each rank's test set, which the check makes different."""
    tested_on, each = tests[rank], [whole.loss(*one) for one in tests]
    if len(each) > 1 and any(close(loss, value, 1e-3) for value in (*each, sum(each) / len(each))):
        return (
            "that was found on another rank's test set (here each has one of its own), or is a mean over the ranks:"
            " every rank evaluates the whole test set itself, and what it finds need not travel."
        )
    if close(loss, start.loss(*tested_on), 1e-3):
        return "these are the untrained weights: evaluate comes after train, on the model that train stepped."
    if close(loss, whole.loss(*trained_on), 1e-3):
        return "that is the training set: job.data() gives the training set first, then the test set."
    x, y = tested_on
    parts = [(x[:n], y[:n]) for n in range(1, len(y))]
    if any(close(loss, whole.loss(*part)) and close(share, whole.accuracy(*part)) for part in parts):
        return "a part of the test set is missing: all of it counts, also a last batch that is not full (no drop_last)."
    if math.isclose(loss, whole.loss(*tested_on), rel_tol=0.02):
        return "the weights are almost those of SGD: it takes job.lr and job.momentum, and nothing else."
    return "every rank evaluates the trained model on the whole test set."


def _why_losses(each: list[list[float]], got: np.ndarray, expected: list[float], others: _Others) -> str:
    if len(each) > 1 and all(close(one, each[0]) for one in each):
        return "every rank sees the same examples: hand rank and world_size to batches."
    n = others.world_size
    known = {
        "the momentum is missing: SGD takes job.lr and job.momentum.": {"momentum": 0.0},
        "the step is N times too long: sync leaves the mean, and lr is job.lr.": {"factor": n},
        "the step is N times too short: the mean is divided by N once more.": {"factor": 1 / n},
    }
    for cause, change in known.items():
        if close(got, others.losses(**change), 1e-3) and (n > 1 or "momentum" in change):
            return cause
    if n > 1 and close(np.array(each), np.array(others.apart()), 1e-3):
        return (
            "every rank trains alone, nothing reaches the gradients between backward and step: hand sync to train; or,"
            " for ddp, train what DistributedDataParallel(model) gives back, the wrapper."
        )
    if close(got, expected, 1e-3):
        return (
            "right to three digits: losses are given as they come, not rounded; and SGD takes job.lr and job.momentum "
            "and nothing else, no weight decay."
        )
    if close(got[0], expected[0], 1e-3):
        return (
            "the first loss is right, so weights and data are; the step is not: torch.optim.SGD with job.lr and"
            " job.momentum, and the sync that job.method names."
        )
    return (
        "the first loss differs: torch.manual_seed(job.seed) comes right before job.model(), on every rank; or the "
        "batch is another one: batches(..., seed=job.seed), epoch 0."
    )


_GRADIENT_BYTES = 48


def judge_ddp(data: Any, method: str, world_size: int, total_batch: int, n_iterations: int, seed: int) -> None:
    judge_worker(data, method, world_size, total_batch, n_iterations, seed)
    trace = Trace.from_plain(data["trace"])
    others = trace.ops - {"all_reduce", "broadcast", "barrier", "all_gather", "all_gather_into_tensor"}
    calls = trace.calls["all_reduce"] // world_size
    if others or calls < n_iterations:
        raise CheckFailed(
            f"worker with method 'ddp': {calls} all-reduces in {n_iterations} iterations"
            f"{' and ' + ', '.join(sorted(others)) if others else ''}; DistributedDataParallel starts them by itself.",
            cause="wrap the model: DistributedDataParallel(model), and train what it gives back.",
        )
    if "broadcast" not in trace.ops and "all_gather" not in trace.ops:
        raise CheckFailed(
            "worker with method 'ddp': the ledger shows no start of DistributedDataParallel, which compares and"
            " broadcasts the weights first.",
            cause="the gradients are synchronised by hand; wrap the model instead.",
        )
    n_bytes = sum(e.n_bytes for e in trace.of_rank(0).of_op("all_reduce"))  # with find_unused_parameters a few more
    if n_bytes >= 2 * _GRADIENT_BYTES * n_iterations:
        raise CheckFailed(
            f"worker with method 'ddp': {calls / n_iterations:.0f} all-reduces an iteration, with "
            f"{n_bytes / n_iterations:.0f} bytes for {_GRADIENT_BYTES} bytes of gradients.",
            cause="both DistributedDataParallel and sync reduce the gradients; sync must do nothing then.",
        )
