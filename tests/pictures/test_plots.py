"""The pictures: what they return, what they say, and that 10,000 events draw in time."""

from __future__ import annotations

import html
import io
import re
import time
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from hw_grader.notebook.sanitize import safe_html
from hw_utils import Event, Network, Trace, plots
from hw_utils.core.trace import STREAM
from hw_utils.pictures import figure as figure_of_plots
from hw_utils.pictures.chunks import contributors
from hw_utils.pictures.figure import figures_in_html
from tests.pictures.test_memory import made


def ring_trace(world_size: int, steps: int) -> Trace:
    """Every rank sends to its left neighbour, `steps` times."""
    events = []
    for step in range(steps):
        for rank in range(world_size):
            left, message = (rank - 1) % world_size, len(events) // 2
            times = {"start_s": step + 0.3, "end_s": step + 1.0, "wait_start_s": step + 0.3, "wait_end_s": step + 1.0}
            events.append(Event(rank, "isend", left, 1000, message=message, sent_bytes=1000, sent_messages=1, **times))
            events.append(Event(left, "irecv", rank, 1000, message=message, **times))
    return Trace.of(events)


def collective_trace() -> Trace:
    return Trace.of(
        Event(rank, "all_reduce", None, 400, 0.1 * rank, 1.0, message=0, wait_start_s=0.4, wait_end_s=1.0, sent_bytes=6)
        for rank in range(4)
    )


def stream_trace() -> Trace:
    """Two ranks with two streams each, which communicate in one group."""
    trace = collective_trace()
    spans = [(rank, stream, 0.1 + stream, 0.5 + stream) for rank in range(2) for stream in range(2)]
    return Trace(trace.records, trace.names, trace.groups, trace.world_size, np.array(spans, STREAM))


PICTURES = {
    "space_time": lambda ax: plots.plot_space_time(ring_trace(4, 3), ax),
    "space_time_of_collectives": lambda ax: plots.plot_space_time(collective_trace(), ax),
    "space_time_of_nothing": lambda ax: plots.plot_space_time(Trace.of([], 2), ax),
    "timeline": lambda ax: plots.plot_timeline(collective_trace(), ax, end_s=1.5),
    "timeline_of_streams": lambda ax: plots.plot_timeline(stream_trace(), ax),
    "timeline_of_nothing": lambda ax: plots.plot_timeline(Trace.of([], 2), ax),
    "bytes": lambda ax: plots.plot_bytes(ring_trace(4, 3), ax),
    "link": lambda ax: plots.plot_link([4, 4000, 4_000_000], [5e-5, 8e-5, 3e-2], Network(), ax),
    "lines": lambda ax: plots.plot_lines(
        {"ring": ([1, 10], [2, 3])}, {"ring": ([1, 10], [2, 3])}, ([1, 10], [1, 1]),
        x_label="tensor [bytes]", y_label="time [s]", mark={"crossover": 5}, ax=ax,
    ),
    "chunks": lambda ax: plots.plot_chunks([[[{0}, {0}], [{1}, {1}]], [[{0, 1}, {0}], [{1}, {0, 1}]]], ax),
    "memory": lambda ax: plots.plot_memory(made(40, 3, 4000), ax),
    "memory_bars": lambda ax: plots.plot_memory_bars(made(40, 3, 4000), ax),
    "chunk_frame": lambda ax: plots.plot_chunk_frame([[1, 11], [10, 11]], ax),
}  # fmt: skip


def test_a_timeline_of_devices_has_a_row_a_stream_and_a_row_a_group():
    ax = plots.plot_timeline(stream_trace())
    tops = [round(float(bars.get_paths()[0].vertices[:, 1].min()), 3) for bars in ax.collections]
    assert len(set(tops)) == len(tops) == 2 * (2 + 1) + 2  # ranks 2 and 3 only communicate
    assert "rank 1: stream 0, stream 1, group 0" in figures_in_html.alt_text(ax.figure)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_draws_into_the_axes_it_was_given_and_returns_them(name):
    _, ax = plt.subplots()
    assert PICTURES[name](ax) is ax
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", PICTURES)
def test_a_new_figure_is_opaque_and_light_so_that_it_reads_in_a_dark_notebook(name):
    figure = PICTURES[name](None).figure
    file = io.BytesIO()
    figure.savefig(file)
    pixels = np.asarray(Image.open(file))
    assert pixels[..., 3].min() == 255
    assert (pixels[0, 0, :3] >= 250).all()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_carries_alt_text_into_the_notebook(name):
    figure = PICTURES[name](None).figure
    data = figure._repr_mimebundle_()
    assert len(data["text/plain"]) > 20
    assert f'<img alt="{html.escape(data["text/plain"], quote=True)}"' in data["text/html"]


@pytest.mark.parametrize("name", PICTURES)
def test_an_output_that_is_not_trusted_has_the_drawing_as_a_picture_and_no_larger(name):
    inline = figures_in_html.html_of(PICTURES[name](None).figure)
    output = figures_in_html.without_trust(inline)
    assert "<svg" not in output  # JupyterLab would take it out, and leave its words
    (source,) = re.findall(r"src='data:image/svg\+xml,([^']*)'", output)
    drawing = ElementTree.fromstring(unquote(source))
    assert drawing.get("viewBox") in inline
    assert len(output) < 1.25 * len(inline) + 1000
    assert safe_html(output).count("<img") == 1  # in feedback, too


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_in_a_page_takes_its_text_colour_and_keeps_its_own_figure(name):
    figure = PICTURES[name](None).figure
    before = [text.get_color() for ax in figure.axes for text in ax.texts]
    drawn = figures_in_html.html_of(figure)
    assert "currentColor" in drawn
    assert figures_in_html.INK not in drawn
    assert "<metadata" not in drawn
    assert [text.get_color() for ax in figure.axes for text in ax.texts] == before
    assert "<style" not in drawn
    assert not re.findall(r' id="(axes|patch|text|figure)_', drawn)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_scrolls_before_its_words_fall_below_nine_pixels(name):
    drawn = figures_in_html.html_of(PICTURES[name](None).figure)
    least_px, width = (float(re.search(said, drawn)[1]) for said in (r"min-width: (\d+)px", r'viewBox="0 0 ([\d.]+)'))
    widest_px = float(re.search(r"max-width: (\d+)px", drawn)[1])
    sizes = [float(size) for size in re.findall(r'font(?:-size)?:[^;"]*?([\d.]+)px', drawn)]  # of exponents, too
    assert sizes
    assert least_px == widest_px or min(sizes) * least_px / width >= 8.98


def test_words_on_a_coloured_ground_stay_black():
    drawn = figures_in_html.html_of(plots.plot_chunk_frame([[1, 11], [10, 11]]).figure)
    assert figures_in_html.FIXED in drawn


def test_a_very_large_drawing_is_a_png_with_its_alt_text():
    ax = figure_of_plots.axes()
    for k in range(400):
        ax.plot(np.random.default_rng(k).random(200), linewidth=0.3)
    drawn = figures_in_html.html_of(figure_of_plots.alt(ax, 'Four hundred "lines".').figure)
    assert '<img alt="Four hundred &quot;lines&quot;."' in drawn
    assert "data:image/png;base64," in drawn


def test_a_cell_that_ends_in_a_plot_shows_the_picture_and_no_line_above_it():
    shell = InteractiveShell.instance()
    ax = PICTURES["link"](None)
    assert shell.display_formatter.format(ax) == ({}, {})


@pytest.mark.parametrize("name", ["space_time", "timeline", "link", "lines"])
def test_the_legend_stands_outside_the_data(name):
    ax = PICTURES[name](None)
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


@pytest.mark.parametrize("name", ["space_time", "timeline", "bytes", "link", "lines"])
def test_axes_of_a_picture_are_labelled(name):
    ax = PICTURES[name](None)
    assert ax.get_xlabel()
    assert ax.get_ylabel()


def test_ten_thousand_events_draw_in_no_more_than_ten_times_what_a_thousand_take():
    seconds = []
    for trace in (ring_trace(2, 1), ring_trace(50, 10), ring_trace(50, 100)):  # the first loads fonts
        began = time.process_time()
        plots.plot_space_time(trace).figure.canvas.draw()
        seconds.append(time.process_time() - began)
    assert len(trace) == 10_000
    assert seconds[2] < 12 * seconds[1]


def test_an_arrow_goes_from_its_send_to_its_arrival():
    ax = plots.plot_space_time(Trace.of([
        Event(2, "send", 0, 8, 1.0, 5.0, message=0), Event(0, "recv", 2, 8, 3.0, 5.0, message=0),
    ]))  # fmt: skip
    (arrows,) = [c for c in ax.collections if type(c).__name__ == "Quiver"]
    assert (arrows.X[0], arrows.Y[0]) == (1.0, 2.0)
    assert (arrows.U[0], arrows.V[0]) == (4.0, -2.0)


def test_a_message_that_nobody_matched_is_marked():
    ax = plots.plot_space_time(Trace.of([Event(1, "isend", 0, 8, 1.0, 1.0, message=-1, waited=None)]))
    assert "nobody matched it" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_describe_says_ranks_time_calls_and_bytes():
    text = plots.describe(ring_trace(4, 3))
    assert text == "4 ranks over 3 s: 12 irecv, 12 isend; a rank sends 3 kB."


def test_intervals_that_touch_or_cross_become_one():
    spans = plots.merged(np.array([5.0, 0.0, 1.0, 9.0]), np.array([6.0, 4.0, 2.0, 9.0]))
    assert spans.tolist() == [[0.0, 4.0], [5.0, 6.0]]


def test_a_number_is_read_as_the_sum_of_the_ranks_shares():
    assert contributors(1011) == (0, 1, 3)
    assert contributors({3, 1}) == (1, 3)
    assert contributors(200) == (2, 2)


def test_a_share_that_was_counted_twice_stands_out():
    ax = plots.plot_chunk_frame([[2, 11], [11, 11]])
    colors = {matplotlib.colors.to_hex(patch.get_facecolor()).upper() for patch in ax.patches}
    assert plots.COLORS["lost"] in colors


def test_a_logarithmic_axis_of_less_than_a_decade_has_plain_numbers():
    ax = plots.plot_lines({"a": ([1, 100], [0.12, 0.26])}, x_label="buckets", y_label="one step [s]")
    ax.figure.canvas.draw()
    drawn = {label.get_text() for label in ax.get_yticklabels(which="both")}
    assert "0.2" in drawn
    assert all("times" not in words for words in drawn)


def test_a_slow_link_is_said_in_milliseconds():
    link = Network(latency_s=1.8e-3, bandwidth_Bps=2.53e9)
    ax = plots.plot_link([1, 1000], [0.0018, 0.0019], link)
    assert "fit: 1.8 ms\n+ bytes / (2.53 GB/s)" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_of_two_pictures_on_one_time_axis_the_lower_one_names_it():
    _, (upper, lower) = plt.subplots(2, sharex=True)
    for ax in (upper, lower):
        plots.plot_timeline(collective_trace(), ax)
    assert (upper.get_xlabel(), lower.get_xlabel()[:4]) == ("", "time")


def test_the_dotted_lines_of_collectives_are_in_the_legend():
    legend = plots.plot_space_time(collective_trace()).get_legend()
    assert "the last one has called" in [text.get_text() for text in legend.get_texts()]
