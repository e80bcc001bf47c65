"""Data sets in files: MNIST's IDX format and CIFAR-10's pickled batches, read strictly and without running anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np

from hw_utils.material.images.torchvision_downloads import Unusable

IDX_FOLDERS = ("MNIST/raw", "mnist", "raw", ".")  # under the data folder; the first is torchvision's
CIFAR_FOLDERS = ("cifar-10-batches-py", ".")
CIFAR_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR_TEST = ("test_batch",)
# MD5 of the six files as published; a file that says it is one of them must be it to the bit.
CIFAR_MD5 = {
    "training batch 1 of 5": "c99cafc152244af753f735de768cd75f",
    "training batch 2 of 5": "d4bba439e000b95fd0a9bffe97cbabec",
    "training batch 3 of 5": "54ebc095f3ab1f0389bbae665268c751",
    "training batch 4 of 5": "634d18415352ddfa80567beed471001a",
    "training batch 5 of 5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "testing batch 1 of 1": "40351d587109b95175f43aff81a1287e",
}

Arrays = tuple[np.ndarray, np.ndarray]  # images uint8 (n, channels, side, side), labels int64 (n,)


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an IDX file, gzipped or not.

    Raises:
        Unusable: not IDX, not bytes, too short, too long, or gzip's checksum does not fit.
    """
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise Unusable(f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}; {_AGAIN}")
    kind, n_dims = content[2], content[3]
    if kind != 0x08 or not 1 <= n_dims <= 4 or len(content) < 4 + 4 * n_dims:
        raise Unusable(f"{path} is not an IDX file of bytes: type {kind:#04x}, {n_dims} dimensions; {_AGAIN}")
    shape = struct.unpack_from(f">{n_dims}I", content, 4)
    expected = 4 + 4 * n_dims + math.prod(shape)
    if len(content) != expected:
        raise Unusable(f"{path} says {shape}, which takes {expected:,} bytes; it has {len(content):,}; {_AGAIN}")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_dims).reshape(shape)


_AGAIN = "delete it and fetch it again"


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unusable(f"{path} is damaged or half a download ({error}); {_AGAIN}") from None
    except OSError as error:
        raise Unusable(f"{path} cannot be read ({error})") from None


def find_idx(root: Path) -> Path | None:
    """The folder under `root` that holds MNIST's files, whole or in part, or None."""
    return _first(root, IDX_FOLDERS, [_idx_path, "train-images", "t10k-images"])


def _first(root: Path, folders, how) -> Path | None:
    find, *names = how
    return next((root / f for f in folders if any(find(root / f, name) for name in names)), None)


def _idx_path(folder: Path, stem: str) -> Path | None:
    """The file of that stem: gzipped first, because gzip has a checksum."""
    kind = "idx3-ubyte" if "images" in stem else "idx1-ubyte"
    names = [f"{stem}{dash}{kind}{end}" for end in (".gz", "") for dash in "-."]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_mnist(folder: Path) -> tuple[Arrays, Arrays]:
    """(train, test) from the four IDX files in `folder`.

    Raises:
        Unusable: one is missing or damaged, images and labels do not match, a label is not a digit.
    """
    return _idx_pair(folder, "train"), _idx_pair(folder, "t10k")


def _idx_pair(folder: Path, part: str) -> Arrays:
    paths = [_idx_path(folder, f"{part}-{what}") for what in ("images", "labels")]
    for path, what in zip(paths, ("images-idx3-ubyte", "labels-idx1-ubyte")):
        if path is None:
            raise Unusable(f"{folder} has no {part}-{what}(.gz); fetch it again")
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or images.shape[1:] not in ((28, 28), (32, 32)):
        raise Unusable(f"{paths[0]} holds {images.shape}; images are (n, 28, 28); {_AGAIN}")
    return _checked(images[:, None], labels, paths[1])


def _checked(images: np.ndarray, labels: np.ndarray, path: Path) -> Arrays:
    if labels.ndim != 1 or len(labels) != len(images) or len(labels) == 0:
        raise Unusable(f"{path} has labels of shape {labels.shape} for {len(images):,} images; {_AGAIN}")
    if not (labels.min() >= 0 and labels.max() <= 9):
        raise Unusable(f"{path} has a label outside 0 to 9; {_AGAIN}")
    return np.array(images), labels.astype(np.int64)


def find_cifar10(root: Path) -> Path | None:
    """The folder under `root` that holds CIFAR-10's batch files, whole or in part, or None."""
    return _first(root, CIFAR_FOLDERS, [lambda f, name: (f / name).is_file(), *CIFAR_TRAIN, *CIFAR_TEST])


def read_cifar10(folder: Path) -> tuple[Arrays, Arrays]:
    """(train, test) from the six batch files in `folder`.

    Raises:
        Unusable: one is missing or damaged, or holds anything but images and labels.
    """
    parts = []
    for names in (CIFAR_TRAIN, CIFAR_TEST):
        batches = [_cifar_batch(folder / name) for name in names]
        parts.append(tuple(np.concatenate(arrays) for arrays in zip(*batches)))
    return parts[0], parts[1]


def _cifar_batch(path: Path) -> Arrays:
    if not path.is_file():
        raise Unusable(f"{path} is missing; fetch CIFAR-10 again")
    content = _content(path)
    batch = _unpickled(content, path)
    images, labels = batch.get("data"), batch.get("labels")
    if not (isinstance(images, np.ndarray) and images.ndim == 2 and images.shape[1] == 3072):
        raise Unusable(f"{path} holds no data of shape (n, 3072); {_AGAIN}")
    if not (isinstance(labels, list) and all(type(label) is int for label in labels)):
        raise Unusable(f"{path} holds no list of labels; {_AGAIN}")
    published = CIFAR_MD5.get(batch.get("batch_label"))
    if published and hashlib.md5(content, usedforsecurity=False).hexdigest() != published:
        raise Unusable(f"{path} is damaged: its MD5 is not the published one; {_AGAIN}")
    return _checked(images.reshape(-1, 3, 32, 32), np.array(labels, np.int64), path)


def _unpickled(content: bytes, path: Path) -> dict:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"a {type(batch).__name__}, not a dictionary")
        batch = {_text(k): v.array() if isinstance(v, _Array) else v for k, v in batch.items()}
        return {**batch, "batch_label": _text(batch.get("batch_label"))}
    except Unusable:
        raise
    except Exception as error:  # a pickle that is cut or made up can raise anything
        raise Unusable(f"{path} is not a CIFAR-10 batch ({error}); {_AGAIN}") from None


def _text(value) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Array:
    """What a pickled numpy array becomes: its state, looked at before any array is made of it."""

    def __init__(self, *ignored) -> None:
        self.state = ()

    def __setstate__(self, state) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, dtype, is_fortran, raw = self.state
        if getattr(dtype, "code", "") not in ("u1", "|u1") or is_fortran:
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        return np.frombuffer(raw, np.uint8).reshape(shape)


class _Dtype:
    def __init__(self, code: str = "", *ignored) -> None:
        self.code = code

    def __setstate__(self, state) -> None:
        """Byte order and alignment: nothing that bytes need."""


class _ArraysOnly(pickle.Unpickler):
    """Admits dictionaries, lists, text, numbers and arrays of bytes; a name of anything else is refused unread."""

    _ADMITTED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): lambda text, encoding="latin1": str(text).encode("latin1"),
    }

    def find_class(self, module: str, name: str):
        if (module, name) not in self._ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no picture needs")
        return self._ADMITTED[module, name]
