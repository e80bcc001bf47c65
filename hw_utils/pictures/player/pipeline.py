"""The view of a pipeline: who works on which micro-batch when, what is idle, and how many are held meanwhile.

A pass is (rank, kind, micro-batch, chunk, start_s, end_s), of kind F, B or W as in `hw_utils.pictures.lesson_08`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np

from hw_utils.pictures.figure import seconds_unit
from hw_utils.pictures.lesson_08 import CHUNK_MARKS, KINDS, Pass
from hw_utils.pictures.player.views import LEFT, TOP, WIDTH, Scale, area, sheet

_DIGIT = 7.0  # wide, of a number in the view's own units


def view(
    passes: Sequence[Pass], held: Mapping[int, Sequence[tuple[float, int]]], end_s: float, label: str
) -> tuple[str, str]:
    """The view as HTML, and its words: how long, how much of it is idle, by both conventions.

    held: rank -> (seconds, how many micro-batches from then on), drawn below on the same time axis; may be empty.
    """
    n_ranks, whole_s = 1 + max(one[0] for one in passes), max(one[5] for one in passes)
    scale = Scale(max(end_s, whole_s), n_ranks * (2 if held else 1))
    parts = [_lane(rank, whole_s, scale) for rank in range(n_ranks)]
    parts += [_pass(k, one, scale) for k, one in enumerate(passes)]
    most = {rank: max((n for _, n in held.get(rank, ())), default=0) for rank in range(n_ranks)}
    top = max([1, *most.values()])
    parts += [_strip(held[rank], n_ranks + rank, top, scale) for rank in held]
    names = [f"rank {rank}" for rank in range(n_ranks)]
    names += [f"most {most[rank]}" for rank in range(n_ranks)] if held else []
    words = _said(passes, n_ranks, whole_s)
    tones = "".join(
        f'<span><span class="patch" style="background:{KINDS[kind][1]}"></span>{KINDS[kind][0]}</span>'
        for kind in KINDS
        if any(one[1] == kind for one in passes)
    )
    below = " Below: what each rank holds, forward begun and backward not over." if held else ""
    legend = f'<p class="owners">{tones}Hatched: idle. {html.escape(words)}.{below}</p>'
    return sheet(scale, f"{label}: {words}", parts, names) + legend, words


def said_of(one: Pass, end_s: float) -> str:
    """`rank 1: backward of 3, 8 to 10 s`."""
    rank, kind, k, chunk, start_s, stop_s = one
    factor, unit = seconds_unit(end_s)
    part = f" in chunk {chunk}" if chunk else ""
    return f"rank {rank}: {KINDS[kind][0]} of {k}{part}, {start_s * factor:.4g} to {stop_s * factor:.4g} {unit}"


def steps(passes: Sequence[Pass]) -> dict[float, list[str]]:
    """Moment -> what is over then."""
    over: dict[float, list[str]] = {}
    for one in sorted(passes, key=lambda one: (one[5], one[0])):
        over.setdefault(float(f"{float(one[5]):.6g}"), []).append(f"rank {one[0]} {KINDS[one[1]][0]} of {one[2]} over")
    return over


def _said(passes: Sequence[Pass], n_ranks: int, whole_s: float) -> str:
    factor, unit = seconds_unit(whole_s)
    busy_s = sum(one[5] - one[4] for one in passes)
    idle_s = n_ranks * whole_s - busy_s
    total, ideal = idle_s / (n_ranks * whole_s), idle_s / busy_s if busy_s else 0.0
    return (
        f"{whole_s * factor:.4g} {unit}, idle {100 * total:.1f} % of the total time "
        f"({100 * ideal:.1f} % of the ideal time)"
    )


def _lane(rank: int, whole_s: float, scale: Scale) -> str:
    y, high = TOP + scale.row * (rank + 0.08), scale.row * 0.84
    box = f'x="{LEFT}" y="{y:.1f}" width="{scale.x(whole_s) - LEFT:.1f}" height="{high:.1f}"'
    return f'<rect fill="url(#hw-idle)" {box}/>'


def _pass(number: int, one: Pass, scale: Scale) -> str:
    rank, kind, k, chunk, start_s, stop_s = one
    x, wide = scale.x(start_s), max((stop_s - start_s) / scale.end_s * WIDTH, 0.6)
    _, tone, ink = KINDS[kind]
    y, high = TOP + scale.row * (rank + 0.08), scale.row * 0.84
    shown = f"{k}{CHUNK_MARKS[chunk % len(CHUNK_MARKS)]}"
    box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    title = html.escape(said_of(one, scale.end_s))
    cell = f'<rect class="pass" data-pass="{number}" style="fill:{tone}" {box}><title>{title}</title></rect>'
    if wide < _DIGIT * len(shown) + 3 or scale.row < 14:
        return cell
    middle = f'x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}"'
    return f'{cell}<text class="of-pass" style="fill:{ink}" {middle} text-anchor="middle">{shown}</text>'


def _strip(marks: Sequence[tuple[float, int]], row: int, top: int, scale: Scale) -> str:
    floor, high = TOP + scale.row * (row + 0.94), scale.row * 0.8 / top
    times_s = np.array([0.0, *(at_s for at_s, _ in marks)])
    counts = np.array([0, *(n for _, n in marks)])
    return f'<path class="held" d="{area(scale, times_s, floor - high * counts, floor)}"/>'
