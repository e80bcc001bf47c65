"""Checks of lesson 01: ranks, world size, send and receive."""

from __future__ import annotations

import math
from typing import Any

import torch

from hw_utils import programs
from hw_utils.checks.check import check, observe, require_no_deadlock
from hw_utils.errors import CheckFailed, Deadlock, WorkerFailed
from hw_utils.launch import launch
from hw_utils.network import Network
from hw_utils.simulate import simulate
from hw_utils.trace import Trace


def _free(worker, world_size: int, *args):
    return lambda: simulate(worker, world_size, args, compute="free", echo=False)


# 1.1 ---------------------------------------------------------------------------------------------------------


def _judge_hello(data: dict[str, Any], world_size: int, name: str) -> None:
    require_no_deadlock(data, f"hello with {world_size} ranks", cause="nothing needs to be sent to say hello.")
    output = data["output"]
    for rank in range(world_size):
        expected = f"Rank {rank}: Hello, {name}!"
        printed = output[rank].strip()
        if printed == expected:
            continue
        raise CheckFailed(
            f"hello with {world_size} ranks: rank {rank} printed {printed!r}, expected {expected!r}.",
            cause=_why_hello(output, rank, name),
        )


def _why_hello(output: list[str], rank: int, name: str) -> str:
    printed = output[rank].strip()
    if not any(text.strip() for text in output):
        return "nothing was printed: return gives a value back, print writes it."
    if not printed:
        return "only some ranks print: every rank runs the whole function."
    if len(printed.splitlines()) > 1 and len(set(printed.splitlines())) == 1:
        return "the same line stands there more than once: one line a rank."
    if len(printed.splitlines()) > 1:
        return "one rank prints for the others: no loop over ranks is needed, each prints its own line."
    if printed == f"Rank {rank + 1}: Hello, {name}!":
        return "ranks count from 0."
    if len({text.strip() for text in output}) == 1 and len(output) > 1:
        return "every rank prints the same number: use rank, not world_size or a constant."
    if name not in printed:
        return "the name is the function's third argument; do not write one into the text."
    return "a letter, a space or a sign differs."


@check(
    "lesson_01.hello",
    judge=_judge_hello,
    cases=[{"world_size": n, "name": name} for n, name in ((2, "Ada"), (4, "Grace"), (1, "Edsger"))],
    ok="every rank says hello with its own number, for 1, 2 and 4 ranks.",
    hint="hint 1 of exercise 1.1",
)
def hello(worker, /, world_size: int, name: str):
    """Every rank prints one line, on real processes."""
    return observe(lambda: launch(worker, world_size, (name,), echo=False))


# 1.2 ---------------------------------------------------------------------------------------------------------

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
            f"there is no prediction for {program}: set predictions[{program!r}] to one of {', '.join(OUTCOMES)}."
        )
    if said not in OUTCOMES:
        raise CheckFailed(f"predictions[{program!r}] is {said!r}; it must be one of {', '.join(OUTCOMES)}.")
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
    hint="hint 1 of exercise 1.2",
)
def predictions(answers, /, program: str):
    """What each program of `hw_utils.programs` does; the judge runs it."""
    return answers


_LATE_NETWORK = Network(latency_s=1.0, bandwidth_Bps=4.0)  # one float32: 2 s a message


def _judge_late(times: Any, call: str) -> None:
    said = times.get(call) if isinstance(times, dict) else None
    if said is None:
        raise CheckFailed(f"times[{call!r}] is missing or None: say after how many seconds that call returns.")
    if type(said) not in (int, float):
        raise CheckFailed(f"times[{call!r}] must be a number of seconds, got {type(said).__name__}.")
    run = simulate(programs.late_receiver, 2, network=_LATE_NETWORK, compute="free", echo=False)
    happened = run[0][call]
    if math.isfinite(said) and math.isclose(said, happened, abs_tol=1e-6):
        return
    raise CheckFailed(
        f"late_receiver: {call} was predicted as {said:g} s after the start; run, it was not.",
        cause=_why_late(call, said),
    )


def _why_late(call: str, said: float) -> str:
    if call == "isend_s":
        return "isend only announces the message: it waits for nobody."
    if said == 0:
        return "a wait and a blocking send return when the bytes have arrived, not when they were announced."
    if call == "send_s" and said < 5:
        return "the second message starts when the first has arrived, and takes its own time."
    return "a message starts when both sides have called; then it takes its latency and its bytes over the bandwidth."


@check(
    "lesson_01.times",
    judge=_judge_late,
    cases=[{"call": "isend_s"}, {"call": "wait_s"}, {"call": "send_s"}],
    ok="isend, wait and send return when you said they would.",
    hint="hint 2 of exercise 1.2",
)
def times(answers, /, call: str):
    """When each call of `late_receiver` returns; the judge runs it."""
    return answers


# 1.3 ---------------------------------------------------------------------------------------------------------


def _ledger(data: dict[str, Any]) -> Trace:
    return Trace.from_plain(data["trace"])


def _no_collective(trace: Trace, what: str) -> None:
    others = sorted(trace.ops - {"send", "recv", "isend", "irecv"})
    if others:
        raise CheckFailed(f"{what}: called {', '.join(others)}; use send and receive only.")


def _require_messages(trace: Trace, what: str, expected: dict[tuple[int, int], int]) -> None:
    """Exactly the expected number of messages from rank to rank, and no other."""
    sent: dict[tuple[int, int], int] = {}
    for event in trace.of_op("send", "isend"):
        sent[event.rank, event.peer] = sent.get((event.rank, event.peer), 0) + 1
    if sent == expected:
        return
    total, right = sum(sent.values()), sum(expected.values())
    if total != right:
        raise CheckFailed(
            f"{what}: every value is right, but {total} messages were sent; {right} are enough.",
            cause="a value goes from one rank to the next only; nobody collects or repeats it."
            if total > right
            else "",
        )
    pair = next(p for p in sorted(sent) if sent[p] != expected.get(p))
    raise CheckFailed(
        f"{what}: every value is right, but rank {pair[0]} sent {sent[pair]} messages to rank {pair[1]}, "
        f"expected {expected.get(pair, 0)}.",
        cause="the path is 0, 1, 2, ...: each rank sends to the next.",
    )


def _number(value: Any) -> float | None:
    """A plain number or an array of one element, else None."""
    if type(value) in (int, float):
        return float(value)
    if hasattr(value, "shape") and value.size == 1 and value.dtype.kind in "if":
        return float(value.reshape(()))
    return None


def _judge_ping_pong(data: dict[str, Any], world_size: int, n_rounds: int) -> None:
    what = f"ping_pong with {world_size} ranks and {n_rounds} rounds"
    require_no_deadlock(data, what, cause="rank 0 must send first and rank 1 must receive first, in every round.")
    for rank in range(world_size):
        expected = 2.0 * n_rounds if rank < 2 else 0.0
        got = _number(data["results"][rank])
        if got != expected:
            raise CheckFailed(
                f"{what}: rank {rank} returned {data['results'][rank]!r}, expected {expected:g}.",
                cause=_why_ping_pong(rank, got, n_rounds),
            )
    trace = _ledger(data)
    _no_collective(trace, what)
    _require_messages(trace, what, {(0, 1): n_rounds, (1, 0): n_rounds} if n_rounds else {})


def _why_ping_pong(rank: int, got: float | None, n_rounds: int) -> str:
    if got is None:
        return "return the ball's value as a float: ball.item()."
    if rank > 1:
        return "only ranks 0 and 1 play; the others return 0.0."
    if got == n_rounds:
        return "only one of the two ranks adds 1."
    if got == 2 * n_rounds + 1:
        return "a rank adds 1 again after the last receive: add only before a send."
    if got == 2 * n_rounds - 1 and rank == 0:
        return "rank 0 returns what it sent, not what came back: receive before you return."
    if got == 2:
        return "the ball starts again at 0 in every round: make it once, before the loop."
    return "the ball starts at 0 on rank 0, and a rank adds 1 each time before it sends."


@check(
    "lesson_01.ping_pong",
    judge=_judge_ping_pong,
    cases=[{"world_size": n, "n_rounds": k} for n, k in ((2, 1), (2, 5), (4, 3), (2, 0))],
    ok="the ball came back with the right count, in two messages a round.",
    hint="hint 1 of exercise 1.3",
)
def ping_pong(worker, /, world_size: int, n_rounds: int):
    """A ball goes to rank 1 and back; each player adds 1 before it sends."""
    return observe(_free(worker, world_size, n_rounds))


def _numbers(world_size: int, n_elements: int) -> list[torch.Tensor]:
    """Rank r holds 10**r * [1 .. n]: a wrong digit names the rank."""
    return [10**r * torch.arange(1, n_elements + 1, dtype=torch.float64) for r in range(world_size)]


def _judge_relay(data: dict[str, Any], world_size: int, n_elements: int, closed: bool) -> None:
    what = f"{'closed ' if closed else ''}relay with {world_size} ranks of {n_elements} elements"
    require_no_deadlock(
        data, what, cause="rank 0 has nobody to wait for: it sends first; every other rank receives, adds, then sends."
    )
    numbers = _numbers(world_size, n_elements)
    last = 0 if closed else world_size - 1
    _require_sum(data["results"][last], sum(numbers), what, last, world_size)
    for rank, result in enumerate(data["results"]):
        if rank != last and result is not None:
            raise CheckFailed(
                f"{what}: rank {rank} returned a {type(result).__name__}, expected None.",
                cause=f"the relay ends on rank {last}: only that rank has the sum, the others return None.",
            )
    for rank, after in enumerate(data["owns_after"][last] or []):
        if not torch.equal(torch.from_numpy(after), numbers[rank]):
            raise CheckFailed(f"{what}: numbers[{rank}] was changed; add into a copy of it.")
    trace = _ledger(data)
    _no_collective(trace, what)
    path = {(r, r + 1): 1 for r in range(world_size - 1)}
    if closed and world_size > 1:
        path[world_size - 1, 0] = 1
    _require_messages(trace, what, path)


def _require_sum(got: Any, expected: torch.Tensor, what: str, rank: int, world_size: int) -> None:
    if not hasattr(got, "shape"):
        raise CheckFailed(
            f"{what}: rank {rank} returned {got!r}, expected a tensor of {tuple(expected.shape)}.",
            cause="the rank at which the relay ends returns the tensor; the others return None.",
        )
    if got.shape != tuple(expected.shape):
        raise CheckFailed(f"{what}: rank {rank} returned shape {got.shape}, expected {tuple(expected.shape)}.")
    if (got == expected.numpy()).all():
        return
    digits = f"{got.reshape(-1)[0]:g}"
    raise CheckFailed(
        f"{what}: the first element on rank {rank} is {digits}, expected {expected[0].item():g} (rank r brings 10**r).",
        cause=_why_sum(got.reshape(-1)[0], world_size),
    )


def _why_sum(first: float, world_size: int) -> str:
    if not math.isfinite(first) or first < 0 or first != int(first):
        return "a buffer was read before anything was received into it."
    digits = [int(d) for d in reversed(str(int(first)).zfill(world_size))]
    missing = [r for r in range(world_size) if digits[r] == 0]
    twice = [r for r, d in enumerate(digits) if d > 1]
    if missing:
        return f"the number of rank {missing[0]} is missing: did it add its own before it sent?"
    if twice:
        return f"the number of rank {twice[0]} was added {digits[twice[0]]} times."
    return ""


_RELAY_CASES = [(1, 3), (2, 1), (3, 4), (4, 5), (7, 2)]


@check(
    "lesson_01.relay",
    judge=_judge_relay,
    cases=[{"world_size": n, "n_elements": k, "closed": False} for n, k in _RELAY_CASES],
    ok="the sum arrives where it should, in as few messages as there are steps.",
    hint="hint 2 of exercise 1.3",
)
def relay(worker, /, world_size: int, n_elements: int, closed: bool):
    """A tensor travels along the ranks, each adds its own; `closed` brings it back to rank 0."""

    def worker_and_numbers(rank: int, size: int, numbers: list[torch.Tensor]):
        return worker(rank, size, numbers, closed), numbers

    data = observe(_free(worker_and_numbers, world_size, _numbers(world_size, n_elements)))
    if data["deadlock"] is None:
        data["owns_after"] = [pair[1] for pair in data["results"]]
        data["results"] = [pair[0] for pair in data["results"]]
    return data


# 1.4 ---------------------------------------------------------------------------------------------------------


def _judge_hang(table: Any, rank: int) -> None:
    answer = table.get(rank, table.get(str(rank))) if isinstance(table, dict) else None
    if answer is None or not isinstance(answer, list) or len(answer) != 2 or answer[1] is None:
        raise CheckFailed(
            f'waits[{rank}] must be a pair: (the call it stands in, the rank it waits for), as ("recv", 3).'
        )
    try:
        simulate(programs.everybody_sends, 4, compute="free", echo=False)
    except Deadlock as error:
        row = next(w for w in error.rows if w.rank == rank)
    if answer[0] != row.op:
        raise CheckFailed(
            f"waits[{rank}]: rank {rank} does not stand in {answer[0]!r}.",
            cause="look at the column `waits in`, and at the line it names.",
        )
    if type(answer[1]) is not int or (answer[1],) != tuple(row.peers):
        raise CheckFailed(
            f"waits[{rank}]: rank {rank} does not wait for rank {answer[1]!r}.",
            cause="a send waits for the rank that it sends to, until that one receives.",
        )


@check(
    "lesson_01.read_a_hang",
    judge=_judge_hang,
    cases=[{"rank": r} for r in range(4)],
    ok="the table was read rightly for all four ranks.",
    hint="hint 1 of exercise 1.4",
)
def read_a_hang(waits, /, rank: int):
    """What each rank of `everybody_sends` waits for; the judge runs it."""
    return waits


def _judge_shift(data: dict[str, Any], world_size: int, way: str) -> None:
    what = f"{way} with {world_size} ranks"
    require_no_deadlock(data, what, cause=_why_shift_hangs(way, world_size))
    for rank in range(world_size):
        expected = 10.0 ** ((rank - 1) % world_size)
        got = _number(data["results"][rank])
        if got != expected:
            left = (rank - 1) % world_size
            cause = f"rank {rank} must return what rank {left}, its left neighbour, sent."
            if got == 10.0 ** ((rank + 1) % world_size):
                cause = "the number went to the left; send to (rank + 1) % world_size."
            elif got == 10.0**rank:
                cause = "the rank returned its own number: was it received into another tensor?"
            raise CheckFailed(
                f"{what}: rank {rank} returned {data['results'][rank]!r}, expected {expected:g}.", cause=cause
            )
    trace = _ledger(data)
    _no_collective(trace, what)
    _require_messages(trace, what, {(r, (r + 1) % world_size): 1 for r in range(world_size)})
    asynchronous = sorted(trace.ops & {"isend", "irecv"})
    if way == "shift_by_parity" and asynchronous:
        raise CheckFailed(f"{what}: called {', '.join(asynchronous)}; this repair needs send and recv only.")
    if way == "shift_at_once" and not asynchronous:
        raise CheckFailed(f"{what}: only blocking calls; this repair starts with isend or irecv.")
    _require_shift_rounds(trace, what, way, world_size)
    for event in trace.of_op("isend", "irecv"):
        if event.waited is None:
            raise CheckFailed(
                f"{what}: every value is right, but rank {event.rank} never waits for its {event.op}.",
                cause="until wait() has returned the buffer is not yours: keep what isend gives back, and wait for it.",
            )


def _why_shift_hangs(way: str, world_size: int) -> str:
    if way == "shift_at_once":
        return "something is waited for before the other half is posted: start the isend, receive, and only then wait."
    if world_size % 2:
        return "with an odd number of ranks two neighbours have the same parity; one of them must still receive first."
    return "all ranks call in the same order: let even ranks send first and odd ranks receive first."


def _require_shift_rounds(trace: Trace, what: str, way: str, world_size: int) -> None:
    most = 1 if way == "shift_at_once" else 2 + world_size % 2
    if trace.rounds > most:
        raise CheckFailed(
            f"{what}: every value is right, but it takes {trace.rounds} rounds of messages; {most} are enough.",
            cause="the ranks go one after another: a rank receives only when its left neighbour is done."
            if way == "shift_by_parity"
            else "post the send before you wait for anything, so that all messages travel at the same time.",
        )


def _shift_check(way: str, ok: str, hint: str):
    @check(
        f"lesson_01.{way}",
        judge=_judge_shift,
        cases=[{"world_size": n, "way": way} for n in (2, 4, 3, 5, 8)],
        ok=ok,
        hint=hint,
    )
    def shift(worker, /, world_size: int, way: str):
        """Every rank sends 10**rank to the right and returns what came from the left."""
        return observe(_free(worker, world_size, [10.0**r for r in range(world_size)]))

    return shift


shift_by_parity = _shift_check(
    "shift_by_parity", "no hang with 2 to 8 ranks, send and recv only, even ranks first.", "hint 2 of exercise 1.4"
)
shift_at_once = _shift_check(
    "shift_at_once", "no hang with 2 to 8 ranks, and all messages travel in one round.", "hint 3 of exercise 1.4"
)


# 1.5 ---------------------------------------------------------------------------------------------------------


def _judge_time_message(
    data: dict[str, Any], n_bytes: int, repeats: int, latency_s: float, bandwidth_Bps: float
) -> None:
    what = f"time_message of {n_bytes} bytes, {repeats} times"
    require_no_deadlock(data, what, cause="rank 0 sends then receives; rank 1 receives then sends.")
    trace = _ledger(data)
    sizes = {e.n_bytes for e in trace.of_rank(0).of_op("send", "isend")}
    if sizes != {n_bytes}:
        raise CheckFailed(
            f"{what}: rank 0 sent messages of {sorted(sizes)} bytes.",
            cause="n_bytes counts bytes: a tensor of dtype uint8 has one byte an element.",
        )
    got, expected = _number(data["results"][0]), Network(latency_s, bandwidth_Bps).message_s(n_bytes)
    if got is not None and math.isclose(got, expected, rel_tol=1e-6):
        return
    raise CheckFailed(
        f"{what} on a link of {latency_s:g} s and {bandwidth_Bps:g} B/s: rank 0 returned {data['results'][0]!r} s, "
        f"expected {expected:g} s.",
        cause=_why_time(got, expected, repeats),
    )


def _why_time(got: float | None, expected: float, repeats: int) -> str:
    if got is None:
        return "rank 0 returns the seconds of one message as a float."
    if math.isclose(got, 2 * expected, rel_tol=1e-6):
        return "that is there and back: a round trip is two messages."
    if math.isclose(got, 2 * repeats * expected, rel_tol=1e-6) or math.isclose(got, repeats * expected, rel_tol=1e-6):
        return "that is all repeats together: divide by the number of messages."
    if got < 1e-9:
        return "an isend that nobody waits for takes no time: time the whole round trip."
    return "start the clock just before the first send, stop it after the last receive, divide by the messages."


@check(
    "lesson_01.time_message",
    judge=_judge_time_message,
    cases=[
        {"n_bytes": 1, "repeats": 1, "latency_s": 0.5, "bandwidth_Bps": 100.0},
        {"n_bytes": 1000, "repeats": 4, "latency_s": 1e-3, "bandwidth_Bps": 1e6},
    ],
    ok="the time of one message is right on two virtual links.",
    hint="hint 1 of exercise 1.5",
)
def time_message(worker, /, n_bytes: int, repeats: int, latency_s: float, bandwidth_Bps: float):
    """Ping-pong on a virtual link whose cost is known."""
    network = Network(latency_s, bandwidth_Bps)
    return observe(lambda: simulate(worker, 2, (n_bytes, repeats), network=network, compute="free", echo=False))


def _link_times(latency_s: float, bandwidth_Bps: float, noise: float) -> tuple[list[int], list[float]]:
    """Sizes 1 B to 16 MB and their times, each off by up to `noise` of itself, the same every time."""
    sizes = [4**k for k in range(13)]
    signs = [1, -1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 0]
    link = Network(latency_s, bandwidth_Bps)
    return sizes, [link.message_s(size) * (1 + noise * sign) for size, sign in zip(sizes, signs)]


def _judge_fit(data: Any, latency_s: float, bandwidth_Bps: float, noise: float) -> None:
    what = f"fit_link of a link of {latency_s:g} s and {bandwidth_Bps:g} B/s" + (
        f", noise {noise:.0%}" if noise else ""
    )
    numbers = [_number(v) for v in data] if isinstance(data, list) else []
    if len(numbers) != 2 or None in numbers:
        raise CheckFailed(f"{what}: returned {data!r}; return the pair (latency_s, bandwidth_Bps).")
    for name, got, expected in (("latency_s", numbers[0], latency_s), ("bandwidth_Bps", numbers[1], bandwidth_Bps)):
        if not math.isclose(got, expected, rel_tol=1e-6 + 2 * noise):
            raise CheckFailed(
                f"{what}: {name} is {got:g}, expected {expected:g} within {1e-6 + 2 * noise:.2g}.",
                cause=_why_fit(name, got, expected, noise, numbers, bandwidth_Bps),
            )


def _why_fit(name: str, got: float, expected: float, noise: float, numbers: list[Any], bandwidth_Bps: float) -> str:
    if math.isclose(numbers[0], bandwidth_Bps, rel_tol=0.5):
        return "the two are swapped: latency first."
    if name == "bandwidth_Bps" and math.isclose(got * expected, 1, rel_tol=0.5):
        return "that is seconds per byte, the slope; bandwidth is one over it."
    if name == "latency_s" and got == 0:
        return "latency is the line's value at 0 bytes, not 0."
    if noise:
        return "one big message outweighs the small ones: divide each equation by its time, so that all count alike."
    return "time = latency + bytes / bandwidth is a line in the number of bytes."


@check(
    "lesson_01.fit_link",
    judge=_judge_fit,
    cases=[
        {"latency_s": 1e-3, "bandwidth_Bps": 1e6, "noise": 0.0},
        {"latency_s": 2e-5, "bandwidth_Bps": 3e9, "noise": 0.05},
    ],
    ok="latency and bandwidth were found, with and without noise.",
    hint="hint 2 of exercise 1.5",
)
def fit_link(fit, /, latency_s: float, bandwidth_Bps: float, noise: float):
    """(latency_s, bandwidth_Bps) of a line through sizes and times."""
    return list(fit(*_link_times(latency_s, bandwidth_Bps, noise)))
