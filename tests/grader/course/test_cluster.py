"""A class over Dask: no open port unasked, certificates by Dask's own settings, a scheduler that is lost."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from hw_grader.course.batch import ClusterError, cluster, is_private

# Has a scheduler ask "the worker" at this address for its logs, and load what that sends.
LOGS = "/info/logs/tcp%3A%2F%2F127.0.0.1%3A{}.html"


@pytest.mark.parametrize(
    "address", ["tcp://203.0.113.7:8786", "203.0.113.7:8786", "tcp://[2001:db8::1]:8786", "ucx://10.9.8.7:1"]
)
def test_a_plain_scheduler_on_another_machine_is_refused_with_the_way_out(address):
    assert not is_private(address)
    with pytest.raises(ClusterError, match=r"tls://.*--insecure"), cluster(address):
        raise AssertionError("it was taken")


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "127.0.0.1:1", "tcp://[::1]:1", "tls://203.0.113.7:1"]
)
def test_tls_and_this_machine_are_taken(address):
    assert is_private(address)


def ports_of(pid: int) -> list[int]:
    """Where a process and what it has started listen."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = [c.laddr.port for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert found
    return found


def asks_elsewhere(port: int) -> bool:
    """Whether who listens there, asked by HTTP for another one's logs, goes and asks that one."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            line.request("GET", LOGS.format(elsewhere.getsockname()[1]))
            elsewhere.settimeout(0.5)  # it answers when it has asked
            if line.getresponse().status == 404:
                return False
        except (OSError, http.client.HTTPException):  # no HTTP is spoken there
            elsewhere.settimeout(0.5)
        finally:
            line.close()
        try:
            elsewhere.accept()[0].close()
        except TimeoutError:
            return False
    return True


def test_nobody_else_can_speak_with_the_processes_of_one_run():
    with cluster(n_workers=1) as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert client.submit(os.getpid).result() != os.getpid()
        assert not any(asks_elsewhere(port) for port in ports_of(os.getpid()))
        for other in (Client, lambda *a, **k: Client(*a, security=Security.temporary(), **k)):
            with pytest.raises((OSError, ValueError, TypeError, RuntimeError)):
                other(address, timeout="2s")


def test_the_web_pages_of_a_scheduler_are_closed_when_a_class_is_graded_over_it(tmp_path: Path, capsys):
    told = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    bare = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
    command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(told)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=bare) as scheduler:
        try:
            address = next(line.split("at:")[1].strip() for line in scheduler.stderr if "Scheduler at:" in line)
            assert any(asks_elsewhere(port) for port in ports_of(scheduler.pid))
            worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
            with subprocess.Popen(worker, stderr=subprocess.DEVNULL, env=bare) as late:
                with cluster(address):
                    assert not any(asks_elsewhere(port) for port in ports_of(scheduler.pid))
                late.kill()
            assert "closed" in capsys.readouterr().err
        finally:
            scheduler.kill()


def test_a_scheduler_without_workers_is_waited_for_and_said(capsys):
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard"]
    with LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0") as alone, ThreadPoolExecutor() as beside:

        def said_then_worker() -> subprocess.Popen:
            while "has no worker: start" not in "".join(said):
                said.append(capsys.readouterr().err)
            return subprocess.Popen([*worker, alone.scheduler_address], stderr=subprocess.DEVNULL)

        said: list[str] = []
        coming = beside.submit(said_then_worker)
        with cluster(alone.scheduler_address, insecure=True) as client:
            assert client.submit(sum, [2, 3]).result() == 5
        with coming.result() as late:
            late.kill()
