"""What a process has in use: whatever holds numbers is counted, and what was let go is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hw_grader.sandbox.bytes_in_use import bytes_in_use

N = 50_000  # numbers, of 8 bytes each
SLACK = 0.1 * 8 * N


def _of_a_graph() -> Any:
    a = torch.ones(N, dtype=torch.float64, requires_grad=True)
    return (a * torch.rand(N, dtype=torch.float64)).grad_fn


def _in_a_pipe() -> Any:
    ends = os.pipe()
    os.write(ends[1], bytes(60_000))
    return ends


HOLDERS: dict[str, tuple[Callable[[], Any], int]] = {
    "a tensor": (lambda: torch.rand(N, dtype=torch.float64), 8 * N),
    "memory without a tensor": (lambda: torch.rand(N, dtype=torch.float64).untyped_storage(), 8 * N),
    "an array": (lambda: np.random.default_rng(0).random(N), 8 * N),
    "a text": (lambda: repr(np.random.default_rng(0).random(N).tolist()), 8 * N),
    "whole numbers": (lambda: np.random.default_rng(0).integers(2**60, size=N).tolist(), 8 * N),
    "bytes": (lambda: os.urandom(8 * N), 8 * N),
    "a graph": (_of_a_graph, 8 * N),
    "a pipe": (_in_a_pipe, 60_000),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_kept_is_counted_whatever_keeps_it(name):
    make, n_bytes = HOLDERS[name]
    make()  # what the first one imports, and caches
    before = bytes_in_use()
    kept = make()
    assert bytes_in_use() - before >= n_bytes - SLACK
    if name == "a pipe":
        for end in kept:
            os.close(end)


def test_what_was_let_go_is_not_counted():
    before = bytes_in_use()
    for make, _ in list(HOLDERS.values())[:-1]:
        make()
    assert bytes_in_use() - before <= SLACK


def test_a_child_process_is_counted():
    before = bytes_in_use()
    wait = "import sys; kept = b'1' * 8_000_000; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert bytes_in_use() - before >= 8_000_000
        child.stdin.close()
