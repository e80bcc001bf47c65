"""The check of lesson 07's sharded optimizer: weights as one Adam's, state of a shard, bytes and rounds of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hw_utils.checks.check import check, observe, require_no_deadlock, require_waits
from hw_utils.checks.kept_bytes import (
    ELSEWHERE,
    bytes_beside,
    bytes_in_lists,
    drop_others,
    floats_anywhere,
    floats_kept,
    is_here,
    look_at,
    moment,
    observe_memory,
    share_nothing,
    taken,
)
from hw_utils.checks.lesson_06.shards import DTYPES, n_ranks
from hw_utils.checks.lesson_07 import second_objects
from hw_utils.checks.lesson_07.adam_causes import are_others, is_decay, why_length, why_no_sum, with_eps_elsewhere
from hw_utils.checks.lesson_07.second_objects import LR, batch, tower
from hw_utils.core.errors import CheckFailed
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

STEPS = 3
SMALL = [3, 5, 2]
LARGE = 50_000  # parameters that have far more bytes than all else an answer makes
_BESIDE = 1.25  # of the weights: what a process needs that keeps what is allowed
_FEW = 0.01  # of the weights
STEP_COUNT = 8  # bytes that torch's own step count may take
CHEAP = frozenset({
    "reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor", "all_to_all_single",
    "all_to_all", "send", "recv", "isend", "irecv", "barrier",
})  # fmt: skip


def _batch(rank: int, step: int, width: int) -> torch.Tensor:
    """A rank's examples; in some later steps all are zeros, and the weights have no gradient, or are large."""
    return batch(rank, step, width) * {5: 0, 6: 30}.get(step % 8, 1)


def _worker(rank: int, world_size: int, make: Any, widths: list[int], dtype: str, n_steps: int) -> dict[str, Any]:
    """Of a large model each rank's memory is looked at before the last step, for which all moments must be there."""
    model, is_large = tower(widths).to(DTYPES[dtype]), _n_parameters(widths) >= LARGE
    before, n_taken = look_at(make, 1) if is_large else None, None
    moments = [moment()]
    optimizer = make(model, LR)
    path = []
    for step in range(n_steps):
        model.zero_grad()
        model(_batch(rank, step, widths[0]).to(DTYPES[dtype])).square().mean().backward()
        is_looked_at = is_large and step == n_steps - 2
        own = [p.grad.clone() for p in model.parameters()] if is_looked_at else []
        optimizer.step()
        if not is_large or step == n_steps - 1:
            path.append(plain(torch.cat([p.detach().flatten() for p in model.parameters()])))
        if is_looked_at:
            drop_others(model, own)
            n_taken = taken(before, look_at(make, is_at_rest=True))
        model.zero_grad()
    moments.append(moment())
    floats = floats_kept(optimizer, model)
    listed, n = bytes_in_lists(optimizer), sum(p.numel() for p in model.parameters())
    return {
        "path": np.stack(path),
        "kept": bytes_beside(floats, model) + listed,
        "anywhere": bytes_beside(floats_anywhere(optimizer, model), model) + listed,
        "n_whole": sum(t.untyped_storage().nbytes() >= n * t.element_size() for t in floats) + (listed > 0),
        "moments": moments,
        "taken": n_taken,
        "is_here": is_here(optimizer),
    }


def _serial(
    widths: list[int],
    world_size: int,
    n_steps: int = STEPS,
    *,
    scale: float = 1.0,
    rank: int | None = None,
    optimizer_of: Any = None,
) -> np.ndarray:
    """The weights after each step of one Adam. scale: of the mean gradient; rank: whose gradient alone, if given."""
    model = tower(widths)
    optimizer = (optimizer_of or torch.optim.Adam)(model.parameters(), lr=LR)
    path = []
    for step in range(n_steps):
        model.zero_grad()
        for r in range(world_size) if rank is None else [rank]:
            loss = model(_batch(r, step, widths[0])).square().mean()
            (loss * (scale / (world_size if rank is None else 1))).backward()
        optimizer.step()
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy())
    return np.stack(path)


def _judge(
    data: Any,
    world_size: int,
    widths: Sequence[int] = (),
    dtype: str = "float64",
    n_steps: int = STEPS,
    second: bool = False,
) -> None:
    if second:
        return second_objects.judge_adam(data, world_size)
    n = _n_parameters(widths)
    item = DTYPES[dtype].itemsize
    what = f"{n_ranks(world_size)}, {n} parameters" + (f" of {dtype}" if item != 8 else "")
    what += f", {n_steps} steps" if n_steps != STEPS else ""
    require_no_deadlock(
        data, what, cause="every rank makes the same calls in one order, also one whose shard is empty."
    )
    trace = Trace.from_plain(data["trace"])
    right = _serial(widths, world_size, n_steps)
    for rank, result in enumerate(data["results"]):
        if n >= LARGE:
            _judge_many(f"{what}: rank {rank}", result["path"], right[-1:])
        else:
            _judge_path(f"{what}: rank {rank}", result["path"], right, widths, world_size, rank, dtype)
    shard = -(-n // world_size)
    limit = (3 * shard + shard * world_size - n) * item + STEP_COUNT  # a model may lie in a padded flat vector
    for rank, (result, held_at) in enumerate(zip(data["results"], data["held"])):
        on_object, anywhere = result["kept"], held_at[1] - held_at[0] if held_at else result["anywhere"]
        if max(on_object, anywhere) > limit:
            held = max(on_object, anywhere) / item
            cause = "every rank keeps the moments of all parameters: make them of the size of a shard."
            if held < 2 * n or result["n_whole"] not in (0, 2):
                cause = (
                    "m, v and the weights' own shard are three: a fourth, or a flat vector of a step that is kept "
                    "after it, is too much."
                )
            if on_object <= limit:
                cause = ELSEWHERE
            elif item < 8 and max(on_object, anywhere) <= 2 * limit:
                cause = f"the moments are of float64: they have the dtype of the parameters, which is {dtype} here."
            raise CheckFailed(
                f"{what}: beside the model rank {rank} keeps {held:g} numbers; {3 * shard} are allowed, three shards.",
                cause=cause,
            )
    if n >= LARGE:
        _judge_taken(what, [result["taken"] for result in data["results"]], n, world_size, item)
    _judge_traffic(what, trace, n, world_size, item, n_steps)
    require_waits(trace, what)


def _n_parameters(widths: list[int]) -> int:
    return sum((a + 1) * b for a, b in pairwise(widths))


def _judge_taken(what: str, n_bytes: Sequence[int | None], n: int, world_size: int, item: int) -> None:
    """n_bytes: between two steps, what each rank's process has in use beside the model and its gradients.

    Of the weights, beside three shards: right answers have 0.9 at most, whole moments 2 at least; with six bytes a
    number 1.5, and with fewer the weights are not right any more.
    """
    for rank, found in enumerate(n_bytes):
        if found is not None and found > (3 / world_size + _BESIDE) * n * item:
            raise CheckFailed(
                f"{what}: beside the model rank {rank} keeps {found / n / item:.3g} numbers for each parameter; three "
                f"shards are {3 / world_size:.3g}.",
                cause="all moments are kept by every rank, as a text, in a list, in a file or in another process.",
            )


def _judge_path(
    what: str, got: Any, right: np.ndarray, widths: list[int], world_size: int, rank: int, dtype: str
) -> None:
    _require_all(what, got, right)
    within = 1e-3 if dtype != "float64" else 1e-12
    wrong = [k for k in range(len(right)) if not np.allclose(got[k], right[k], rtol=within, atol=within)]
    if not wrong:
        return
    k, place = wrong[0], int(np.abs(got[wrong[0]] - right[wrong[0]]).argmax())
    raise CheckFailed(
        f"{what}: after step {k + 1} weight {place} is {got[k][place]:.12g}, one Adam has {right[k][place]:.12g}.",
        cause=_why(got, right, widths, world_size, rank),
    )


def _judge_many(what: str, got: Any, right: np.ndarray) -> None:
    """Adam divides by a gradient's size: of very many, one is so small that its last digits show in the weight."""
    _require_all(what, got, right)
    far = ~np.isclose(got, right, rtol=1e-12, atol=1e-12)
    if far.mean() < _FEW and np.allclose(got, right, rtol=1e-9, atol=1e-9):
        return
    place = int(np.abs(got - right).argmax())
    raise CheckFailed(
        f"{what}: after the last step weight {place} is {got[0][place]:.12g}, one Adam has {right[0][place]:.12g}.",
        cause="of small models the weights are right: here the vectors are longer, and each number on the way has to "
        "keep all the digits that a parameter has.",
    )


def _require_all(what: str, got: Any, right: np.ndarray) -> None:
    if not isinstance(got, np.ndarray) or got.shape != right.shape:
        raise CheckFailed(f"{what} has lost parameters of its model.", cause="weights are written in place.")


def _why(got: np.ndarray, right: np.ndarray, widths: list[int], world_size: int, rank: int) -> str:
    n_steps, n = right.shape

    def near(other: np.ndarray) -> bool:
        return np.allclose(got, other, rtol=1e-9, atol=1e-9)

    size = -(-n // world_size)
    start = _flat_start(widths)
    moved = ~np.isclose(got[-1], start, rtol=1e-12, atol=1e-15)
    own = np.zeros(n, bool)
    own[rank * size : (rank + 1) * size] = True
    if not moved.any():
        return "the weights never move: the new shards, gathered, are written into the parameters."
    if world_size > 1 and (moved == own).all():
        return "only the rank's own shard moves: gather the new shards of all ranks."
    if world_size > 1 and near(_serial(widths, world_size, n_steps, scale=world_size)):
        return "that is Adam with the sum of the gradients: divide by the number of ranks."
    if world_size > 1 and near(_serial(widths, world_size, n_steps, scale=1 / world_size)):
        return "the sum of the gradients is divided by the number of ranks twice."
    if np.allclose(got, right, rtol=1e-3, atol=1e-3):
        for optimizer, cause in with_eps_elsewhere():
            if np.allclose(got, _serial(widths, world_size, n_steps, optimizer_of=optimizer), rtol=1e-12, atol=1e-12):
                return cause
    if is_decay((got[0] - right[0]), start):
        return (
            "beside Adam's step every weight loses the same small share of itself: that is weight decay, as AdamW has "
            "it without being asked; lr, betas and eps are all that is given here."
        )
    if np.allclose(got, right, rtol=1e-6, atol=1e-6):
        return (
            "right to six places: eps is added to the root of the corrected v, outside of it, and no number on the way "
            "has fewer digits than the parameters. Compare both."
        )
    if np.allclose(got[0], right[0], rtol=1e-9, atol=1e-9):
        return (
            "the first step is right, a later one is not: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g**2 "
            "and the step count t go on from step to step, and so does their bias correction, also where a gradient is "
            "zero; nothing is cut off."
        )
    paths = [_serial(widths, world_size, n_steps, rank=r) for r in range(world_size)]
    each = np.concatenate([path[:, r * size : (r + 1) * size] for r, path in enumerate(paths)], axis=1)
    if world_size > 1 and (near(paths[rank]) or np.allclose(got[0], each[0], rtol=1e-9, atol=1e-9)):
        return "that is Adam with the rank's own gradients: they are never reduced."
    if (~moved).any() and (~moved[-(n % max(size, 1) or 1) :]).all():
        return "the last parameters never move: pad the flat vector, the remainder is part of a shard."
    if world_size > 1 and are_others(got[0], start, size, LR):
        return "some weights are others' now: rank r's shard is elements r * size to (r + 1) * size, of every vector."
    if cause := why_no_sum(got[0], widths, world_size):
        return cause
    turned = np.sign(got[0] - start) != np.sign(right[0] - start)
    if turned.any() and not turned.all() and np.allclose(abs(got[0] - start), LR, rtol=1e-3, atol=0):
        return (
            "every weight moves by lr, some of them in the wrong direction: gradients and weights of a shard lie at "
            "the same places of the flat vectors."
        )
    return why_length((got[0] - start) / (right[0] - start), world_size)


def _flat_start(widths: list[int]) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in tower(widths).parameters()]).numpy()


def _judge_traffic(what: str, trace: Trace, n: int, world_size: int, item: int, n_steps: int) -> None:
    others = sorted(trace.ops - CHEAP)
    if others:
        raise CheckFailed(
            f"{what}: called {', '.join(others)}.",
            cause="an all_reduce hands every sum to everybody, half of it for nothing: reduce_scatter gives each rank "
            "its own shard's."
            if "all_reduce" in others
            else "two calls a step: one reduce_scatter of the gradients, one all_gather of the weights.",
        )
    limit = n_steps * 2 * (world_size - 1) * -(-n // world_size) * item
    for rank in range(world_size):
        sent = trace.bytes_sent(rank)
        if sent > limit:
            raise CheckFailed(
                f"{what}: weights are right, but rank {rank} sends {sent} bytes in {n_steps} steps; {limit} will do.",
                cause="the vectors that travel have twice the bytes: keep the dtype that the parameters have."
                if item < 8 and sent == 2 * limit
                else "1/N of the vector goes N - 1 times around in each of two calls: whole gradients or moments "
                "travel here.",
            )
    rounds = n_steps * 2 * (world_size - 1)
    if trace.rounds > rounds:
        raise CheckFailed(
            f"{what}: {trace.rounds} rounds in {n_steps} steps, {rounds} are enough.",
            cause="a barrier takes rounds, too: nobody needs one, the two calls wait for all ranks themselves."
            if "barrier" in trace.ops
            else "one call for all parameters together, not one for each: flatten first.",
        )


@check(
    "lesson_07.sharded_adam",
    judge=_judge,
    cases=[
        {"world_size": n, "widths": list(w)}
        for n, w in ((1, (3, 2)), (2, (3, 2)), (3, (3, 2)), (4, (3, 5, 2)), (5, (3, 5, 2)), (6, (1, 2, 1)))
    ]
    + [{"world_size": 3, "second": True}]
    + [{"world_size": 2, "widths": [2, 1], "n_steps": 30}]
    + [{"world_size": 3, "widths": [3, 5, 2], "dtype": "float32"}]
    + [{"world_size": 4, "widths": [350, 700, 350]}],  # moments that nobody overlooks, in whatever form they are kept
    ok="weights are one Adam's to 1e-12; a rank keeps three shards at most and sends what a ring sends.",
    hint="hint 1 of exercise 7.3",
    hints={
        "hint 3 of exercise 7.3": "remainder|pad|empty|sizes? |divis",
        "hint 2 of exercise 7.3": "formula|step count|bias",
        "hint 1 of exercise 7.3": "reduce|gather|shard|travel|flatten|mean|sum of",
    },
    errors={
        r"ZeroDivision|division by zero": "1 - beta**t is 0 where t is: the step is counted before t is used, from 1.",
        r"(?:must match|must have one|same size|same number).*?\n[^\n]*\n[^\n]*dist\.(?:reduce_scatter|all_gather)": (
            "the pieces of one call are not equally long: pad the vector at its end, to N times the size of a shard, "
            "before it is cut."
        ),
    },
    look="print the shard's gradient, m and v after the first step with 2 ranks, and do the same with one.",
)
def sharded_adam(
    make,
    /,
    world_size: int,
    widths: Sequence[int] = (),
    dtype: str = "float64",
    n_steps: int = STEPS,
    second: bool = False,
):
    """Three steps, or more, of a small model, each rank with its own examples; or two optimizers."""
    if second:
        return second_objects.drive(second_objects.adam, make, world_size)
    args, is_large = (make, widths, dtype, n_steps), _n_parameters(widths) >= LARGE
    if is_large and share_nothing(make, world_size):  # and their code has run once
        observe(lambda: simulate(_worker, world_size, (make, SMALL, dtype, n_steps), compute="free", echo=False))
        share_nothing(make, world_size)
    return observe_memory(make, partial(simulate, _worker, world_size, args, compute="free", echo=False))
