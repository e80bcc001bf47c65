"""The checks of gpipe and one_f_one_b: the same numbers and seconds, and who holds how much meanwhile."""

from __future__ import annotations

from typing import Any

from hw_utils.checks.check import check, require_no_deadlock
from hw_utils.checks.kept_bytes import is_under_way, taken
from hw_utils.checks.lesson_08.carried_judge import require_carried, require_neighbours
from hw_utils.checks.lesson_08.schedules_judge import (
    ITEM,
    NOT_RECEIVED_IN,
    SAME_S,
    WIDTH,
    Numbers,
    drive,
    held,
    idle_cause,
    judge_run,
    most,
    orders_of,
    sizes,
    took_s,
    words,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import RECEIVES, SENDS, Trace

F_S, B_S = 1.0, 2.0
_BESIDE = 2_500_000  # bytes: of right answers 1 MB at most; all activations of _MANY have 11.5, in half precision 3
_MANY = {"world_size": 2, "n_batches": 24, "times": 10_000}
HINTS_GPIPE = {
    "hint 2 of exercise 8.3": "share|rows|counts|loss",
    "hint 1 of exercise 8.3": "receive|send|order|pipeline|backward|forward|goes on|rows",
}
HINTS_1F1B = {
    "hint 2 of exercise 8.4": r"(?s)^(?!.*nobody received)(?=.*(no rank can go on|hangs|isend))",
    "hint 3 of exercise 8.4": "held|ahead|activations|oldest|newest",
    "hint 1 of exercise 8.4": "warm-up|order|soon|goes on|before|nobody received",
}
ERRORS = {
    r"there is no rank": "a pipeline has two ends, and is no ring: activations come from rank - 1 and go to rank + 1, "
    "gradients come from rank + 1 and go to rank - 1. Nobody is before rank 0, nobody behind the last rank.",
    r"its gradients are \S+, got a tensor of": "a gradient has the dtype of what it belongs to, and "
    "torch.tensor(share) alone makes a float32: hand the share over as the float that it is.",
    r"backward takes the gradient of the output, [^;\n]*; got": "the gradient has the length of another micro-batch "
    "than the one that goes back with it: the k of its buffer, torch.empty_like(batches[k]), and that of "
    "stage.backward(k, ...) are the same, and both ranks go back in one order: in 1F1B the oldest goes back first.",
    r"IndexError|KeyError": "there are m micro-batches, 0 to m - 1, also where m is smaller than the number of ranks: "
    "a warm-up, too, has no more than m.",
    r"sends \d+ (\w+) \(.* receives \d+ \1 \(": "micro-batches differ in length, and the buffer is as long as another "
    "one: torch.empty_like(batches[k]) fits what comes of micro-batch k. Both ends go through the micro-batches in one "
    "order, and the oldest goes back first.",
    r"and nobody received it": "a rank is done, and has not received all that its neighbours sent: over each cut, m "
    "messages go forward and m back. What is still under way after the last forward pass goes back, too.",
}


ERRORS_1F1B = {
    r"there is no rank (\d+) in a group of \1\b": "the last rank sends on, or waits for somebody behind it. A pipeline "
    "is no ring: activations go to rank + 1, gradients come from rank + 1 and go to rank - 1, and nobody is behind the "
    "last rank. Is its warm-up a forward pass too long? The last stage has none, and each one before it has one more.",
    **ERRORS,
}


def _judge_numbers(data: Any, world_size: int, n_batches: int) -> None:
    judge_run(words(world_size, n_batches), data, world_size, n_batches)


# More stages than the text shows: a schedule for the ranks that somebody has tried is none.
_SHAPES = ((1, 1), (1, 3), (2, 1), (2, 3), (4, 1), (4, 3), (4, 8), (2, 13), (6, 7))
_SAME_STAGES = [
    {"world_size": p, "n_batches": m, "seconds": s}
    for p, m, s in ((1, 3, 9.0), (2, 1, 6.0), (2, 3, 12.0), (4, 3, 18.0), (4, 8, 33.0), (7, 8, 42.0))
]


@check(
    "lesson_08.gpipe",
    judge=_judge_numbers,
    cases=[{"world_size": p, "n_batches": m} for p, m in _SHAPES],
    ok="gradients and loss are those of one process, and each cut is crossed once each way by a micro-batch.",
    hint="hint 1 of exercise 8.3",
    hints=HINTS_GPIPE,
    errors=ERRORS,
    look="print rank, k and the first number of what is received and what is sent, for 2 ranks and 2 micro-batches.",
)
def gpipe(answer, /, world_size: int, n_batches: int):
    """A run on stages that take 1 and 2 seconds; only rank 0 has the batch's numbers."""
    return drive(answer, world_size, n_batches, F_S, B_S)


def _judge_gpipe_time(
    data: Any, world_size: int, n_batches: int, seconds: float, forward_s: Numbers = F_S, backward_s: Numbers = B_S
) -> None:
    what = words(world_size, n_batches, forward_s, backward_s)
    _require_all_passes(what, data, n_batches)
    for rank, order in enumerate(orders_of(data)):
        kinds = "".join(kind for kind, _ in order)
        if "BF" in kinds:
            k = order[kinds.index("BF")][1]
            raise CheckFailed(
                f"{what}: rank {rank} goes back with micro-batch {k} before all {n_batches} went forward.",
                cause="GPipe has two halves: all forward passes, then all backward passes.",
            )
    _require_seconds(what, data, seconds, forward_s, backward_s, "both halves go through the micro-batches in the same "
                     "order on all ranks, so that nobody waits for one that comes later.")  # fmt: skip
    require_carried(what, data, n_batches)


@check(
    "lesson_08.gpipe_in_time",
    judge=_judge_gpipe_time,
    cases=[
        *_SAME_STAGES,
        {"world_size": 3, "n_batches": 6, "seconds": 34.0, "forward_s": [0.5, 1.5, 0.5], "backward_s": 3.0},
    ],
    ok="all forward, then all backward passes, and nobody waits for anything but what it needs.",
    hint="hint 1 of exercise 8.3",
    hints=HINTS_GPIPE,
    errors=ERRORS,
    look="draw the pipeline of your own run: which idle cell comes first that GPipe's picture has not?",
)
def gpipe_in_time(
    answer, /, world_size: int, n_batches: int, seconds: float, forward_s: Numbers = F_S, backward_s: Numbers = B_S
):
    """The same on stages that take other seconds."""
    return drive(answer, world_size, n_batches, forward_s, backward_s)


def _require_all_passes(what: str, data: Any, n_batches: int) -> None:
    """Raises if the run hangs or leaves out passes: what a fast run must not be built on."""
    require_no_deadlock(data, what, cause="the check of its numbers comes first and says more.")
    for rank, order in enumerate(orders_of(data)):
        if sorted(order) != sorted((kind, k) for kind in "FB" for k in range(n_batches)):
            raise CheckFailed(
                f"{what}: rank {rank} made {len(order)} passes, {2 * n_batches} are needed.",
                cause="every micro-batch goes forward and back through every stage once.",
            )


def _require_seconds(what: str, data: Any, seconds: float, forward_s: Numbers, backward_s: Numbers, cause: str) -> None:
    if took_s(data) <= seconds + SAME_S and data["seconds"] <= seconds + SAME_S:
        return
    if took_s(data) <= seconds + SAME_S:
        raise CheckFailed(f"{what}: the passes are over after {took_s(data):g} s, the run after {data['seconds']:g} s.",
                          cause="something waits after the last pass.")  # fmt: skip
    raise CheckFailed(
        f"{what}: the step takes {took_s(data):g} s, {seconds:g} s are enough.",
        cause=idle_cause(data, forward_s, backward_s, cause),
    )


@check(
    "lesson_08.one_f_one_b",
    judge=_judge_numbers,
    cases=[{"world_size": p, "n_batches": m} for p, m in _SHAPES],
    ok="gradients and loss are those of one process, and each cut is crossed once each way by a micro-batch.",
    hint="hint 1 of exercise 8.4",
    hints={
        "hint 1 of exercise 8.4": "nobody received|went back|no micro-batch|has to go back|its warm-up",
        "hint 2 of exercise 8.4": "two neighbours send|isend",
        "hint 3 of exercise 8.4": "the oldest",
        "hint 2 of exercise 8.3": "share|rows|counts|loss",
    },
    errors=ERRORS_1F1B,
    look="print rank, kind and k of each pass, for 2 ranks and 3 micro-batches.",
)
def one_f_one_b(answer, /, world_size: int, n_batches: int):
    """A run on stages that take 1 and 2 seconds; only rank 0 has the batch's numbers."""
    return drive(answer, world_size, n_batches, F_S, B_S)


def _judge_in_flight(data: Any, world_size: int, n_batches: int, times: int = 1) -> None:
    what = words(world_size, n_batches)
    _require_all_passes(what, data, n_batches)
    trace = Trace.from_plain(data["trace"])
    for rank, marks in held(data).items():
        allowed = min(n_batches, world_size - rank)
        if most(marks) > allowed:
            at_s = next(at_s for at_s, n in marks if n > allowed)
            raise CheckFailed(
                f"{what}: stage {rank} held {most(marks)} activations, more than {allowed} from {at_s:g} s on; 1F1B "
                f"keeps {allowed}.",
                cause=_why_held(data, rank, world_size, n_batches, most(marks) - allowed),
            )
        came = _came_in(trace, rank) if rank else 0
        if came > allowed + 1:
            raise CheckFailed(
                f"{what}: rank {rank} has {came} activations received or asked for at once; {allowed} in flight and "
                "one on its way are enough.",
                cause="the ledger counts buffers too: receive a micro-batch's activation when its turn has come, at "
                "most one ahead.",
            )
        _require_let_go(f"{what}: rank {rank}", data["results"][rank], (allowed + 1) * max(sizes(n_batches, times)))
        n_gradients = data["results"][rank]["n_gradients"]
        if n_gradients > allowed + 1:
            raise CheckFailed(
                f"{what}: rank {rank} still has {n_gradients} gradients with which it went back.",
                cause="a gradient that came has been used after its backward pass: it is not kept, in no list either.",
            )
    for rank, order in enumerate(orders_of(data)):
        forward, backward = ([k for other, k in order if other == kind] for kind in "FB")
        if forward != backward:
            raise CheckFailed(
                f"{what}: rank {rank} goes forward with micro-batches {forward}, and back with {backward}.",
                cause="backward takes the oldest micro-batch: what came first goes back first.",
            )
    if times > 1:
        _judge_taken(what, data["results"], trace, world_size, n_batches, times)
        require_neighbours(what, trace)
    require_carried(what, data, n_batches, times)


def _judge_taken(what: str, results: list, trace: Trace, world_size: int, n_batches: int, times: int) -> None:
    """By the looks of the last rank at the answer's memory, in its first backward pass and in its last one."""
    (before, _), (after, places) = results[-1]["looks"]
    n_bytes = taken(before, after)
    in_flight = sum(min(n_batches, world_size - rank) + 1 for rank in range(world_size))
    allowed = in_flight * max(sizes(n_batches, times)) * WIDTH * ITEM
    allowed += sum(e.n_bytes for e in trace if e.is_send and is_under_way(e, places[e.rank]))
    if n_bytes is not None and n_bytes > 2 * allowed + _BESIDE:  # twice: what is on its way has a copy
        raise CheckFailed(
            f"{what}: from the last rank's first backward pass to its last one, {n_bytes} bytes more are in use; "
            f"{allowed} are in flight.",
            cause=NOT_RECEIVED_IN
            if any(_writes_in_batches(result) for result in results)
            else "activations or gradients of micro-batches that went back are kept, as they are or in another form: "
            "as a text, in a list, in a file.",
        )


def _require_let_go(what: str, result: Any, n_rows: int) -> None:
    cause = (
        "the stage keeps what it needs: an activation that a list, a dictionary, a global name or buffers made at the "
        "start keep, too, takes as much memory as one in flight."
    )
    if _writes_in_batches(result):
        cause = NOT_RECEIVED_IN
    if result["n_kept"] > 1:
        raise CheckFailed(
            f"{what} still has {result['n_kept']} activations of micro-batches that went back.", cause=cause
        )
    if result["kept_bytes"] > n_rows * WIDTH * ITEM:
        raise CheckFailed(
            f"{what} has {result['kept_bytes']} bytes for activations, {n_rows * WIDTH * ITEM} are enough for those "
            "in flight and one more.",
            cause=cause,
        )


def _writes_in_batches(result: Any) -> bool:
    return result["changed"] not in ([], "list")


def _why_held(data: Any, rank: int, world_size: int, n_batches: int, extra: int) -> str:
    orders = orders_of(data)
    warm = ["".join(kind for kind, _ in order).index("B") for order in orders]
    if min(warm) == n_batches and n_batches > 1:
        return "that is GPipe: all forward passes come before the first backward pass, on every rank."
    forward, backward = ([k for kind, k in orders[rank] if kind == which] for which in "FB")
    if forward != backward:
        return "backward takes the newest micro-batch first: the one that came in first is the first to go back."
    if warm[rank] <= min(n_batches, world_size - rank):
        return "two forward passes follow one another after the warm-up: from then on one forward, one backward."
    if extra == 1:
        return "one warm-up forward too many; the last stage has none, and each one before it has one more."
    if len(set(warm)) == 1 and world_size > 1:
        return "every rank has the same warm-up: it is shorter on each next rank, and the last one has none."
    return "too many forward passes come before the first backward pass."


def _came_in(trace: Trace, rank: int) -> int:
    """The most activations asked for from the rank before, less the gradients that went back to it by then."""
    marks = []
    for event in trace.of_rank(rank):
        if event.peer == rank - 1 and event.op in RECEIVES:
            marks.append((event.start_s, 1, event.order))
        elif event.peer == rank - 1 and event.op in SENDS:
            marks.append((event.start_s, -1, event.order))
    peak = count = 0
    for _, change, _ in sorted(marks, key=lambda mark: mark[2]):
        count += change
        peak = max(peak, count)
    return peak


@check(
    "lesson_08.one_f_one_b_in_flight",
    judge=_judge_in_flight,
    cases=[{"world_size": p, "n_batches": m} for p, m in ((1, 3), (2, 1), (2, 3), (4, 3), (4, 8), (6, 8), (7, 9))]
    + [_MANY],  # activations that nobody overlooks, whatever keeps them
    ok="stage r of p never holds more than p - r micro-batches, and what comes first goes back first.",
    hint="hint 3 of exercise 8.4",
    hints=HINTS_1F1B,
    errors=ERRORS_1F1B,
    look="draw what is in flight in your own run, and find the first moment at which a rank has too many.",
)
def one_f_one_b_in_flight(answer, /, world_size: int, n_batches: int, times: int = 1):
    """What each stage's own log says that it held, and the ledger about what was on its way."""
    return drive(answer, world_size, n_batches, F_S, B_S, times)


def _judge_1f1b_time(
    data: Any, world_size: int, n_batches: int, seconds: float, forward_s: Numbers = F_S, backward_s: Numbers = B_S
) -> None:
    what = words(world_size, n_batches, forward_s, backward_s)
    _require_all_passes(what, data, n_batches)
    _require_seconds(what, data, seconds, forward_s, backward_s, _why_slow(data, world_size, n_batches))
    require_carried(what, data, n_batches)


def _why_slow(data: Any, world_size: int, n_batches: int) -> str:
    """How the orders of passes differ from those of 1F1B, by the forward passes before each rank's first backward."""
    for rank, order in enumerate(orders_of(data)):
        before, due = [kind for kind, _ in order].index("B"), min(n_batches, world_size - rank)
        made = f"rank {rank} makes {before} forward pass{'es' * (before != 1)} before its first backward pass, {due} "
        made += f"{'is' if due == 1 else 'are'} due"
        if before < due:
            return f"a rank starves: its warm-up is too short to have work until the first gradient comes back: {made}."
        if before > due:
            return (
                f"the warm-up is too long, or the first turns are: a rank goes back too late, and others wait: {made}."
            )
    return "two passes of one kind follow each other where one of each would do."


@check(
    "lesson_08.one_f_one_b_in_time",
    judge=_judge_1f1b_time,
    cases=[
        *_SAME_STAGES,
        {"world_size": 3, "n_batches": 6, "seconds": 33.0, "forward_s": [0.5, 1.5, 0.5], "backward_s": 3.0},
        {"world_size": 6, "n_batches": 7, "seconds": 46.0, "forward_s": [0.5, 1.5, 0.5, 1.0, 0.5, 0.5],
         "backward_s": 3.0},
        {"world_size": 4, "n_batches": 6, "seconds": 35.0, "forward_s": [1.0, 2.0, 0.5, 1.0],
         "backward_s": [3.0, 3.0, 1.5, 2.0]},
    ],
    ok="the step takes as long as GPipe's where stages are alike, and nobody waits for what it does not need.",
    hint="hint 1 of exercise 8.4",
    hints=HINTS_1F1B,
    errors=ERRORS_1F1B,
    look="draw the pipeline of your own run beside GPipe's: which idle cell is not there?",
)  # fmt: skip
def one_f_one_b_in_time(
    answer, /, world_size: int, n_batches: int, seconds: float, forward_s: Numbers = F_S, backward_s: Numbers = B_S
):
    """The same on stages that take other seconds."""
    return drive(answer, world_size, n_batches, forward_s, backward_s)
