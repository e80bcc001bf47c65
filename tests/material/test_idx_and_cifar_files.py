"""Data sets from disk and from the network: the right pictures, a clear message, or the embedded set."""

import gzip
import pickle
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hw_utils import data
from hw_utils.material.images import idx_and_cifar_files, torchvision_downloads
from hw_utils.material.images.torchvision_downloads import Unusable

PARTS = {"train": 60, "t10k": 20}


def idx(array):
    array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, *, zipped: bool, seed: int = 0):
    """Four IDX files of the real format; gives their arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    written = {}
    for part, n in PARTS.items():
        images, labels = random.randint(0, 256, (n, 28, 28)), random.randint(0, 10, n)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx(array)
            path = folder / (name + (".gz" if zipped else ""))
            path.write_bytes(gzip.compress(content) if zipped else content)
        written[part] = images, labels
    return written


def write_cifar10(root: Path, n: int = 20, protocol: int = 2, extra=None):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.RandomState(0)
    written = {}
    for name in (*idx_and_cifar_files.CIFAR_TRAIN, *idx_and_cifar_files.CIFAR_TEST):
        images = random.randint(0, 256, (n, 3072)).astype(np.uint8)
        labels = random.randint(0, 10, n).tolist()
        batch = {"batch_label": "written by a test", "labels": labels, "data": images, "filenames": ["a.png"] * n}
        (folder / name).write_bytes(pickle.dumps({**batch, **(extra or {})}, protocol=protocol))
        written[name] = images, labels
    return folder, written


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", idx_and_cifar_files.IDX_FOLDERS)
def test_idx_files_on_disk_are_found_and_read_without_a_network(tmp_path, capsys, zipped, folder):
    written = write_mnist(tmp_path / folder, zipped=zipped)
    found = data.mnist(tmp_path, download=False, fall_back=False)
    assert found.name == "MNIST"
    assert capsys.readouterr().out == found.line + "\n"
    for part, (images, labels) in zip((found.train, found.test), written.values()):
        assert np.array_equal(part.pixels[:, 0].numpy(), images)
        assert part.labels.tolist() == labels.tolist()


def test_idx_files_read_as_torchvision_reads_them(tmp_path):
    write_mnist(tmp_path / "MNIST/raw", zipped=False)
    found = data.mnist(tmp_path, download=False, fall_back=False)
    theirs = torchvision_downloads.torchvision().datasets.MNIST(tmp_path, train=True, download=False)
    assert torch.equal(found.train.pixels[:, 0], theirs.data)
    assert torch.equal(found.train.labels, theirs.targets)


def damage(path: Path, how: str):
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
        return
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut": content[:middle],
            "empty": b"",
            "longer": content + b"\0",
            "a web page": b"<!DOCTYPE html><html>Not found</html>",
            "one byte": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        }[how]
    )


@pytest.mark.parametrize("how", ["cut", "empty", "longer", "a web page", "one byte", "missing"])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_a_damaged_zipped_file_never_gives_a_digit(tmp_path, capsys, how, name):
    write_mnist(tmp_path, zipped=True)
    damage(tmp_path / name, how)
    if how == "longer":  # zeros after gzip's end are padding: the digits are whole
        assert data.mnist(tmp_path, download=False).name == "MNIST"
        return
    with pytest.raises(Unusable, match=name.removesuffix(".gz")):
        data.mnist(tmp_path, download=False, fall_back=False)
    found = data.mnist(tmp_path, download=False)
    assert found.name == "digits"
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "embedded" in out
    assert "again" in out


@pytest.mark.parametrize("how", ["cut", "empty", "longer", "a web page", "missing"])
def test_a_damaged_plain_file_is_refused(tmp_path, how):
    write_mnist(tmp_path, zipped=False)
    damage(tmp_path / "train-images-idx3-ubyte", how)
    with pytest.raises(Unusable, match="train-images"):
        data.mnist(tmp_path, download=False, fall_back=False)


def test_labels_that_are_not_digits_are_refused(tmp_path):
    write_mnist(tmp_path, zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.full(60, 10)))
    with pytest.raises(Unusable, match="outside 0 to 9"):
        data.mnist(tmp_path, download=False, fall_back=False)


def test_fewer_labels_than_images_are_refused(tmp_path):
    write_mnist(tmp_path, zipped=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(59)))
    with pytest.raises(Unusable, match="60 images"):
        data.mnist(tmp_path, download=False, fall_back=False)


def test_an_idx_header_cannot_ask_for_more_memory_than_the_file(tmp_path):
    write_mnist(tmp_path, zipped=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + b"\xff" * 12)
    with pytest.raises(Unusable, match="which takes"):
        data.mnist(tmp_path, download=False, fall_back=False)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar_batches_on_disk_are_found_and_read(tmp_path, protocol):
    _, written = write_cifar10(tmp_path, protocol=protocol)
    found = data.cifar10(tmp_path, download=False, fall_back=False)
    assert found.name == "CIFAR-10"
    assert (len(found.train), len(found.test)) == (100, 20)
    images, labels = written["data_batch_2"]
    assert np.array_equal(found.train.pixels[20:40].reshape(20, -1).numpy(), images)
    assert found.train.labels[20:40].tolist() == labels


def test_a_batch_written_by_python_2_is_read(tmp_path):
    folder, _ = write_cifar10(tmp_path)
    pixels = bytes(range(256)) * 12  # as the published files: protocol 2, text as byte strings
    stream = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T" + struct.pack("<i", len(pixels)) + pixels + b"tbU\x06labels]K\x07au."
    )
    (folder / "test_batch").write_bytes(stream)
    found = data.cifar10(tmp_path, download=False, fall_back=False)
    assert found.test.labels.tolist() == [7]
    assert found.test.pixels.numpy().tobytes() == pixels


class _Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path):
    mark = tmp_path / "ran"
    write_cifar10(tmp_path, extra={"surprise": _Runs(mark)})
    with pytest.raises(Unusable, match="which no picture needs"):
        data.cifar10(tmp_path, download=False, fall_back=False)
    assert not mark.exists()


@pytest.mark.parametrize(
    "array",
    [np.zeros((20, 3072)), np.zeros((20, 3072), object), np.zeros((20, 100), np.uint8), np.zeros(5, np.uint8), "text"],
    ids=["floats", "objects", "too narrow", "flat", "text"],
)
def test_a_batch_of_anything_else_is_refused(tmp_path, array):
    write_cifar10(tmp_path, extra={"data": array})
    with pytest.raises(Unusable, match="fetch it again"):
        data.cifar10(tmp_path, download=False, fall_back=False)


@pytest.mark.parametrize("how", ["cut", "empty", "a web page", "missing"])
def test_a_damaged_batch_gives_the_drawn_set_and_says_so(tmp_path, capsys, how):
    folder, _ = write_cifar10(tmp_path)
    damage(folder / "data_batch_3", how)
    found = data.cifar10(tmp_path, download=False)
    assert found.name == "drawn"
    assert "data_batch_3" in capsys.readouterr().out


def test_a_published_batch_with_one_wrong_byte_is_refused(tmp_path):
    write_cifar10(tmp_path, extra={"batch_label": "training batch 1 of 5"})
    with pytest.raises(Unusable, match="MD5"):
        data.cifar10(tmp_path, download=False, fall_back=False)


def test_no_files_and_no_download_is_said_with_the_folder(tmp_path, capsys):
    assert data.mnist(tmp_path / "none", download=False).name == "digits"
    assert f"there is no MNIST in {tmp_path / 'none'}" in capsys.readouterr().out


@pytest.fixture
def silent_server():
    """A server that takes connections and never answers; closed at the end."""
    server = socket.create_server(("127.0.0.1", 0))
    held = []

    def hold():
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=hold)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for connection in held:
        connection.close()


def test_a_server_that_never_answers_ends_in_the_embedded_set(tmp_path, capsys, monkeypatch, silent_server):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, silent_server)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert data.mnist(tmp_path, timeout_s=6).name == "digits"
    assert "MNIST was not downloaded within 6 s" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_no_network_ends_in_the_embedded_set_with_the_reason(tmp_path, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")  # nobody listens there any more
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert data.cifar10(tmp_path, timeout_s=60).name == "drawn"
    out = capsys.readouterr().out
    assert "CIFAR10 could not be downloaded" in out
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_space_is_said_before_anything_is_fetched(tmp_path):
    with pytest.raises(Unusable, match=r"needs 1000000000000 MB in .* MB are free"):
        torchvision_downloads.download("MNIST", tmp_path, needed_bytes=10**18, timeout_s=5)


def test_a_finished_download_moves_into_place_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(
        torchvision_downloads,
        "_fetch",
        lambda name, folder, timeout_s: write_mnist(Path(folder, "MNIST/raw"), zipped=True),
    )
    found = data.mnist(tmp_path, fall_back=False)
    assert (found.name, len(found.train)) == ("MNIST", 60)
    assert [p.name for p in tmp_path.iterdir()] == ["MNIST"]


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, monkeypatch):
    def fill(name, folder, timeout_s):
        Path(folder, "MNIST").mkdir()
        Path(folder, "MNIST", "half").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torchvision_downloads, "_fetch", fill)
    with pytest.raises(Unusable, match="No space left on device"):
        data.mnist(tmp_path, fall_back=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(Unusable, match="could not be written"):
        data.mnist(tmp_path / "data", fall_back=False)


def test_torchvision_imports_beside_this_torch():
    code = (
        "from hw_utils.material.images.torchvision_downloads import torchvision\n"
        "print(torchvision().datasets.MNIST.__name__)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "MNIST\n", done.stderr
