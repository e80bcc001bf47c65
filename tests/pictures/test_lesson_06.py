"""Lesson 06's pictures: they draw what they are given, wrong answers included, and say it in words."""

from __future__ import annotations

import numpy as np
import torch

from hw_utils.pictures import lesson_06
from tests.pictures.words import said


def test_a_list_in_order_of_arrival_shows_its_wrong_places():
    assert "0 places are wrong" in said(lesson_06.plot_slots([[0, 1], [0, 1]]))
    assert "2 places are wrong" in said(lesson_06.plot_slots([[0, 1], [1, 0]]))


def test_lists_of_different_lengths_are_drawn():
    ax = lesson_06.plot_slots([[0.0, 1.0, 2.0], [0.0], []])
    assert [text.get_text() for text in ax.texts] == ["0", "1", "2", "0", "-", "-", "-", "-", "-"]


def test_curves_lie_on_top_of_each_other_and_can_all_be_seen():
    ax = lesson_06.plot_curves({"plain": [1.0, 0.5], "cut": [1.0, 0.5], "shared": [1.0, 0.5]})
    widths = [line.get_linewidth() for line in ax.lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 3
    assert ax.get_xlabel() == "step"


def test_a_gap_of_nothing_is_drawn_on_a_logarithmic_axis():
    ax = lesson_06.plot_gaps({"even": [0.0, 0.0], "uneven": [0.0, -0.01]})
    assert ax.get_yscale() == "log"
    assert np.isfinite(ax.lines[0].get_ydata()).all()
    assert "uneven 0.01" in said(ax)


def test_pieces_of_any_shape_are_drawn_beside_the_whole():
    whole = torch.arange(12.0).reshape(3, 4)
    ax = lesson_06.plot_pieces(whole, [whole[:, :2], whole[:2], torch.tensor(3.0)], title="pieces")
    assert len(ax.images) == 4
    assert "(3, 2), (2, 4), (1, 1)" in said(ax)


def test_costs_of_nothing_are_drawn_too():
    ax = lesson_06.plot_costs({"bytes": {"a": 0, "b": 0}, "weights": {"a": 4, "b": 2}})
    assert [bar.get_height() for bar in ax.patches] == [0.0, 1.0, 0.0, 0.5]
