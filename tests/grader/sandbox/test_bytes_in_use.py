"""What a process has in use: whatever holds numbers is counted, and what was let go is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hw_grader.sandbox.bytes_in_use import bytes_in_use

ROOT = Path(__file__).resolve().parents[3]
N = 50_000  # numbers, of 8 bytes each
SLACK = 0.1 * 8 * N


def _of_a_graph() -> Any:
    a = torch.ones(N, dtype=torch.float64, requires_grad=True)
    return (a * torch.rand(N, dtype=torch.float64)).grad_fn


def _in_a_pipe() -> Any:
    ends = os.pipe()
    os.write(ends[1], bytes(60_000))
    return ends


def _a_child() -> Any:
    wait = "import sys; kept = b'1' * 8_000_000; print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


HOLDERS: dict[str, tuple[Callable[[], Any], int]] = {
    "a tensor": (lambda: torch.rand(N, dtype=torch.float64), 8 * N),
    "memory without a tensor": (lambda: torch.rand(N, dtype=torch.float64).untyped_storage(), 8 * N),
    "an array": (lambda: np.random.default_rng(0).random(N), 8 * N),
    "a text": (lambda: repr(np.random.default_rng(0).random(N).tolist()), 8 * N),
    "whole numbers": (lambda: np.random.default_rng(0).integers(2**60, size=N).tolist(), 8 * N),
    "bytes": (lambda: os.urandom(8 * N), 8 * N),
    "a graph": (_of_a_graph, 8 * N),
    "a pipe": (_in_a_pipe, 60_000),
    "a child": (_a_child, 8_000_000),
}


def measure() -> None:
    """Prints what each holder adds, and what is left of those that are let go; in a process that does nothing else."""
    for name in list(HOLDERS)[:-2]:
        HOLDERS[name][0]()  # what the first one imports, and caches
    before = bytes_in_use()
    for name in list(HOLDERS)[:-2]:
        HOLDERS[name][0]()
    grown, kept = {"let go": bytes_in_use() - before}, []
    for name, (make, _) in HOLDERS.items():
        before = bytes_in_use()
        kept.append(make())
        grown[name] = bytes_in_use() - before
    kept[-1].communicate()
    print(json.dumps(grown))


@pytest.fixture(scope="module")
def grown() -> dict[str, int]:
    run = "from tests.grader.sandbox.test_bytes_in_use import measure; measure()"
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=True, cwd=ROOT, start_new_session=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_kept_is_counted_whatever_keeps_it(name, grown):
    assert grown[name] >= HOLDERS[name][1] - SLACK


def test_what_was_let_go_is_not_counted(grown):
    assert grown["let go"] <= SLACK
