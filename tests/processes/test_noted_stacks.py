"""A rank notes where its threads are: the note ends nothing, and keeps nothing alive."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref

import torch
import torch.distributed as dist

from hw_utils import launch
from hw_utils.core.source import noted_frames
from hw_utils.processes import rank_main, worker_processes

OFTEN_S = 0.00005


def test_it_survives_threads_that_come_and_go():
    """gloo's threads get a Python state for each callback: whoever walks them meanwhile must hold the list's lock."""

    def worker(_, world_size):
        rank_main.SAMPLE_S = OFTEN_S
        sys.setswitchinterval(1e-5)
        stack = open(os.devnull, "w")  # noqa: SIM115 (open as long as the process)
        _thread.start_new_thread(rank_main._sample, (stack,))
        for _ in range(2000):
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        return rank_main._frames_as_text()[-1]

    assert any("code worker>" in frame for frame in launch(worker, 2, echo=False).results[0])


class _Local:
    pass


def _dead_when_it_returns() -> weakref.ref:
    local = _Local()
    return weakref.ref(local)


def test_a_functions_variables_end_with_it_while_frames_are_read():
    """A frame that is held when its function returns keeps them: a tensor would be in the books of memory longer."""
    is_over, interval_s = threading.Event(), sys.getswitchinterval()

    def read() -> None:
        while not is_over.is_set():
            rank_main._frames_as_text()

    reader = threading.Thread(target=read)
    sys.setswitchinterval(1e-6)
    reader.start()
    try:
        kept = sum(_dead_when_it_returns()() is not None for _ in range(100_000))
    finally:
        is_over.set()
        reader.join()
        sys.setswitchinterval(interval_s)
    assert kept == 0


def test_a_rank_parses_and_imports_nothing_in_threads_of_the_kits():
    """CPython 3.11 counts the depth of all parses with one counter: a second one ends the program's own."""

    def worker(_, world_size):
        mine, elsewhere = threading.get_ident(), []

        def hear(event: str, _) -> None:
            if event in ("compile", "import") and threading.get_ident() != mine:
                elsewhere.append(event)

        sys.addaudithook(hear)
        notes, written = os.pipe()
        rank_main.SAMPLE_S = OFTEN_S
        _thread.start_new_thread(rank_main._sample, (open(written, "w"),))  # noqa: SIM115 (as long as the process)
        for _ in range(100):
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        read = b""
        while read.count(b"Thread first") < 20:
            read += os.read(notes, 1 << 16)
        return elsewhere

    assert launch(worker, 2, echo=False).results == [[], []]


def test_names_of_files_are_read_as_they_are(tmp_path):
    """Whatever stands in them, and in the spelling of a frame, as of faulthandler."""
    file = "a 'quoted' \"name\", line 3 in \\ it.py"
    text = f"Thread first (most recent call first):\n  file {file!r}, line 5 in there\n"
    text += 'Stack (most recent call first):\n  File "b.py", line 6 in worker\n'
    assert noted_frames._stacks(text) == [("first", [(file, 5, "there")]), ("", [("b.py", 6, "worker")])]


def test_the_first_thread_is_last_under_one_name(tmp_path):
    notes, is_over, is_up = [], threading.Event(), threading.Event()

    def waits() -> None:
        is_up.set()
        is_over.wait()

    waiting = threading.Thread(target=waits)
    for others in ([], [waiting]):
        for thread in others:
            thread.start()
            is_up.wait()
        asking = threading.Thread(target=lambda: notes.append(rank_main._where_threads_are()))
        asking.start()
        asking.join()
    is_over.set()
    waiting.join()
    first, second = map(noted_frames._stacks, notes)
    assert [thread for thread, _ in first][-1] == [thread for thread, _ in second][-1] == "first"
    assert "waits" in [name for _, stack in second[:-1] for _, _, name in stack]
    assert all("_where_threads_are" not in name for _, stack in second for _, _, name in stack)


def test_code_without_lines_is_noted_as_well():
    """A compiler's own code may have none."""
    waits, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        waits.set()
        goes_on.wait()

    stand.__code__ = stand.__code__.replace(co_linetable=b"")
    thread = threading.Thread(target=stand)
    thread.start()
    waits.wait()
    found = rank_main._where_threads_are()
    goes_on.set()
    thread.join()
    assert "in stand" in found


def test_who_ends_the_process_from_another_thread_is_found_in_what_it_noted(tmp_path):
    """A signal that a thread sends to its process is met by the first one, whose frames say nothing."""
    kit = worker_processes.__file__
    stacks = [
        'Stack (most recent call first):\n  File "cell.py", line 3 in there\n  File "cell.py", line 7 in worker\n',
        f'Current thread 0x0 (most recent call first):\n  File "{kit}", line 9 in serve\n',
    ]
    (tmp_path / "stack").write_text("Fatal Python error: Segmentation fault\n\n".join(stacks))
    assert [frame.function for frame in noted_frames.noted_frames(str(tmp_path / "stack"))] == ["worker", "there"]


def test_a_crash_without_a_line_of_the_students_shows_none_of_the_kits():
    assert worker_processes._first_line(noted_frames.noted_frames) is None
    assert worker_processes._first_line(_dead_when_it_returns).file == __file__
