"""A warm process that runs workers one after the other: on bare gloo, under launch or under simulate.

    with Warm("raw", preload="tests.outside.distributed_tests", environ={"WORLD_SIZE": "4"}) as warm:
        warm.run("raw", worker, 4, ("test_broadcast",), timeout_s=60)     # -> Outcome

A process of kind "raw" never imports hw_utils: its ranks are plain forks of it, connected by torch's own gloo. One of
kind "engines" calls `hw_utils.launch` and `hw_utils.simulate`. Both have imported the worker's module, so that a rank
starts in some milliseconds. What a worker returns, and the last line of what went wrong, come back.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

START_S = 120.0  # for the process to import what it needs
GRACE_S = 30.0  # for an engine to notice its own time limit
GROUP_TIMEOUT_S = 300.0  # torch's own tests give their groups 60 or 300


@dataclass(frozen=True)
class Outcome:
    """What came of a worker: its results in rank order, or why there are none."""

    results: list[Any] | None
    reason: str = ""  # "" if every rank returned
    details: str = ""  # the whole message or traceback
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)  # an engine's: bytes sent a rank

    @property
    def passed(self) -> bool:
        return self.results is not None


class Warm:
    """The driver's end of a warm process; a process that dies or hangs is replaced by a new one."""

    def __init__(self, kind: str, preload: str, environ: dict[str, str] | None = None) -> None:
        self.kind, self.preload, self.environ = kind, preload, environ or {}
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        engine: str,
        worker: Callable[..., Any],
        world_size: int,
        args: tuple = (),
        *,
        timeout_s: float = 60,
        environ: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Outcome:
        """The outcome of `worker(rank, world_size, *args)` on `world_size` ranks of `engine`."""
        if self.process is None:
            self._start()
        request = (engine, worker, world_size, args, timeout_s, environ or {}, options or {})
        _send(self.process.stdin, request)
        answer = self._receive(timeout_s + GRACE_S)
        if answer is None:
            reason = f"no answer {GRACE_S:g} s after the time limit, or its process ended"
            details = f"{reason}\n{self._last_words()}"
            self.close()
            return Outcome(None, reason, details, timeout_s + GRACE_S)
        return answer

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (what ranks and the process itself complain about)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **self.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tests.outside import warm; warm.main()", self.kind, self.preload],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=environ, start_new_session=True,
        )  # fmt: skip
        if self._receive(START_S) != "ready":
            self.close()
            raise RuntimeError(f"the process that runs {self.preload} did not start:\n{self._last_words()}")

    def _receive(self, timeout_s: float) -> Any:
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        return _receive(self.process.stdout) if ready else None

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace")[-2_000:]

    def close(self) -> None:
        """Ends the process and its whole group."""
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self.process.stdout.close()
            self.log.close()
            self.process = None


def _send(file: Any, value: Any) -> None:
    data = pickle.dumps(value)
    file.write(struct.pack("<q", len(data)) + data)
    file.flush()


def _receive(file: Any) -> Any:
    """The next value; None at the end of the file."""
    head = file.read(8)
    return pickle.loads(file.read(struct.unpack("<q", head)[0])) if len(head) == 8 else None


# In the warm process.


def main() -> None:
    kind, preload = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()
    importlib.import_module(preload)
    if kind == "engines":
        _share_a_server()
    _send(answers, "ready")
    while (request := _receive(sys.stdin.buffer)) is not None:
        engine, worker, world_size, args, timeout_s, environ, options = request
        os.environ.update(environ)
        start = time.perf_counter()
        run = _raw if engine == "raw" else _under_engine
        outcome = run(engine, worker, world_size, args, timeout_s, options)
        _send(answers, Outcome(*outcome[:3], time.perf_counter() - start, *outcome[3:]))


def _share_a_server() -> None:
    """The server that forks ranks is a fork of this process: it has imported what the worker needs."""
    from hw_utils.processes import start_by_fork

    start_by_fork.adopt(start_by_fork.fork_server())


def _under_engine(engine: str, worker: Callable, world_size: int, args: tuple, timeout_s: float, options: dict):
    import hw_utils

    try:
        run = getattr(hw_utils, engine)(worker, world_size, args, timeout_s=timeout_s, echo=False, **options)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return None, f"{type(error).__name__}: {lines[0][:300]}", f"{type(error).__name__}: {error}\n{_causes(error)}"
    return run.results, "", "", {"n_bytes": [run.trace.bytes_sent(r) for r in range(world_size)]}


def _causes(error: BaseException) -> str:
    causes = [f.exception for f in getattr(error, "failures", ()) if f.exception is not None]
    return "\n".join(f"  {type(c).__name__}: {c}" for c in causes[:2])


def _raw(_, worker: Callable, world_size: int, args: tuple, timeout_s: float, options: dict):
    """Forks of this process, connected by gloo over a file."""
    with tempfile.TemporaryDirectory() as folder:
        pids = [_fork(worker, rank, world_size, args, folder) for rank in range(world_size)]
        deadline = time.perf_counter() + timeout_s
        statuses: dict[int, int | None] = dict.fromkeys(pids)
        while None in statuses.values() and time.perf_counter() < deadline:
            for pid in [p for p, status in statuses.items() if status is None]:
                done, status = os.waitpid(pid, os.WNOHANG)
                statuses[pid] = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.002)
        late = [pid for pid, status in statuses.items() if status is None]
        for pid in late:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        found = [_found(folder, rank) for rank in range(world_size)]
    for rank, (result, details, reason) in enumerate(found):
        if reason:
            return None, f"rank {rank}: {reason.splitlines()[0][:300]}", details
        if result is None:
            how = f"no end in {timeout_s:g} s" if pids[rank] in late else f"exit code {statuses[pids[rank]]}"
            return None, f"rank {rank}: {how}", how
    return [pickle.loads(result) for result, *_ in found], "", ""


def _found(folder: str, rank: int) -> tuple[bytes | None, str, str]:
    path = f"{folder}/result-{rank}"
    if not os.path.exists(path):
        return None, "", ""
    with open(path, "rb") as file:
        return pickle.load(file)


def _fork(worker: Callable, rank: int, world_size: int, args: tuple, folder: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_rank(worker, rank, world_size, args, folder)
    finally:
        os._exit(0)


def _be_rank(worker: Callable, rank: int, world_size: int, args: tuple, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        store = dist.FileStore(f"{folder}/store", world_size)
        timeout = timedelta(seconds=GROUP_TIMEOUT_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        found = pickle.dumps(worker(rank, world_size, *args)), "", ""
        _meet(folder, rank, world_size)
    except BaseException:
        found = None, traceback.format_exc(), "".join(traceback.format_exception_only(*sys.exc_info()[:2]))
    with open(f"{folder}/writing-{rank}", "wb") as file:
        pickle.dump(found, file)
    os.rename(f"{folder}/writing-{rank}", f"{folder}/result-{rank}")


def _meet(folder: str, rank: int, world_size: int, limit_s: float = 5.0) -> None:
    """Nobody leaves before all are done, or gloo's last messages are lost; not a collective: the group may be gone."""
    open(f"{folder}/done-{rank}", "w").close()
    deadline = time.perf_counter() + limit_s
    paths = [f"{folder}/{name}-{r}" for r in range(world_size) for name in ("done", "result")]
    while sum(map(os.path.exists, paths)) < world_size and time.perf_counter() < deadline:
        time.sleep(0.002)


def side_by_side(cases: Sequence[Any], jobs: int, run_one: Callable[[dict, Any], Any]) -> Iterator[Any]:
    """What `run_one(warm, case)` returns for each case, as they come; `jobs` at a time.

    warm: of each job, the processes that it has started and may use again; they are closed at the end.
    """
    todo: SimpleQueue = SimpleQueue()
    done: SimpleQueue = SimpleQueue()
    for case in [*cases, *[None] * jobs]:
        todo.put(case)

    def work() -> None:
        warm: dict[Any, Warm] = {}
        try:
            while (case := todo.get()) is not None:
                done.put(run_one(warm, case))
        except BaseException as error:
            done.put(error)
        finally:
            for process in warm.values():
                process.close()

    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            pool.submit(work)
        for _ in cases:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
