"""Judges of lesson 04's predictions: calls, bytes and seconds, beside what the ledger has of the student's own code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hw_utils.checks.check import require_no_deadlock
from hw_utils.checks.lesson_04.loop_judge import number
from hw_utils.core.errors import CheckFailed
from hw_utils.core.trace import Trace

TENSOR_BYTES = 240 * 4  # of one parameter of the model that is run
_SAME_S = 1e-9
_OWN_FIRST = "the formula is compared with your own function, and that hangs: its own check comes first and says more."


def judge_calls(data: Any, measured: Mapping[str, int]) -> None:
    for method, expected in measured.items():
        said = data.get(method) if isinstance(data, dict) else None
        if said is None:
            raise CheckFailed(
                f"calls[{method!r}] is not filled in.",
                cause='calls is a dictionary with two numbers: {"all_reduce": ..., "ddp": ...}.',
            )
        got = number(said, f"calls[{method!r}]")
        if got != expected:
            raise CheckFailed(
                f"calls[{method!r}]: VGG-11 needs another number of all-reduces an iteration than {got:g}.",
                cause=_why_calls(got, method, measured),
            )


def _why_calls(got: float, method: str, measured: Mapping[str, int]) -> str:
    other = measured["ddp" if method == "all_reduce" else "all_reduce"]
    if got == other:
        return f"that is the other method's number: {method!r} is asked."
    if got == 3 * measured[method] and method == "all_reduce":
        return "that is a run of three iterations: one iteration is asked."
    if got == 4 * measured[method]:
        return "that is all four ranks together: one rank is asked."
    if got in (12 * measured[method], 3 * measured[method]):
        return "that is more than one iteration, or more than one rank: what one rank starts in one iteration is asked."
    if method == "all_reduce":
        return "count the tensors in model.parameters(), biases and batch norm included."
    if got == 2:
        return (
            "all bytes over 25 MiB, rounded up, are another number: a bucket holds whole tensors, and the first one is "
            "full at 1 MiB. Count the bars of a later iteration in the picture."
        )
    return "look at a later iteration: DistributedDataParallel arranges its buckets after the first one."


def judge_bytes(data: Any, method: str, world_size: int) -> None:
    require_no_deadlock(data, method, cause=_OWN_FIRST)
    trace = Trace.from_plain(data["trace"])
    _require_traffic(trace, method, world_size, data["n_bytes"])
    for rank, said in enumerate(data["said"]):
        got, sent = number(said, f"bytes_sent({method!r}, {rank}, ...)"), trace.bytes_sent(rank)
        if math.isclose(got, sent, rel_tol=1e-9, abs_tol=0.5):
            continue
        causes = (
            (trace.bytes_sent(0), "this is rank 0's; the other ranks send something else."),
            (trace.bytes_sent(world_size - 1), "this is what the others send; rank 0 is the root."),
            (2 * sent, "twice too many: only what this rank sends is asked, not what it receives, nor what all send."),
            (4 * sent, "n_bytes counts bytes already, not elements."),
            (sent / 4, "these are elements: bytes are asked, and n_bytes counts them already."),
            (8 * sent, "these are bits: bytes are asked."),
            (sent / 1e6, "these are megabytes: bytes are asked."),
            (sent / 1e3, "these are kilobytes: bytes are asked."),
            (
                sent * world_size / max(world_size - 1, 1),
                "a ring takes N - 1 steps a phase, one chunk of 1/N each: 2 (N - 1) / N of all bytes, not twice them."
                if method == "all_reduce"
                else "a rank sends nothing to itself.",
            ),
            (
                sent / 2,
                "half of it: a ring has two phases." if method == "all_reduce" else "half of what this rank sends.",
            ),
            (
                sum(trace.bytes_sent(r) for r in range(world_size)) / world_size,
                "that is the mean over the ranks: each has its own number.",
            ),
            (sum(trace.bytes_sent(r) for r in range(world_size)), "that is what all ranks send together."),
            (
                (3 if method == "gather_scatter" else 1.5) * data["n_bytes"],
                "that is with 4 ranks, however many there are: N is world_size.",
            ),
            (
                data["n_bytes"],
                "that is the whole model once: is 2 (N - 1) / N cut down to 1 (//), or the method not asked?",
            ),
        )
        raise CheckFailed(
            f"bytes_sent({method!r}, rank={rank}, world_size={world_size}, ...) is {_bytes_text(got)};"
            f" the ledger says {sent:,}.",
            cause=_why_own_function(trace, method) or _why_bytes(got, causes, world_size, rank),
        )
    _judge_odd_bytes(data, trace, method, world_size)


def _bytes_text(n_bytes: float) -> str:
    return f"{n_bytes:,.0f}" if n_bytes == int(n_bytes) else f"{n_bytes:,.6g}"


def _require_traffic(trace: Trace, method: str, world_size: int, n_bytes: int) -> None:
    """A formula counts only beside functions that do something: every rank's gradients have to leave it."""
    sent, least = sum(trace.bytes_sent(rank) for rank in range(world_size)), (world_size - 1) * n_bytes
    if sent < least:
        raise CheckFailed(
            f"your own {method} with {world_size} ranks sends {sent:,} bytes, the least is {least:,}.",
            cause="the formula is compared with your own functions: write these two first, in 4.2 and 4.3.",
        )


def _judge_odd_bytes(data: Any, trace: Trace, method: str, world_size: int) -> None:
    """A model of 1,001 bytes sends as much for each byte as the one that was run."""
    for rank, said in enumerate(data["odd"]):
        got, due = number(said, f"bytes_sent({method!r}, {rank}, ...)"), trace.bytes_sent(rank) / data["n_bytes"] * 1001
        if abs(got - due) > 0.5:  # to the byte
            raise CheckFailed(
                f"bytes_sent({method!r}, rank={rank}, world_size={world_size}, n_bytes=1001) is {got:,.2f}; by the"
                f" ledger's share it is {due:,.2f}.",
                cause="a chunk may be a fraction of a byte on paper: / and not //, and nothing is rounded.",
            )


def _why_bytes(got: float, causes, world_size: int, rank: int) -> str:
    if world_size == 1 and got:
        return "one rank has nobody to send to."
    if not got and rank:
        return "every rank sends something: with gather/scatter its gradients to the root."
    return next((text for value, text in causes if math.isclose(got, value, rel_tol=1e-9)), "")


_CALLS = {"gather_scatter": {"gather", "scatter"}, "all_reduce": {"all_reduce"}}


def _why_own_function(trace: Trace, method: str) -> str:
    """A formula for the right calls does not fit a function that makes others."""
    others = sorted(trace.ops - _CALLS.get(method, trace.ops))
    return (
        f"your own {method} calls {', '.join(others)}: first the checks of its own exercise, then the formula."
        if others
        else ""
    )


def judge_predicted_s(data: Any, method: str, world_size: int, n_tensors: int) -> None:
    require_no_deadlock(data["run"], method, cause=_OWN_FIRST)
    trace = Trace.from_plain(data["run"]["trace"])
    _require_traffic(trace, method, world_size, n_tensors * TENSOR_BYTES)
    got, measured = number(data["said"], "predicted_s"), number(data["run"]["seconds"], "the measured time")
    _require_own_waits(trace, method, world_size)
    _require_no_rest(trace, method, world_size, data["one_node_s"] / world_size, measured)
    if math.isclose(got, measured, rel_tol=1e-6):
        return
    known = _mistakes(data, measured, world_size, n_tensors, method)
    cause = _why_own_function(trace, method) or _why_own_calls(trace, method, n_tensors, got, measured, data)
    cause = cause or next((text for text, value in known if math.isclose(got, value, rel_tol=1e-6)), "")
    if not cause and math.isclose(got, measured, rel_tol=1e-2):
        cause = "right to two digits, so rounded: return it as it is."
    if not cause and world_size == 1:
        cause = "one rank has nobody to send to, and the compute to itself."
    raise CheckFailed(
        f"predicted_s({method!r}, world_size={world_size}, ...) is {got:.6g} s; your own code takes {measured:.6g} s.",
        cause=cause,
    )


def _require_own_waits(trace: Trace, method: str, world_size: int) -> None:
    """Seconds count only beside functions that wait for what they start: else the messages' time is not in them."""
    left = next((event for event in trace if event.waited is None), None)
    if left:
        raise CheckFailed(
            f"your own {method} with {world_size} ranks never waits for its {left.op}, so its seconds lack messages.",
            cause="the formula is compared with your own functions: the check of 4.2 or 4.3 comes first, says more.",
        )


def _why_own_calls(
    trace: Trace, method: str, n_tensors: int, got: float, measured: float, data: Mapping[str, Any]
) -> str:
    """Where a formula for so many calls as there are tensors meets a function that makes fewer."""
    calls = len(trace.of_rank(0).of_op(*_CALLS.get(method, ()))) / len(_CALLS.get(method, "-"))
    if not calls or calls == n_tensors:
        return ""
    latency_s = measured - number(data["no_latency_s"], "the time without latency")
    if not math.isclose(got, measured + (n_tensors / calls - 1) * latency_s, rel_tol=1e-6):
        return ""
    return (
        f"your own {method} makes {calls:g} call{'s' * (calls != 1)} for {n_tensors} tensors, the formula counts "
        f"{n_tensors}: 4.2 and 4.3 ask one for each parameter. Repair the function, not the formula."
    )


def _require_no_rest(trace: Trace, method: str, world_size: int, compute_s: float, seconds: float) -> None:
    """Seconds count only beside functions whose time is that of their messages: no rank rests between or after them."""
    until = [compute_s] * world_size
    for rank in range(world_size):
        calls = sorted(_standing_still(trace, rank))
        for start_s, end_s in calls:
            if start_s <= until[rank] + _SAME_S:
                until[rank] = max(until[rank], end_s)
        if calls and until[rank] < calls[-1][1] - _SAME_S:
            _refuse_rest(method, world_size, rank, until[rank])
    if max(until) < seconds - _SAME_S:
        _refuse_rest(method, world_size, until.index(max(until)), max(until))


def _standing_still(trace: Trace, rank: int) -> list[tuple[float, float]]:
    """When the rank was in a call that communicates, or in the wait for one."""
    return [
        (e.start_s, e.end_s) if e.waited == e.order else (e.wait_start_s, e.wait_end_s)
        for e in trace.of_rank(rank)
        if e.waited is not None
    ]


def _refuse_rest(method: str, world_size: int, rank: int, since_s: float) -> None:
    raise CheckFailed(
        f"your own {method} with {world_size} ranks lets time pass outside of its calls, on rank {rank} from "
        f"{since_s:.6g} s on.",
        cause="the formula is compared with your own functions: in 4.2 and 4.3 nothing sleeps.",
    )


_REPORTS = (50e-6, 125e6)  # latency, bandwidth: of the cluster of which the lesson tells


def _mistakes(data: Any, measured: float, world_size: int, n_tensors: int, method: str) -> list[tuple[str, float]]:
    """(cause, the seconds that it leads to), from the run's own compute, latencies and bytes."""
    compute_s = data["one_node_s"] / world_size
    bytes_s = number(data["no_latency_s"], "the time without latency") - compute_s
    latency_s = measured - compute_s - bytes_s

    def total(compute: float = 1.0, latency: float = 1.0, n_bytes: float = 1.0) -> float:
        return compute * compute_s + latency * latency_s + n_bytes * bytes_s

    root, itself = method == "gather_scatter", world_size / max(world_size - 1, 1)
    every = "every tensor is a collective of its own: the latency is paid for each, and the bytes of all add up."
    found = [
        ("seconds are asked, these are milliseconds.", 1e3 * measured),
        ("the compute is shared: every rank has 1/N of the batch.", total(compute=world_size)),
        ("the compute is missing, or hides behind the messages (max): nothing overlaps.", total(compute=0)),
        ("the messages are missing, or hide behind the compute (max): nothing overlaps.", compute_s),
        ("these are bits: bandwidth_Bps is in bytes a second, and n_bytes in bytes.", total(n_bytes=8)),
        ("n_bytes counts bytes already, not elements.", total(n_bytes=4)),
        ("the latency is missing: every message pays it.", total(latency=0)),
        ("half of the latencies: the way there pays them, and the way back.", total(latency=0.5)),
        ("the bytes are missing.", total(n_bytes=0)),
        (
            "a gather and a scatter, one after the other: the way there and the way back."
            if root
            else "half of the messages: a ring has two phases.",
            total(latency=0.5, n_bytes=0.5),
        ),
        (every, total(latency=1 / n_tensors)),
        ("n_bytes is of all tensors together: nothing is divided by n_tensors.", total(n_bytes=1 / n_tensors)),
        ("n_bytes is of all tensors together already.", total(n_bytes=n_tensors)),
        (every, total(latency=1 / n_tensors, n_bytes=1 / n_tensors)),
        ("the latency is paid by every message, one after the other.", total(latency=0.5 / (world_size - 1 or 1))),
        (every, total(latency=0.5 / n_tensors / (world_size - 1 or 1))),
        ("N - 1 others: nobody sends to itself.", total(latency=itself, n_bytes=itself)),
    ]  # fmt: skip
    others = 1 / max(world_size - 1, 1)
    one_each = "each of the N - 1 messages of a phase pays the latency, one after the other, for each tensor."
    found += [
        (one_each, total(latency=others)),
        (one_each, total(latency=1 / world_size)),
        ("the compute is divided by 4, however many ranks there are.", total(compute=world_size / 4)),
    ]
    if isinstance(data.get("network"), list) and len(data["network"]) == 2 and latency_s and bytes_s:
        given = [number(value, "the network") for value in data["network"]]
        other = total(latency=_REPORTS[0] / given[0], n_bytes=given[1] / _REPORTS[1])
        found.append(("these are the report's latency and bandwidth: network brings its own.", other))
    found.append(
        (
            "N - 1 messages, one after the other, and that twice: a port takes one at a time.",
            total(latency=others, n_bytes=others),
        )
    )
    if root:
        found.append(("the port brings in what is gathered as well: as many bytes as it sends.", total(n_bytes=0.5)))
        found.append(
            (
                "the N - 1 messages of a gather share the root's port, too.",
                total(latency=world_size * others / 2, n_bytes=world_size * others / 2),
            )
        )
        found.append(("a gather or scatter moves whole tensors: no chunk of 1/N.", total(n_bytes=1 / world_size)))
    elif method == "all_reduce":
        found += [("a message of a ring is one chunk: 1/N of the tensor.", total(n_bytes=world_size))]
    return [(cause, value) for cause, value in found if not math.isclose(value, measured, rel_tol=1e-6)]
