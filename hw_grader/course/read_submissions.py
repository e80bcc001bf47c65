"""Reads what students handed in, each folder in a process of its own with limits on time and memory.

A small process that has imported what is needed forks one for each folder. So the
process that grades a class never parses a byte of a student's: it gets a notebook that is in order, or a reason.

    reader = Reader()
    submission = read_submissions.read(folder, "ada", trusted, solution, times)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from hw_grader.course.grading import submission_key
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import Submission, find_submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, read_trusted
from hw_grader.sandbox.lockdown import in_use
from hw_grader.sandbox.messages import Wire, WireError

READ_S = 60
CPU_S = 20
MEMORY_BYTES = 2 * 2**30
_START_S = 120


def handed_in(folder: Path, student: str, trusted: TrustedNotebook, times: TimeLimits) -> Submission:
    """A student's folder read and put in order, here and now: `data` is the notebook as it is graded."""
    found = find_submission(folder, student, trusted.assignment, trusted.notebook)
    refused = found.notes[-1] if found.notes and not found.data else ""
    return _put_in_order(found, trusted, times, refused)


def _put_in_order(found: Submission, trusted: TrustedNotebook, times: TimeLimits, refused: str = "") -> Submission:
    notebook = restore(found.data, trusted, refused)
    found.data = found.restored = json.dumps(notebook).encode()
    found.key = submission_key(notebook, trusted, times)
    return found


class Reader:
    """The process that forks readers; started when first asked, and again if it has ended."""

    def __init__(self, read_s: float = READ_S, cpu_s: int = CPU_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self.read_s, self.cpu_s, self.memory_bytes = read_s, cpu_s, memory_bytes
        self.process: subprocess.Popen | None = None

    def read(
        self, folder: Path, student: str, trusted: TrustedNotebook, solution: Path, times: TimeLimits
    ) -> Submission:
        """As `handed_in`; a folder that takes too long or too much is unreadable, and says so."""
        request = {"folder": str(folder.absolute()), "student": student, "solution": str(solution.absolute()),
                   "times": asdict(times), "limits": [self.cpu_s, self.memory_bytes]}  # fmt: skip
        try:
            self._start()
            self.wire.send(request)
            reply, restored = self.wire.receive(self.read_s)
        except (EOFError, TimeoutError, WireError) as error:
            self.close()
            reply, restored = {"ended": f"reading it was stopped after {self.read_s:g} s: {error}"}, b""
        if "ended" in reply:
            found = Submission(student, trusted.assignment, notes=[])
            return _put_in_order(found, trusted, times, f"the folder cannot be read: {reply['ended']}")
        found = Submission(student, trusted.assignment, restored, reply["timestamp"], reply["notes"])
        found.restored, found.key = restored, reply["key"]
        return found

    def _start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        start = f"import sys; sys.path.insert(0, {root!r}); from hw_grader.course import read_submissions; "
        start += f"read_submissions.serve({theirs.fileno()})"
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                                            start_new_session=True)  # fmt: skip
        self.wire = Wire(ours)
        self.wire.receive(_START_S)

    def close(self) -> None:
        """Ends it, and whoever it has forked."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.wire.close()
            self.process = None


READER = Reader()
atexit.register(READER.close)


def restored(path: Path, trusted: TrustedNotebook, solution: Path) -> NotebookNode:
    """A submitted notebook, put in order; one that must not be read is `unreadable`, with the reason."""
    found = READER.read(path.parent, path.parent.parent.name, trusted, solution, TimeLimits())
    return nbformat.from_dict(json.loads(found.restored))


def serve(fd: int) -> None:
    """Forks a reader for each request that comes over the socket, until the grader hangs up."""
    wire = Wire(socket.socket(fileno=fd))
    wire.send({"ready": os.getpid()})
    with contextlib.suppress(EOFError):
        while True:
            request, _ = wire.receive(timeout_s=24 * 3600)
            _release(request["solution"])  # kept for all that follow
            child = os.fork()
            if child == 0:
                _answer(wire, request)
            _, status = os.waitpid(child, 0)
            if status:
                wire.send({"ended": _why(os.waitstatus_to_exitcode(status), *request["limits"])})


def _answer(wire: Wire, request: dict) -> None:
    """In the forked process: never returns."""
    code = 1
    try:
        cpu_s, memory_bytes = request["limits"]
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        memory_bytes += in_use()[1]  # what Python and its packages take differs from machine to machine
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        trusted = _release(request["solution"])
        found = handed_in(Path(request["folder"]), request["student"], trusted, TimeLimits(**request["times"]))
        about = {"timestamp": found.timestamp, "notes": found.notes, "key": found.key}
        wire.send(about, found.restored)
        code = 0
    finally:
        os._exit(code)


def _why(code: int, cpu_s: int, memory_bytes: int) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {cpu_s} s of processor time"
    return f"its process ended ({code}), with {memory_bytes / 2**30:.0f} GiB of memory"


@lru_cache(maxsize=20)
def _release(solution: str) -> TrustedNotebook:
    return read_trusted(solution)
