"""Notebooks that pytest runs, for `make nbval`: the longest first, and kernels spoken to over sockets in a folder.

For TCP, jupyter_client looks for ports that are free, and the kernel takes them some time later: any other process may
have them by then. A kernel that cannot get its IOPub port lives on and answers nobody ("Kernel didn't respond in 60
seconds").
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

LONGEST_FIRST = ("03_", "04_")  # lessons that train; the last to begin would end long after all others


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the cells of notebooks that take long to the front, each notebook's in their order."""
    items.sort(key=lambda item: not item.path.parent.name.startswith(LONGEST_FIRST))


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory(prefix="kernels-")  # a short path: a socket's has at most 107 bytes
    config.add_cleanup(folder.cleanup)
    names = itertools.count()

    def over_sockets(**options) -> KernelManager:
        return KernelManager(transport="ipc", ip=str(Path(folder.name, str(next(names)))), **options)

    nbval.kernel.KernelManager = over_sockets
