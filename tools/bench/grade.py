"""How fast a class is graded: `make grade` against stock `nbgrader autograde`, on the same notebooks.

    python -m tools.bench.grade [--submissions 100] [--stock 6] [--workers 2] [--dask]

Stock nbgrader takes the same seconds for each notebook, so it runs on a few of them only. Both print wall
seconds a notebook, start-up included. Each student's notebook is lesson 01's solution with their number in every
answer, so that no two of them are the same code. Cells that no answer uses are left out (see
hw_grader/notebook/unused_cells). With --dask a scheduler and its workers are processes of their own, as on several
machines, and their memory counts too; --stock 0 leaves nbgrader out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
import psutil

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENT, NOTEBOOK = "01_hello_ranks", "hello_ranks"
STOCK = """c = get_config()
c.CourseDirectory.course_id = "bench"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.Execute.timeout = 600
"""


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--submissions", type=int, default=100)
    options.add_argument("--stock", type=int, default=6, help="notebooks for stock nbgrader")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--dask", action="store_true", help="over a Dask scheduler and workers beside it")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours = make_course(Path(folder) / "ours", chosen.submissions, (ROOT / "nbgrader_config.py").read_text())
        command = [sys.executable, "-m", "hw_grader.grade", ASSIGNMENT, "--course", str(ours)]
        with dask(chosen.workers) if chosen.dask else contextlib.nullcontext(("", [])) as (address, beside):
            where = ["--scheduler", address] if address else ["--workers", str(chosen.workers)]
            a, sizes = timed([*command, *where], ROOT, beside)
        stock_wall = 0.0
        if chosen.stock:
            stock = make_course(Path(folder) / "stock", chosen.stock, STOCK)
            b, _ = timed([sys.executable, "-m", "nbgrader", "autograde", ASSIGNMENT], stock)
            stock_wall = b / chosen.stock
        cells, checks = inside_seconds(ours)
    wall = a / chosen.submissions
    print("wall seconds a notebook")
    if chosen.stock:
        print(f"  nbgrader autograde        {stock_wall:6.2f}  ({chosen.stock} notebooks, one after the other)")
    print(f"  make grade                {wall:6.2f}  ({chosen.submissions} notebooks, {chosen.workers} workers)")
    print(f"  a worker, one notebook    {cells:6.2f}  in the student's cells, {checks:.2f} in checks and sandboxes")
    print("MB of the grader's own processes, in each quarter of the time")
    print("  " + ", ".join(f"{max(part) / 1e6:,.0f}" for part in quarters(sizes)))
    if chosen.stock:
        print(f"make grade is {stock_wall / wall:.1f} times as fast")


@contextlib.contextmanager
def dask(n_workers: int) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """The address of a Dask scheduler, and it and its workers as processes."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "scheduler.json"
        scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        workers = [sys.executable, "-m", "distributed.cli.dask_worker", "--nworkers", str(n_workers), "--nthreads", "1"]
        with contextlib.ExitStack() as stack:
            beside = []
            for command in (scheduler, workers):
                command += ["--scheduler-file", str(found), "--no-dashboard"]
                running = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.DEVNULL)
                stack.callback(running.wait)
                stack.callback(running.terminate)
                beside.append(running)
                while not (found.exists() and found.stat().st_size):  # the scheduler says where it is
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        raise SystemExit(f"{' '.join(command)} ended with {running.wait(0.1)}")
            yield json.loads(found.read_text())["address"], beside


def make_course(root: Path, n_submissions: int, config: str) -> Path:
    """A course folder with lesson 01 and that many submissions, its gradebook ready."""
    root.mkdir(parents=True)
    (root / "nbgrader_config.py").write_text(config)
    shutil.copytree(ROOT / "solutions" / ASSIGNMENT, root / "solutions" / ASSIGNMENT)
    notebook = nbformat.read(root / "solutions" / ASSIGNMENT / f"{NOTEBOOK}.ipynb", as_version=4)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", ASSIGNMENT]
    subprocess.run(command, cwd=root, check=True, capture_output=True, env=environment())
    for n in range(n_submissions):
        folder = root / "submitted" / f"student{n:03}" / ASSIGNMENT
        folder.mkdir(parents=True)
        own = copy.deepcopy(notebook)
        for cell in own.cells:
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("solution"):
                cell.source += f"\n\nstudent_{marks['grade_id']} = {n}"
        nbformat.write(own, folder / f"{NOTEBOOK}.ipynb")
    return root


def environment() -> dict[str, str]:
    """This environment's own commands first: nbgrader calls alembic by its name."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}


def timed(command: list[str], folder: Path, beside: Sequence[subprocess.Popen] = ()) -> tuple[float, list[int]]:
    """Wall seconds of a command that must succeed, and how many bytes it and its workers held from time to time."""
    started, sizes = time.monotonic(), []
    with tempfile.TemporaryFile("w+") as out:
        running = subprocess.Popen(command, cwd=folder, env=environment(), stdout=out)
        while running.poll() is None:
            sizes.append(sum(held_bytes(psutil.Process(one.pid)) for one in (running, *beside)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(1)
        if running.returncode:
            out.seek(0)
            raise SystemExit(f"{' '.join(command)} ended with {running.returncode}: {out.read()}")
    return time.monotonic() - started, sizes


def held_bytes(process: psutil.Process) -> int:
    """Of the grader itself and its workers, not of what runs in their sandboxes."""
    size = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        size = process.memory_full_info().uss  # what is shared with others is not counted again and again
        size += sum(held_bytes(child) for child in process.children() if child.name() != "bwrap")
    return size


def quarters(sizes: list[int]) -> list[list[int]]:
    """The measurements in four parts of the same length, those that are not empty."""
    length = -(-len(sizes) // 4) or 1
    return [sizes[n : n + length] for n in range(0, len(sizes), length)]


def inside_seconds(root: Path) -> tuple[float, float]:
    """Mean wall seconds of one submission: in the student's own cells, and in everything else."""
    from hw_grader.course import grading_records

    found = grading_records.all_of(root, ASSIGNMENT)
    cells = sum(r.cell_seconds for r in found) / len(found)
    return cells, sum(r.seconds for r in found) / len(found) - cells


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
