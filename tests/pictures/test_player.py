"""The player: a run as one HTML fragment, complete without JavaScript, and alive with it."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

from hw_grader.notebook.sanitize import safe_html
from hw_utils import Network, simulate
from hw_utils.pictures.partial_sums import watch
from hw_utils.pictures.perfetto import trace_events
from hw_utils.pictures.player import play
from tests.virtual.algorithms import ring_all_reduce

SVG = "http://www.w3.org/2000/svg"
SLOW = Network(latency_s=0.0, bandwidth_Bps=1000.0)


def ring(rank, world_size, n_elements=4):
    ring_all_reduce(torch.ones(n_elements))


def data_of(player) -> dict:
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', player._repr_html_())[1])


def stage_of(player) -> str:
    """What plays, without the still picture beside it."""
    return player._repr_html_().partition('<div class="stage"')[2]


def test_each_message_is_an_arrow_and_a_line_of_the_table():
    player = play(simulate(ring, 4, compute="free"))
    html = stage_of(player)
    assert html.count('class="m"') == len(data_of(player)["messages"]) == 24
    assert html.count("<tr>") == 25
    assert len(player._repr_html_()) < 60_000


def drawings_of(html: str) -> list[str]:
    """The outermost element of each picture in it, all of which a browser can read."""
    sources = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]*)"', html)
    return [ElementTree.fromstring(base64.b64decode(source)).tag for source in sources]


@pytest.mark.parametrize("what", ["messages", "chunks", "pipeline"])
def test_an_output_that_is_not_trusted_is_a_picture_and_so_is_one_in_feedback(what):
    if what == "messages":
        player = play(simulate(ring, 4, compute="free"))
    else:
        player = play(chunks=watch(ring_all_reduce, 4)) if what == "chunks" else play(passes=PASSES)
    shown = player._repr_html_()
    still, stage = re.search(r'<div class="still">(.*?)</div><div class="stage" (.*?)><svg', shown).groups()
    (source,) = re.findall(r"src='data:image/svg\+xml,([^']*)'", still)
    assert ElementTree.fromstring(unquote(source)).get("class") == "hw-player"
    assert stage == 'style="display: none"'  # which only its own style sheet undoes
    in_feedback = safe_html(shown)
    assert drawings_of(in_feedback) == [f"{{{SVG}}}svg"]
    assert "The messages as a table" in in_feedback or what != "messages"


def test_the_steps_are_the_moments_at_which_something_arrives():
    steps = data_of(play(simulate(ring, 4, network=SLOW, compute="free")))["steps"]
    assert [seconds for seconds, _ in steps] == pytest.approx([0.004 * k for k in range(7)])
    assert "rank 1 → rank 0: 4 B" in steps[-1][1]


def test_chunks_say_in_words_what_moved_and_whether_it_was_added():
    player = play(chunks=watch(ring_all_reduce, 4))
    steps = [words for _, words in data_of(player)["steps"]]
    assert len(steps) == 7
    assert ["added up" in words for words in steps] == [False, True, True, True, False, False, False]
    assert ["copied" in words for words in steps] == [False] * 4 + [True] * 3
    assert stage_of(player).count('class="moved"') == 24


def test_a_share_that_is_counted_twice_is_said():
    html = play(chunks=[[[1], [10]], [[20], [10]]])._repr_html_()
    assert "1 twice" in html
    assert 'class="cell twice"' in html


def test_a_collective_is_a_bar_a_rank_and_a_step():
    def worker(rank, world_size):
        dist.all_reduce(torch.ones(8))

    player = play(simulate(worker, 3, network=SLOW, compute="free"))
    assert stage_of(player).count('class="collective"') == 3
    assert any("all_reduce is done" in words for _, words in data_of(player)["steps"])


def on_two_streams(rank, world_size):
    side, x = torch.cuda.Stream(), torch.ones(100, 100)
    dist.all_reduce(x)
    with torch.cuda.stream(side):
        x @ x


def test_a_device_has_a_row_a_stream_and_a_thread_a_stream():
    run = simulate(on_two_streams, 2, cluster="h100x8", compute="device")
    (_, _, *views) = play(run)._repr_html_().split("<svg ")
    rows = re.findall(r'text-anchor="end">([^<]*)<', next(view for view in views if "stream 1" in view))
    assert rows[:4] == ["rank 0", "stream 0", "stream 1", "group 0"]
    names = {(r["pid"], r["tid"]): r["args"]["name"] for r in trace_events(run.trace) if r["name"] == "thread_name"}
    assert {"stream 0", "stream 1", "communication", "stands still"} == set(names.values())
    assert len(names) == 8
    assert {names[r["pid"], r["tid"]] for r in trace_events(run.trace) if r.get("cat") == "stream"} == {
        "stream 0", "stream 1"
    }  # fmt: skip


PASSES = [
    (0, "F", 0, 0, 0.0, 1.0), (0, "F", 1, 0, 1.0, 2.0), (1, "F", 0, 0, 1.0, 2.0), (1, "B", 0, 0, 2.0, 4.0),
    (1, "F", 1, 0, 4.0, 5.0), (0, "B", 0, 0, 4.0, 6.0), (1, "B", 1, 0, 5.0, 7.0), (0, "B", 1, 0, 7.0, 9.0),
]  # fmt: skip


def test_a_pipeline_has_a_box_a_pass_its_bubble_in_words_and_what_is_held():
    player = play(passes=PASSES, held={0: [(0.0, 1), (1.0, 2), (6.0, 1), (9.0, 0)], 1: [(1.0, 1), (4.0, 0)]})
    html = stage_of(player)
    assert re.findall(r'class="of-pass"[^>]*>([^<]*)<', html) == [str(one[2]) for one in PASSES]
    assert "9 s, idle 33.3 % of the total time (50.0 % of the ideal time)" in html
    assert re.findall(r">(most \d)<", html) == ["most 2", "most 1"]
    assert "<title>rank 1: backward of 0, 2 to 4 s</title>" in html
    assert html.count("<td>backward</td>") == 4
    assert data_of(player)["steps"][2] == [2.0, "step 2 of 7, 2 s: rank 0 forward of 1 over; rank 1 forward of 0 over"]


def test_a_run_with_passes_plays_both_on_one_clock():
    run = simulate(ring, 2, network=SLOW, compute="free")
    player = play(run, passes=PASSES)
    data = data_of(player)
    assert (data["end"], len(data["passes"])) == (9.0, len(PASSES))
    (last,) = {message[3] for message in data["messages"]} & {max(message[3] for message in data["messages"])}
    at = data["left"] + last / data["end"] * data["width"]  # where the line of now stands when it arrives
    assert f"L{at:.1f} " in player._repr_html_()
    assert any("rank 0 → rank 1" in words for _, words in data["steps"])
    assert any("rank 0 forward of 1 over" in words for _, words in data["steps"])


def test_many_ranks_are_thinned_with_a_word_about_it():
    def worker(rank, world_size):
        for _ in range(50):
            sending = dist.isend(torch.ones(1), (rank + 1) % world_size)
            dist.recv(torch.ones(1), (rank - 1) % world_size)
            sending.wait()

    player = play(simulate(worker, 128, compute="free"))
    n_drawn = len(data_of(player)["messages"])
    assert 1_000 < n_drawn <= 2_000
    assert f"{n_drawn:,} of 6,400 messages are drawn" in player._repr_html_()
    assert "first 64 of 128 ranks" in player._repr_html_()


def test_names_in_a_run_cannot_leave_the_fragment(tmp_path):
    page = play(simulate(ring, 2, compute="free"), title="</script><b>x").save(tmp_path / "run.html").read_text()
    assert "</script><b>" not in page


def test_a_run_saves_itself_and_says_how_the_file_is_named(tmp_path):
    run = simulate(ring, 2, compute="free")
    assert "<!doctype html>" in run.save(tmp_path / "ring.html").read_text()
    with pytest.raises(ValueError, match=r"ends in \.html"):
        run.save(tmp_path / "ring.png")


def test_nothing_to_play_says_what_to_give():
    with pytest.raises(ValueError, match="needs a run or chunks"):
        play()


def seconds_at(page) -> float:
    return float(page.locator("[data-view=messages] .now").get_attribute("x1"))


@pytest.mark.browser
def test_a_saved_run_steps_plays_and_answers_keys_without_a_server(page, tmp_path):
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(simulate(ring, 4, network=SLOW, compute="free").save(tmp_path / "ring.html").as_uri())
    pane = page.locator(".pane").first
    pane.focus()
    page.keyboard.press("Home")
    assert page.locator(".caption").inner_text().startswith("start; 6 steps")
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="one step on").click()
    assert page.locator(".caption").inner_text().startswith("step 2 of 6")
    at = seconds_at(page)
    pane.focus()
    page.keyboard.press("ArrowDown")
    assert "4 bytes, 0 to 4 ms, " in page.locator(".detail").inner_text()
    page.get_by_role("button", name="play", exact=True).click()
    page.wait_for_function("document.querySelector('.caption').textContent.startsWith('step 6')")
    assert seconds_at(page) > at
    page.get_by_role("button", name="timeline").click()
    assert page.locator("[data-view=timeline]").is_visible()
    assert not page.locator("[data-view=messages]").is_visible()
    assert errors == []


@pytest.mark.browser
def test_text_stays_readable_in_a_narrow_window_and_axe_finds_nothing(page, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    played = play(chunks=watch(ring_all_reduce, 4), passes=PASSES, held={0: [(0.0, 1), (9.0, 0)]})
    page.goto(played.save(tmp_path / "chunks.html").as_uri())
    page.set_viewport_size({"width": 640, "height": 800})
    page.get_by_role("button", name="pipeline").click()
    page.locator("[data-view=pipeline]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator(".detail").inner_text() == "rank 0: forward of 1, 1 to 2 s"
    for view in ("messages", "timeline", "pipeline", "chunks"):
        page.get_by_role("button", name=view).click()
        text = page.locator(f"[data-view={view}] svg:visible text").first
        assert text.bounding_box()["height"] >= 9
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert [v["id"] for v in Axe().run(page).response["violations"]] == []


PLACES = """() => {
    const line = document.querySelector("[data-view=messages] .now");
    window.places = new Set();
    new MutationObserver(() => places.add(line.getAttribute("x1"))).observe(line, { attributes: true });
}"""


@pytest.mark.browser
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_with_reduced_motion_it_plays_in_whole_steps(page, tmp_path, motion):
    page.emulate_media(reduced_motion=motion)
    page.goto(simulate(ring, 4, network=SLOW, compute="free").save(tmp_path / "ring.html").as_uri())
    page.locator(".pane").first.focus()
    page.keyboard.press("Home")
    page.evaluate(PLACES)
    page.get_by_role("button", name="play", exact=True).click()
    page.wait_for_function("document.querySelector('.caption').textContent.startsWith('step 6')")
    n_places = page.evaluate("places.size")
    assert n_places <= 7 if motion == "reduce" else n_places > 7


@pytest.mark.browser
def test_at_200_percent_nothing_is_wider_than_the_page(browser, tmp_path):
    page = browser.new_page(viewport={"width": 640, "height": 500}, device_scale_factor=2)  # 1,280 px at 200 %
    page.goto(play(chunks=watch(ring_all_reduce, 4)).save(tmp_path / "chunks.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
    assert page.get_by_role("button", name="play", exact=True).is_visible()
    page.close()
