"""What the cells' process says of its sources: names of cells, and of no other file."""

from __future__ import annotations

import concurrent.futures.process
import linecache
import sys

import pytest

from hw_grader.driving.roles import cells
from hw_grader.driving.roles.drive import remember_sources


@pytest.fixture
def shell(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    monkeypatch.setattr(cells, "_shell", InteractiveShell())
    return sys.modules[cells.__name__]._shell


def test_a_librarys_file_is_no_cell_whatever_is_said(shell):
    cell, library = "<ipython-input-1-0123456789ab>", concurrent.futures.process.__file__
    remember_sources({library: [1, "made_up = 1"], cell: [2, "answer = 2"]})
    assert "made_up" not in "".join(linecache.getlines(library))
    assert linecache.getlines(cell) == ["answer = 2"]
    assert shell.compile._filename_map == {cell: 2}
