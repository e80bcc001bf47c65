"""The player: views of a run, the words for each step, controls, and a table behind it, as one HTML fragment."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hw_utils.core.memory.memory_timeline import Memory
from hw_utils.core.run_result import Run
from hw_utils.core.source.lines import locate
from hw_utils.core.trace import Trace
from hw_utils.pictures.chunks import contributors
from hw_utils.pictures.figure import bytes_text, seconds_unit
from hw_utils.pictures.figure.figures_in_html import address_of
from hw_utils.pictures.lesson_08 import KINDS, Pass
from hw_utils.pictures.memory import OWNER_COLORS, describe_memory, lane_bytes
from hw_utils.pictures.player import pipeline, streams, views
from hw_utils.pictures.plots import describe

MOST_ROWS = 300  # of the table behind the picture
MOST_STEPS = 2_000
MOST_STILL = 40_000  # characters of a picture beside the one that plays
PLAYS = "This picture plays when the notebook is trusted, or its cell is run."
_NAMES = {"chunks": "chunks", "messages": "messages", "timeline": "timeline", "memory": "memory",
          "pipeline": "pipeline"}  # fmt: skip


class Player:
    """What `play` gives: shows itself in a notebook, `save` writes it as a page of its own."""

    def __init__(self, fragment: str, title: str, description: str) -> None:
        self._fragment, self._title, self._description = fragment, title, description

    def __repr__(self) -> str:
        return self._description

    def _repr_html_(self) -> str:
        return self._fragment

    def save(self, path: str | Path) -> Path:
        """Writes one HTML file that needs no server, no kernel and no network; returns its path.

        Raises:
            ValueError: the name does not end in .html.
        """
        path = Path(path)
        if path.suffix not in (".html", ".htm"):
            raise ValueError(f"a saved run is a page: its name ends in .html, got {path.name!r}")
        title = html.escape(self._title)
        fragment = self._fragment.replace(f'<p class="title">{title}</p>', f'<h1 class="title">{title}</h1>', 1)
        path.write_text(_PAGE.format(title=title, fragment=fragment), encoding="utf-8")
        return path


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{ margin: 1.5rem auto; max-width: 880px; padding: 0 1rem; background: #ffffff; }}
h1 {{ font-size: inherit; margin: 2px 0; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #1b1b1b; }} }}</style></head>
<body><main>{fragment}</main></body></html>
"""


def play(
    run: Run | Trace | None = None,
    *,
    chunks: Sequence | None = None,
    passes: Sequence[Pass] = (),
    held: Mapping[int, Sequence[tuple[float, int]]] | None = None,
    title: str = "",
) -> Player:
    """A run as a picture that plays: messages in space and time, a timeline, which chunk is where, a pipeline.

    run: of `launch`, `simulate` or `run_threads`, or its trace. chunks: what `partial_sums.watch` gives, frames of
    ranks and chunks; its own run is shown beside it if no other is given. passes: of a pipeline, (rank, kind F, B or W,
    micro-batch, chunk, start_s, end_s) each; held: rank -> (seconds, how many it holds from then on), which is drawn
    below. In the picture arrow keys step, space plays, up and down go from message to message or from pass to pass.

    Raises:
        ValueError: neither a run nor chunks nor passes.
    """
    if run is None and not chunks and not passes:
        raise ValueError("play needs a run or chunks, or passes: play(run), or play(chunks=watch(all_reduce, 4))")
    watched = getattr(chunks, "run", None)
    shown = run if run is not None else watched
    trace = shown.trace if isinstance(shown, Run) else shown
    panes, steps = {}, [(0.0, "start")]
    data: dict[str, Any] = {"left": views.LEFT, "width": views.WIDTH, "end": 1.0, "y": [], "messages": []}
    notes, told = [], {}
    ends = [one[5] for one in passes]
    label = describe(trace) if trace is not None else ""
    if trace is not None:
        scale = views.scale_of(trace, max([shown.seconds if isinstance(shown, Run) else 0.0, *ends]))
        messages = views.messages_of(trace)
        panes["messages"] = views.space_time(
            trace, messages, scale, f"Ranks down, time across, an arrow a message. {label}"
        )
        what = f"What each rank does, and when. {label}"
        has_streams = len(trace.streams) > 0
        panes["timeline"] = (
            streams.timeline(trace, scale.end_s, what) if has_streams else views.timeline(trace, scale, what)
        )
        data |= {"end": scale.end_s, "y": [round(scale.y(r), 1) for r in range(scale.world_size)]}
        data["messages"], data["kinds"] = _told(trace, messages)
        data["unit"] = seconds_unit(scale.end_s)
        told |= _arrivals(trace, data["messages"])
        if isinstance(shown, Run) and shown.kept_memory is not None and len(shown.memory.records):
            panes["memory"] = views.memory(shown.memory, scale, describe_memory(shown.memory))
            panes["memory"] += _owners(shown.memory)
        if messages.n_all > len(messages.sends):
            notes.append(f"{len(messages.sends):,} of {messages.n_all:,} messages are drawn, evenly spread.")
        if trace.world_size > views.MOST_LANES:
            notes.append(f"The timeline shows the first {views.MOST_LANES} of {trace.world_size:,} ranks.")
    if passes:
        data |= {"end": max(data["end"], *ends) if trace is not None else max(ends)}
        data |= {"unit": seconds_unit(data["end"]), "passes": [pipeline.said_of(one, data["end"]) for one in passes]}
        svg, words = pipeline.view(passes, held or {}, data["end"], title or "pipeline")
        panes = {"pipeline": svg, **panes}
        for at_s, over in pipeline.steps(passes).items():
            told.setdefault(at_s, []).extend(over)
        label = label or words
    if trace is not None or passes:
        steps = _steps(told, data["end"])
    if chunks:
        moves = _moves(chunks, watched.trace if watched is not None else None)
        told = [_chunk_step(chunks, moves, k) for k in range(len(chunks))]
        svg = "".join(views.chunk_frame(frame, moves[k], told[k]) for k, frame in enumerate(chunks))
        panes = {"chunks": f'<div class="frames">{svg}</div>', **panes}
        steps = [(min(float(k), data["end"]), words) for k, words in enumerate(told)]
        notes.append("0+1 is the sum of the shares of ranks 0 and 1.")
    data["steps"] = steps
    name = title or ("which chunk is where" if chunks else "pipeline" if passes else "who sends to whom, when")
    table = _table(data["messages"], data["kinds"]) if data["messages"] else ""
    table += _table_of_passes(passes) if passes else ""
    whole = f"{name}: {label or steps[-1][1]}"
    return Player(_fragment(name, panes, data, notes, table), name, whole)


def _owners(memory: Memory) -> str:
    """What the colours of the memory view stand for."""
    words = "".join(
        f'<span><span class="patch" style="background:{OWNER_COLORS[owner]}"></span>{owner}</span>'
        for owner in memory.owners
    )
    cap = f" Dashed: the capacity, {bytes_text(memory.capacity_bytes)}." if memory.capacity_bytes is not None else ""
    return f'<p class="owners">{words}A lane is {bytes_text(lane_bytes(memory))} high.{cap}</p>'


def _told(trace: Trace, messages: views.Messages) -> tuple[list[list], list[str]]:
    """(from, to, start, end, bytes, kind) a message; and the kinds, `isend meets recv, Cell In[5], line 3`."""
    kinds: dict[tuple[int, ...], int] = {}
    told = []
    for s, r in zip(messages.sends, messages.receives):
        key = (int(s["op"]), int(r["op"]), int(s["file"]), int(s["line"]))
        times = [float(f"{float(seconds):.6g}") for seconds in (s["start_s"], r["end_s"])]
        told.append([int(s["rank"]), int(r["rank"]), *times, int(s["n_bytes"]), kinds.setdefault(key, len(kinds))])
    return told, [_kind(trace, *key) for key in kinds]


def _kind(trace: Trace, sent: int, received: int, file: int, line: int) -> str:
    place = f", {locate(trace.names[file], line)}" if trace.names[file] else ""
    return f"{trace.names[sent]} meets {trace.names[received]}{place}"


def _arrivals(trace: Trace, told: list[list]) -> dict[float, list[str]]:
    """Moment -> what has arrived, or is done, then."""
    arrived: dict[float, list[str]] = {}
    for sender, receiver, _, end, n_bytes, _ in told:
        arrived.setdefault(end, []).append(f"rank {sender} → rank {receiver}: {bytes_text(n_bytes)}")
    records = trace.records[trace.records["peer"] < 0]
    for op, end in sorted({(int(r["op"]), float(f"{float(r['end_s']):.6g}")) for r in records[: 4 * MOST_STEPS]}):
        arrived.setdefault(end, []).append(f"{trace.names[op]} is done")
    return arrived


def _steps(told: dict[float, list[str]], end_s: float) -> list[tuple[float, str]]:
    """(time, words) of each moment at which something is told, and of start and end."""
    times = sorted(told)
    times = times[:: max(1, -(-len(times) // MOST_STEPS))]
    factor, unit = seconds_unit(end_s)
    steps = [(0.0, f"start; {len(times)} step{'s' * (len(times) != 1)} in {end_s * factor:.4g} {unit}")]
    for k, time in enumerate(times, 1):
        first, more = told[time][:3], len(told[time]) - 3
        words = "; ".join(first) + (f"; {more} more" if more > 0 else "")
        steps.append((time, f"step {k} of {len(times)}, {time * factor:.4g} {unit}: {words}"))
    if end_s > steps[-1][0] * (1 + 1e-9):
        steps.append((end_s, f"end, {end_s * factor:.4g} {unit}"))
    return steps


def _moves(chunks: Sequence, trace: Trace | None) -> list[list[tuple[int, int, int]]]:
    """For each step (sender, receiver, chunk): chunks that changed at the receiver of a message of that step."""
    moves: list[list[tuple[int, int, int]]] = [[] for _ in chunks]
    if trace is None:
        return moves
    messages = views.messages_of(trace)
    for send, receive in zip(messages.sends, messages.receives):
        step = int(np.ceil(float(receive["end_s"]) - 1e-9))
        if not 0 < step < len(chunks):
            continue
        s, d = int(send["rank"]), int(receive["rank"])
        before, after = chunks[step - 1][d], chunks[step][d]
        moves[step] += [
            (s, d, c) for c in range(len(after)) if after[c] != before[c] and _carries(chunks, step, s, c, d)
        ]
    return moves


def _carries(chunks: Sequence, step: int, sender: int, chunk: int, receiver: int) -> bool:
    """Whether what the receiver holds now has in it what the sender held before."""
    return set(contributors(chunks[step - 1][sender][chunk])) <= set(contributors(chunks[step][receiver][chunk]))


def _chunk_step(chunks: Sequence, moves: list, k: int) -> str:
    whole = len(chunks[0])
    done = sum(len(set(contributors(cell))) == whole for cells in chunks[k] for cell in cells)
    cells = sum(map(len, chunks[k]))
    if k == 0:
        return f"start: every rank holds its own share; {len(chunks) - 1} steps follow"
    phase = ""
    if moves[k]:
        copies = sum(chunks[k][d][c] == chunks[k - 1][s][c] for s, d, c in moves[k])
        what = (
            "chunks are copied"
            if copies == len(moves[k])
            else "chunks are added up"
            if not copies
            else "added and copied"
        )
        s, d, c = moves[k][0]
        verb = "copies" if chunks[k][d][c] == chunks[k - 1][s][c] else "adds"
        phase = f" {what}; rank {d} {verb} chunk {c} of rank {s}."
    return f"step {k} of {len(chunks) - 1}:{phase} {done} of {cells} chunks hold all shares"


def _table(told: list[list], kinds: list[str]) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (*message[:5], kinds[message[5]])) + "</tr>"
        for message in told[:MOST_ROWS]
    )
    more = f"<p>The first {MOST_ROWS} of {len(told):,}.</p>" if len(told) > MOST_ROWS else ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("from", "to", "start [s]", "end [s]", "bytes", "what"))
    return (
        "<details><summary>The messages as a table</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</details>"
    )


def _table_of_passes(passes: Sequence[Pass]) -> str:
    rows = "".join(
        f"<tr><td>{rank}</td><td>{KINDS[kind][0]}</td><td>{k}</td><td>{chunk}</td><td>{a:.6g}</td><td>{b:.6g}</td></tr>"
        for rank, kind, k, chunk, a, b in passes[:MOST_ROWS]
    )
    more = f"<p>The first {MOST_ROWS} of {len(passes):,}.</p>" if len(passes) > MOST_ROWS else ""
    names = ("rank", "pass", "micro-batch", "chunk", "start [s]", "end [s]")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "<details><summary>The passes as a table</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</details>"
    )


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _still(name: str, pane: str) -> str:
    """What an output shows that is not trusted, and nothing else: the first view as a picture, and how to play it."""
    drawing = re.findall(r"<svg .*?</svg>", pane, re.S)[-1]  # of chunks the last frame
    if len(drawing) > MOST_STILL:
        return f'<div class="still"><p>{PLAYS}</p></div>'
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r'class="([^"]*)"', drawing + views.ARROWHEAD))))
    rules = re.findall(r"^\.hw-player(?: [\w.-]+)? \{.*?\}", _text("player.css"), re.M | re.S)
    looks = "".join(rule for rule in rules if named.issuperset(re.findall(r" \S*\.([\w-]+) \{", rule)))
    whole = drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="hw-player" ', 1)
    address = address_of(whole.replace(">", f"><style>{looks}</style>{views.ARROWHEAD}", 1))
    picture = f'<img alt="{html.escape(name, quote=True)}" style="max-width: 100%; background: #fff" src=\'{address}\'>'
    return f'<div class="still">{picture}<p>{PLAYS}</p></div>'


def _fragment(name: str, panes: dict[str, str], data: dict, notes: list[str], table: str) -> str:
    first = next(iter(panes))
    tabs = "".join(
        f'<button type="button" data-show="{view}" aria-pressed="{str(view == first).lower()}">{_NAMES[view]}</button>'
        for view in panes
        if len(panes) > 1
    )
    shown = "".join(
        f'<div class="pane" data-view="{view}" tabindex="0" role="group" aria-label="{_NAMES[view]}: arrow keys step, '
        f'space plays">{svg}</div>'
        for view, svg in panes.items()
    )
    plain = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    remarks = f'<p class="soft">{html.escape(" ".join(notes))}</p>' if notes else ""
    return (
        f'<div class="hw-player"><style>{_text("player.css")}</style><p class="title">{html.escape(name)}</p>'
        f'{_still(name, panes[first])}<div class="stage" style="display: none">{views.ARROWHEAD}'
        '<div class="bar" role="toolbar" aria-label="player" hidden>'
        '<button type="button" class="back" aria-label="one step back">◀</button>'
        '<button type="button" class="play" aria-label="play">▶</button>'
        '<button type="button" class="forward" aria-label="one step on">▶❙</button>'
        f'<input type="range" min="0" value="0" aria-label="step"/>{tabs}</div>'
        f'<p class="caption" aria-live="polite"></p>{shown}'
        f'<p class="detail soft" aria-live="polite"></p></div><!-- stage -->{remarks}{table}'
        f'<script type="application/json">{plain}</script><script>{_text("player.js")}</script></div>'
    )
