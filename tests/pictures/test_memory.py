"""The pictures of a run's memory: what they show is what the books say."""

from __future__ import annotations

import re

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import torch
from torch import nn

from hw_utils import plots
from hw_utils.core.memory import OWNERS, Memory
from hw_utils.core.memory.memory_timeline import RECORD
from hw_utils.pictures import memory as pictures
from hw_utils.pictures.figure import figures_in_html
from hw_utils.pictures.player import play
from tests.virtual.runs import run


def train(rank: int, world_size: int) -> None:
    model = nn.Linear(8 * (rank + 1), 8)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 8 * (rank + 1))).square().sum().backward()
        torch.distributed.barrier()
        optimizer.step()
        optimizer.zero_grad()


def made(n_records: int, world_size: int, capacity_bytes: int | None = None) -> Memory:
    """Rank r allocates and frees (r + 1) * 1000 bytes, again and again, and once twice as much."""
    parts = []
    for rank in range(world_size):
        records = np.zeros(n_records, RECORD)
        records["time_s"] = np.linspace(0.0, 1.0, n_records)
        records["n_bytes"] = np.resize([1000, -1000], n_records) * (rank + 1)
        records["owner"] = np.resize([0, 0, 3, 3, 6, 6], n_records)
        middle = n_records // 4 * 2
        records["n_bytes"][middle : middle + 2] *= 2
        parts.append({"rank": rank, "records": records, "sites": [("", 0)]})
    return Memory.of(parts, world_size, capacity_bytes)


def test_a_bar_is_what_a_rank_held_at_its_peak_and_the_capacity_a_dashed_line():
    memory = run(train, 3, capacity_bytes=10_000).memory
    ax = plots.plot_memory_bars(memory)
    tops = [max(p.get_y() + p.get_height() for p in ax.patches[rank::3]) for rank in range(3)]
    assert tops == [memory.peak(rank).n_bytes for rank in range(3)]
    heights = {owner: [p.get_height() for p in ax.patches[3 * i : 3 * i + 3]] for i, owner in enumerate(memory.owners)}
    for rank in range(3):
        assert {o: h[rank] for o, h in heights.items() if h[rank]} == memory.peak(rank).by_owner
    (line,) = [line for line in ax.lines if line.get_linestyle() != "-"]
    assert set(line.get_ydata()) == {10_000}
    assert "capacity" in [text.get_text().split("\n")[0] for text in ax.get_legend().get_texts()]
    assert not plots.plot_memory_bars(run(train, 1, memory=True).memory).lines


def test_a_lanes_highest_edge_is_the_peak_and_its_mark():
    memory = run(train, 2, memory=True).memory
    ax = plots.plot_memory(memory)
    high = memory.peak_bytes(1) / (1 - pictures._GAP)  # rank 1's is the highest of all
    marks = [line for line in ax.lines if line.get_marker() == "v"]
    for rank in range(2):
        edges = [path.vertices[:, 1].min() for area in ax.collections for path in area.get_paths()]
        edge = min(y for y in edges if rank < y <= rank + 1)
        assert edge == pytest.approx(rank + 1 - memory.peak_bytes(rank) / high)
        assert marks[rank].get_ydata()[0] == pytest.approx(edge)
    text = figures_in_html.alt_text(ax.figure)
    assert f"rank 0 {plots.bytes_text(memory.peak_bytes(0))}, most of it" in text


def test_the_timeline_and_the_memory_have_one_time_axis():
    upper, lower = plots.plot_timeline_and_memory(run(train, 2, memory=True))
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_shared_x_axes().joined(upper, lower)
    assert upper.get_xlabel() == ""
    assert lower.get_xlabel().startswith("time [")
    with pytest.raises(ValueError, match="memory=True"):
        plots.plot_timeline_and_memory(run(train, 2))


def test_of_many_ranks_those_with_the_highest_peaks_are_drawn():
    ax = plots.plot_memory(made(8, 40))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [str(rank) for rank in range(24, 40)]
    assert "24 more ranks are lower" in figures_in_html.alt_text(ax.figure)


def test_a_thinned_series_keeps_the_peak_the_end_and_their_order():
    memory = made(50_000, 1)
    times_s, held = pictures.thinned(*memory.series(0), 1.0)
    assert len(times_s) <= pictures.MOST_POINTS
    assert (np.diff(times_s) >= 0).all()
    assert held.sum(axis=1).max() == memory.peak_bytes(0) == 2000
    assert held[-1].tolist() == memory.series(0)[1][-1].tolist()
    few = made(100, 1).series(0)
    assert pictures.thinned(*few, 1.0) == few


def test_a_long_run_is_an_image_in_the_picture_and_a_short_one_is_not():
    pages = [figures_in_html.html_of(plots.plot_memory(made(n, 2)).figure) for n in (50_000, 50)]
    assert ["<image" in page for page in pages] == [True, False]
    assert all(len(page) < figures_in_html.MOST_BYTES and "currentColor" in page for page in pages)


def test_without_memory_there_is_nothing_to_draw():
    empty = Memory(np.zeros(0, RECORD), [("", 0)], 2)
    for plot in (plots.plot_memory, plots.plot_memory_bars):
        with pytest.raises(ValueError, match="nothing to draw"):
            plot(empty)
    assert empty.peak(0).n_bytes == empty.peak_bytes(1) == 0
    assert empty.held_bytes(1) == {}


def test_the_player_shows_memory_where_the_run_kept_it():
    found = run(train, 2, capacity_bytes=10_000)
    html = play(found)._repr_html_()
    pane = re.search(r'data-view="memory".*?</svg>(.*?)</div>', html, re.S)
    assert {owner for owner in OWNERS if f"<title>{owner}</title>" in pane[0]} == set(found.memory.owners)
    assert pane[0].count('class="cap"') == 2
    assert all(owner in pane[1] for owner in found.memory.owners)
    assert "Dashed: the capacity, 10 kB." in pane[1]
    assert 'data-view="memory"' not in play(run(train, 2))._repr_html_()


def test_the_books_as_a_table_say_rank_peak_owners_and_line():
    memory = run(train, 2, memory=True).memory
    head, *rows = [re.split(r"  +", line) for line in repr(memory).splitlines()[1:]]
    assert head == ["rank", "peak [bytes]", *memory.owners, "at [s]", "line"]
    assert rows[1][1] == f"{memory.peak_bytes(1):,}"
    assert rows[1][-1].startswith("test_memory.py, line")
    assert memory._repr_html_().count("<tr>") == 3
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="ranks are 0 to 1"):
            memory.peak(wrong)
    with pytest.raises(ValueError, match="owner must be one of"):
        memory.peak_bytes(0, "adam")
