"""Lesson 07's pictures: they draw what they are given, wrong answers included, and say it in words."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from hw_utils.pictures import lesson_07
from tests.pictures.words import said


def test_bars_are_stacked_and_their_sumssaid():
    ax = lesson_07.plot_held({"a": {"weights": 3e6, "optimizer": 6e6}, "b": {"weights": 3e6}}, cap_bytes=8e6)
    assert [bar.get_height() for bar in ax.patches] == [3e6, 3e6, 6e6, 0.0]
    assert [bar.get_y() for bar in ax.patches] == [0, 0, 3e6, 3e6]
    assert "a: 9 MB (weights 3 MB, optimizer 6 MB); b: 3 MB" in said(ax)


def test_bars_of_nothing_are_drawn_too():
    assert "0 B" in said(lesson_07.plot_held({"a": {"weights": 0}}))


def test_what_is_held_has_the_unit_of_the_timeline_above_it():
    ax = lesson_07.plot_count([(0.0, 0), (0.01, 2), (0.03, 1)], label="full slots", end_s=0.05, allowed=2)
    assert ax.get_xlabel() == "time [ms]"
    assert ax.lines[0].get_xdata()[-1] == pytest.approx(50)
    assert "at most 2, 2 allowed, 1 at the end" in said(ax)


def test_a_run_that_held_nothing_is_drawn():
    assert "at most 0" in said(lesson_07.plot_count([], label="full slots"))


def test_a_run_that_held_nothing_has_whole_numbers_on_its_axis():
    ax = lesson_07.plot_count([(0.0, 0)], label="whole p.grad", end_s=1.0)
    ax.figure.canvas.draw()
    assert [tick for tick in ax.get_yticks() if tick % 1] == []


def test_the_number_of_an_old_shard_reads_on_its_colour_in_both_themes():
    ax = lesson_07.plot_sources(96, 8, [[(0, 0, 16)]])
    inks = {text.get_text(): text.get_color() for text in ax.texts}
    assert (inks["0"], inks["4"]) == ("white", "black")  # on blue, on orange
    assert all(to_hex(bar.get_facecolor()) != "#000000" for bar in ax.patches)  # which is white on a dark page


def test_a_loss_stands_above_its_source():
    assert "from 3.00 to 1.00 nats; the source's entropy is 0.25" in said(lesson_07.plot_loss([3.0, 2.0, 1.0], 0.25))


def test_each_new_rank_shows_where_it_reads():
    ax = lesson_07.plot_sources(10, 2, [[(0, 0, 4)], [(0, 4, 5), (1, 5, 8)], []])
    assert "rank 1 reads 1 of rank 0, 3 of rank 1; rank 2 reads nothing" in said(ax)
    assert len(ax.patches) == 5
