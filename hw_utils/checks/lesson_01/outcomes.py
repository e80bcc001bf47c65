"""Checks of lesson 01: what will a program do: finish, hang or fail, and when."""

from __future__ import annotations

import math
from typing import Any

from hw_utils.checks.check import check
from hw_utils.checks.common_mistakes import came
from hw_utils.checks.lesson_01.messages import number
from hw_utils.core.errors import CheckFailed, Deadlock, WorkerFailed
from hw_utils.core.hardware import Network
from hw_utils.material import programs
from hw_utils.simulate import simulate

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
    given = times.get(call) if isinstance(times, dict) else None
    if given is None:
        raise CheckFailed(
            f"times[{call!r}] is missing or None: say after how many seconds that call returns.",
            cause="times is a dictionary with a number for each of the three calls.",
        )
    said = number(given)
    if said is None:
        raise CheckFailed(
            f"times[{call!r}] must be a number of seconds, got {came(given)}.",
            cause="a text is no number: 2.0, without quotes."
            if isinstance(given, str)
            else "one number is asked for: an int or a float, as 2.0.",
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
