"""The check of layers for stages, and what another cut than the best one comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np

from hw_utils.checks.check import check
from hw_utils.checks.lesson_08.bubbles import whole_numbers
from hw_utils.core.errors import CheckFailed

_CLOSE_S = 1e-9
_MOST_CAUSES = 3
_FEW_LAYERS = 9
_NEARLY = 1.02
_AS_THEY_ARE = (
    "this is nearly the best cut: seconds are compared as they are, not rounded, and limits for a stage are the sums "
    "that stages can have, not steps of some size."
)

_WHOLE = "these fit whole seconds of each layer: a layer's seconds have fractions, and all of them count."
_LEAVES_SOME_OUT = (
    "of so many cuts a search that leaves some out misses the best one: go through all of them (stage by stage, "
    "keeping the best for each number of layers), or through all sums that a stage can have, as a limit."
)
_SEVERAL = "several mistakes give this cut, and these are some: "


def _edges(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(counts, initial=0)))


def _stages_s(counts: Sequence[int], layer_s: Sequence[float]) -> list[float]:
    return [sum(layer_s[a:b]) for a, b in _edges(counts)]


def _all_cuts(n_layers: int, n_stages: int) -> list[list[int]]:
    cuts = combinations(range(1, n_layers), n_stages - 1)
    return [[b - a for a, b in pairwise((0, *cut, n_layers))] for cut in cuts]


def _judge_balance(data: Any, layer_s: list[float], n_stages: int, slowest_s: float) -> None:
    shown = ", ".join(f"{s:g}" for s in layer_s)
    what = f"balance([{shown}], {n_stages})"
    counts = data.tolist() if isinstance(data, np.ndarray) else whole_numbers(data)
    if not isinstance(counts, list) or not all(type(n) is int for n in counts):
        nested = isinstance(counts, list) and any(isinstance(n, list) for n in counts)
        raise CheckFailed(
            f"{what} gave {_short(data)}.",
            cause="return how many layers each stage gets, a list of whole numbers"
            + (", not the layers themselves." if nested else "."),
        )
    if len(counts) != n_stages or sum(counts) != len(layer_s) or min(counts) < 1:
        cause = "every stage has a layer at least, and every layer a stage."
        if sum(counts) == len(layer_s) and len(counts) < n_stages:
            cause = "these are too few stages: each of them gets a layer at least."
        elif len(counts) == n_stages - 1 or (counts and counts[-1] == len(layer_s) and counts == sorted(counts)):
            cause = "these look like the places of the cuts: how many layers each stage gets is asked."
        elif len(counts) == len(layer_s) != n_stages:
            cause = "that is a stage for each layer: how many layers each stage gets is asked."
        raise CheckFailed(
            f"{what} gave {counts}: {len(counts)} stages with {sum(counts)} layers, the least has "
            f"{min(counts, default=0)}; {n_stages} stages share {len(layer_s)} layers.",
            cause=cause,
        )
    got_s = max(_stages_s(counts, layer_s))
    if got_s > slowest_s + _CLOSE_S:
        raise CheckFailed(
            f"{what} gave {counts}: the slowest stage takes {got_s:.8g} s, another cut has {slowest_s:.8g} s.",
            cause=_why_slow(counts, layer_s, n_stages, slowest_s),
        )


def _why_slow(counts: list[int], layer_s: list[float], n_stages: int, slowest_s: float) -> str:
    """The mistakes that give exactly this cut, and the best ones in the cases before; "" if none of them does."""
    causes = [
        cause
        for cause in _causes(counts, layer_s, n_stages, slowest_s)
        if all(_can_be_right(cause, **case) for case in _cases_before(layer_s, n_stages))
    ]
    if len(layer_s) > _FEW_LAYERS and not any(cause in _GREEDY for cause in causes):
        return f"{_SEVERAL}{_WHOLE} Or: {_LEAVES_SOME_OUT}" if _WHOLE in causes else _LEAVES_SOME_OUT
    if len(causes) < 2:
        return "".join(causes)
    if max(_stages_s(counts, layer_s)) <= _NEARLY * slowest_s:
        searched = [cause for cause in causes if cause in _GREEDY]
        if not searched:
            return _AS_THEY_ARE
        causes = [*searched[: _MOST_CAUSES - 1], _AS_THEY_ARE]
    return _SEVERAL + " Or: ".join(causes[:_MOST_CAUSES])


def _causes(counts: list[int], layer_s: list[float], n_stages: int, slowest_s: float) -> Iterator[str]:
    yield from _same_for_all_layers(counts, len(layer_s) - n_stages + 1)
    yield from (cause for cause, greedy in _GREEDY.items() if counts in greedy(layer_s, n_stages))
    yield from _other_order(counts, layer_s, slowest_s)
    yield from _other_goals(counts, layer_s)
    if counts in _dealt(layer_s, n_stages):
        yield "each layer goes to the stage that has the least so far: a stage has neighbouring layers, in their order."


def _cases_before(layer_s: list[float], n_stages: int) -> list[dict]:
    """The cases that an answer had right when it came to this one; of those with many layers nothing is worked out."""
    here = [case["layer_s"] == layer_s and case["n_stages"] == n_stages for case in balance.cases]
    before = balance.cases[: here.index(True) if any(here) else len(here)]
    return [case for case in before if 1 < case["n_stages"] < len(case["layer_s"]) <= _FEW_LAYERS]


def _can_be_right(cause: str, layer_s: list[float], n_stages: int, slowest_s: float) -> bool:
    """Whether this mistake gives a best cut of these layers, too."""
    best = [cut for cut in _all_cuts(len(layer_s), n_stages) if _fits(cut, layer_s, slowest_s)]
    return any(cause in _causes(cut, layer_s, n_stages, slowest_s) for cut in best)


def _same_for_all_layers(counts: list[int], n_rest: int) -> Iterator[str]:
    if max(counts) - min(counts) <= 1 and counts in (sorted(counts), sorted(counts, reverse=True)):
        yield "every stage has as many layers, but layers take different times: seconds count."
    if counts in ([1] * (len(counts) - 1) + [n_rest], [n_rest] + [1] * (len(counts) - 1)):
        yield "all stages but one have one layer, whatever it takes: seconds count."


def _fits(counts: Sequence[int], layer_s: Sequence[float], slowest_s: float) -> bool:
    return max(_stages_s(counts, layer_s)) <= slowest_s + _CLOSE_S


def _other_order(counts: list[int], layer_s: list[float], slowest_s: float) -> Iterator[str]:
    cuts = _all_cuts(len(layer_s), len(counts))
    if _fits(counts[::-1], layer_s, slowest_s):
        yield "from behind they are right: the first number belongs to the stage with the first layers."
    if any(sorted(cut) == counts and _fits(cut, layer_s, slowest_s) for cut in cuts):
        yield "the right numbers, but sorted: each belongs to a stage, and stages stay in their order."

    def fit(*others: list[float]) -> bool:
        return any(_fits(counts, s, min(max(_stages_s(cut, s)) for cut in cuts)) for s in others)

    if fit(sorted(layer_s), sorted(layer_s, reverse=True)):
        yield "these fit the layers sorted by their seconds: layers stay in their order."
    if fit(*([float(whole(s)) for s in layer_s] for whole in (math.floor, math.ceil, round))):
        yield _WHOLE


def _other_goals(counts: list[int], layer_s: list[float]) -> Iterator[str]:
    """What this cut has the least of, of all cuts, where it is not the slowest stage's time."""
    all_s = [_stages_s(cut, layer_s) for cut in _all_cuts(len(layer_s), len(counts))]
    for cause, goal in _GOALS.items():
        if goal(_stages_s(counts, layer_s)) <= min(map(goal, all_s)) + _CLOSE_S:
            yield cause


_GOALS: dict[str, Callable[[list[float]], float]] = {
    "no cut has a slower slowest stage: the best of all cuts is the one whose maximum is least.": lambda s: -max(s),
    "this is the best cut if the last stage does not count: all p stages do.": lambda s: max(s[:-1], default=0.0),
    "this is the best cut if the first stage does not count: all p stages do.": lambda s: max(s[1:], default=0.0),
    "this cut has the least sum of squares, or distance from the mean: the slowest stage alone sets the pace.": (
        lambda s: sum(x * x for x in s)
    ),
    "this cut has the least difference between the slowest and the fastest stage: only the slowest one counts.": (
        lambda s: max(s) - min(s)
    ),
    "in this cut the fastest stage is as slow as can be: the slowest one is to be as fast as can be.": (
        lambda s: -min(s)
    ),
    "this cut is among the best if seconds are rounded: compare them as they are, in float64.": (
        lambda s: max(map(round, s))
    ),
}


def _filled(layer_s: list[float], n_stages: int, goes_past: bool, of_rest: bool) -> list[int]:
    """Each stage up to the mean, or until it is passed; one layer at least is left for each further stage."""
    counts, start = [], 0
    for left in range(n_stages, 1, -1):
        mean = sum(layer_s[start:]) / left if of_rest else sum(layer_s) / n_stages
        sums = list(accumulate(layer_s[start : len(layer_s) - left + 1]))
        n_within = sum(s <= mean + _CLOSE_S for s in sums)
        n_short = sum(s < mean - _CLOSE_S for s in sums)
        counts.append(min(max(1, n_short + 1 if goes_past else n_within), len(sums)))
        start += counts[-1]
    return [*counts, len(layer_s) - start]


def _nearest(layer_s: list[float], n_stages: int, of_rest: bool) -> list[int]:
    """Each stage as near as can be to the mean, of all stages or of what is left."""
    counts, start = [], 0
    for left in range(n_stages, 1, -1):
        mean = sum(layer_s[start:]) / left if of_rest else sum(layer_s) / n_stages
        sums = list(accumulate(layer_s[start : len(layer_s) - left + 1]))
        counts.append(1 + min(range(len(sums)), key=lambda k: abs(sums[k] - mean)))
        start += counts[-1]
    return [*counts, len(layer_s) - start]


def _halved(layer_s: list[float], n_stages: int) -> list[int]:
    """The best cut in two, then that of the slowest part, and so on."""
    counts = [len(layer_s)]
    while len(counts) < n_stages:
        longer = [k for k, n in enumerate(counts) if n > 1]
        place = max(longer, key=lambda k: _stages_s(counts, layer_s)[k])
        start, n = sum(counts[:place]), counts[place]
        own_s = layer_s[start : start + n]
        first = min(range(1, n), key=lambda c: max(sum(own_s[:c]), sum(own_s[c:])))
        counts[place : place + 1] = [first, n - first]
    return counts


def _halved_again(layer_s: list[float], n_stages: int) -> list[int]:
    """Half of the stages on each side of a first cut, as equal as can be by the seconds of a stage; and so on."""
    if n_stages == 1:
        return [len(layer_s)]
    left, right = n_stages // 2, n_stages - n_stages // 2
    places = range(left, len(layer_s) - right + 1)
    cut = min(places, key=lambda c: max(sum(layer_s[:c]) / left, sum(layer_s[c:]) / right))
    return _halved_again(layer_s[:cut], left) + _halved_again(layer_s[cut:], right)


def _dealt(layer_s: list[float], n_stages: int) -> list[list[int]]:
    """Layers of each stage if each one goes to the stage that has the least: as they come, or the slowest first."""
    found = []
    for order in (layer_s, sorted(layer_s, reverse=True)):
        counts, sums_s = [0] * n_stages, [0.0] * n_stages
        for seconds in order:
            least = sums_s.index(min(sums_s))
            counts[least] += 1
            sums_s[least] += seconds
        found.append(counts)
    return found


_GREEDY: dict[str, Callable[[list[float], int], list[list[int]]]] = {
    "each stage is filled up to the mean, and the last one has to take the rest: try other limits.": lambda s, p: [
        _filled(s, p, False, of_rest) for of_rest in (False, True)
    ],
    "each stage is filled until it passes the mean, and the last one has little left.": lambda s, p: [
        _filled(s, p, True, of_rest) for of_rest in (False, True)
    ],
    "each stage is cut as near to the mean as can be, one cut after another: the next ones would move it.": (
        lambda s, p: [_nearest(s, p, of_rest) for of_rest in (False, True)]
    ),
    "cutting in the middle first, then the slowest part again, fixes a cut that the next one would move.": (
        lambda s, p: [_halved(s, p)]
    ),
    "half of the stages on each side of a first cut, then of a second one: that fixes each cut before the next ones.": (
        lambda s, p: [_halved_again(s, p)]
    ),
}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 120 else text[:117] + "..."


# As long as they come: a search that makes one cut after another, or moves cuts one by one, finds none of the best.
_LONG = (
    ([3.75, 3.25, 3.25, 8.0, 4.5, 3.5, 2.75, 3.75, 3.25, 5.5, 3.0, 6.5, 7.5, 0.5, 5.75, 3.0, 2.0, 2.75], 5, 17.0),
    ([3.0, 2.5, 8.5, 13.5, 13.5, 1.0, 1.0, 13.5, 2.0, 3.0, 2.5, 1.0, 3.5, 1.0, 1.5, 1.5, 2.5, 1.0, 3.0, 8.5, 1.5, 2.5],
     4, 27.0),
    ([2.0, 8.0, 3.5, 13.0, 1.5, 1.0, 1.0, 8.0, 8.0, 8.5, 1.0, 1.5, 1.5, 1.0, 2.5, 1.0, 3.5, 1.0, 13.5, 13.5, 1.5, 3.5,
      13.5, 1.0], 4, 32.5),
    ([1.0, 2.0, 13.0, 2.0, 13.5, 13.5, 13.5, 13.5, 1.0, 13.5, 1.5, 1.0, 1.0, 8.0, 13.5, 2.5, 2.5, 3.0, 1.0, 13.0, 13.5,
      13.5, 1.5, 3.0, 1.5, 13.5, 8.0, 1.0, 1.5, 1.5], 5, 44.0),
)  # fmt: skip


@check(
    "lesson_08.balance",
    judge=_judge_balance,
    is_formula=True,
    cases=[
        {"layer_s": layer_s, "n_stages": p, "slowest_s": slowest_s}
        for layer_s, p, slowest_s in (
            ([3.0], 1, 3.0),
            ([1.0, 2.0, 3.0, 4.0], 1, 10.0),
            ([1.0, 2.0, 3.0], 3, 3.0),
            ([4.5, 1.0, 2.5, 3.0, 1.5, 7.0, 4.5, 8.0, 3.0], 4, 11.0),
            ([1.0, 1.0, 1.0, 5.0], 2, 5.0),
            ([5.0, 1.0, 1.0, 1.0], 3, 5.0),
            ([2.0, 3.0, 4.0, 5.0, 6.0], 3, 9.0),
            ([9.0, 1.0, 7.0, 2.0, 8.0, 3.0], 3, 11.0),
            ([1.0, 4.0, 1.0, 1.0, 4.0, 1.0], 4, 5.0),
            ([0.5] + 12 * [1.0] + [2.5], 4, 4.0),
            ([0.25] + 24 * [1.0] + [3.5], 5, 6.0),
            ([1.0, 7.0, 3.0, 1.0, 3.0], 3, 7.0),
            ([5.0, 8.0, 4.0, 5.0, 7.0], 2, 16.0),
            ([3.83, 2.72, 1.68, 2.14, 1.51, 3.08, 0.3, 0.99], 3, 6.54),
            ([1.99, 3.46, 3.51, 0.5, 1.43, 1.08, 0.91, 2.85], 4, 5.44),
            ([1.0001, 2.0002, 1.0, 0.3, 1.0001, 1.0001, 2.0002], 4, 3.0002),
            *_LONG,
            # more layers, and more stages
            ([2.0, 9.0, 1.5, 3.5, 7.5, 1.0, 0.5, 7.5, 2.5, 9.0, 2.0, 2.0, 7.5, 9.0], 10, 9.0),
            (6 * [9.0, 7.5, 5.0, 1.5, 2.0, 1.5, 0.5, 2.5, 3.5, 1.0], 3, 68.0),
        )
    ],
    ok="no cut of these layers has a faster slowest stage.",
    hint="hint 1 of exercise 8.5",
    hints={"hint 2 of exercise 8.5": "mean|one cut|fixes|limits"},
    errors={
        "'NoneType' object is not|(?:arg|argument) is an empty sequence|iterable argument is empty": "is no cut left "
        "to take? A cut may come after the first layer, and before the last one: the places between n layers are 1 to "
        "n - 1, n_stages - 1 of them are cut, and with one stage none is.",
    },
    look="print each cut with the seconds of its slowest stage, and which of them you take.",
)
def balance(answer, /, layer_s: list[float], n_stages: int, slowest_s: float):
    """The numbers of layers; slowest_s is what the best of all cuts has."""
    found = answer(list(layer_s), n_stages)
    return list(found) if isinstance(found, tuple | range) or hasattr(found, "__next__") else found
