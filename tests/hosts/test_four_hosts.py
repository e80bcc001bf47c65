"""Lesson 04's worker on four real hosts: exported from the notebook, started by torchrun, 1 Gb/s between them."""

from __future__ import annotations

import json
import sys

import pytest

from hw_utils import Network, simulate
from hw_utils.hosts import training_report
from hw_utils.hosts.export import export
from hw_utils.material.job import Job
from tests.checks.references import lessons, namespace
from tests.hosts import namespaces
from tools.notebook import to_notebook, to_text

pytestmark = [pytest.mark.root, pytest.mark.slow]

N_ITERATIONS = 3
PICTURES = "lambda: data.drawn(24, 8, say=False)"  # what is on them has no part in what travels


@pytest.fixture(scope="module")
def lesson():
    return next(lesson for lesson in lessons() if lesson.name == "04_data_parallel")


@pytest.fixture(scope="module")
def notebook(lesson, tmp_path_factory):
    path = tmp_path_factory.mktemp("notebook") / "data_parallel.ipynb"
    path.write_text(to_text(to_notebook(lesson)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def four_hosts():
    namespaces.require()
    with namespaces.cluster(4, rate="1gbit") as cluster:
        yield cluster


def torchrun(cluster, script, *options: str):
    """The command on each host. Names of namespaces cannot be looked up, so addresses and the first host are given."""

    def command(rank: int, host: namespaces.Host) -> list[str]:
        path = script(rank) if callable(script) else script
        return [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(cluster)), "--nproc_per_node", "1",
            "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{cluster[0].address}:29400",
            "--rdzv_conf", f"is_host={rank == 0}".lower(), "--local_addr", host.address, str(path), *options,
        ]  # fmt: skip

    return command


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["gather_scatter", "all_reduce", "ddp"])
def test_the_notebooks_worker_runs_on_four_hosts(method, notebook, lesson, four_hosts, tmp_path, record_property):
    job = f'replace(job, method="{method}", data={PICTURES}, total_batch=8, n_iterations={N_ITERATIONS})'
    script = export(notebook, "worker", tmp_path / "train.py", args=job)
    namespaces.run_on(four_hosts, torchrun(four_hosts, script, "--runs", str(tmp_path / "runs")), timeout_s=280)
    (saved,) = training_report.load(tmp_path / "runs")
    assert len(saved.results) == 4
    assert {r["losses"][0] > 0 for r in saved.results} == {True}
    names = namespace(lesson)
    same = Job(method, data=eval(PICTURES, names), total_batch=8, n_iterations=N_ITERATIONS, lr=0.005)
    model = simulate(names["worker"], 4, args=(same,), network=Network(), compute="free", echo=False)
    expected = [model.trace.bytes_sent(rank) for rank in range(4)]
    assert sum(saved.sent_bytes) == pytest.approx(sum(expected), rel=0.03)
    if method != "ddp":  # whose broadcast gloo may send along another tree
        assert saved.sent_bytes[0] == pytest.approx(expected[0], rel=0.03)
    record_property("measured_s", saved.results[0]["iteration_s"])
    record_property("communication_s", model[0]["iteration_s"])
    record_property("sent_MB", [n / 1e6 for n in saved.sent_bytes])
    print(method, "measured", saved.results[0]["iteration_s"], "virtual, free compute", model[0]["iteration_s"])


TINY = """
import os, sys, time
import torch, torch.distributed as dist

def worker(rank, world_size):
    x = torch.ones(1000)
    dist.all_reduce(x)
    if {fault!r} == "dies" and rank == 2:
        os.kill(os.getppid(), 9)  # the whole host: torchrun and its worker
        os.kill(os.getpid(), 9)
    if {fault!r} == "raises" and rank == 1:
        raise ValueError("a mistake")
    dist.all_reduce(x)
    return float(x[0])

if __name__ == "__main__":
    from hw_utils.hosts import torchrun
    torchrun.main(worker)
"""


def fault(tmp_path, name: str):
    script = tmp_path / "tiny.py"
    script.write_text(TINY.format(fault=name))
    return script


def written(cluster, command) -> str:
    with pytest.raises(AssertionError) as failed:
        namespaces.run_on(cluster, command, timeout_s=120)
    return str(failed.value)


def test_a_host_that_dies_is_named_by_the_others_which_stop(four_hosts, tmp_path):
    three = four_hosts[:3]
    text = written(three, torchrun(three, fault(tmp_path, "dies"), "--runs", str(tmp_path)))
    assert "exit None" not in text  # none of them had to be killed
    assert text.count(f"rank 2 on {_name(three[2])} has not answered") == 2


def _name(host: namespaces.Host) -> str:
    import socket

    return f"{socket.gethostname()} ({host.address})"


def test_an_exception_on_one_host_stops_all_and_is_told_on_all(four_hosts, tmp_path):
    three = four_hosts[:3]
    text = written(three, torchrun(three, fault(tmp_path, "raises"), "--runs", str(tmp_path)))
    assert "exit None" not in text
    assert text.count(f"rank 1 on {_name(three[1])}: ValueError: a mistake") >= 3


def test_hosts_with_different_scripts_do_not_start(four_hosts, tmp_path):
    two, scripts = four_hosts[:2], []
    for rank, name in enumerate(("none", "other")):
        folder = tmp_path / str(rank)
        folder.mkdir()
        scripts.append(fault(folder, name))
    text = written(two, torchrun(two, lambda rank: scripts[rank], "--runs", str(tmp_path)))
    assert "hosts must run the same script" in text
    assert f"rank 1 on {_name(two[1])} has tiny.py" in text


def test_a_wrong_interface_is_refused_with_those_that_exist(four_hosts, tmp_path):
    two = four_hosts[:2]
    command = torchrun(two, fault(tmp_path, "none"), "--interface", "wlan7")
    assert "there is no interface 'wlan7' here, only eth0, lo. Name one: --interface" in written(two, command)


def test_counters_over_time_are_saved_for_the_report(four_hosts, tmp_path):
    two = four_hosts[:2]
    command = torchrun(two, fault(tmp_path, "none"), "--runs", str(tmp_path / "runs"), "--name", "tiny")
    namespaces.run_on(two, command, timeout_s=120)
    facts = [json.loads((tmp_path / "runs" / "tiny" / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert [f["interface"] for f in facts] == ["eth0"] * 2
    assert all(f["counters"][-1][1] > f["counters"][0][1] for f in facts)
    assert [f["result"] for f in facts] == [4.0] * 2
