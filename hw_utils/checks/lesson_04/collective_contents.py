"""What a rank's collectives carry: traffic of the right size with other numbers than gradients synchronises nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from hw_utils.checks.lesson_04.own_shares import Iteration, require_own_shares
from hw_utils.core.errors import CheckFailed

_SAME = 1e-2  # of the whole: an answer that rounds, or leaves out a little, has sent its gradients all the same


def note_inputs() -> list[list[Any]]:
    """From now on each collective of the calling rank adds [kind, copies of what it puts in]."""
    group, noted = dist.group.WORLD, []
    engine, rank = group.engine, group.rank()
    make = engine.collective

    def collective(group: Any, post: Any, outer: Any) -> Any:
        if group.members.ranks[group.place] == rank:  # ranks may share an engine
            noted.append([post.kind, [t.detach().clone().flatten() for t in post.inputs]])
        return make(group, post, outer)

    engine.collective = collective
    return noted


def require_gradients(who: str, carried: Sequence[Any], gradients: dict[str, list[np.ndarray]]) -> None:
    """Raises CheckFailed unless what went in is made of gradients, in whatever proportion.

    carried: each rank's of `note_inputs`; gradients: name -> what each rank starts with. A rank puts its own in,
    and the root of a scatter a mixture of all.
    """
    for rank, calls in enumerate(carried):
        for kind in dict.fromkeys(kind for kind, _ in calls):
            tensors = [np.asarray(t, "f8") for other, inputs in calls if other == kind for t in inputs]
            for name, each in gradients.items():
                sources = each if kind == "scatter" else [each[rank]]
                sent = [t for t in tensors if t.size == each[rank].size]
                if sent and np.any(sources) and not all(is_made_of(t, sources) for t in sent):
                    if _are_cut_elsewhere(tensors, [own[rank] for own in gradients.values()]):
                        raise CheckFailed(
                            f"{who}: what rank {rank} puts into {kind} are gradients, cut at other places than"
                            " parameters end.",
                            cause="a call carries one parameter's gradient: no piece of a vector of all of them.",
                        )
                    raise CheckFailed(
                        f"{who}: what rank {rank} puts into {kind} for {name!r} is not made of gradients.",
                        cause="the bytes are right, the numbers are not: p.grad travels to the others, and what they"
                        " are to have comes back.",
                    )


def _are_cut_elsewhere(sent: Sequence[np.ndarray], own: Sequence[np.ndarray]) -> bool:
    """Whether the same numbers travel as these have, but for a factor, in whatever order."""
    there, here = (np.sort(np.concatenate([np.ravel(part) for part in parts])) for parts in (sent, own))
    return there.size == here.size and is_made_of(there, [here])


def require_sources(
    who: str, calls: Sequence[Any], kinds: Sequence[str], sources: Sequence[Sequence[np.ndarray]], cause: str
) -> None:
    """Raises CheckFailed unless what goes into calls of these kinds is, each time, a mixture of one of the sources.

    calls: one rank's of `note_inputs`; sources: flat vectors that a call may mix, padded with zeros if it brings more.
    """
    for kind, inputs in calls:
        if kind not in kinds:
            continue
        sent = np.concatenate([np.asarray(t, "f8") for t in inputs])
        if not _is_of(sent, sources):
            raise CheckFailed(f"{who} takes the seconds that are due, but puts other numbers into {kind}.", cause=cause)


def require_in_time(
    who: str, calls: Sequence[Any], starts_s: Sequence[float], buckets: Sequence[Any], there_s: Sequence[float],
    cause: str, name: str = "bucket",
) -> None:  # fmt: skip
    """Raises CheckFailed unless each call carries another bucket, and none before its last gradient can be there.

    calls: one rank's of `note_inputs`, and when each starts; buckets: of each the sources, as `require_sources` has
    them, and when its last gradient is there. name: what they are called.
    """
    left = dict(enumerate(buckets))
    for (kind, inputs), start_s in zip(calls, starts_s, strict=True):
        sent = np.concatenate([np.asarray(t, "f8") for t in inputs])
        found = next((k for k, sources in left.items() if _is_of(sent, sources)), None)
        if found is None:
            raise CheckFailed(f"{who} takes the seconds that are due, but puts other numbers into {kind}.", cause=cause)
        if start_s < there_s[found] * (1 - 1e-6):
            raise CheckFailed(
                f"{who} starts {kind} of {name} {found} at {start_s:g} s, its last gradient is there at "
                f"{there_s[found]:g} s.",
                cause=f"a {name} goes off when its gradients are there: the last one of them starts it.",
            )
        del left[found]


def _is_of(sent: np.ndarray, sources: Sequence[Sequence[np.ndarray]]) -> bool:
    fitting = ([_padded(one, sent.size) for one in mixed] for mixed in sources if mixed[0].size <= sent.size)
    return any(is_made_of(sent, mixed) for mixed in fitting)


def _padded(vector: np.ndarray, size: int) -> np.ndarray:
    return np.pad(np.asarray(vector, "f8"), (0, size - vector.size))


def take_out(data: dict[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """The observed run of ranks that gave {"returned", "carried"}, as if they had given the first alone; and
    `brought`, (ranks, n, numbers of the model), what their collectives put in as often as they went through the model,
    and `beside`, how many floats of other sizes the ranks put in, at most. `brought` has no rows if they differ in n.

    sizes: numbers of each parameter.
    """
    if data["deadlock"] is not None or not all(isinstance(r, dict) and "carried" in r for r in data["results"]):
        return data
    rows, beside = zip(*(_through_the_model(result["carried"], sizes) for result in data["results"]))
    data["results"] = [result["returned"] for result in data["results"]]
    is_alike = len({len(one) for one in rows}) == 1
    brought = np.stack(rows) if is_alike else np.empty((len(rows), 0, sum(sizes)))
    return data | {"brought": brought, "beside": max(beside)}


def _through_the_model(calls: Sequence[Any], sizes: Sequence[int]) -> tuple[np.ndarray, int]:
    """(n, numbers of the model): each time that calls bring as many floats as the parameters have, one by one or in one
    vector; and how many floats have other sizes."""
    brought = [np.asarray(t) for kind, inputs in calls if kind not in ("broadcast", "scatter") for t in inputs]
    rows, parts, needed, beside = [], [], list(sizes), 0
    for one in (t for t in brought if t.dtype.kind == "f"):
        if one.size == sum(sizes):
            rows.append(one)
        elif one.size in needed:
            needed.remove(one.size)
            parts.append(one)
        else:
            beside += one.size
        if parts and not needed:
            rows.append(np.concatenate(parts))
            parts, needed = [], list(sizes)
    return (np.stack(rows) if rows else np.empty((0, sum(sizes)))), beside


def require_together(
    who: str,
    data: dict[str, Any],
    wholes: Sequence[Sequence[np.ndarray]],
    *,
    at_least: int | None = None,
    made_of: Sequence[Iteration] = (),
    at_most: int = 0,
) -> None:
    """Raises CheckFailed unless what all ranks put in, together, is what has to come of it, in whatever proportion.

    data: of `take_out`. wholes: for each iteration all vectors of the model, flat, that may travel: its gradient, or
    its weights after the step. at_least: how many of these iterations there must be, if not all. made_of: of each
    iteration, where each rank's own part can be told: it comes of `at_most` examples.
    """
    brought, least = data["brought"], len(wholes) if at_least is None else at_least
    n = brought.shape[1]
    a_time = next((each for each in range(1, n + 1) if n % each == 0 and least <= n // each <= len(wholes)), 0)
    if not a_time:
        raise CheckFailed(
            f"{who}: what the ranks put into collectives is not {least} times the whole model.",
            cause="what travels is a number for each of the model's, once an iteration: gradients, or weights.",
        )
    for k, allowed in enumerate(wholes[: n // a_time]):
        parts = [brought[:, row] for row in range(k * a_time, (k + 1) * a_time)]
        # Both signs: sorted, as they are compared, numbers of a step stand the other way around than its gradient's.
        pairs = [(part, sign * whole) for part in parts for whole in allowed if np.any(whole) for sign in (1, -1)]
        found = next((pair for pair in pairs if is_made_of(np.sort(pair[0].sum(axis=0)), [np.sort(pair[1])])), None)
        if pairs and found is None:
            raise CheckFailed(
                f"{who}: what all ranks together put into collectives in iteration {k + 1} is not made of what one "
                "worker computes.",
                cause="each rank brings what it computed of its own examples: its gradient, or its weights after the "
                "step; the sum over the ranks is what counts.",
            )
        if found is not None and k < len(made_of):
            require_own_shares(f"{who}: iteration {k + 1}", *found, made_of[k], at_most)
    if any(np.array_equal(one, brought[0]) for one in brought[1:]):
        raise CheckFailed(
            f"{who}: all ranks put the same numbers into collectives.",
            cause="every rank does the whole work: each computes with its own share of the batch.",
        )


def is_made_of(tensor: np.ndarray, sources: Sequence[np.ndarray]) -> bool:
    """Whether it is a mixture of these, and not nothing."""
    tensor, columns = tensor.astype("f8"), np.stack([source.ravel() for source in sources], axis=1).astype("f8")
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(np.linalg.norm(tensor)) and np.isfinite(np.linalg.norm(columns))
    if not is_finite or not np.any(tensor):  # memory that nobody wrote to holds anything, and lstsq raises then
        return False
    rest = tensor - columns @ np.linalg.lstsq(columns, tensor, rcond=None)[0]
    return bool(np.linalg.norm(rest) <= _SAME * np.linalg.norm(tensor))


_TWO_DTYPES = r"of (\d+) (float\w+) \([^\n]*? but rank \d+ calls [^\n]*? of \1 (?!\2\b)(\w+) \("


def why_two_dtypes(hang: str) -> str:
    """The cause of a hang whose ranks make the same call with as many numbers, of another dtype; else ""."""
    found = re.search(_TWO_DTYPES, hang)
    if not found:
        return ""
    return (
        f"ranks bring different dtypes, {found[2]} and {found[3]}: zeros for a missing gradient have the dtype of "
        "their parameter, torch.zeros_like(p), and torch.zeros(p.shape) has torch's own, float32."
    )
