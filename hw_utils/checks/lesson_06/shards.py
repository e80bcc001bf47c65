"""What lesson 06's checks of data and tensor parallelism share: problems from a seed, words for wrong numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hw_utils.checks import drawn_numbers
from hw_utils.checks.common_mistakes import cause_of_error
from hw_utils.core.errors import CheckFailed, Deadlock, Failure, WorkerFailed, ranks_text
from hw_utils.material.by_hand.interface import interface
from hw_utils.threads.rendezvous import run_in_turns

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_SHAPES = ("shape", "size", "dimension", "same device", "must match", "divis")


def strict(judge: Callable[..., None]) -> Callable[..., None]:
    """The judge, with a ValueError for data of another shape than the driver's."""

    @functools.wraps(judge)
    def judge_strictly(data: Any, **case: Any) -> None:
        try:
            judge(data, **case)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"this is not what the driver returns: {type(error).__name__}: {error}") from error

    return judge_strictly


def n_ranks(world_size: int) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{world_size} rank{'' if world_size == 1 else 's'}"


def random_tensor(seed: int, *shape: int, dtype: str = "float64") -> torch.Tensor:
    """Numbers that both the driver and the judge can make."""
    generator = torch.Generator().manual_seed(drawn_numbers.seed(seed))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])


def part_on(rank: int, tensor: torch.Tensor, world_size: int, axis: int, seed: int) -> torch.Tensor:
    """A copy for one rank, which needs its own part only: with drawn numbers, the other parts are others on each."""
    if not drawn_numbers.are_salted():
        return tensor.clone()
    parts = list(random_tensor(1000 * seed + rank, *tensor.shape).to(tensor.dtype).chunk(world_size, axis))
    parts[rank] = tensor.chunk(world_size, axis)[rank]
    return torch.cat(parts, axis)


def run_ranks(
    worker: Callable[[int, Any], Any],
    world_size: int,
    prepare: Callable[[Any], None] | None = None,
    refuses: Callable[[int], bool] = lambda rank: False,
    timeout_s: float = 8.0,
) -> dict[str, Any]:
    """Plain data of `worker(rank, context)` on every rank: results and calls, or the crash or hang it ended in.

    A shape that does not fit, or a hang, is data that the judge explains; any other error is the student's own.
    refuses: whether a ValueError of a rank is such data, too, whatever it says.
    """
    try:
        results, calls = run_in_turns(
            lambda rank, context: worker(rank, interface(context)),
            world_size,
            prepare and (lambda context: prepare(interface(context))),
            timeout_s,
        )
    except Deadlock as error:
        return {"hang": str(error)}
    except WorkerFailed as error:
        first = error.failures[0]
        is_refusal = isinstance(first.exception, ValueError) and refuses(first.rank)
        if is_refusal or (
            isinstance(first.exception, RuntimeError | ValueError | IndexError) and _is_about_shapes(first)
        ):
            at = f"{first.where}: {first.where.source}" if first.where else ""  # none in what the check itself calls
            return {"crash": {"rank": first.rank, "reason": first.reason, "at": at}}
        raise
    return {"results": results, "calls": calls}


def _is_about_shapes(failure: Failure) -> bool:
    return any(word in failure.reason for word in _SHAPES)


def require_results(data: Any, what: str, *, crash_cause: str = "") -> tuple[list, list]:
    """(results, calls) of what `run_ranks` gave.

    Raises:
        CheckFailed: it crashed or hung.
    """
    if not isinstance(data, dict) or not {"hang", "crash", "results"} & set(data):
        raise ValueError("this is not what the driver returns")
    if "hang" in data:
        cause = "every rank must make the same calls, in the same order"
        raise CheckFailed(f"{what}: {data['hang']}", cause=cause)
    if "crash" in data:
        crash = data["crash"]
        cause = cause_of_error(crash["reason"]) if "dtype" in crash["reason"] else crash_cause
        at = f"\n    {crash['at']}" if crash["at"] else ""
        raise CheckFailed(f"{what}: rank {crash['rank']}: {crash['reason']}{at}", cause=cause)
    return data["results"], data["calls"]


def require_array(got: Any, shape: tuple[int, ...], what: str, *, cause: str = "", none: str = "") -> np.ndarray:
    """The array, if it is one of this shape and of finite numbers. cause: of another shape; none: of None.

    Raises:
        CheckFailed: it is not.
    """
    if got is None:
        raise CheckFailed(f"{what} is not a tensor but None", cause=none or "nothing comes back: `return` is missing")
    if not isinstance(got, np.ndarray):
        kind = got.get("unknown", "dict") if isinstance(got, dict) else type(got).__name__
        raise CheckFailed(f"{what} is not a tensor but {kind}", cause="a torch.Tensor is asked for, and only one")
    if got.shape != tuple(shape):
        raise CheckFailed(f"{what} has shape {got.shape}, expected {tuple(shape)}", cause=cause)
    if not np.isfinite(got).all():
        raise CheckFailed(
            f"{what} has {int((~np.isfinite(got)).sum())} values that are not finite numbers",
            cause="nan is 0 / 0, the mean of nothing for example; inf a number by 0",
        )
    return got


FEW_DIGITS = 2e-3


def distance(got: np.ndarray, expected: Any) -> float:
    """The largest difference, relative to the largest expected value; infinite if shapes differ or for NaN."""
    expected = np.asarray(expected)
    if got.shape != expected.shape:
        return math.inf
    if not got.size:
        return 0.0
    scale = max(float(np.abs(expected).max()), 1e-30)
    far = float(np.abs(got.astype("f8") - expected.astype("f8")).max()) / scale
    return far if math.isfinite(far) else math.inf


def require_parts(got: list, expected: list, what: str, limit: float, causes: dict[str, Any]) -> None:
    """Raises CheckFailed unless every rank's array is as expected; says how it differs, if that is known.

    `causes`: what to say for "shape" (a function of it, if it matters which), "none", "partial" (the ranks' arrays
    add up to the right one), "times N", "mean", "other" (another rank's part), "part" (right where it is not zero),
    "order" (the right numbers, elsewhere), and "" for the rest.
    """
    for rank, (mine, right) in enumerate(zip(got, expected)):
        cause = causes.get("shape", "")
        if isinstance(mine, np.ndarray):
            cause = cause(mine.shape) if callable(cause) else cause
            cause = causes.get("transpose", "it is the transpose") if mine.shape == right.shape[::-1] else cause
        none = causes.get("none", "")
        mine = require_array(mine, right.shape, f"{what} on rank {rank}", cause=cause, none=none)
        far = distance(mine, right)
        if not far <= limit:
            text, cause = _difference(rank, got, expected, limit, causes)
            raise CheckFailed(
                f"{what} on rank {rank} is wrong: off by {far:.2g} of its largest value, at most {limit:.0e} is "
                f"allowed{text}",
                cause=cause,
            )


_ANYWHERE = {
    "zeros": "it is still zero: what is computed is never put there.",
    "times N": "nothing is counted once for each rank.",
    "mean": "nothing is divided by the number of ranks.",
    "not rank 0": "every rank has the result, not rank 0 alone: no `if rank == 0`.",
    "digits": "digits are lost on the way: compute in the dtype of what came in, and change no number.",
}


def _difference(rank: int, got: list, expected: list, limit: float, causes: dict[str, Any]) -> tuple[str, str]:
    n, mine, right = len(got), got[rank], expected[rank]
    causes = causes if causes.get("") else {**_ANYWHERE, **causes}
    if not np.abs(mine).any():
        return "; it is all zeros", causes.get("zeros", causes.get("", ""))
    if distance(np.where(mine == 0, right, mine), right) <= limit:
        return "; it is right where it is not zero", causes.get("part", causes.get("", ""))
    if n > 1:
        if distance(mine, right * n) <= limit:
            return f"; it is {n} times too large", causes.get("times N", causes.get("", ""))
        if distance(mine * n, right) <= limit:
            return f"; it is {n} times too small", causes.get("mean", causes.get("", ""))
        same_shape = all(isinstance(g, np.ndarray) and g.shape == right.shape for g in got)
        if same_shape and distance(sum(got), right) <= limit:
            return "; the ranks' results add up to the right one", causes.get("partial", causes.get("", ""))
        others = [r for r in range(n) if r != rank and distance(mine, expected[r]) <= limit]
        if others:
            return f"; it is that of {ranks_text(others)}", causes.get("other", causes.get("", ""))
        if same_shape and distance(mine, sum(expected)) <= limit:
            return "; it is the sum over all ranks", causes.get("summed", causes.get("", ""))
    if distance(np.sort(mine, axis=None), np.sort(right, axis=None)) <= limit:
        return "; the numbers are right, in other places", causes.get("order", causes.get("", ""))
    if n > 1 and rank > 0 and distance(got[0], expected[0]) <= limit:
        return "; rank 0's is right", causes.get("not rank 0", causes.get("", ""))
    return "", causes.get("digits" if distance(mine, right) <= FEW_DIGITS else "", causes.get("", ""))


_INSTEAD = {  # with the right values, by the call that was made
    "all_reduce": "parts padded with zeros and added up have the right values, and every rank sends the whole, not its "
    "part: all_gather the parts, and put them side by side",
    "all_gather": "all shares, added up on every rank, have the right values, and every rank gets N of them instead of "
    "their sum: all_reduce the share",
}


def require_calls(calls: list, world_size: int, expected: dict[str, int], what: str, causes: dict[str, str]) -> None:
    """Raises CheckFailed unless every rank made the expected calls; `causes` by "all_gather more", "... fewer"."""
    for rank in range(world_size):
        mine = [c["call"] for c in calls if c["rank"] == rank]
        made = {call: mine.count(call) for call in ("all_gather", "all_reduce")}
        wrong = [call for call in made if made[call] != expected.get(call, 0)]
        over = [call for call in wrong if made[call] > expected.get(call, 0)]
        if len(wrong) == 2 and len(over) == 1:
            a, b = over[0], wrong[1 - wrong.index(over[0])]
            counts = f"{made[a]} {a} on rank {rank} and {made[b]} {b}, expected {expected.get(a, 0)} and {expected[b]}"
            raise CheckFailed(f"{what} is right, but makes {counts}", cause=_INSTEAD[a])
        for call in wrong:
            key = f"{call} {'more' if made[call] > expected.get(call, 0) else 'fewer'}"
            if call not in expected and f"{call} none" in causes:
                key = f"{call} none"
            raise CheckFailed(
                f"{what} makes {made[call]} {call} on rank {rank}, expected {expected.get(call, 0)}",
                cause=causes.get(key, ""),
            )


def require_layers_calls(
    calls: list, world_size: int, expected: dict[str, int], what: str, causes: dict[str, str], is_forward_right: bool
) -> None:
    """The same for a layer's passes; with backward these are 3 forward and 2 backward passes on every rank."""
    try:
        require_calls(calls, world_size, expected, what, causes)
    except CheckFailed as error:
        mine = [c["call"] for c in calls if c["rank"] == 0]
        off = [mine.count(call) - expected.get(call, 0) for call in ("all_gather", "all_reduce")]
        is_of_forward = sum(expected.values()) > 1 and all(n % 3 == 0 for n in off) and any(n % 2 for n in off)
        if is_forward_right and not is_of_forward:
            raise
        cause = "the calls of forward are among them, whose output is wrong: its own check comes first and says more"
        if is_forward_right:
            cause = "those of its 3 forward passes are others than they should be: forward's own check says more"
        raise CheckFailed(error.message, cause=cause) from None


def require_unchanged(results: list, what: str) -> None:
    for rank, result in enumerate(results):
        if result["changed"]:
            raise CheckFailed(
                f"{what}: {result['changed'][0]} itself is changed on rank {rank}",
                cause="the caller's tensors stay as they are: *= and copy_ write into them, so work on a copy",
            )


def require_weights_dtype(weights: list, dtype: str, what: str) -> None:
    for rank, weight in enumerate(weights):
        if isinstance(weight, np.ndarray) and str(weight.dtype) != dtype:
            raise CheckFailed(
                f"{what}: rank {rank} keeps its part of the weight as {weight.dtype}",
                cause="it stays in the dtype that it came in: a clone of the slice has it, and so has what is made "
                "from it",
            )
