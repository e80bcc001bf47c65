"""Grades many submissions over a Dask cluster; nothing of nbgrader's is needed on its machines.

Each worker process keeps one warm sandbox. A few tasks more than workers are under way, so memory stays flat; a task
whose worker dies is tried again on another one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator

import nbformat
import psutil

from hw_grader.course.grading import grade
from hw_grader.course.grading_records import Record, Verdict
from hw_grader.course.reference_solution import measure
from hw_grader.notebook.restore import restore
from hw_grader.notebook.submission import Submission
from hw_grader.notebook.time_limits import TimeLimits
from hw_grader.notebook.trusted_notebook import TrustedNotebook, package_digest
from hw_grader.sandbox.sandbox import SHARED, SandboxError

TRIES = 3
IN_GRAPH_BYTES = 200_000
QUIET = (
    logging.CRITICAL
)  # a heartbeat at a scheduler's end is an error to dask, with a traceback; a task's is not logged
# The scheduler's pages connect it to whatever address a reader names, and load what that sends: code for everybody.
NO_PAGES = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
NOT_KEPT = {  # what dask would write down about itself, hour after hour: it grows by 0.1 MB a second
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.log-length": 10,
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 10,
}


def grade_task(data: bytes, trusted: TrustedNotebook, student: str, times: TimeLimits, digest: str) -> str:
    """What a worker does with one submission, a notebook in order (see read_submissions.py); the record as JSON.

    Raises:
        SandboxError: this worker cannot grade: no sandbox, another version of the course.
    """
    if package_digest() != digest:
        raise SandboxError(
            "this worker has another version of hw_utils or hw_grader: install the same on every machine"
        )
    notebook = nbformat.from_dict(json.loads(data))
    return grade(notebook, trusted, SHARED.get(), student, times).to_json()


def start_sandboxes(client, n_submissions: int) -> list:
    """Has the workers that will be needed start their sandboxes, as long as what this gives is kept.

    Why one cannot start, its first submission says.
    """
    workers = list(client.scheduler_info(n_workers=-1)["workers"])[:n_submissions] if n_submissions > 1 else []
    return [client.submit(_start_sandbox, workers=[address], pure=False, retries=0) for address in workers]


def _start_sandbox() -> None:
    SHARED.get()


def measure_on(client):
    """`reference_solution.measure`, done by one of the cluster's workers."""
    return lambda *arguments: client.submit(measure, *arguments, pure=False).result()


class ClusterError(Exception):
    """The scheduler cannot be used; says why and what to do."""


def is_private(address: str) -> bool:
    """Whether the way to a scheduler is encrypted, or does not leave this machine."""
    kind, _, rest = address.rpartition("://")
    if kind in ("tls", "wss", "inproc"):
        return True
    host = (rest.rpartition(":")[0] or rest).strip("[]")
    try:
        found = {str(place[0]) for *_, place in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {a.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for a in addresses}
    return bool(found) and all(ipaddress.ip_address(ip).is_loopback or ip in own for ip in found)


@contextlib.contextmanager
def cluster(address: str = "", n_workers: int = 0, insecure: bool = False) -> Iterator:
    """A client of the scheduler at `address`, or of a local cluster with one process a core.

    TLS is set up by Dask's own configuration (`distributed.comm.tls`), the same on every machine. A local cluster has a
    certificate of its own for this one run: nobody else on this machine can speak with it.

    Raises:
        ClusterError: plain tcp to another machine without `insecure`; no scheduler is there; no certificate here.
    """
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    if address:
        if not (insecure or is_private(address)):
            raise ClusterError(
                f"a scheduler over a network must be reached by tls://, got {address}: over plain tcp whoever reaches "
                "its port runs code on every machine. Make certificates and set DASK_DISTRIBUTED__COMM__TLS__* "
                "(docs/grading.md, section Dask), or add --insecure if nobody else is on that network"
            )
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # a lost scheduler is said in a line below
        try:
            client = Client(address, timeout="20s")
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ClusterError(f"no scheduler answers at {address}: {error}; is it running?") from error
        with client:
            if not insecure:
                _say_what_became_of_pages(client, address)
            if not client.scheduler_info(n_workers=-1)["workers"]:
                print(f"The scheduler at {address} has no worker: start `dask worker {address} ...` (docs/grading.md); "
                      "this goes on when one comes.", file=sys.stderr)  # fmt: skip
                client.wait_for_workers(1)
            yield client
        return
    n_workers = n_workers or len(os.sched_getaffinity(0))
    try:
        own = Security.temporary()
    except ImportError as error:
        raise ClusterError("the package cryptography makes this run's certificate, and is missing: make env") from error
    with (
        dask.config.set({**NOT_KEPT, **NO_PAGES}),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=QUIET,
            security=own, memory_limit=None,  # a submission has bounds (run_cells.py): no worker ends
        ) as local,
        Client(local) as client,
    ):  # fmt: skip
        yield client


def _say_what_became_of_pages(client, address: str) -> None:
    what = f"The web pages of the scheduler at {address}, with which whoever reads them can run code there,"
    how = "docs/grading.md, section Dask, starts it without."
    try:
        if client.run_on_scheduler(_close_pages):
            print(f"{what} are closed; {how}", file=sys.stderr)
    except Exception as error:  # a scheduler of another version, or without this course
        print(f"{what} could not be closed ({type(error).__name__}); {how}", file=sys.stderr)


def _close_pages(dask_scheduler) -> bool:
    """Ends a scheduler's web server; whether it had pages. Runs there."""
    import dask

    had_pages = bool(dask.config.get("distributed.scheduler.http.routes"))
    dask_scheduler.http_server.stop()
    return had_pages


def grade_all(
    client, submissions: Iterable[Submission], trusted: TrustedNotebook, times: TimeLimits
) -> Iterator[tuple[Submission, Record]]:
    """Each submission with its record, as they finish."""
    from distributed import as_completed

    digest = package_digest()
    waiting = iter(submissions)
    at_once = 2 * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    tasks: dict = {}

    def submit(submission: Submission, tries: int = 1):
        data = submission.restored or json.dumps(restore(submission.data, trusted)).encode()
        if len(data) > IN_GRAPH_BYTES:  # the scheduler copies what is in its graph, and keeps it
            with contextlib.suppress(OSError):  # the worker that was to have it has just ended
                data = client.scatter(data, hash=False)
        task = client.submit(grade_task, data, trusted, submission.student, times, digest, pure=False, retries=0)
        tasks[task] = (submission, tries)
        return task

    done = as_completed([submit(s) for _, s in zip(range(at_once), waiting)])
    for task in done:
        submission, tries = tasks.pop(task)
        if task.status == "finished":
            yield submission, _record(task.result(), submission)
        elif task.status == "cancelled" and client.status != "running":
            raise ClusterError("the scheduler has ended; what is graded is kept: start it and the same command again")
        elif tries < TRIES:  # cancelled, if a large notebook lay in a worker that has ended
            done.add(submit(submission, tries + 1))
            continue
        else:
            was_lost = task.status == "cancelled"
            reason = "each worker that had it has ended" if was_lost else str(task.exception())
            yield submission, _fault(submission, trusted, reason)
        task.release()
        for following in waiting:
            done.add(submit(following))
            break


def _record(text: str, submission: Submission) -> Record:
    record = Record.from_json(text)
    record.notes = [*submission.notes, *record.notes]
    return record


def _fault(submission: Submission, trusted: TrustedNotebook, reason: str) -> Record:
    verdicts = [
        Verdict(c.grade_id, "grader-fault", 0.0, c.points, reason[:300], "not graded yet") for c in trusted.to_run
    ]
    return Record(trusted.assignment, submission.student, trusted.notebook, "", verdicts, [*submission.notes, reason])
