"""Lesson 03 against its clock: k*(N) of five seeds, the sweep to 64 workers, and the visible checks.

    python tools/bench/lesson_03.py

Runs the lesson's own cells with the reference solutions and prints wall and CPU seconds. CPU seconds count this process
and all below it; on a busy machine wall seconds say little, and half of the CPU seconds is what two free cores take.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator

import matplotlib

matplotlib.use("agg")

import psutil

from hw_utils import checks
from tools.lesson import ROOT, Cell, read_lesson
from tools.notebook import setup_source

LIMITS_S = {"k*(N), 4 x 5 trainings": 90, "time to 97 % for N = 1 to 64": 120}
PARTS = {"k*(N), 4 x 5 trainings": "found = sweep", "time to 97 % for N = 1 to 64": "many = sweep"}


def cpu_s() -> float:
    """CPU seconds of this process and all below it, dead ones that were waited for included."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += (
                times.user + times.system + getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
            )
    return total


@contextlib.contextmanager
def timed(part: str) -> Iterator[None]:
    """Prints wall and CPU seconds of what is inside, and whether they keep the part's limit; nothing without a name."""
    wall, cpu = time.perf_counter(), cpu_s()
    yield
    wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
    if part:
        limit = LIMITS_S.get(part)
        verdict = f"  limit {limit} s: {'kept' if wall <= limit else 'MISSED'}" if limit else ""
        print(f"{part:<32} {wall:7.1f} s wall {cpu:7.1f} s CPU{verdict}", flush=True)


def run(cell: Cell, names: dict) -> str:
    """What the cell printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(setup_source() if cell.role == "setup" else cell.source, f"<cell at {cell.line}>", "exec"), names)
    return printed.getvalue()


def main() -> None:
    lesson = read_lesson(ROOT / "lessons" / "03_distributed_sgd.py")
    names: dict = {"__name__": "__main__", "checks": checks}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "")
    with timed("whole notebook"):
        for cell in (cell for cell in lesson.cells if cell.kind == "code"):
            part = next((p for p, text in PARTS.items() if text in cell.source), "")
            with timed(part or (f"check {cell.name}" if cell.role == "check" else "")):
                printed = run(cell, names)
            if "k* of five seeds" in printed:
                print(printed, end="", flush=True)
    print(f"k*: {names['k_of']}; one step computes {names['compute_s'] * 1e3:.2f} ms")
    for h in names["every_h"]:
        sent, accuracies = names["points"][h, 0][0], [names["points"][h, seed][1] for seed in range(3)]
        print(f"local SGD, H = {h:>3}: {sent / 1e6:6.2f} MB sent by rank 0, accuracies {accuracies}")


if __name__ == "__main__":
    main()
