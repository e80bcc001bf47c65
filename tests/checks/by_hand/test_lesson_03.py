"""Lesson 03's own functions: on real processes, with another all-reduce, on real files, and without end."""

from __future__ import annotations

import gzip
import math
import struct
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hw_utils import Network, data, launch, simulate
from hw_utils.checks.lesson_03.small_trainings import flat, small_recipe
from hw_utils.material.models import LeNet5
from hw_utils.material.recipe import Recipe
from hw_utils.material.sweep import sweep
from tests.checks.references import lessons, namespace


@lru_cache
def names(number: str) -> dict:
    return namespace(next(lesson for lesson in lessons() if lesson.name.startswith(number)))


def lesson(name: str):
    return names("03")[name]


def trainer(*all_reduce):
    """A worker made of the lesson's own functions: the weights after recipe.max_iterations."""
    start_equal, iterations, step = (lesson(name) for name in ("start_equal", "iterations", "distributed_step"))

    def final_weights(rank, world_size, recipe):
        model, optimizer, train_set, _ = recipe.start(rank)
        start_equal(model)
        for x, y, n_total in iterations(rank, world_size, recipe, train_set):
            step(model, optimizer, x, y, n_total, *all_reduce)
        return flat(model)

    return final_weights


SHORT = small_recipe(max_iterations=8)


def test_real_processes_train_the_same_model_as_virtual_ranks():
    real = launch(trainer(), 3, (SHORT,), echo=False)
    virtual = simulate(trainer(), 3, (SHORT,), compute="free", echo=False)
    for run in (real, virtual):
        assert all(torch.equal(weights, run[0]) for weights in run)
    torch.testing.assert_close(real[0], virtual[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world_size", [3, 4])
def test_the_ring_of_lesson_2_trains_the_same_model(world_size):
    ring = names("02")["ring_all_reduce"]
    mine = simulate(trainer(ring), world_size, (SHORT,), compute="free", echo=False)
    theirs = simulate(trainer(), world_size, (SHORT,), compute="free", echo=False)
    assert "all_reduce" not in mine.trace.ops
    assert all(torch.equal(weights, mine[0]) for weights in mine)
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-5, atol=1e-6)


def test_many_workers_arrive_where_one_with_the_large_batch_does():
    # The lesson finds k*(16) to k*(64) that way.
    four = simulate(lesson("train"), 4, (Recipe(max_iterations=30, every=10),), compute="free", echo=False)[0]
    alone = Recipe(max_iterations=30, every=10, batch_size=32)
    one = simulate(lesson("train"), 1, (alone,), compute="free", echo=False)[0]
    assert [k for k, _ in four] == [k for k, _ in one] == [10, 20, 30]
    np.testing.assert_allclose([a for _, a in four], [a for _, a in one], atol=2 / 360)


def test_a_training_that_never_arrives_ends_and_counts_as_infinite():
    recipe = small_recipe(target=1.1, max_iterations=13, every=5)
    curve = simulate(lesson("train"), 2, (recipe,), compute="free", echo=False)[0]
    assert [k for k, _ in curve] == [5, 10]
    assert lesson("k_star")(curve, recipe.target) == math.inf
    assert lesson("speedup")({1: [10, 20, 30], 2: [10, math.inf, math.inf]})[2] == (0, 0, 2)


def test_local_sgd_sends_one_h_th_of_the_bytes():
    sent = {}
    for average_every in (1, 4):
        recipe = small_recipe(max_iterations=8)
        run = simulate(lesson("local_sgd"), 2, (recipe, average_every), compute="free", echo=False)
        sent[average_every] = run.trace.bytes_sent(1)
    start_and_end = 2 * 8 + 8 * 196 * 10 + 8 * 10  # at most: a broadcast of the model and a count
    assert abs(sent[1] - 4 * sent[4]) <= 4 * start_and_end


@pytest.mark.parametrize("world_size", [2, 4, 16])
def test_the_time_of_an_iteration_is_computation_plus_ten_rings(world_size):
    network = Network(latency_s=20e-6, bandwidth_Bps=1e9)
    run = simulate(lesson("virtual_steps"), world_size, (3, 0.004), network=network, compute="free", echo=False)
    rings = [
        2 * (world_size - 1) * (network.latency_s + 4 * -(-p.numel() // world_size) / network.bandwidth_Bps)
        for p in LeNet5().parameters()
    ]
    # Parameters that N does not divide have chunks that differ by one element: hence the tolerance.
    assert run.seconds == pytest.approx(3 * (0.004 + sum(rings)), rel=0.01)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture
def mnist_folder(tmp_path) -> Path:
    """A folder as torchvision leaves it, with the embedded digits written in MNIST's format."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, images in zip(("train", "t10k"), data.digits(say=False)):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images.pixels[:, 0].numpy())
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", images.labels.numpy())
    return tmp_path


def test_full_mode_trains_on_files_of_mnists_format(mnist_folder):
    load = partial(data.mnist, mnist_folder, download=False, fall_back=False, say=False)
    files = Recipe(data=load, batch_size=32, every=10, max_iterations=20)
    embedded = Recipe(batch_size=32, every=10, max_iterations=20)
    runs = [simulate(lesson("train"), 2, (recipe,), compute="free", echo=False) for recipe in (files, embedded)]
    assert runs[0][0] == runs[1][0]
    assert [k for k, _ in runs[0][0]] == [10, 20]


def test_every_rank_starts_from_other_weights_and_a_seed_from_the_same():
    first, second, again = (flat(Recipe(seed=3).start(rank)[0]) for rank in (0, 1, 0))
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_the_order_is_a_permutation_that_changes_with_epoch_and_seed():
    orders = [Recipe(seed=s).order(e, 50) for s, e in ((0, 0), (0, 1), (1, 0))]
    assert all(order.sort().values.tolist() == list(range(50)) for order in orders)
    assert not any(torch.equal(a, b) for a, b in ((orders[0], orders[1]), (orders[0], orders[2])))


def test_a_sweep_keeps_the_order_of_its_items_and_shows_progress(capfd):
    assert list(sweep(lambda i: -i, [3, 1, 2], "numbers").items()) == [(3, -3), (1, -1), (2, -2)]
    out, err = capfd.readouterr()
    assert "numbers: 100%" in out
    assert err == ""


def test_a_sweep_raises_the_failure_of_an_item():
    with pytest.raises(ZeroDivisionError):
        sweep(lambda i: 1 / i, [2, 1, 0])
