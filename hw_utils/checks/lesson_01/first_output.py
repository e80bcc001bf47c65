"""Check of lesson 01's first output: every rank says hello."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace
from hw_utils.launch import launch


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
        return "nothing came on standard output: print writes a line there, unless file= sends it elsewhere."
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
        return _why_capitals(printed, right, name)
    if "".join(printed.split()) == "".join(right.split()):
        return _why_spaces(printed, rank, name)
    if name in printed and printed.endswith(f"Hello, {name}!"):
        return f"what stands before the comma differs: {printed.split('Hello')[0]!r}, not {right.split('Hello')[0]!r}."
    if re.search(r"Hello, (.*)!", printed) and name.startswith(re.search(r"Hello, (.*)!", printed)[1] or "-"):
        return "only a part of the name is printed: leave it as it came."
    if name not in printed:
        return "the name is the function's third argument; do not write one into the text."
    if str(rank) not in printed.split(":")[0]:
        return "the number is not this rank's own."
    return "a letter, a space or a sign differs."


def _why_capitals(printed: str, right: str, name: str) -> str:
    if not printed.endswith(f", {name}!"):
        return "only capital letters differ: the name stays as it came."
    came, asked = next(pair for pair in zip(printed.split(), right.split(), strict=True) if pair[0] != pair[1])
    return f"only capital letters differ: {came!r} stands there, not {asked!r}."


def _why_spaces(printed: str, rank: int, name: str) -> str:
    around = re.fullmatch(rf"Rank {rank}: Hello, (.*)!", printed)
    if around and around[1].split() == name.split() and len(around[1]) < len(name):
        return "only the spaces of the name differ: it stays as it came, with those around it."
    if len(printed) > len(f"Rank {rank}: Hello, {name}!"):
        return (
            "only spaces differ, there are too many: print puts one wherever a comma parts its arguments. An f-string "
            "is one argument, and has those that you write."
        )
    return "only spaces differ: there is one behind Rank, one behind the colon and one behind the comma."


@check(
    "lesson_01.hello",
    judge=_judge_hello,
    cases=[
        {"world_size": n, "name": name}
        for n, name in ((2, "Ada"), (4, "Grace Hopper"), (1, "edsger"), (2, " Ida  Rhodes "))
    ],
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
