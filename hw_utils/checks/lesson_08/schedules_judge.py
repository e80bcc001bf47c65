"""What the checks of gpipe and one_f_one_b share: a run of stages that take time, and what it must have done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import observe, require_no_deadlock, require_waits
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.kept_bytes import look_at
from hw_utils.checks.lesson_06.shards import distance, n_ranks
from hw_utils.checks.lesson_08.counting_stage import WatchedStage, stage_weights
from hw_utils.core.errors import CheckFailed
from hw_utils.core.hardware import Network
from hw_utils.core.plain_data import plain
from hw_utils.core.trace import RECEIVES, SENDS, Trace
from hw_utils.material.by_hand.interface import interface
from hw_utils.material.by_hand.orders import in_flight, play
from hw_utils.simulate import simulate

WIDTH, ITEM = 3, 8
SAME_S = 1e-6
FREE = Network(0.0, math.inf)  # messages take no time
Numbers = float | Sequence[float]  # of each rank, or of all
NOT_RECEIVED_IN = (
    "behind the first rank, too, the batches are the caller's, who has more steps to make: nothing is received or "
    "written in them; torch.empty_like(batches[k]) is a buffer of your own for what comes."
)


def sizes(n_batches: int, times: int = 1) -> list[int]:
    """Rows of the micro-batches: not all alike. times: as many of each."""
    return [times * (1 + (k + 1) % 3) for k in range(n_batches)]


def drawn_rows(seed: int, n_batches: int, times: int = 1) -> list[torch.Tensor]:
    """Micro-batches of drawn numbers."""
    draw = torch.Generator().manual_seed(drawn_numbers.seed(seed))
    return [torch.randn(n, WIDTH, generator=draw, dtype=torch.float64) for n in sizes(n_batches, times)]


def of_rank(seconds: Numbers, rank: int) -> float:
    return float(seconds[rank]) if isinstance(seconds, list | tuple) else float(seconds)


def _worker(
    rank: int, world_size: int, answer: Any, n_batches: int, forward_s: Numbers, backward_s: Numbers, times: int,
    seed: int,
) -> dict:  # fmt: skip
    """Rank 0 has the numbers; on the other ranks there are zeros of the same shapes."""
    batches = [x if rank == 0 else torch.zeros_like(x) for x in drawn_rows(1, n_batches, times)]
    seconds = of_rank(forward_s, rank), of_rank(backward_s, rank)
    stage = WatchedStage(rank, world_size, WIDTH, *seconds, drawn_rows(2, n_batches, times))
    stage.is_theirs(batches)
    if times > 1 and rank == world_size - 1:
        stage.look = partial(look_at, answer)
    mine = list(batches)
    loss = answer(interface(stage), mine, rank, world_size)
    before = [x if rank == 0 else torch.zeros_like(x) for x in drawn_rows(1, n_batches, times)]
    now = zip(batches, mine, before)
    changed = [k for k, (a, b, x) in enumerate(now) if not (torch.equal(a, x) and torch.equal(b, x))]
    return {
        "loss": plain(loss), "gradient": stage.gradient, "passes": stage.passes, "n_kept": stage.n_kept,
        "n_gradients": stage.n_gradients, "kept_bytes": stage.kept_bytes, "looks": stage.looks,
        "crossed": stage.crossed if times == 1 else stage.sums(seed),
        "changed": changed if len(mine) == n_batches else "list",
    }  # fmt: skip


def drive(
    answer: Any, world_size: int, n_batches: int, forward_s: Numbers, backward_s: Numbers, times: int = 1
) -> dict[str, Any]:
    """A run on stages that take these seconds. times: rows of the micro-batches, in times of `sizes`; with more than
    one the last rank's stage looks at the answer's memory in its first and its last backward pass."""
    args = (answer, n_batches, forward_s, backward_s, times, seed := drawn_numbers.unknown_seed())
    run = partial(simulate, _worker, world_size, args, network=FREE, compute="free", echo=False)
    return observe(run) | {"seed": seed}


def words(world_size: int, n_batches: int, forward_s: Numbers = 1.0, backward_s: Numbers = 2.0) -> str:
    what = f"{n_ranks(world_size)}, {n_batches} micro-batch{'' if n_batches == 1 else 'es'}"
    for name, seconds in (("forward", forward_s), ("backward", backward_s)):
        shown = ", ".join(f"{s:g}" for s in seconds) if isinstance(seconds, list | tuple) else f"{seconds:g}"
        what += f", {name} {shown} s"
    return what


def serial(world_size: int, n_batches: int, weights: Sequence[float]) -> tuple[float, list[np.ndarray]]:
    """(loss, each stage's gradient) of the whole model in one process: micro-batch k's mean loss counts weights[k]."""
    ws = [stage_weights(rank, WIDTH).requires_grad_() for rank in range(world_size)]
    total = torch.zeros((), dtype=torch.float64)
    for x, target, weight in zip(drawn_rows(1, n_batches), drawn_rows(2, n_batches), weights):
        for w in ws:
            x = x + torch.tanh(x @ w)
        total = total + weight * (x - target).square().mean()
    total.backward()
    return total.item(), [w.grad.numpy() for w in ws]


def judge_run(what: str, data: Any, world_size: int, n_batches: int) -> None:
    """Every pass once, gradients and loss of one process, every call waited for, and no more than what must travel."""
    require_no_deadlock(data, what, cause=_why_stuck(data))
    trace = Trace.from_plain(data["trace"])
    require_waits(trace, what)
    for rank, result in enumerate(data["results"]):
        _judge_passes(f"{what}: rank {rank}", result["passes"], n_batches)
    shares = [n / sum(sizes(n_batches)) for n in sizes(n_batches)]
    loss, gradients = serial(world_size, n_batches, shares)
    for rank in reversed(range(world_size)):
        got = data["results"][rank]["gradient"]
        if distance(got, gradients[rank]) > 1e-10:
            raise CheckFailed(
                f"{what}: the gradient of stage {rank} differs from one process's by "
                f"{distance(got, gradients[rank]):.2g} of its largest value.",
                cause=_why_wrong(got, rank, world_size, n_batches),
            )
    _judge_loss(what, data["results"][-1]["loss"], loss, world_size, n_batches)
    _require_batches(what, data)
    _judge_traffic(what, trace, world_size, n_batches)


def _require_batches(what: str, data: Any) -> None:
    for rank, result in enumerate(data["results"]):
        if result["changed"]:
            is_list = result["changed"] == "list"
            which = " list is shorter or longer" if is_list else f"[{result['changed'][0]}] is another"
            raise CheckFailed(
                f"{what}: after the step, rank {rank}'s batches{which} than before.",
                cause=NOT_RECEIVED_IN
                if rank and not is_list
                else "the batch is the caller's, who has more steps to make: receive gradients in a buffer of your "
                "own, and go through the list without taking anything out.",
            )


def _judge_traffic(what: str, trace: Trace, world_size: int, n_batches: int) -> None:
    for event in trace:
        if event.peer is None and event.op not in (*SENDS, *RECEIVES) and not event.n_bytes:
            raise CheckFailed(
                f"{what}: every value is right, but rank {event.rank} calls {event.op}.",
                cause="there all ranks wait for the slowest one: a stage goes on when its own message has come.",
            )
    for rank in range(world_size):
        for peer in (rank - 1, rank + 1):
            sent = sum(event.peer == peer for event in trace.of_rank(rank).of_op(*SENDS))
            if sent > n_batches:
                raise CheckFailed(
                    f"{what}: rank {rank} sends {sent} messages to rank {peer}, {n_batches} are enough.",
                    cause="a micro-batch's activation or gradient is one message, and nothing has to be confirmed.",
                )
    whole = sum(sizes(n_batches)) * WIDTH * ITEM
    for rank in range(world_size):
        allowed, sent = whole * ((rank > 0) + (rank < world_size - 1)), trace.bytes_sent(rank)
        if sent > allowed:
            raise CheckFailed(
                f"{what}: rank {rank} sends {sent} bytes, {allowed} are enough.",
                cause="over each cut an activation goes forward and a gradient back, once a micro-batch and to one "
                "neighbour; the loss stays on the last rank.",
            )


def _why_stuck(data: Any) -> str:
    if data["deadlock"] is None:
        return ""
    calls = [(rank, op.removeprefix("wait for "), peers) for rank, op, peers in data["waiting"]]
    sends = {rank: peers for rank, op, peers in calls if op in SENDS}
    if "has returned" not in data["deadlock"] and sends and all(op == "wait for isend" for _, op, _ in data["waiting"]):
        return (
            "each isend is waited for where it starts, and nobody receives meanwhile: keep its handle, and wait once "
            "something has been received."
        )
    if any(rank in sends.get(peer, ()) for rank, peers in sends.items() for peer in peers):
        return (
            "two neighbours send to each other, and neither receives. Behind the first rank a receive comes before "
            "every forward pass. Where both messages are due, as in 1F1B, the activation goes out with isend, or with "
            "the receive of the gradient in one batch_isend_irecv."
        )
    if "has returned" in data["deadlock"] and not any(op in RECEIVES for _, op, _ in calls):
        return (
            "a rank has returned although its neighbour has something for it: what is still in the pipeline at the end "
            "has to go back, too."
        )
    receives = {rank: peers for rank, op, peers in calls if op in RECEIVES}
    if any(rank in receives.get(peer, ()) for rank, peers in receives.items() for peer in peers):
        return (
            "two neighbours wait for each other's messages: one of them has still to send what it has, or its order "
            "of passes needs a gradient before the forward pass that leads to it. In 1F1B the last rank has no "
            "warm-up, and each one before it has one more."
        )
    return (
        "sends and receives do not match: over each cut, m activations go forward and m gradients back, the first rank "
        "receives no activation and the last one no gradient."
    )


def _judge_passes(what: str, passes: list, n_batches: int) -> None:
    for kind, name in (("F", "forward"), ("B", "backward")):
        made = sorted(k for _, other, k, *_ in passes if other == kind)
        if made != list(range(n_batches)):
            missing = sorted(set(range(n_batches)) - set(made))
            raise CheckFailed(
                f"{what} made {len(made)} {name} passes, of micro-batches {made}; {n_batches} are needed.",
                cause=f"stage.{name} was never called there: each micro-batch goes {name} through each stage once."
                if not made
                else f"micro-batch {missing[0]} never went {name} there: "
                + ("what is still in the pipeline at the end has to go back, too." if kind == "B" else "count again.")
                if missing
                else "each micro-batch goes through each stage once.",
            )


def _judge_loss(what: str, got: Any, right: float, world_size: int, n_batches: int) -> None:
    value = (
        float(np.asarray(got).reshape(())) if isinstance(got, int | float | np.ndarray) and np.size(got) == 1 else None
    )
    if value is not None and math.isclose(value, right, rel_tol=1e-10):
        return
    if value is None:
        raise CheckFailed(f"{what}: the last rank returned {came(got)}" + f", expected its loss, {right:.6g}.",
                          cause="return the loss of the whole batch there, a number or a tensor of one.")  # fmt: skip
    causes = {
        "that is the sum of the micro-batches' means: each counts by its share of the rows.": [1.0] * n_batches,
        "each micro-batch counts the same there: it counts by its share of the rows.": [1 / n_batches] * n_batches,
        "that is the last micro-batch's loss alone.": [0.0] * (n_batches - 1) + [1.0],
        "that is the last micro-batch's share alone: add all shares up.": [0.0] * (n_batches - 1)
        + [sizes(n_batches)[-1] / sum(sizes(n_batches))],
        "the shares are rows: divide by the number of rows in the whole batch.": list(map(float, sizes(n_batches))),
    }  # fmt: skip
    named = [
        c
        for c, weights in causes.items()
        if math.isclose(value, serial(world_size, n_batches, weights)[0], rel_tol=1e-6)
    ]
    if math.isclose(value, right, rel_tol=1e-6):
        named = ["right to six places, but rounded: float32 on the way? `y.item()` is a double."]
    raise CheckFailed(
        f"{what}: the last rank's loss is {value:.10g}, one process has {right:.10g}.", cause=(named or [""])[0]
    )


def _why_wrong(got: Any, rank: int, world_size: int, n_batches: int) -> str:
    n, rows = n_batches, sizes(n_batches)
    causes = {
        "each micro-batch's gradient counts fully: on the last rank backward starts with the micro-batch's share of "
        "the rows.": [1.0] * n,
        "each micro-batch counts the same, but they differ in rows: len(batches[k]) of all rows.": [1 / n] * n,
        "only the last micro-batch counts.": [0.0] * (n - 1) + [1.0],
        "only the last micro-batch counts, by its share.": [0.0] * (n - 1) + [rows[-1] / sum(rows)],
        "the share is that of the whole batch in the micro-batch: the other way round.": [sum(rows) / r for r in rows],
        "the shares belong to other micro-batches: backward(k, ...) takes the share of batches[k].": [
            r / sum(rows) for r in reversed(rows)
        ],
        "that is weighted by rows: divide by the number of rows in the whole batch.": [float(r) for r in rows],
        "gradients are divided by the number of ranks, too.": [r / sum(rows) / world_size for r in rows],
    }  # fmt: skip
    for cause, weights in causes.items() if n > 1 else ():  # of one micro-batch many are the same
        if distance(got, serial(world_size, n, weights)[1][rank]) < 1e-9:
            return cause
    shares = [r / sum(rows) for r in rows]
    right = serial(world_size, n, shares)[1][rank]
    if distance(got, right) < 1e-5:
        return "right to five places: activations and gradients travel in the dtype that they have."
    if n > 1 and distance(got, serial(world_size, n, [s ** (world_size - rank) for s in shares])[1][rank]) < 1e-9:
        return "the share counts on every rank: only the last one starts backward with it, the others with what came."
    factor = float((got * right).sum() / (right * right).sum())
    if factor and distance(got, factor * right) < 1e-9:
        return (
            f"it is {factor:g} times the right one: only the number with which backward starts is another; it is the "
            "micro-batch's share of all rows."
        )
    if not np.asarray(got).any() and rank == world_size - 1 > 0:
        return (
            "it is zero, and so was the input: on this rank batches[k] has only the shape, its numbers come from the "
            "rank before."
        )
    if not np.asarray(got).any():
        return (
            "it is zero: what backward gives is not sent to the rank before, or is not what that rank receives, or the "
            "last stage has started with 0."
        )
    if rank == world_size - 1:
        return (
            "the last stage got another input than the stage before gave, or started backward with another number than "
            "the micro-batch's share: compare what is sent with what is received, micro-batch by micro-batch."
        )
    return (
        "the stages behind it are right, so its own input or the gradient that came back is another micro-batch's: "
        "messages of one direction arrive in the order in which they are sent."
    )


def orders_of(data: Any) -> list[list[tuple[str, int]]]:
    """Each rank's passes in the order in which they were made."""
    return [[(kind, k) for _, kind, k, *_ in result["passes"]] for result in data["results"]]


def held(data: Any) -> dict[int, list[tuple[float, int]]]:
    return in_flight([tuple(one) for result in data["results"] for one in result["passes"]])


def took_s(data: Any) -> float:
    return max(one[5] for result in data["results"] for one in result["passes"])


def played_s(data: Any, forward_s: Numbers, backward_s: Numbers) -> float:
    """What the same order of passes takes if nobody waits for anything but what it needs."""
    passes, _ = play(orders_of(data), {"F": forward_s, "B": backward_s})
    return max(one[5] for one in passes)


def idle_cause(data: Any, forward_s: Numbers, backward_s: Numbers, otherwise: str) -> str:
    """Why a run is too slow: somebody waits for what nobody needs, or the order is."""
    if took_s(data) > played_s(data, forward_s, backward_s) + SAME_S:
        return _sent_late(data) or (
            "the order of passes is quicker than the run: a rank waits for a message, in a collective or in a sleep "
            "before a pass that does not need it."
        )
    if all(most(marks) == 1 for marks in held(data).values()) and len(data["results"]) > 1:
        return "one micro-batch at a time is in the pipeline: the first rank goes on with the next one at once."
    return otherwise


def _sent_late(data: Any) -> str:
    """The first message, if there is one, that leaves after the pass that gives it is over."""
    trace, found = Trace.from_plain(data["trace"]), []
    for rank, result in enumerate(data["results"]):
        for which, peer in (("F", rank + 1), ("B", rank - 1)):
            ends = [(k, end_s) for _, kind, k, _, _, end_s, *_ in result["passes"] if kind == which]
            starts = sorted(e.start_s for e in trace.of_rank(rank).of_op(*SENDS) if e.peer == peer)
            late = [(s, end_s, k, which, rank) for (k, end_s), s in zip(ends, starts) if s > end_s + SAME_S]
            found += late[:1]
    if not found:
        return ""
    start_s, end_s, k, which, rank = min(found)
    name = "forward" if which == "F" else "backward"
    return (
        f"rank {rank}'s {name} pass of micro-batch {k} is over at {end_s:g} s, and what it gives is sent at "
        f"{start_s:g} s: send it at once, and wait for nothing before."
    )


def most(marks: Sequence[tuple[float, int]]) -> int:
    return max((n for _, n in marks), default=0)
