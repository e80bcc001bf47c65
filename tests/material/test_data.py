"""The data sets that come with the kit: the same every time, balanced, standardised, and said in one line."""

import subprocess
import sys

import numpy as np
import torch

from hw_utils import data


def test_digits_are_the_same_every_time_and_standardised():
    train, test = data.digits(say=False)
    assert (len(train), len(test)) == (1437, 360)
    x, y = train.tensors
    assert x.shape == (1437, 1, 28, 28)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert abs(float(x.mean())) < 1e-3
    assert y[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    expected = load_digits()
    train, test = data.digits(say=False)
    labels = torch.cat([train.labels, test.labels])
    assert sorted(labels.tolist()) == sorted(expected.target.tolist())
    # Means over the enlarged picture and the small one agree: no picture went to another label.
    sums = {}
    for small, label in zip(expected.data, expected.target):
        sums.setdefault(int(label), []).append(small.mean() / 16 * 255)
    pixels = torch.cat([train.pixels, test.pixels]).double().mean((1, 2, 3))
    for label, means in sums.items():
        mine = pixels[labels == label]
        np.testing.assert_allclose(np.sort(mine.numpy()), np.sort(means), atol=1.5)


def test_digits_need_no_import_of_scikit_learn():
    code = "import sys; from hw_utils import data; data.digits(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_training_digit_is_a_test_digit():
    train, test = data.digits(say=False)
    seen = {x.numpy().tobytes() for x in train.pixels}
    assert not any(x.numpy().tobytes() in seen for x in test.pixels)


def test_which_set_is_in_use_is_said_in_one_line(capsys):
    data.digits()
    data.drawn(40, 20)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "data: digits, 1,437 training and 360 test images of 1x28x28 (embedded: scikit-learn)",
        "data: drawn, 40 training and 20 test images of 3x32x32 (embedded: figures drawn by a program)",
    ]
    assert err == ""


def test_images_give_one_picture_or_a_batch():
    train, _ = data.digits(say=False)
    x, label = train[3]
    assert x.shape == (1, 28, 28)
    assert label.shape == ()
    for places in ([3, 1, 4], torch.tensor([3, 1, 4]), slice(3)):
        batch, labels = train[places]
        assert batch.shape == (3, 1, 28, 28)
        assert labels.shape == (3,)
    assert torch.equal(train[[3]][0][0], x)


def test_images_work_in_a_data_loader_and_a_subset():
    train, _ = data.digits(say=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.Subset(train, range(10)), batch_size=4)
    assert [len(y) for _, y in loader] == [4, 4, 2]


def test_drawn_pictures_are_balanced_and_the_same_every_time():
    data._drawn.cache_clear()
    first = data.drawn(200, 50, say=False).train.tensors
    data._drawn.cache_clear()
    again = data.drawn(200, 50, say=False).train.tensors
    assert torch.equal(first[0], again[0])
    assert torch.bincount(first[1]).tolist() == [20] * 10
    assert first[0].shape == (200, 3, 32, 32)


def test_the_drawn_class_is_not_in_the_colours():
    train, test = data.drawn(2000, 500, say=False)
    colours = [part.pixels.double().mean((2, 3)) / 255 for part in (train, test)]
    centres = torch.stack([colours[0][train.labels == k].mean(0) for k in range(10)])
    guess = torch.cdist(colours[1], centres).argmin(1)
    assert float((guess == test.labels).double().mean()) < 0.25


def test_two_moons_are_balanced_and_seeded():
    x, y = data.two_moons(201, seed=3).tensors
    assert x.shape == (201, 2)
    assert y.shape == (201, 1)
    assert y.unique().tolist() == [0, 1]
    assert y.sum() == 101
    assert torch.equal(x, data.two_moons(201, seed=3).tensors[0])
    assert not torch.equal(x, data.two_moons(201, seed=4).tensors[0])
