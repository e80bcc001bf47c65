"""The check of what a Stage keeps: no graph leaves it, and nothing of a micro-batch that went back.

A stage that does nothing keeps nothing, so outputs and gradients have to be there as well: those of one process.
"""

from __future__ import annotations

from typing import Any

from hw_utils.checks import drawn_numbers
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.checks.lesson_06.shards import distance
from hw_utils.checks.lesson_08.stage_runs import (
    CASES,
    DEFAULTS,
    ERRORS,
    in_one_process,
    require_random_state,
    require_tensors,
    run_stages,
    words,
)
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.simulate import simulate

SLACK = 8  # bytes: one number
_WITHIN = 1e-10  # of a tensor's largest number
# Then so many rows that nobody overlooks what is left of a micro-batch, in whatever form.
_MANY = {
    "n_layers": 2, "width": 32, "cut": [1, 1], "steps": ["F0 B0", "F0 B0 F1 B1 F2 B2 F3 B3"], "texts": "many rows"
}  # fmt: skip
# A part alone: nobody after it puts something else where it has left something.
_ALONE = {"n_layers": 3, "width": 4, "cut": [1, 1, 1], "steps": ["F0 F1 B1 B0"], "only": 1}
# Where stages are made again for what they hold, with two micro-batches under way: in the case that is shown there are
# more of them, too.
_LOOKS_AGAIN = CASES[3]["steps"]
_KEPT_CASES = [CASES[1], CASES[3], CASES[4], CASES[7], _ALONE, _MANY]
_TAKEN = 12_000_000  # bytes: a good deal less than what _MANY's second step brings to part 1 more than the first


def _judge_kept(data: Any, **given: Any) -> None:
    case = {**DEFAULTS, **given}
    what = words(**case)
    require_no_deadlock(data, what)
    (result,) = data["results"]
    only = case["only"]
    require_tensors(what, result, len(case["cut"]), only)
    if result["graphs"]:
        raise CheckFailed(
            f"{what}: what forward of part {result['graphs'][0] + only} returns still hangs on its graph.",
            cause="return y.detach(): what leaves a stage is numbers, and whoever keeps them must not keep the graph.",
        )
    require_random_state(what, result)
    for number, k, too_many, n_alive, by_graph, has_a_value in result["kept"]:
        for place, n_bytes in enumerate(too_many):
            part = place + only
            if n_bytes > SLACK:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, part {part} still keeps {n_bytes} bytes of numbers, beside "
                    "its module and what is in flight.",
                    cause="pop what was kept for micro-batch k: its graph goes when nobody holds x or y any more. Nor "
                    "does another attribute keep an output, or a gradient that came or went.",
                )
            if has_a_value[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, part {part} still keeps a number out of micro-batch {k}'s "
                    "tensors.",
                    cause="a single value of theirs, read with .item(), is kept as well: let go of it in backward.",
                )
            if by_graph[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, {n_alive[place]} tensors that part {part} got or made for "
                    f"micro-batch {k} are still alive.",
                    cause=f"`{by_graph[place]}` on the object hangs on its graph, and keeps what that was made from: "
                    "a number without it is .item() or .detach(), and goes with micro-batch k.",
                )
            if n_alive[place]:
                raise CheckFailed(
                    f"{what}: after B{k} of step {number}, {n_alive[place]} tensors that part {part} got or made for "
                    f"micro-batch {k} are still alive, and what is on the object is as large as what is in flight.",
                    cause="something outlives backward: on the class, on the module, in a default or under a global "
                    "name; or on the object, where another micro-batch was let go of in its place: pop k.",
                )
    for place, held in enumerate(result["held"]):
        if held:
            raise CheckFailed(
                f"{what}: once micro-batches are back, part {place} holds what is another one when their numbers are: "
                f"{held}",
                cause="a value of theirs, or what was made of it, is kept as well, as a number or a text: let it go.",
            )
    _judge_taken(what, result)
    _judge_work(what, result, data, case)


def _judge_taken(what: str, result: Any) -> None:
    if result["taken"] is not None and result["taken"] > _TAKEN:
        raise CheckFailed(
            f"{what}: after the last step {result['taken']} bytes more are in use than after the first one.",
            cause="something of each micro-batch stays in another form: as a text, in a list, in a file.",
        )


def _judge_work(what: str, result: Any, data: Any, case: dict[str, Any]) -> None:
    """Raises unless outputs and gradients are right: where they are not, the other check says more."""
    outputs, gradients = in_one_process(case, seed=data["seed"])
    for number, k, got in result["outputs"]:
        if distance(got, outputs[number, k]) > _WITHIN:
            raise CheckFailed(
                f"{what}: little is kept, but what comes out for micro-batch {k} in step {number} is not what comes "
                "out in one process.",
                cause="forward gives module(x), of few rows and of many: see what stage's own check says.",
            )
    for number, (step, right) in enumerate(zip(result["gradients"], gradients)):
        for place in reversed(range(len(right))):
            for name, expected in right[place].items():
                got = step[place][name]
                if expected is not None and (got is None or distance(got, expected) > _WITHIN):
                    raise CheckFailed(
                        f"{what}: little is kept, but after step {number} the gradient of `{name}` in part "
                        f"{place + case['only']} is not that of one process.",
                        cause="backward(k, gradient) goes through the graph of micro-batch k, of few rows and of many: "
                        "see what stage's own check says.",
                    )
    if ops := sorted(Trace.from_plain(data["trace"]).ops):
        raise CheckFailed(
            f"{what}: a stage called {', '.join(ops)}.",
            cause="it sends nothing itself: whoever calls forward and backward carries what they give to the next one.",
        )


@check(
    "lesson_08.stage_lets_go",
    judge=_judge_kept,
    cases=_KEPT_CASES,
    ok="outputs leave without their graph, and nothing of a micro-batch is kept once it went back.",
    hint="hint 3 of exercise 8.2",
    hints={
        "hint 1 of exercise 8.2": "little is kept, but",
        "hint 2 of exercise 8.2": "floating point|under that number|Mismatch|in its place",
        "hint 3 of exercise 8.2": ".",
    },
    errors=ERRORS,
    look="print what hangs on the object after backward: vars(stage).",
)
def stage_lets_go(make, /, **case: Any):
    """The same steps: what an output hangs on, and what is left of a micro-batch when it is back."""
    seed = drawn_numbers.unknown_seed()
    args = (make, {**DEFAULTS, **case}, True, case["steps"] == _LOOKS_AGAIN, seed)
    return observe(lambda: simulate(run_stages, 1, args, compute="free", echo=False)) | {"seed": seed}
