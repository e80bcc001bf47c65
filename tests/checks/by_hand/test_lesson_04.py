"""Lesson 04: the published table, equal trainings, the report, bytes over time."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hw_utils import Event, Network, Trace, data, launch, models, simulate
from hw_utils.checks.lesson_04.collective_contents import is_made_of
from hw_utils.core import bytes_over_time
from hw_utils.hosts import training_report
from hw_utils.material.job import Job
from hw_utils.material.timed_model import BlankImages, OnPaper, multiply_adds
from hw_utils.pictures import lesson_04
from tests.checks.references import lessons, namespace

PUBLISHED_S = {"one": 2.52, "gather_scatter": 1.36, "all_reduce": 1.02, "ddp": 0.87}
ONE_NODE_S = PUBLISHED_S["one"]
N_BYTES = 4 * 9_231_114


@lru_cache
def reference() -> dict:
    return namespace(next(lesson for lesson in lessons() if lesson.name == "04_data_parallel"))


def vgg11_on_paper():
    return OnPaper(models.VGG11(), torch.zeros(1, 3, 32, 32), ONE_NODE_S / 256)


def blank_images():
    return BlankImages(256 * 4), BlankImages(1)


@lru_cache
def virtual(method: str):
    job = Job(method, vgg11_on_paper, blank_images, total_batch=256, n_iterations=4)
    n_ranks = 1 if method == "one" else 4
    return simulate(reference()["worker"], n_ranks, args=(job,), network=Network(), compute="free", echo=False)


@pytest.mark.parametrize("method", ["one", "all_reduce", "ddp"])
def test_the_published_iteration_time_is_reproduced_within_20_percent(method):
    assert virtual(method)[0]["iteration_s"] == pytest.approx(PUBLISHED_S[method], rel=0.2)


def test_the_order_of_the_published_methods_is_reproduced():
    seconds = [virtual(method)[0]["iteration_s"] for method in PUBLISHED_S]
    assert seconds == sorted(seconds, reverse=True)


def test_node_0_sends_what_its_counter_said_with_all_reduce():
    gradients = virtual("all_reduce").trace.of_op("all_reduce")
    assert gradients.bytes_sent(0) / 4 == pytest.approx(55.6e6, rel=0.01)


def test_gather_and_scatter_one_after_the_other_cannot_be_what_the_report_measured():
    """Through one port at 1 Gb/s: 1.77 s of messages and 0.63 s of compute, not 1.36 s."""
    expected_s = ONE_NODE_S / 4 + 6 * N_BYTES / Network().bandwidth_Bps
    assert virtual("gather_scatter")[0]["iteration_s"] == pytest.approx(expected_s, rel=0.01)
    assert ONE_NODE_S / 4 + 3 * N_BYTES / Network().bandwidth_Bps > PUBLISHED_S["gather_scatter"]


def overlapped_gather_scatter(model):
    """In pieces, the next one coming in while the last one's mean goes out: what a full-duplex port can do at best."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = torch.cat([p.grad.flatten() for p in model.parameters()]).split(100_000)
    means = [torch.empty_like(piece) for piece in pieces]
    each = [[torch.empty_like(piece) for _ in range(world_size)] if rank == 0 else None for piece in pieces]
    coming, going = dist.gather(pieces[0], each[0], async_op=True), []
    for i, mean in enumerate(means):
        following = None
        if i + 1 < len(pieces):
            following = dist.gather(pieces[i + 1], each[i + 1], async_op=True)
        coming.wait()
        going.append(dist.scatter(mean, [each[i][0]] * world_size if rank == 0 else None, async_op=True))
        coming = following
    for work in going:
        work.wait()


def _step(rank, world_size, sync):
    model = vgg11_on_paper()
    model(torch.zeros(1).expand(256 // world_size, 3, 32, 32)).sum().backward()
    sync(model)


def test_gather_and_scatter_that_overlap_come_within_20_percent():
    run = simulate(_step, 4, args=(overlapped_gather_scatter,), network=Network(), compute="free", echo=False)
    assert run.seconds == pytest.approx(PUBLISHED_S["gather_scatter"], rel=0.2)


def test_ddp_overlaps_its_buckets_with_the_backward_pass():
    mine = [e for e in virtual("ddp").trace.of_rank(0) if e.op == "all_reduce"]
    first = [e for e in mine if e.n_bytes == 9_461_800]
    assert len(first) >= 2
    assert all(e.end_s < e.wait_start_s for e in first)  # it had arrived before anybody waited for it


def test_a_model_on_paper_takes_its_time_and_has_the_parameters_of_the_real_one():
    run = simulate(_step, 1, args=(lambda model: None,), compute="free", echo=False)
    assert run.seconds == pytest.approx(ONE_NODE_S)
    paper, real = vgg11_on_paper(), models.VGG11()
    assert sorted(p.shape for p in paper.parameters()) == sorted(p.shape for p in real.parameters())


def test_multiply_adds_of_vgg11_are_those_of_its_layers():
    counts = multiply_adds(models.VGG11(), torch.zeros(1, 3, 32, 32))
    assert counts["features.0"] == 32 * 32 * 64 * 27
    assert counts["classifier"] == 5120


def _few_images():
    return data.drawn(16, 8, say=False)


def test_vgg11_without_batch_norm_trains_alike_on_one_rank_and_on_many():
    small = Job("one", partial(models.VGG11, batch_norm=False), _few_images, total_batch=8, n_iterations=2, lr=0.05)
    worker = reference()["worker"]
    one = lesson_04.mean_losses(simulate(worker, 1, args=(small,), echo=False))
    for method in ("gather_scatter", "all_reduce", "ddp"):
        run = simulate(worker, 2, args=(replace(small, method=method),), echo=False)
        assert lesson_04.mean_losses(run) == pytest.approx(one, rel=1e-4)


def test_real_processes_train_as_virtual_ones_do():
    small = Job("all_reduce", models.SimpleCNN, _few_images, total_batch=8, n_iterations=2, lr=0.05)
    worker = reference()["worker"]
    real, same = (run(worker, 2, args=(small,), echo=False) for run in (launch, simulate))
    assert lesson_04.mean_losses(real) == pytest.approx(lesson_04.mean_losses(same), rel=1e-5)
    assert real.trace.bytes_sent(0) == same.trace.bytes_sent(0)


def _many_gathers(rank, world_size, n):
    for i in range(n):
        part = torch.full((1 + 127 * (i % 3),), float(rank))
        dist.gather(part, [torch.empty_like(part) for _ in range(world_size)] if rank == 0 else None)
    return n


def test_gathers_of_changing_sizes_are_never_taken_for_a_mismatch():
    assert launch(_many_gathers, 4, args=(500,), echo=False).results == [500] * 4


def test_a_job_with_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method must be one of one, gather_scatter, all_reduce, ddp; got 'magic'"):
        Job("magic")


# Bytes over time, and the report


def test_the_ledgers_profile_holds_every_byte_that_was_sent():
    trace = virtual("gather_scatter").trace
    profile = bytes_over_time.profile_of(trace)
    for rank in range(4):
        assert profile.sent_bytes(rank) == pytest.approx(trace.bytes_sent(rank))
    received = (profile.received_Bps * np.diff(profile.times_s)).sum(axis=1)
    assert received.sum() == pytest.approx(sum(trace.bytes_sent(rank) for rank in range(4)))
    assert received[0] == pytest.approx(3 * 4 * N_BYTES)


def test_a_message_without_length_in_time_is_in_the_profile_too():
    trace = Trace.of(
        [Event(0, "send", 1, 8, 1.0, 1.0, message=0, sent_bytes=8), Event(1, "recv", 0, 8, 1.0, 1.0, message=0)]
    )
    profile = bytes_over_time.profile_of(trace)
    assert profile.sent_bytes(0) == pytest.approx(8)


def test_counters_of_hosts_become_a_profile():
    samples = [[(0.0, 100, 0), (1.0, 1100, 50), (2.0, 1100, 50)], [(0.0, 0, 0), (2.0, 0, 1000)]]
    profile = bytes_over_time.profile_of_samples(samples, n_intervals=2)
    assert profile.sent_Bps.tolist() == [[1000.0, 0.0], [0.0, 0.0]]
    assert profile.received_Bps.tolist() == [[50.0, 0.0], [500.0, 500.0]]


def test_an_interface_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ValueError, match=r"there is no interface 'eth77' here, only .*lo"):
        bytes_over_time.counters("eth77")


def test_the_way_to_this_machine_leads_over_its_loopback():
    name = bytes_over_time.interface_to("127.0.0.1")
    assert bytes_over_time.address_of(name).startswith(("127.", "::1"))


def _notebook(tmp_path):
    marks = {"nbgrader": {"grade_id": "why", "solution": True, "grade": True}}
    cells = [
        {"cell_type": "markdown", "metadata": marks, "source": ["Because <b>headers</b>"]},
        {"cell_type": "markdown", "metadata": {}, "source": ["not an answer"]},
    ]
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_the_report_is_one_file_with_settings_tables_charts_losses_and_answers(tmp_path):
    job = Job("all_reduce", models.SimpleCNN, _few_images, total_batch=8, n_iterations=2)
    run = simulate(reference()["worker"], 2, args=(job,), echo=False)
    training_report.save(tmp_path / "runs", "all_reduce", run, job.settings())
    page = training_report.write(tmp_path / "runs", tmp_path / "report.html", notebook=_notebook(tmp_path)).read_text()
    for part in ("SimpleCNN", "total_batch", "test loss", "Because &lt;b&gt;headers", "data:image/png;base64,", "alt="):
        assert part in page
    for outside in ("http://", "https://", 'src="/', "not an answer"):
        assert outside not in page


def test_runs_of_hosts_are_in_the_report(tmp_path):
    folder = tmp_path / "runs" / "ddp"
    folder.mkdir(parents=True)
    for rank in range(2):
        facts = {
            "rank": rank, "world_size": 2, "host": f"node{rank}", "settings": {"method": "ddp"},
            "result": {"losses": [2.0, 1.0], "iteration_s": 0.5, "test_loss": 1.0, "accuracy": 0.5},
            "counters": [[0.0, 0, 0], [1.0, 2_000_000, 1_000_000]],
        }  # fmt: skip
        (folder / f"rank_{rank}.json").write_text(json.dumps(facts))
    (saved,) = training_report.load(tmp_path / "runs")
    assert (saved.where, saved.sent_bytes, training_report.mean_losses(saved)) == ("hosts", [2e6, 2e6], [2.0, 1.0])
    assert "0.500" in training_report.write(tmp_path / "runs", tmp_path / "report.html").read_text()


def test_an_empty_folder_of_runs_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="save them first"):
        training_report.write(tmp_path, tmp_path / "report.html")


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: lesson_04.plot_losses({"one": [2.0, 1.0], "ddp": [2.0, 1.5]}, ax),
        lambda ax: lesson_04.plot_shards([[[0, 1], [4]], [[2, 3], [5]]], ax),
        lambda ax: lesson_04.plot_methods({"report": PUBLISHED_S, "here": {"one": 1.0}}, ax),
        lambda ax: lesson_04.plot_profile(bytes_over_time.profile_of_samples([[(0.0, 0, 0), (1.0, 5, 5)]]), ax),
    ],
)
def test_the_lessons_figures_draw_into_given_axes_and_have_alt_text(draw):
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert draw(ax) is ax
    assert len(ax.figure.alt_texts[0]) > 20


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_memory_that_nobody_wrote_to_is_made_of_nothing(number):
    sources = [np.arange(4.0)]
    assert not is_made_of(np.array([number, 1.0, 2.0, 3.0]), sources)
    assert not is_made_of(np.arange(4.0), [np.array([number, 1.0, 2.0, 3.0])])
    assert is_made_of(3 * np.arange(4.0), sources)
