"""Lesson 03's pictures: from records to Axes, with units, a legend beside the data and alt text."""

from __future__ import annotations

import math

import matplotlib
import numpy as np

matplotlib.use("agg")

from hw_utils import data
from hw_utils.pictures import lesson_03


def alt_text(ax) -> str:
    return ax.figure._repr_mimebundle_()["text/plain"]


def test_examples_are_shown_with_their_labels():
    ax = lesson_03.plot_examples(data.digits(say=False).train, 4)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "8", "2", "6"]


def test_batches_number_every_cell_by_its_iteration():
    ax = lesson_03.plot_batches([[([0, 2], 4), ([4], 1)], [([1, 3], 4), ([], 1)]], 5)
    assert sorted(text.get_text() for text in ax.texts) == ["0", "0", "0", "0", "1"]
    assert "2 ranks take 5 of 5 examples in 2 iterations" in alt_text(ax)


def test_equal_models_are_said_to_be_equal():
    ax = lesson_03.plot_weights([[[1.0, 2.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]]], ("before", "after"))
    assert "before: different, after: equal" in alt_text(ax)


def test_a_difference_of_exactly_nothing_is_named_in_the_legend():
    states = [np.array([0.0, 1.0]), np.array([0.5, 1.5])]
    ax = lesson_03.plot_paths([states, states], [state + 1e-7 for state in states])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "between the ranks:\nexactly 0" in labels
    assert ax.get_yscale() == "log"


def test_curves_end_with_a_mark_and_say_where():
    ax = lesson_03.plot_curves({1: [(5, 0.5), (10, 0.98)], 2: [(5, 0.97)]}, target=0.97)
    assert "N = 1 ends at iteration 10 with 0.980, N = 2 ends at iteration 5" in alt_text(ax)
    assert ax.get_xlabel() == "iteration"


def test_a_median_that_never_arrived_is_a_cross_and_not_a_point():
    ax = lesson_03.plot_speedup({1: (0.9, 1.0, 1.1), 2: (1.5, 1.8, 2.2), 4: (0.0, 0.0, 3.0)})
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "never arrived" in labels
    assert "N = 4: 0.00 (0.00 to 3.00)" in alt_text(ax)


def test_time_to_target_names_the_fastest_and_skips_who_never_arrives():
    ax = lesson_03.plot_time_to_target({1: 100, 2: 60, 4: math.inf}, 0.01, {1: 0.0, 2: 0.02, 4: 0.1}, title="slow")
    assert "Fastest with N = 1" in alt_text(ax)
    assert ax.get_ylabel() == "time to the target [s]"
    assert ax.get_ylim()[1] > 1.8


def test_local_sgd_labels_every_point_with_h():
    ax = lesson_03.plot_local_sgd({1: (1_000_000, 0.9), 8: (125_000, 0.8)})
    assert [text.get_text() for text in ax.texts] == ["H = 1", "H = 8"]
    assert "H = 8: 125 kB, 0.800" in alt_text(ax)
