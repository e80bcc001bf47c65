"""Checks of lesson 01: the first output, and what a program will do."""

from __future__ import annotations

import contextlib
import io
import math
import re
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.core.errors import CheckFailed, Deadlock, WorkerFailed
from hw_utils.core.network import Network
from hw_utils.core.trace import Trace
from hw_utils.launch import launch
from hw_utils.material import programs
from hw_utils.simulate import simulate


def _judge_hello(data: dict[str, Any], world_size: int, name: str) -> None:
    what = f"hello with {world_size} rank{'' if world_size == 1 else 's'}"
    require_no_deadlock(data, what, cause=_NOTHING_SENT)
    output, results = data["output"], data["results"]
    for rank in range(world_size):
        expected = f"Rank {rank}: Hello, {name}!"
        if output[rank] in (f"{expected}\n", expected):
            continue
        printed = output[rank].strip()
        cause = "an empty line, or spaces around it: print ends the line by itself, and one line is asked for."
        if printed != expected:
            cause = _why_hello([text.strip() for text in output], results, rank, name)
        shown = printed if printed != expected else output[rank]
        raise CheckFailed(f"{what}: rank {rank} printed {shown!r}, expected {expected!r}.", cause=cause)
    calls = sorted(Trace.from_plain(data["trace"]).ops)
    if calls:
        raise CheckFailed(f"{what}: every line is right, but {', '.join(calls)} was called.", cause=_NOTHING_SENT)


_NOTHING_SENT = "nothing needs to be sent to say hello: every rank knows its own number, and the order is nobody's."


def _why_hello(output: list[str], results: list[Any], rank: int, name: str) -> str:
    printed, right = output[rank], f"Rank {rank}: Hello, {name}!"
    if not any(output):
        if any(result["errors"] for result in results):
            return "it was printed to stderr: leave file= out of print."
        if any(isinstance(result["returned"], str) for result in results):
            return "nothing was printed: return gives a value back, print writes it."
        return "nothing was printed: print writes a line."
    lines = printed.splitlines()
    if len(lines) > 1 and len(set(lines)) == 1:
        return "the same line stands there more than once: one line a rank."
    if "{rank" in printed or "{name" in printed:
        return "the f before the quotation mark is missing: only f-strings fill in what stands in braces."
    if right in lines and not any(re.search(r"Rank \d+: ", line) for line in lines if line != right):
        return "something else is printed too: one line a rank, and nothing beside it."
    if "".join(lines) == right or " ".join(lines) == right:
        return "the line is broken in two: one print, without a new line inside."
    if any(len(text.splitlines()) > 1 for text in output):
        return "one rank prints for the others: no loop over ranks is needed, each prints its own line."
    if not printed:
        return "only some ranks print: every rank runs the whole function."
    if printed == f"Rank {rank + 1}: Hello, {name}!":
        return "ranks count from 0."
    if len(output) > 1 and len(set(output)) == 1:
        return "every rank prints the same number: use rank, not world_size or a constant."
    if printed.lower() == right.lower():
        return "only capital letters differ: the name stays as it came."
    if name in printed and printed.endswith(f"Hello, {name}!"):
        return f"what stands before the comma differs: {printed.split('Hello')[0]!r}, not {right.split('Hello')[0]!r}."
    if re.search(r"Hello, (.*)!", printed) and name.startswith(re.search(r"Hello, (.*)!", printed)[1] or "-"):
        return "only a part of the name is printed: leave it as it came."
    if name not in printed:
        return "the name is the function's third argument; do not write one into the text."
    if str(rank) not in printed.split(":")[0]:
        return "the number is not this rank's own."
    return "a letter, a space or a sign differs."


@check(
    "lesson_01.hello",
    judge=_judge_hello,
    cases=[{"world_size": n, "name": name} for n, name in ((2, "Ada"), (4, "Grace Hopper"), (1, "edsger"))],
    ok="every rank says hello with its own number, in one line and without a message, for 1, 2 and 4 ranks.",
    hint="hint 1 of exercise 1.1",
    hints={
        "hint 2 of exercise 1.1": "prints for the others|nothing needs to be sent|only some ranks",
        "hint 1 of exercise 1.1": "letter|spaces|same number|not this rank's|count from|the name|the f |the comma",
    },
)
def hello(worker, /, world_size: int, name: str):
    """Every rank prints one line, on real processes; what it returned and wrote to stderr comes too."""

    def with_errors(rank: int, world_size: int, name: str) -> dict[str, Any]:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            returned = worker(rank, world_size, name)
        return {"returned": returned if isinstance(returned, str) else None, "errors": errors.getvalue()}

    return observe(lambda: launch(with_errors, world_size, (name,), echo=False))


OUTCOMES = ("finishes", "hangs", "fails")


def _outcome(program: str) -> str:
    try:
        simulate(getattr(programs, program), 2, compute="free", echo=False)
    except Deadlock:
        return "hangs"
    except WorkerFailed:
        return "fails"
    return "finishes"


def _judge_prediction(predictions: Any, program: str) -> None:
    said = predictions.get(program) if isinstance(predictions, dict) else None
    if said is None or said == "?":
        raise CheckFailed(
            f"there is no prediction for {program}: set predictions[{program!r}] to one of {', '.join(OUTCOMES)}.",
            cause="predictions is a dictionary from each program's name to a word, and this one is missing or still ?.",
        )
    if said not in OUTCOMES:
        raise CheckFailed(
            f"predictions[{program!r}] is {said!r}; it must be one of {', '.join(OUTCOMES)}.",
            cause="another word, or capital letters: a prediction is one of these three.",
        )
    happened = _outcome(program)
    if said == happened:
        return
    causes = {
        (
            "finishes",
            "hangs",
        ): "some call waits for a partner that never comes: write down, call by call, who waits for whom.",
        ("hangs", "finishes"): "every call does meet its partner: pair them off, in each rank's order.",
        ("hangs", "fails"): "nobody waits for ever here; look at what happens to a buffer before its wait.",
        ("finishes", "fails"): "a buffer that an isend still reads must not be written before its wait.",
        ("fails", "finishes"): "nothing forbidden happens: no buffer is touched between isend and wait.",
        (
            "fails",
            "hangs",
        ): "no rule is broken, but a partner is missing: that is not an error by itself, only silence.",
    }
    raise CheckFailed(
        f"{program}: predicted that it {said}, but run on two ranks it {happened}.", cause=causes[said, happened]
    )


@check(
    "lesson_01.predictions",
    judge=_judge_prediction,
    cases=[
        {"program": name}
        for name in ("both_send_first", "one_sends_first", "wait_comes_last", "changed_too_early", "one_recv_too_many")
    ],
    ok="all five programs did what was predicted.",
    hint="hint 1 of exercise 1.2a",
)
def predictions(answers, /, program: str):
    """What each program of `hw_utils.material.programs` does; the judge runs it."""
    return answers


_LATE_NETWORK = Network(latency_s=1.0, bandwidth_Bps=4.0)  # one float32: 2 s a message


def _judge_late(times: Any, call: str) -> None:
    said = times.get(call) if isinstance(times, dict) else None
    if said is None:
        raise CheckFailed(
            f"times[{call!r}] is missing or None: say after how many seconds that call returns.",
            cause="times is a dictionary with a number for each of the three calls.",
        )
    if type(said) not in (int, float):
        raise CheckFailed(
            f"times[{call!r}] must be a number of seconds, got {type(said).__name__}.",
            cause="a text or a list is no number: 2.0, without quotes.",
        )
    run = simulate(programs.late_receiver, 2, network=_LATE_NETWORK, compute="free", echo=False)
    happened = run[0][call]
    if math.isfinite(said) and math.isclose(said, happened, abs_tol=1e-6):
        return
    raise CheckFailed(
        f"late_receiver: {call} was predicted as {said:g} s after the start; run, it was not.",
        cause=_why_late(call, said, happened, run[0]),
    )


def _why_late(call: str, said: float, happened: float, times: dict[str, float]) -> str:
    if call == "isend_s":
        return "isend only announces the message: it waits for nobody."
    if said == 0:
        return "a wait and a blocking send return when the bytes have arrived, not when they were announced."
    if happened and (math.isclose(said, 1e3 * happened) or math.isclose(said, 1e6 * happened)):
        return "that is in milliseconds or microseconds: write seconds."
    if call == "send_s" and math.isclose(said, happened - times["wait_s"]):
        return "that is how long the call takes; all three times count from rank 0's start."
    if call == "send_s" and said < 5:
        return "the second message starts when the first has arrived, and takes its own time."
    return "a message starts when both sides have called; then it takes its latency and its bytes over the bandwidth."


@check(
    "lesson_01.times",
    judge=_judge_late,
    cases=[{"call": "isend_s"}, {"call": "wait_s"}, {"call": "send_s"}],
    ok="isend, wait and send return when you said they would.",
    hint="hint 1 of exercise 1.2b",
)
def times(answers, /, call: str):
    """When each call of `late_receiver` returns; the judge runs it."""
    return answers
