"""Lesson 08's pictures: they draw what they are given, wrong answers included, and say it in words."""

from __future__ import annotations

from hw_utils.material.by_hand.orders import in_flight, play
from hw_utils.pictures import lesson_08
from tests.pictures.words import said

ORDER = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]


def test_a_pipeline_says_its_seconds_its_idle_share_and_of_what_it_is_a_share():
    passes, _ = play([ORDER, ORDER], {"F": 1.0, "B": 2.0})
    ax = lesson_08.plot_pipeline(passes, title="two ranks")
    assert ax.get_title("left") == "two ranks: 9 s, idle 33.3 % of the total time"
    assert [text.get_text() for text in ax.texts if text.get_text()].count("1") == 4
    assert "Rank 0: F0 F1 B0 B1" in said(ax)


def test_chunks_have_primes_and_weight_gradients_a_third_tone():
    order = [("F", 0, 0), ("F", 1, 0), ("B", 1, 0), ("B", 0, 0), ("W", 1, 0), ("W", 0, 0)]
    passes, _ = play([order], {"F": 1.0, "B": 1.0, "W": 1.0})
    ax = lesson_08.plot_pipeline(passes)
    assert [text.get_text() for text in ax.texts] == ["0", "0'", "0'", "0", "0'", "0"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "forward", "backward", "weight gradient", "idle"
    ]  # fmt: skip


def test_what_is_in_flight_stands_below_on_one_time_axis_with_another_schedule_behind():
    passes, _ = play([ORDER, ORDER], {"F": 1.0, "B": 2.0})
    held = in_flight(passes)
    upper, lower = lesson_08.plot_schedule(passes, held, behind={0: [(0.0, 3), (12.0, 0)]}, behind_label="other")
    assert upper.get_xlim() == lower.get_xlim() == (0, 12)
    assert "the most are rank 0 2, rank 1 2" in said(lower)
    assert [label.get_text() for label in lower.get_yticklabels()] == ["0: 2", "1: 2"]


def test_a_run_without_a_pass_is_drawn():
    upper, _ = lesson_08.plot_schedule([], {})
    assert "0 s, idle 0.0 %" in upper.get_title("left")
