"""A warm sandbox: bubblewrap around a parent that has torch imported, from which each task gets a fresh process.

    with Sandbox() as sandbox:
        process = sandbox.start("cells")
        process.wire.send({...}); process.wire.receive(timeout_s=30)
        process.end()

Inside there is a read-only system, this Python and `hw_utils`; no network, no home, no course folder.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hw_grader.sandbox.cpu_share import Share
from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.messages import Wire

PACKAGE = Path(__file__).resolve().parent.parent
INSIDE = (
    "__init__", *(f"sandbox/{n}" for n in ("__init__", "messages", "lockdown", "zygote")),
    *(f"sandbox/{n}" for n in ("call_filter", "changed_pages", "jailed_process", "memory_in_use", "no_checks")),
    "driving/__init__", *(f"driving/roles/{n}" for n in ("__init__", "cells", "answers", "drive", "judge")),
    *(f"driving/{n}" for n in ("answer_proxy", "conversation", "forwarded_calls", "marshalling", "answer_sockets")),
    *(f"driving/{n}" for n in ("lent_objects", "model_states", "opened_answers", "remote_process_group")),
    "driving/tensor_lifetimes",
)  # fmt: skip
INSTALL = "bubblewrap is not installed: apt install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora)"
_FIRST_UID = 1_000_000  # as root, each sandbox is a user that nobody else is
_CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL", "CHOWN", "FOWNER", "DAC_OVERRIDE",
                 "SYS_PTRACE")  # fmt: skip
_START_S = 120
_ANSWER_S = 30
_NO_COLLECTIONS = "import gc, sys; gc.disable()"  # until all is imported
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

    def look(self) -> list[int] | None:
        """Bytes of its memory that are new since each earlier look; None where that is not to be seen."""
        return self.sandbox.ask({"do": "look", "number": self.number})["new"]

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

        walls: False is for a container that is itself thrown away after one student: separate processes, and no more.

        Raises:
            SandboxError: no bubblewrap, or it may not make namespaces here.
        """
        reason = why_not()
        if walls and reason:
            raise SandboxError(reason)
        self._at_close: list[Callable[[], None]] = []
        limits = limits or Limits()
        self.share = Share(memory_bytes=limits.memory_bytes + _PARENTS_BYTES if walls else 0)
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


def command(control_fd: int) -> list[str]:
    """bubblewrap's command line."""
    root = os.geteuid() == 0
    uid = str(_FIRST_UID + os.getpid()) if root else "-"
    start = f"{_NO_COLLECTIONS}; sys.path.insert(0, '/hw'); from hw_grader.sandbox.zygote import main; main()"
    return [
        "bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
        *([] if root else ["--unshare-user", "--uid", "0", "--gid", "0"]),
        *(option for name in _CAPABILITIES for option in ("--cap-add", f"CAP_{name}")),
        "--die-with-parent", "--new-session", "--hostname", "localhost",
        *_readable_parents([*_system(), *_course()]), *_environment(),
        "--remount-ro", "/", "--chdir", "/",
        sys.executable, "-I", "-c", start, str(control_fd), uid,
    ]  # fmt: skip


def bare_command(control_fd: int, folder: str) -> list[str]:
    """The warm parent without bubblewrap, for `walls=False`."""
    start = (
        f"{_NO_COLLECTIONS}; sys.path[:0] = [{str(PACKAGE.parent)!r}, {str(package_folder().parent)!r}]; "
        "from hw_grader.sandbox.zygote import main; main()"
    )
    values = {**_VALUES, "HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder}
    return ["env", "-i", *(f"{k}={v}" for k, v in values.items()), sys.executable, "-I", "-c", start,
            str(control_fd), "-", folder]  # fmt: skip


def _system() -> list[str]:
    """The operating system and this Python, read-only."""
    options = [
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/scratch", "--dir", "/scratch/.home",
        "--perms", "0711", "--size", str(2**20), "--tmpfs", "/meet", "--ro-bind", "/usr", "/usr",
    ]  # fmt: skip
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += ["--ro-bind", path, path]
    for name in ("ld.so.cache", "alternatives", "fonts", "localtime", "mime.types", "hosts", "nsswitch.conf"):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for prefix in sorted({sys.base_prefix, sys.prefix, sys.base_exec_prefix}):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            options += ["--ro-bind", prefix, prefix]
    return options


def package_folder() -> Path:
    """Where hw_utils lies; it is not imported here, which would import torch."""
    return Path(importlib.util.find_spec("hw_utils").origin).resolve().parent


def _course() -> list[str]:
    """`hw_utils` and the handful of our own files that run inside; nothing else of the course."""
    options = ["--ro-bind", str(package_folder()), "/hw/hw_utils"]
    for name in INSIDE:
        options += ["--ro-bind", str(PACKAGE / f"{name}.py"), f"/hw/hw_grader/{name}.py"]
    return options


def _readable_parents(options: list[str]) -> list[str]:
    """The options after those that make each mount point's parents: bubblewrap's own are closed to another user."""
    targets = [options[i + 2] for i, option in enumerate(options) if option.startswith("--ro-bind")]
    parents = {str(parent) for target in targets for parent in Path(target).parents} - {"/"}
    made = (part for path in sorted(parents) for part in ("--perms", "0755", "--dir", path))
    return [*made, *options]


_VALUES = {
    "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    "HOME": "/scratch/.home", "TMPDIR": "/tmp", "IPYTHONDIR": "/scratch/.home/ipython",
    "MPLCONFIGDIR": "/tmp", "MPLBACKEND": "Agg", "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo", "HW_UTILS_PRELOAD": "0", "MALLOC_ARENA_MAX": "1",
}  # fmt: skip


def _environment() -> list[str]:
    return ["--clearenv", *(part for name, value in _VALUES.items() for part in ("--setenv", name, value))]
