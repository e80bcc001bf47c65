"""torchvision, also where its compiled half does not fit the installed torch; and its downloads, bounded in time.

PyPI's Linux torchvision is built for CUDA. Beside a CPU-only torch its import fails with "operator torchvision::nms
does not exist". Its data sets and transforms are plain Python: with the two schemas declared the import works.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch

NMS_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
SILENT_SERVER_S = 20.0  # a server that sends nothing for so long is given up

_declared: list[torch.library.Library] = []  # a schema lives as long as its Library


class Unusable(OSError):
    """Files of a data set that cannot be used or fetched; the message says which, why, and what to do."""


def torchvision() -> ModuleType:
    """The module torchvision, with the schemas of its compiled operators declared only if the import needs them.

    >>> from hw_utils.material.images.torchvision_downloads import torchvision
    >>> torchvision().transforms.ToTensor()
    ToTensor()
    """
    try:
        import torchvision as module
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half imported
        _declare()
        import torchvision as module
    return module


def _declare() -> None:
    if not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms" + NMS_ARGUMENTS)
        library.define("qnms" + NMS_ARGUMENTS)
        _declared.append(library)


def download(name: str, root: Path, *, needed_bytes: int, timeout_s: float) -> None:
    """Downloads `torchvision.datasets.<name>` into `root`: whole or not at all, and never without end.

    A child process fetches into a new folder beside the target, whose files move into place when all are there.

    Raises:
        Unusable: no network, a silent server, out of time, too little disk space.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if free < needed_bytes:
            raise Unusable(f"{name} needs {needed_bytes / 1e6:.0f} MB in {root}, {free / 1e6:.0f} MB are free")
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root, ignore_cleanup_errors=True) as folder:
            _fetch(name, folder, timeout_s)
            for path in Path(folder).iterdir():
                if path.is_dir():
                    shutil.copytree(path, root / path.name, dirs_exist_ok=True)
    except Unusable:
        raise
    except OSError as error:
        raise Unusable(f"{name} could not be written to {root}: {error}") from None


def _fetch(name: str, folder: str, timeout_s: float) -> None:
    command = [sys.executable, "-m", "hw_utils.material.images.torchvision_downloads", name, folder]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Unusable(f"{name} was not downloaded within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unusable(f"{name} could not be downloaded ({lines[-1][:200]})")


def _main(name: str, folder: str) -> None:
    socket.setdefaulttimeout(SILENT_SERVER_S)
    getattr(torchvision().datasets, name)(folder, download=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
