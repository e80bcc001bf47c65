"""The parts of grading that are kept warm: the judge of a sandbox, `simulate` in a driver's own process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hw_grader.driving.judge_client import KEPT, judge_of
from hw_grader.sandbox.sandbox import SHARED, Sandbox, SandboxError
from hw_utils.core.plain_data import encode
from tests.grader.in_sandbox import inside, needs_sandbox

ROOT = Path(__file__).resolve().parents[3]
STAYS = """
import sys, time
import torch, torch.distributed as dist
from hw_utils import Deadlock, simulate
from hw_utils.core.errors import TimedOut

def ring(rank, world_size):
    x = torch.full((1,), float(rank))
    w = dist.isend(x.clone(), (rank + 1) % world_size)
    dist.recv(x, (rank - 1) % world_size)
    w.wait()
    print(rank)
    return x.item()

def waits(rank, world_size):
    dist.recv(torch.zeros(1), 1 - rank)

def busy(rank, world_size):
    while rank == 1:
        pass

def all_of_it():
    run = simulate(ring, 5, compute="free", echo=False)
    said = [run.results, run.output, run.seconds, run.trace.as_plain()]
    for bad, kind in ((waits, Deadlock), (busy, TimedOut)):
        try:
            simulate(bad, 2, compute="free", echo=False, timeout_s=1)
        except kind as error:
            said.append((type(error).__name__, [(f.rank, f.kind, f.reason) for f in error.failures]))
    return said

before = all_of_it()
sys.modules["hw_utils.simulate"].stay_here()
after, again = all_of_it(), all_of_it()
assert str(before) == str(after) == str(again), (before, after, again)
assert len(before) == 6
"""
CHECK, CASE = "lesson_01.read_a_hang", {"rank": 0}
RIGHT, WRONG = (encode({0: [op, 1], "rank 1": []}) for op in ("send", "recv"))


def test_a_simulation_is_the_same_in_a_process_that_is_thrown_away():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STAYS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def judge(request):
    judge = judge_of(SHARED.get())
    judge.end()
    judge.said.clear()
    yield judge
    judge.end()


def leaves(sandbox: Sandbox) -> set[int]:
    """Of these, those that judge: they have no children and have not ended."""
    found = set()
    for process in inside(sandbox)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
            if not process.children() and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


@needs_sandbox
@pytest.mark.slow
class TestJudge:
    def test_it_says_the_same_again_without_being_asked(self, judge):
        first = [judge.judge(CHECK, CASE, data, 60) for data in (RIGHT, WRONG)]
        assert first[0] == {"right": True}
        assert "does not stand in" in first[1]["wrong"]
        judge.end()
        assert [judge.judge(CHECK, CASE, data, 60) for data in (RIGHT, WRONG)] == first
        assert inside(SHARED.get())[1] == []
        assert judge.judge(CHECK, {"rank": 1}, RIGHT, 60) != first[0]

    def test_each_submission_has_a_process_of_its_own(self, judge):
        judge.judge(CHECK, CASE, RIGHT, 60)
        before = leaves(SHARED.get())
        assert before
        judge.forget_submission()
        judge.judge(CHECK, CASE, WRONG, 60)
        assert before.isdisjoint(leaves(SHARED.get()))

    def test_one_that_was_killed_in_between_is_started_again(self, judge):
        judge.judge(CHECK, CASE, RIGHT, 60)
        for process in inside(SHARED.get())[1]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended with the one before it
                process.kill()
        assert "wrong" in judge.judge(CHECK, CASE, WRONG, 60)

    def test_data_that_no_judge_can_read_is_not_remembered_and_harms_no_other(self, judge):
        assert "undecodable" in judge.judge(CHECK, CASE, b"{", 60)
        assert judge.judge("lesson_01.relay", CASE, b"[" * 40 + b"]" * 40, 60).keys() & {"malformed", "fault"}
        assert not judge.said
        assert judge.judge(CHECK, CASE, RIGHT, 60) == {"right": True}

    def test_what_it_remembers_is_bounded(self, judge):
        judge.said.update((n.to_bytes(32, "big"), {"right": True}) for n in range(KEPT))
        judge.judge(CHECK, CASE, RIGHT, 60)
        assert len(judge.said) == KEPT

    def test_a_check_that_is_not_there_is_a_fault_of_ours(self, judge):
        with pytest.raises(SandboxError, match=r"no cases for lesson_01\.nothing"):
            judge.cases("lesson_01.nothing")
