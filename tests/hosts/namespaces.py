"""A cluster in a box: each host a network namespace, each cable a pair of virtual interfaces behind a rate limit.

    with hosts.cluster(4, rate="1gbit") as cluster:
        texts = hosts.run_on(cluster, lambda rank, host: [sys.executable, "job.py", str(rank)], timeout_s=60)

Needs Linux, root and iproute2. Nothing outside the namespaces sees them, and leaving the block removes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

INTERFACE = "eth0"
PORT = "29500"  # each namespace has its own ports, so a fixed one cannot clash
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@dataclass(frozen=True)
class Host:
    """One namespace with one interface: what to start a job with, and what its counters say."""

    namespace: str
    address: str
    interface: str = INTERFACE

    def start(self, command: Sequence[str], *, env: dict[str, str] | None = None, **options) -> subprocess.Popen:
        """The running command, in a session of its own; gloo is told which interface to use."""
        told = {**os.environ, "GLOO_SOCKET_IFNAME": self.interface, **(env or {})}
        inside = [_program("ip"), "netns", "exec", self.namespace, *command]
        return subprocess.Popen(inside, env=told, start_new_session=True, text=True, **options)

    def counters(self) -> tuple[int, int]:
        """(bytes sent, bytes received) by the interface since it was made."""
        shown = json.loads(_ip("-n", self.namespace, "-s", "-j", "link", "show", self.interface))
        return shown[0]["stats64"]["tx"]["bytes"], shown[0]["stats64"]["rx"]["bytes"]


def why_not() -> str:
    """Why no hosts can be made on this machine; nothing if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"network namespaces need iproute2: no {' and no '.join(missing)} here"
    try:
        with cluster(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made here: {(error.stderr or str(error)).strip()}"


def require() -> None:
    """Skips the test with the reason if no hosts can be made; in CI a missing one is a failure."""
    reason = why_not()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@contextmanager
def cluster(n_hosts: int, *, rate: str = "1gbit", burst: str = "80kb") -> Iterator[list[Host]]:
    """`n_hosts` hosts on one switch; every cable carries `rate` in each direction, as full-duplex Ethernet does.

    The switch limits what it sends to a host, the host what it sends to the switch, so that a receiver's port is
    as narrow as a sender's.
    burst: what may pass at once after a pause. It must be more than 64 kB, the largest packet that the kernel hands
    down in one piece; with less, a link that is busy in both directions carries half of its rate.
    """
    switch = f"hw{os.getpid()}"
    made = [Host(f"{switch}h{i}", f"10.77.0.{i + 1}") for i in range(n_hosts)]
    limit = ("root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for i, host in enumerate(made):
            _connect(host, switch, f"port{i}")
            _tc("-n", host.namespace, "qdisc", "add", "dev", host.interface, *limit)
            _tc("-n", switch, "qdisc", "add", "dev", f"port{i}", *limit)
        yield made
    finally:
        for namespace in [*(host.namespace for host in made), switch]:
            subprocess.run([_program("ip"), "netns", "delete", namespace], capture_output=True, check=False)


def run_on(
    hosts: Sequence[Host],
    command: Callable[[int, Host], Sequence[str]],
    *,
    env: Callable[[int, Host], dict[str, str]] = lambda rank, host: {},
    timeout_s: float = 120,
) -> list[str]:
    """What each host printed: one command a host, started together; MASTER_ADDR, RANK and WORLD_SIZE are set.

    Raises:
        AssertionError: a command failed or took longer than `timeout_s`; says what each of them wrote.
    """
    common = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT, "WORLD_SIZE": str(len(hosts))}
    with tempfile.TemporaryDirectory() as folder:
        files = [open(os.path.join(folder, f"{i}"), "w+") for i in range(len(hosts))]  # noqa: SIM115, closed below
        jobs = [
            host.start(
                command(i, host),
                env={**common, "RANK": str(i), **env(i, host)},
                stdin=subprocess.DEVNULL,
                stdout=files[i],
                stderr=subprocess.STDOUT,
            )
            for i, host in enumerate(hosts)
        ]
        codes = _finish(jobs, timeout_s)
        texts = [_read(file) for file in files]
    written = "\n".join(f"host {i} (exit {code}):\n{text}" for i, (code, text) in enumerate(zip(codes, texts)))
    assert codes == [0] * len(hosts), written
    return texts


def _finish(jobs: list[subprocess.Popen], timeout_s: float) -> list[int | None]:
    """Exit codes in order; None for a job that was still running and was killed."""
    codes: list[int | None] = []
    try:
        for job in jobs:
            codes.append(job.wait(timeout_s))
    except subprocess.TimeoutExpired:
        codes += [job.poll() for job in jobs[len(codes) :]]
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, 9)
                job.wait()
    return codes


def _read(file) -> str:
    with file:
        file.seek(0)
        return file.read()


def _connect(host: Host, switch: str, port: str) -> None:
    _ip("netns", "add", host.namespace)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", host.interface, "netns", host.namespace)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
    for interface in ("lo", host.interface):
        _ip("-n", host.namespace, "link", "set", interface, "up")


def _ip(*words: str) -> str:
    return subprocess.run([_program("ip"), *words], capture_output=True, text=True, check=True).stdout


def _tc(*words: str) -> str:
    return subprocess.run([_program("tc"), *words], capture_output=True, text=True, check=True).stdout


def _program(name: str) -> str:
    return shutil.which(name, path=SEARCH_PATH) or name
