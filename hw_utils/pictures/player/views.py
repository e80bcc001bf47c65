"""The views of a run as SVG text: messages in space and time, what each rank does, which chunk is where.

A view is complete as it stands. Where JavaScript runs, the player moves its line of now, hides what comes later and
steps through the frames. Lengths are in units of the view's own 760-wide box, in which text is 12 high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from hw_utils.core.memory.memory_timeline import Memory
from hw_utils.core.memory.owners import OWNERS
from hw_utils.core.trace import SENDS, Trace
from hw_utils.pictures.chunks import contributors
from hw_utils.pictures.figure import bytes_text, seconds_unit
from hw_utils.pictures.figure.busy_spans import merged
from hw_utils.pictures.memory import OWNER_COLORS, lane_bytes, thinned

LEFT, WIDTH, TOP = 64, 680, 14
MOST_MESSAGES = 16_000
MOST_OF_MANY_RANKS = 2_000  # messages, from 64 ranks up: more would be a wall
FEW = 600  # messages that are each an arrow of their own
MOST_LANES = 64
MOST_AREA_POINTS = 400  # of a lane of memory
_TALLEST = 560.0


@dataclass(frozen=True)
class Scale:
    """Where a time and a rank are drawn."""

    end_s: float
    world_size: int

    @property
    def row(self) -> float:
        return min(34.0, _TALLEST / max(self.world_size, 1))

    @property
    def height(self) -> float:
        return TOP + self.row * self.world_size + 36

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self.end_s * WIDTH

    def y(self, rank: float) -> float:
        return TOP + self.row * (rank + 0.5)


def scale_of(trace: Trace, end_s: float) -> Scale:
    latest = (
        max((float(trace.records[name].max()) for name in ("end_s", "wait_end_s")), default=0.0) if len(trace) else 0.0
    )
    devices = float(trace.streams["end_s"].max()) if len(trace.streams) else 0.0
    return Scale(max(end_s, latest, devices) or 1.0, max(trace.world_size, 1))


@dataclass(frozen=True)
class Messages:
    """Matched messages, thinned to what a page can hold: the send's record and the receive's, one row each."""

    sends: np.ndarray
    receives: np.ndarray
    lost: np.ndarray  # records that nobody matched
    n_all: int


def messages_of(trace: Trace) -> Messages:
    records = trace.records[trace.records["peer"] >= 0]
    is_send = np.isin(records["op"], [i for i, name in enumerate(trace.names) if name in SENDS])
    matched = records["message"] >= 0
    sends, receives = records[is_send & matched], records[~is_send & matched]
    _, left, right = np.intersect1d(sends["message"], receives["message"], return_indices=True)
    sends, receives, n_all = sends[left], receives[right], len(left)
    most = MOST_MESSAGES if trace.world_size < MOST_LANES else MOST_OF_MANY_RANKS
    order = np.argsort(receives["end_s"], kind="stable")[:: max(1, -(-n_all // most))]
    return Messages(sends[order], receives[order], records[~matched], n_all)


def space_time(trace: Trace, messages: Messages, scale: Scale, label: str) -> str:
    """Ranks down, time across; an arrow a message, a bar where a rank stands still, a bar a collective."""
    parts = [*_waits(trace, scale), *_collectives(trace, scale)]
    lines = [_line(s, r, scale) for s, r in zip(messages.sends, messages.receives)]
    if len(lines) <= FEW:
        parts += [f'<path class="m" d="{line}" marker-end="url(#hw-tip)"/>' for line in lines]
    else:
        parts.append(f'<path class="m many" d="{"".join(lines)}"/>')
    for record in messages.lost:
        x, y = scale.x(record["start_s"]), scale.y(record["rank"])
        parts.append(
            f'<path class="lost" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"><title>nobody matched it</title></path>'
        )
    return sheet(scale, label, parts)


def timeline(trace: Trace, scale: Scale, label: str) -> str:
    """Two lanes a rank: computing or standing still above, communication under way below."""
    shown = Scale(scale.end_s, min(scale.world_size, MOST_LANES))
    parts = []
    for rank in range(shown.world_size):
        mine = trace.records[trace.records["rank"] == rank]
        lanes = (
            ("compute", np.array([[0.0, scale.end_s]]), -0.4, 0.42),
            ("wait", merged(mine["wait_start_s"], mine["wait_end_s"]), -0.4, 0.42),
            ("traffic", merged(mine["start_s"], mine["end_s"]), 0.08, 0.26),
        )
        for kind, spans, top, high in lanes:
            parts += [bar(kind, a, b, rank + top, high, shown) for a, b in spans]
    return sheet(shown, label, parts)


def memory(books: Memory, scale: Scale, label: str) -> str:
    """A lane a rank: the bytes that it holds, stacked by owner; all lanes have one scale."""
    shown = Scale(scale.end_s, min(scale.world_size, MOST_LANES))
    top, parts = lane_bytes(books), []
    for rank in range(shown.world_size):
        floor, high = TOP + shown.row * (rank + 0.94), shown.row * 0.86 / top
        times_s, held = thinned(*books.series(rank), shown.end_s, MOST_AREA_POINTS)
        edges = np.cumsum(held, axis=1)
        for column, owner in reversed(list(enumerate(OWNERS))):
            if held[:, column].any():
                path = area(shown, times_s, floor - high * edges[:, column], floor)
                parts.append(f'<path style="fill:{OWNER_COLORS[owner]}" d="{path}"><title>{owner}</title></path>')
        if books.capacity_bytes is not None:
            y = floor - high * books.capacity_bytes
            parts.append(f'<line class="cap" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return sheet(shown, label, parts)


def area(scale: Scale, times_s: np.ndarray, tops: np.ndarray, floor: float) -> str:
    """The outline of a series of steps over a floor; what would not be seen of it is left out."""
    path, at = [f"M{LEFT} {floor:.1f}"], (f"{LEFT:.1f}", f"{floor:.1f}")
    for seconds, top in zip(times_s, tops):
        x, y = f"{scale.x(seconds):.1f}", f"{top:.1f}"
        if y != at[1]:
            path.append(f"V{y}" if x == at[0] else f"H{x}V{y}")
            at = x, y
    return "".join([*path, f"H{scale.x(scale.end_s):.1f}V{floor:.1f}z"])


def _waits(trace: Trace, scale: Scale) -> list[str]:
    records = trace.records
    waits = records[(records["wait_end_s"] > records["wait_start_s"]) & (records["peer"] >= 0)]
    waits = waits[:: max(1, -(-len(waits) // MOST_MESSAGES))]
    return [bar("wait", w["wait_start_s"], w["wait_end_s"], w["rank"] - 0.09, 0.18, scale) for w in waits]


def _collectives(trace: Trace, scale: Scale) -> list[str]:
    records = trace.records[trace.records["peer"] < 0]
    records = records[:: max(1, -(-len(records) // MOST_MESSAGES))]
    bars = []
    for r in records:
        words = f"rank {r['rank']}: {trace.names[r['op']]}, {bytes_text(float(r['n_bytes']))}"
        bars.append(bar("collective", r["start_s"], r["end_s"], r["rank"] - 0.16, 0.32, scale, words))
    return bars


def bar(kind: str, start_s: float, end_s: float, rank: float, high: float, scale: Scale, words: str = "") -> str:
    x, wide = scale.x(start_s), max((end_s - start_s) / scale.end_s * WIDTH, 0.6)
    title = f"<title>{escape(words)}</title>" if words else ""
    y = TOP + scale.row * (rank + 0.5)
    box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{scale.row * high:.1f}"'
    return f'<rect class="{kind}" {box}>{title}</rect>' if title else f'<rect class="{kind}" {box}/>'


def _line(send: np.void, receive: np.void, scale: Scale) -> str:
    x0, y0 = scale.x(send["start_s"]), scale.y(send["rank"])
    x1, y1 = scale.x(receive["end_s"]), scale.y(receive["rank"])
    return f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"


def sheet(scale: Scale, label: str, parts: list[str], names: Sequence[str] = ()) -> str:
    """The whole view; names: of its rows, if they are not the ranks."""
    bottom = TOP + scale.row * scale.world_size
    every = max(1, math.ceil(15 / scale.row))
    ranks = "".join(
        f'<text x="{LEFT - 8}" y="{scale.y(r) + 4:.1f}" text-anchor="end">{names[r] if names else f"rank {r}"}</text>'
        for r in range(0, scale.world_size, 1 if names else every)
    )
    guides = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{scale.y(r):.1f}" y2="{scale.y(r):.1f}"/>'
        for r in range(0, scale.world_size, every)
    )
    return (
        f'<svg viewBox="0 0 760 {scale.height:.0f}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{guides}{ranks}{_ticks(scale, bottom)}{''.join(parts)}"
        f'<rect class="veil" x="{LEFT + WIDTH}" y="{TOP - 6}" width="0" height="{bottom - TOP + 8:.0f}"/>'
        '<path class="chosen"/><g class="dots"></g>'
        f'<line class="now" style="display:none" y1="{TOP - 8}" y2="{bottom + 4:.1f}"/></svg>'
    )


ARROWHEAD = (  # once a player, in a picture that is never hidden
    '<svg width="0" height="0" style="position:absolute;width:0;min-width:0" aria-hidden="true"><defs>'
    '<marker id="hw-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" '
    'markerUnits="userSpaceOnUse"><path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    '<pattern id="hw-idle" width="6" height="6" patternUnits="userSpaceOnUse"><path class="hatch" d="M0 6L6 0"/>'
    "</pattern>"
    "</defs></svg>"
)


def _ticks(scale: Scale, bottom: float) -> str:
    factor, unit = seconds_unit(scale.end_s)
    whole = scale.end_s * factor
    step = 10 ** math.floor(math.log10(whole / 4))
    step *= next(m for m in (1, 2, 5, 10) if whole / (step * m) <= 6)
    below = f'y="{bottom + 16:.1f}" text-anchor="middle"'
    marks = [
        f'<text class="soft" x="{scale.x(i * step / factor):.1f}" {below}>{i * step:g}</text>'
        for i in range(int(whole / step * (1 + 1e-9)) + 1)
    ]
    marks.append(f'<text class="soft" x="{LEFT + WIDTH}" y="{bottom + 31:.1f}" text-anchor="end">time [{unit}]</text>')
    return "".join(marks)


def chunk_frame(frame: Sequence, moves: Sequence[tuple[int, int, int]], label: str) -> str:
    """One step: a table of ranks and chunks, in words whose shares each holds, and an arrow for what moved.

    moves: (sender, receiver, chunk).
    """
    ranks, chunks = len(frame), max(map(len, frame))
    wide = max(58, 12 + 7 * max(len(words(cell, ranks)) for cells in frame for cell in cells))
    width, height = LEFT + chunks * (wide + 26) + 8, 26 + ranks * 36
    parts = [
        f'<text class="soft" x="{LEFT + c * (wide + 26) + wide / 2:.0f}" y="16" text-anchor="middle">chunk {c}</text>'
        for c in range(chunks)
    ]
    for rank, cells in enumerate(frame):
        y = 24 + rank * 36
        parts.append(f'<text x="{LEFT - 8}" y="{y + 19}" text-anchor="end">rank {rank}</text>')
        parts += [_cell(cell, LEFT + c * (wide + 26), y, wide, ranks) for c, cell in enumerate(cells)]
    parts += [_moved(s, d, LEFT + c * (wide + 26) + wide, c) for s, d, c in moves]
    head = f'viewBox="0 0 {width} {height}" width="{width}" style="min-width:{0.75 * width:.0f}px"'  # 9 of 12 pixels
    return f'<svg {head} role="img" aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>'


def words(cell, n_ranks: int) -> str:
    """`0+1` for the shares of ranks 0 and 1, `all 4`, `3 of 8`, `2 twice`."""
    held = contributors(cell)
    twice = sorted({r for r in held if held.count(r) > 1})
    if twice:
        return f"{'+'.join(map(str, twice))} twice"
    if len(held) == n_ranks > 1:
        return f"all {n_ranks}"
    return "+".join(map(str, held)) if len(held) <= 4 else f"{len(held)} of {n_ranks}"


def _cell(cell, x: float, y: float, wide: float, n_ranks: int) -> str:
    held = contributors(cell)
    twice = len(set(held)) < len(held)
    shade = 0.06 + 0.5 * len(set(held)) / n_ranks
    title = (
        f"the {'share' if len(held) == 1 else 'sum of the shares'} of rank {' and '.join(map(str, held)) or 'nobody'}"
    )
    style = "" if twice else f' style="fill-opacity:{shade:.2f}"'
    return (
        f'<rect class="cell{" twice" if twice else ""}"{style} x="{x:.0f}" y="{y}" width="{wide}" height="30">'
        f'<title>{title}</title></rect><text x="{x + wide / 2:.0f}" y="{y + 19}" text-anchor="middle">'
        f"{words(cell, n_ranks)}</text>"
    )


def _moved(sender: int, receiver: int, x: float, chunk: int) -> str:
    y0, y1 = 24 + sender * 36 + 15, 24 + receiver * 36 + 15
    bow = 8 + min(abs(receiver - sender) * 4, 16)
    curve = f"M{x:.0f} {y0}C{x + bow:.0f} {y0} {x + bow:.0f} {y1} {x:.0f} {y1}"
    return (
        f'<path class="moved" marker-end="url(#hw-tip)" d="{curve}">'
        f"<title>chunk {chunk}: rank {sender} sends it to rank {receiver}</title></path>"
    )
