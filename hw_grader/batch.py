"""Grades many submissions over a Dask cluster; nothing of nbgrader's is needed on its machines.

Each worker process keeps one warm sandbox. A few tasks more than workers are under way, so memory stays flat; a task
whose worker dies is tried again on another one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from hw_grader.calibrate import measure
from hw_grader.grading import Times, grade_bytes
from hw_grader.intake import Submission
from hw_grader.release import Release, package_digest
from hw_grader.sandbox import SHARED, SandboxError
from hw_grader.verdict import Record, Verdict

TRIES = 3
NOT_KEPT = {  # what dask would write down about itself, hour after hour: it grows by 0.1 MB a second
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.log-length": 10,
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 10,
}


def grade_task(data: bytes, release: Release, student: str, times: Times, digest: str) -> str:
    """What a worker does with one submission; the record as JSON.

    Raises:
        SandboxError: this worker cannot grade: no sandbox, another version of the course.
    """
    if package_digest() != digest:
        raise SandboxError(
            "this worker has another version of hw_utils or hw_grader: install the same on every machine"
        )
    return grade_bytes(data, release, SHARED.get(), student, times).to_json()


def measure_on(client):
    """`calibrate.measure`, done by one of the cluster's workers."""
    return lambda *arguments: client.submit(measure, *arguments, pure=False).result()


@contextlib.contextmanager
def cluster(address: str = "", n_workers: int = 0) -> Iterator:
    """A client of the scheduler at `address`, or of a local cluster with one process a core."""
    import dask
    from distributed import Client, LocalCluster

    if address:
        with Client(address, timeout="20s") as client:
            yield client
        return
    n_workers = n_workers or len(os.sched_getaffinity(0))
    with (
        dask.config.set(NOT_KEPT),
        LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", silence_logs="ERROR") as local,
        Client(local) as client,
    ):
        yield client


def grade_all(
    client, submissions: Iterable[Submission], release: Release, times: Times
) -> Iterator[tuple[Submission, Record]]:
    """Each submission with its record, as they finish."""
    from distributed import as_completed

    digest = package_digest()
    waiting = iter(submissions)
    at_once = 2 * max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    tasks: dict = {}

    def submit(submission: Submission, tries: int = 1):
        task = client.submit(
            grade_task, submission.data, release, submission.student, times, digest, pure=False, retries=0
        )
        tasks[task] = (submission, tries)
        return task

    done = as_completed([submit(s) for _, s in zip(range(at_once), waiting)])
    for task in done:
        submission, tries = tasks.pop(task)
        if task.status == "finished":
            yield submission, _record(task.result(), submission)
        elif tries < TRIES:
            done.add(submit(submission, tries + 1))
            continue
        else:
            yield submission, _fault(submission, release, str(task.exception()))
        task.release()
        for following in waiting:
            done.add(submit(following))
            break


def _record(text: str, submission: Submission) -> Record:
    record = Record.from_json(text)
    record.notes = [*submission.notes, *record.notes]
    return record


def _fault(submission: Submission, release: Release, reason: str) -> Record:
    verdicts = [
        Verdict(c.grade_id, "grader-fault", 0.0, c.points, reason[:300], "not graded yet") for c in release.checks
    ]
    return Record(release.assignment, submission.student, release.notebook, "", verdicts, [*submission.notes, reason])
