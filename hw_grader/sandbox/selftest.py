"""Thirteen probes of the sandbox, run as a student's cell would be: `python -m hw_grader selftest`."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hw_grader.sandbox.lockdown import Limits
from hw_grader.sandbox.sandbox import Sandbox, SandboxError, why_not


@dataclass(frozen=True)
class Probe:
    """An act that must raise: a cell's source."""

    name: str
    source: str


_SECRET_NAME = "HW_GRADER_PROBE"
PROBES = (
    Probe("read the course folder", "open('SECRET').read()"),
    Probe("read /etc/shadow", "open('/etc/shadow').read()"),
    Probe("read the grader's environment", f"import os\nos.environ['{_SECRET_NAME}']"),
    Probe("write into hw_utils", "open('/hw/hw_utils/planted.py', 'w')"),
    Probe("write into Python", "import os\nopen(os.path.dirname(os.__file__) + '/planted.py', 'w')"),
    Probe("write where all submissions look", "open('/dev/planted', 'w')"),
    Probe("reach the internet", "import socket\nsocket.create_connection(('1.1.1.1', 53), 1)"),
    Probe("reach this machine's loopback", "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)"),
    Probe("see the machine's processes", "open('/proc/GRADER/cmdline')"),
    Probe("make a namespace", "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000):\n    raise OSError"),
    Probe("allocate 50 GB", "x = bytearray(50 * 10**9)"),
    Probe("start 10,000 processes",
          "import os, time\nfor n in range(10_000):\n    if os.fork() == 0:\n        time.sleep(100)"),
    Probe("write a file of 1 GB",
          "with open('large', 'wb') as file:\n    for _ in range(1024):\n        file.write(bytes(2**20))"),
)  # fmt: skip
CELL_S = 90  # 384 processes take ten seconds to start on a busy machine


def probe_all(sandbox: Sandbox, root: Path) -> list[tuple[str, bool | None]]:
    """(what was tried, whether it was blocked) for every probe, each in a process of its own; None: it was not over."""
    (root / "secret.txt").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {"SECRET": str(root / "secret.txt"), "PORT": str(server.getsockname()[1]), "GRADER": str(os.getpid())}
        return [(probe.name, _is_blocked(sandbox, probe.source, words)) for probe in PROBES]


def _is_blocked(sandbox: Sandbox, source: str, words: dict[str, str]) -> bool | None:
    for word, value in words.items():
        source = source.replace(word, value)
    with sandbox.start("cells") as process:
        process.wire.send({"run": source})
        try:
            reply, _ = process.wire.receive(CELL_S)
        except (EOFError, TimeoutError) as error:
            return process.end().over_memory or (None if isinstance(error, TimeoutError) else False)
    return reply["ok"] is False


def main() -> int:
    """Prints the table; 0 if all probes are blocked."""
    reason = why_not()
    if reason:
        print(reason, file=sys.stderr)
        return 2
    os.environ[_SECRET_NAME] = "secret"
    try:
        with tempfile.TemporaryDirectory() as folder, Sandbox(Limits(memory_bytes=2 * 2**30)) as sandbox:
            found, share = probe_all(sandbox, Path(folder)), sandbox.share.path
    except SandboxError as error:
        print(f"the sandbox does not start: {error}", file=sys.stderr)
        return 2
    for name, blocked in found:
        print(f"{'slow' if blocked is None else 'blocked' if blocked else 'OPEN':8} {name}")
    autogroup = Path("/proc/sys/kernel/sched_autogroup_enabled")
    grouped = autogroup.exists() and autogroup.read_text().strip() == "1"
    how = (
        "a control group"
        if share
        else "automatic groups, outside containers"
        if grouped
        else "nothing: see docs/grading.md"
    )
    print(f"processors are shared fairly between submissions by {how}")
    n_open = sum(not blocked for _, blocked in found)
    print(f"{len(found) - n_open} of {len(found)} blocked")
    if any(blocked is None for _, blocked in found):
        print(f"slow: it was not over after {CELL_S} s, so nothing is known; try again on a less busy machine")
    return int(n_open > 0)
