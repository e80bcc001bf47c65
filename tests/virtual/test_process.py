"""A simulation has a process of its own, and is large."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
import torch
import torch.distributed as dist

from hw_utils import TimedOut, WorkerFailed, simulate
from tests.virtual.runs import run

# A process of its own


def endless(rank, world_size):
    while rank == 1:
        pass
    dist.barrier()


def test_an_endless_loop_ends_with_the_rank_and_its_line():
    with pytest.raises(TimedOut) as caught:
        simulate(endless, 2, timeout_s=2, echo=False)
    assert caught.value.rank == 1
    assert caught.value.failures[0].where.source in ("while rank == 1:", "pass")


def stubborn(rank, world_size):
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue


def test_a_loop_that_catches_everything_ends_too():
    with pytest.raises(TimedOut):
        simulate(stubborn, 2, timeout_s=0.3, echo=False)


def recurse(rank, world_size):
    return recurse(rank, world_size)


def test_an_infinite_recursion_is_an_error_of_its_rank():
    with pytest.raises(WorkerFailed, match="RecursionError"):
        simulate(recurse, 2, echo=False)


def exit_now(rank, world_size):
    if rank == 1:
        os._exit(3)
    dist.barrier()


def test_os_exit_is_reported_with_its_rank():
    with pytest.raises(WorkerFailed) as caught:
        simulate(exit_now, 2, echo=False)
    assert (caught.value.rank, caught.value.failures[0].kind) == (1, "os_exit")


def segfault(rank, world_size):
    import ctypes

    ctypes.string_at(0)


def test_a_segmentation_fault_is_reported():
    with pytest.raises(WorkerFailed) as caught:
        simulate(segfault, 2, echo=False)
    assert (caught.value.rank, caught.value.failures[0].kind) == (0, "signal")


def allocate(rank, world_size):
    return torch.ones(5 * 2**30).sum().item()


def test_twenty_gigabytes_are_refused():
    with pytest.raises(WorkerFailed, match=r"(?i)memory"):
        simulate(allocate, 2, echo=False)


def unpicklable(rank, world_size):
    return (i for i in range(rank))


def test_a_result_that_cannot_be_sent_names_its_rank():
    with pytest.raises(WorkerFailed) as caught:
        simulate(unpicklable, 2, echo=False)
    assert {f.kind for f in caught.value.failures} == {"unpicklable"}


def test_ten_thousand_ranks_all_reduce():
    done = run(big_all_reduce, 10_000)
    assert set(done.results) == {10_000.0}
    assert done.trace.rounds == 2 * 9_999


def big_all_reduce(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def count(rank, world_size, data):
    return data.numel()


def test_large_arguments_travel_without_a_warning():
    assert simulate(count, 2, (torch.zeros(500_000),), echo=False).results == [500_000] * 2


def test_ten_thousand_ranks_all_reduce_more_than_one_table_holds():
    done = run(wide_all_reduce, 10_000)
    assert set(done.results) == {10_000.0}


def wide_all_reduce(rank, world_size):
    x = torch.ones(2_000)
    dist.all_reduce(x)
    return x[-1].item()


# What one sees of a long one at a terminal, and what is left of one that is interrupted

SCRIPT = """
import signal
import sys
import torch
import torch.distributed as dist
import hw_utils.simulate
from hw_utils import simulate
from hw_utils.virtual.ranks import progress_file

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
progress_file.PATIENCE_S, progress_file.LOOK_S = 0.0, 0.02
sys.modules["hw_utils.simulate"].MEMORY_FOLDER = sys.argv[2]


def forever(rank, world_size):
    x = torch.ones(1000, 1000, device="cuda")
    print("begun")
    while True:
        x = x @ x
        dist.all_reduce(x)


fold = "all" if sys.argv[1] == "folded" else None
simulate(forever, 16, cluster="h100x16", compute="device", values="shapes", fold=fold, timeout_s=600)
"""


A_LOOK = r"simulating for \d\d:\d\d: 0\.[0-9]*[1-9][0-9]* virtual seconds"


def _read_until(terminal: int, pattern: str, times: int = 1) -> str:
    text = ""
    while len(re.findall(pattern, text)) < times:
        text += os.read(terminal, 4096).decode()
    return text


@pytest.mark.parametrize("how", ["folded", "whole"])
def test_a_long_run_tells_its_virtual_time_and_an_interrupt_where_it_was(how: str, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, str(tmp_path / "train.py"), how, str(files)]
    environment = {**os.environ, "TMPDIR": str(files), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torchs")}
    with subprocess.Popen(
        command, stdout=end, stderr=end, stdin=end, start_new_session=True, env=environment
    ) as process:
        os.close(end)
        shown = _read_until(terminal, A_LOOK, 3)
        while not any("train.py" in stack.read_text() for stack in files.glob("*/stack-*")):
            _read_until(terminal, A_LOOK)  # ranks in threads are where the process has noted them last
        assert "begun" in shown
        process.send_signal(signal.SIGINT)
        ended = _read_until(terminal, r"interrupted after [0-9.e-]+ virtual seconds")
        while True:
            try:
                ended += os.read(terminal, 4096).decode()
            except OSError:  # nobody has the other end any more, so no process is left
                break
        assert process.wait() == -signal.SIGINT
    os.close(terminal)
    seconds = float(re.search(r"interrupted after ([0-9.e-]+) virtual seconds", ended)[1])
    assert seconds > 0
    assert re.search(r"x = x @ x|dist\.all_reduce\(x\)", ended)
    assert list(files.iterdir()) == []
