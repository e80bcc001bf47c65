"""The course's data sets: embedded ones that need no network, and the real ones where there is one.

    digits()     1,437 + 360    1x28x28   scikit-learn's handwritten digits (embedded)
    mnist()      60,000 + 10,000 1x28x28  from disk, or by torchvision; else digits()
    drawn()      4,000 + 1,000  3x32x32   ten figures drawn by a program (embedded)
    cifar10()    50,000 + 10,000 3x32x32  from disk, or by torchvision; else drawn()
    two_moons()  200            2         points of two interleaved half circles
    alice()      148,000 characters       Alice's Adventures in Wonderland (embedded)
    grammar()    as many as you like      sentences of a grammar whose entropy is known

Each says in one line which set is in use, gives the same numbers every time, and can be called in a rank.
"""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from hw_utils.material.images import drawn_pictures as drawings
from hw_utils.material.images import idx_and_cifar_files as files
from hw_utils.material.images import torchvision_downloads
from hw_utils.material.images.torchvision_downloads import Unusable
from hw_utils.material.text import grammar as sentences
from hw_utils.material.text.characters import Characters, alice_text

MNIST_MB, CIFAR10_MB = 80, 400  # on disk while it is unpacked


class Images(Dataset):
    """Pictures as bytes, given out as standardised floats: `images[i]` and `images[[3, 1, 4]]` are (x, label).

    x: float32 (channels, side, side), or (n, channels, side, side) if a list, slice or tensor of places is asked for.
    `tensors` is all of it, as TensorDataset has it.
    """

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> None:
        self.pixels, self.labels, self.mean, self.std = pixels, labels, mean, std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, places) -> tuple[torch.Tensor, torch.Tensor]:
        x = (self.pixels[places].float() / 255 - self.mean) / self.std
        return x, self.labels[places]

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self[:]


@dataclass(frozen=True)
class Data:
    """A training and a test set; unpacks as `train, test = data.digits()`."""

    train: Dataset
    test: Dataset
    name: str  # "digits", "MNIST", "drawn", "CIFAR-10"
    line: str  # which set is in use, in one line

    def __iter__(self):
        return iter((self.train, self.test))

    def __repr__(self) -> str:
        return self.line


def digits(*, say: bool = True) -> Data:
    """scikit-learn's 1,797 handwritten digits, enlarged from 8x8 to 1x28x28: 1,437 to train with, 360 to test.

    >>> train, test = digits(say=False)
    >>> train[:8][0].shape
    torch.Size([8, 1, 28, 28])
    """
    return _said(_digits(), say)


def mnist(
    root: str | Path = "data",
    *,
    download: bool = True,
    fall_back: bool = True,
    timeout_s: float = 120,
    say: bool = True,
) -> Data:
    """MNIST: the IDX files found under `root`, else downloaded into it by torchvision, else `digits()`.

    Raises:
        Unusable: there is no usable MNIST and `fall_back` is False.
    """
    source = _Source("MNIST", files.find_idx, files.read_mnist, MNIST_MB, timeout_s, say)
    return source.load(Path(root), download, _digits if fall_back else None)


def drawn(n_train: int = 4_000, n_test: int = 1_000, *, say: bool = True) -> Data:
    """Ten kinds of figures drawn by a program at 3x32x32, as CIFAR-10: `hw_utils.material.images.drawn_pictures`."""
    return _said(_drawn(n_train, n_test), say)


def cifar10(
    root: str | Path = "data",
    *,
    download: bool = True,
    fall_back: bool = True,
    timeout_s: float = 900,
    say: bool = True,
) -> Data:
    """CIFAR-10: the batch files found under `root`, else downloaded into it by torchvision, else `drawn()`.

    Raises:
        Unusable: there is no usable CIFAR-10 and `fall_back` is False.
    """
    source = _Source("CIFAR-10", files.find_cifar10, files.read_cifar10, CIFAR10_MB, timeout_s, say)
    return source.load(Path(root), download, (lambda: _drawn(4_000, 1_000)) if fall_back else None)


def two_moons(n: int = 200, *, noise: float = 0.1, seed: int = 0) -> TensorDataset:
    """x float32 (n, 2), y float32 (n, 1): two interleaved half circles, 0 the upper, 1 the lower, shuffled."""
    random = np.random.RandomState(seed)
    n_upper = n // 2
    upper, lower = np.linspace(0, np.pi, n_upper), np.linspace(0, np.pi, n - n_upper)
    points = np.concatenate(
        [np.stack([np.cos(upper), np.sin(upper)], 1), np.stack([1 - np.cos(lower), 0.5 - np.sin(lower)], 1)]
    )
    points = points + random.normal(0, noise, points.shape)
    order = random.permutation(n)
    y = (np.arange(n) >= n_upper)[order]
    return TensorDataset(
        torch.tensor(points[order], dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]
    )


def alice(context: int = 64, *, say: bool = True) -> Data:
    """Alice's Adventures in Wonderland, windows of `context` characters: nine tenths to train with, the end to test.

    >>> train, test = alice(say=False)
    >>> train[[0, 5]][0].shape
    torch.Size([2, 64])
    """
    text = alice_text()
    n = len(text) * 9 // 10
    sets = Characters(text[:n], context), Characters(text[n:], context)
    line = f"data: Alice's Adventures in Wonderland, {n:,} training and {len(text) - n:,} test characters (embedded)"
    return _said(Data(*sets, "alice", line), say)


def grammar(n_train: int = 4_000, n_test: int = 400, context: int = 64, *, say: bool = True) -> Data:
    """Sentences drawn from a small grammar; `train.nats` is what a character is worth, the least loss there is."""
    nats = sentences.nats_per_character()
    sets = [Characters(sentences.drawn_sentences(n, seed), context, nats) for n, seed in ((n_train, 1), (n_test, 2))]
    line = f"data: grammar, {n_train:,} training and {n_test:,} test sentences of {nats:.3f} nats a character (drawn)"
    return _said(Data(*sets, "grammar", line), say)


@dataclass(frozen=True)
class _Source:
    """Where a real data set comes from: disk first, then the network, then the embedded stand-in."""

    name: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path], tuple[files.Arrays, files.Arrays]]
    needed_mb: int
    timeout_s: float
    say: bool

    def load(self, root: Path, may_download: bool, stand_in: Callable[[], Data] | None) -> Data:
        try:
            return _said(self._real(root, may_download), self.say)
        except Unusable as error:
            if stand_in is None:
                raise
            data = stand_in()
            return _said(replace(data, line=f"{data.line}, because: {error}"), self.say)

    def _real(self, root: Path, may_download: bool) -> Data:
        folder = self.find(root)
        if folder is None:
            if not may_download:
                raise Unusable(f"there is no {self.name} in {root.resolve()}")
            print(f"downloading {self.name} into {root.resolve()} (at most {self.timeout_s:.0f} s)", flush=True)
            torchvision_downloads.download(
                self.name.replace("-", ""), root, needed_bytes=self.needed_mb * 10**6, timeout_s=self.timeout_s
            )
            folder = self.find(root)
        if folder is None:
            raise Unusable(f"{self.name} was downloaded but its files are not in {root.resolve()}")
        return _read(self.name, self.read, folder, _stamp(folder))


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What is in the folder: a file that changes is read again."""
    found = ((path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file())
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


@lru_cache(maxsize=2)
def _read(name: str, read: Callable, folder: Path, stamp: tuple) -> Data:
    return _data(name, f"from {folder}", *read(folder))


def _said(data: Data, say: bool) -> Data:
    if say:
        print(data.line)
    return data


def _data(name: str, where: str, train: files.Arrays, test: files.Arrays) -> Data:
    pixels = torch.from_numpy(train[0])
    some = pixels[:: max(1, len(pixels) // 5_000)].double() / 255
    mean = some.mean((0, 2, 3))[:, None, None].float()
    std = some.std((0, 2, 3))[:, None, None].float().clamp(min=1e-3)
    sets = [Images(torch.from_numpy(x), torch.from_numpy(y), mean, std) for x, y in (train, test)]
    shape = "x".join(map(str, pixels.shape[1:]))
    line = f"data: {name}, {len(sets[0]):,} training and {len(sets[1]):,} test images of {shape} ({where})"
    return Data(*sets, name, line)


@lru_cache(maxsize=1)
def _digits() -> Data:
    table = _digits_table()
    small = torch.tensor(table[:, :64].reshape(-1, 1, 8, 8) / 16, dtype=torch.float32)
    large = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    pixels = (255 * large).round().to(torch.uint8).numpy()
    labels = table[:, 64].astype(np.int64)
    order = np.random.RandomState(0).permutation(len(labels))
    train, test = order[:1437], order[1437:]
    return _data("digits", "embedded: scikit-learn", (pixels[train], labels[train]), (pixels[test], labels[test]))


def _digits_table() -> np.ndarray:
    """(1797, 65): 64 pixels of 0 to 16 and the digit; read without importing scikit-learn, which takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise Unusable("the digits are part of scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        from sklearn.datasets import load_digits

        found = load_digits()
        return np.column_stack([found.data, found.target])
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",")


@lru_cache(maxsize=2)
def _drawn(n_train: int, n_test: int) -> Data:
    sets = drawings.drawn_images(n_train, seed=1), drawings.drawn_images(n_test, seed=2)
    return _data("drawn", "embedded: figures drawn by a program", *sets)
