"""A warm sandbox: bubblewrap around a parent that has torch imported, from which each task gets a fresh process.

    with Sandbox() as sandbox:
        process = sandbox.start("cells")
        process.wire.send({...}); process.wire.receive(timeout_s=30)
        process.end()

What there is inside: see bubblewrap.py.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from hw_grader.sandbox.bubblewrap import bare_command, command
from hw_grader.sandbox.control_groups import Share
from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.messages import Wire

INSTALL = "bubblewrap is not installed: apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
_START_S = 120
_ANSWER_S = 30
_END_S = 10
_PARENTS_BYTES = 2**30  # what the two warm parents take, with room for what only the kernel counts


class SandboxError(Exception):
    """The sandbox itself does not work; never a student's fault."""


def why_not() -> str:
    """Why there can be no sandbox on this machine; empty if there can."""
    if sys.platform != "linux":
        return f"the sandbox needs Linux; this is {sys.platform}. Grade on a Linux machine, in WSL 2 or in a container"
    return "" if shutil.which("bwrap") else INSTALL


@dataclass(frozen=True)
class Ended:
    """What is known of a sandboxed process once it and all it started are gone."""

    over_memory: bool
    peak_bytes: int


class Process:
    """One sandboxed process: a wire to it, and the means to end it."""

    def __init__(self, sandbox: Sandbox, number: int, wire: Wire) -> None:
        self.sandbox, self.number, self.wire = sandbox, number, wire
        self.ended: Ended | None = None
        self.n_out_of_memory = sandbox.share.n_out_of_memory

    def branch(self) -> Branch:
        """A fresh process behind the same walls; the branch before is over.

        Raises:
            EOFError: this process is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.wire.socket, [b"+"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise EOFError(f"the other side is gone: {error}") from None
        return Branch(self, Wire(ours))

    def interrupt(self) -> None:
        """As if the student had pressed stop."""
        self.sandbox.ask({"do": "interrupt", "number": self.number})

    def look(self, lent: Sequence[Sequence] = ()) -> list[int] | None:
        """Bytes of its memory that are new since each earlier look; None where that is not to be seen.

        lent: what it was given, see `changed_pages.look_at`.
        """
        return self.sandbox.ask({"do": "look", "number": self.number, "lent": lent})["new"]

    def end(self) -> Ended:
        """Ends the process and everything that it started."""
        if self.ended is None:
            self.wire.close()
            answer = self.sandbox.ask({"do": "end", "number": self.number})
            is_over = answer["over_memory"] or self.sandbox.share.n_out_of_memory > self.n_out_of_memory
            self.ended = Ended(is_over, answer["peak_bytes"])
        return self.ended

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error) -> None:
        self.end()


class Branch:
    """A process that another one forked: it has a wire of its own, and ends with the other one at the latest."""

    def __init__(self, parent: Process, wire: Wire) -> None:
        self.parent, self.sandbox, self.wire = parent, parent.sandbox, wire

    def end(self) -> Ended:
        """Ends everything behind the same walls."""
        self.wire.close()
        return self.parent.end()

    def __enter__(self) -> Branch:
        return self

    def __exit__(self, *error) -> None:
        self.wire.close()


class Sandbox:
    """The warm parent. One at a time is enough for a core: a class is graded with one in each worker process."""

    def __init__(self, limits: Limits | None = None, *, walls: bool = True) -> None:
        """Starts it; importing torch takes a few seconds.

        walls: False is for a container that is itself thrown away after one student: separate processes, as root of
            separate users, that end with all that they have started and left, and no more.

        Raises:
            SandboxError: no bubblewrap, or it may not make namespaces here.
        """
        reason = why_not()
        if walls and reason:
            raise SandboxError(reason)
        self._at_close: list[Callable[[], None]] = []
        limits = limits or Limits()
        self.share = Share(memory_bytes=limits.memory_bytes + _PARENTS_BYTES if walls else 0)
        self.walls = walls
        self.limits = replace(limits, nice=self.share.nice)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the sandbox)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.folder = None if walls else tempfile.TemporaryDirectory()
            start = command(theirs.fileno()) if walls else bare_command(theirs.fileno(), self.folder.name)
            self.bwrap = subprocess.Popen(
                self.share.command(start), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self.control.settimeout(_START_S)
        self.ready = self._answer()
        self.control.settimeout(_ANSWER_S)

    def start(self, role: str, *, branches: bool = False, meeting: str = "") -> Process:
        """A fresh process in a role: `cells`, `answers`, `drive` or `judge`; with `branches`, see `Process.branch`.

        meeting: the folder of `meeting` in which it serves others.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(ours.close)
            request = {"do": "start", "role": role, "limits": asdict(self.limits)}
            answer = self.ask({**request, "branches": branches, "meeting": meeting}, theirs.fileno())
            if_it_fails.pop_all()
        return Process(self, answer["started"], Wire(ours))

    @contextlib.contextmanager
    def meeting(self) -> Iterator[str]:
        """A folder for sockets at which `answers` processes can serve `drive` processes."""
        name = secrets.token_hex(8)
        path = self.ask({"do": "meet", "name": name})["path"]
        try:
            yield path
        finally:
            self.ask({"do": "part", "name": name})

    def ask(self, request: dict, *fds: int) -> dict:
        """The warm parent's answer."""
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], list(fds))
        except OSError as error:
            raise SandboxError(f"the warm parent is gone: {error}; it wrote: {self._said()}") from None
        return self._answer()

    def _answer(self) -> dict:
        try:
            text = self.control.recv(65536)
        except OSError as error:
            self._kill()  # an answer that came late would be taken for that to the next request
            raise SandboxError(f"the warm parent does not answer: {error}; it wrote: {self._said()}") from None
        if not text:
            raise SandboxError(f"the warm parent ended; it wrote: {self._said()}")
        answer = json.loads(text)
        if "error" in answer:
            raise SandboxError(answer["error"])
        return answer

    def _said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip() or "nothing"

    def at_close(self, function: Callable[[], None]) -> None:
        """Has `function` called first of all when the sandbox is closed."""
        self._at_close.append(function)

    def close(self) -> None:
        """Ends the warm parent and everything in it."""
        while self._at_close:
            self._at_close.pop()()
        self._kill()
        self.share.close()
        self.log.close()
        if self.folder is not None:
            self.folder.cleanup()

    def _kill(self) -> None:
        self.control.close()
        if not self.walls:  # it ends its jails itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.bwrap.wait(_END_S)
        deadline = time.monotonic() + 2
        while self.bwrap.poll() is None and time.monotonic() < deadline:
            self.bwrap.kill()  # it takes its process namespace with it
            try:
                self.bwrap.wait(0.1)
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error) -> None:
        self.close()


class SharedSandbox:
    """One warm sandbox for this process, started when first needed and again if it has died."""

    def __init__(self) -> None:
        self.lock, self.sandbox = threading.Lock(), None

    def get(self) -> Sandbox:
        """The sandbox, alive."""
        with self.lock:
            if self.sandbox is not None and self.sandbox.bwrap.poll() is not None:
                self.sandbox.close()
                self.sandbox = None
            self.sandbox = self.sandbox or Sandbox()
            return self.sandbox

    def close(self) -> None:
        """Ends it."""
        with self.lock:
            if self.sandbox is not None:
                self.sandbox.close()
                self.sandbox = None


SHARED = SharedSandbox()
atexit.register(SHARED.close)
