"""A zero of a submission that replaces what is not its own is called `tampered`; nobody else's is."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hw_utils
from hw_grader import driver, seal
from hw_grader.grading import Times, grade_bytes
from hw_grader.release import read_release
from hw_grader.sandbox import SHARED, why_not
from hw_utils import checks, plain, trace
from tests.small_course import EXERCISES, MAX_POINTS, WRONG, as_bytes, make_course, submission

ROOT = Path(__file__).resolve().parent.parent
needs_sandbox = [
    pytest.mark.skipif(bool(why_not()) and os.environ.get("CI") != "true", reason=f"no sandbox: {why_not()}"),
    pytest.mark.slow,
]


def other(*arguments, **options):
    """Stands in any function's place."""


@pytest.fixture
def sealed():
    seal.seal()
    yield seal
    seal._sealed.clear()


@pytest.mark.parametrize(("place", "name", "said"), [
    (plain, "encode", "hw_utils.plain.encode"), (driver, "encode", "hw_grader.driver.encode"),
    (plain.encode, "__code__", "hw_utils.plain.encode"), (hw_utils, "simulate", "hw_utils.simulate"),
    (trace.Trace, "bytes_sent", "hw_utils.trace.Trace.bytes_sent"),
    (checks.lesson_01, "hello", "hw_utils.checks.lesson_01.hello"),
    (torch, "equal", "torch.equal"), (torch.Tensor, "__eq__", "torch.Tensor.__eq__"),
    (torch.Tensor, "item", "torch.Tensor.item"),
    (dist, "send", "torch.distributed.send"), (json, "dumps", "json.dumps"), (time, "monotonic", "time.monotonic"),
    (builtins, "AssertionError", "builtins.AssertionError"), (builtins, "isinstance", "builtins.isinstance"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_what_was_replaced_is_named(sealed, monkeypatch, place, name, said):
    value = isinstance if name == "isinstance" else other  # in its own place it is as it was
    with monkeypatch.context() as patch:
        patch.setattr(place, name, other.__code__ if name == "__code__" else value)
        found = sealed.replaced()
    assert found == ("" if name == "isinstance" else said)
    assert sealed.replaced() == ""


def test_a_replaced_half_of_a_check_is_named(sealed):
    check = checks.lesson_01.fit_link
    kept = check.driver
    object.__setattr__(check, "driver", other)
    try:
        assert sealed.replaced() == "hw_utils.checks.lesson_01.fit_link.driver"
    finally:
        object.__setattr__(check, "driver", kept)


def test_where_something_is_defined_is_named_before_where_it_is_imported(sealed, monkeypatch):
    for module in (driver, plain):
        monkeypatch.setattr(module, "encode", other)
    assert sealed.replaced() == "hw_utils.plain.encode"


def test_what_was_sealed_elsewhere_again_is_as_it_was_and_the_kit_is_still_watched(sealed, monkeypatch):
    monkeypatch.setattr(time, "sleep", other)
    assert sealed.replaced() == "time.sleep"
    sealed.seal_elsewhere()
    assert sealed.replaced() == ""
    monkeypatch.setattr(plain, "encode", other)
    assert sealed.replaced() == "hw_utils.plain.encode"


ORDINARY = """
time, json, encode = 1, {}, print
import builtins, functools, random, warnings, decimal, numpy as np, torch, matplotlib, matplotlib.pyplot as plt
import importlib, sys, hw_utils.plain, hw_utils.network, hw_utils.data
from torch import nn
from torch.nn.parallel import DistributedDataParallel
builtins.print = functools.partial(print, flush=True)
plt.rcParams["font.size"] = 3; matplotlib.rc("lines", linewidth=1); plt.show = lambda: None
torch.manual_seed(1); torch.set_default_dtype(torch.float64); torch.set_default_dtype(torch.float32)
torch.set_num_threads(1); torch.use_deterministic_algorithms(True); torch.set_printoptions(precision=2)
np.random.seed(1); random.seed(1); np.set_printoptions(precision=2); warnings.simplefilter("ignore")
model = nn.Linear(2, 1)
model.register_forward_hook(lambda *a: None); model.weight.register_hook(lambda g: 2 * g)
model.weight.register_post_accumulate_grad_hook(lambda p: None)
model(torch.ones(2)).sum().backward()
class Mine(hw_utils.Trace): rounds = 3
class Tensor(torch.Tensor): __eq__ = None
hw_utils.data.DIGITS_FOLDER = hw_utils.BUCKET_MB = "mine"
hw_utils.plots.plot_space_time = lambda *a, **k: None
sys.setrecursionlimit(5000); sys.stdout = sys.__stdout__
"""
RELOADS = "\nfor name in ('plain', 'network', 'data'): importlib.reload(sys.modules['hw_utils.' + name])"


@pytest.mark.parametrize("text", [ORDINARY, ORDINARY + RELOADS], ids=["settings", "loaded again"])
def test_what_an_ordinary_notebook_does_is_no_replacement(text):
    program = (
        "from hw_grader import driver, seal\nimport hw_utils.plots, hw_utils.data, hw_utils.checks.lesson_01\n"
        f"seal.seal()\n{text}\nassert seal.replaced() == '', seal.replaced()\n"
        "hw_utils.plain.encode = None\nassert seal.replaced() == 'hw_utils.plain.encode', seal.replaced()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


EVERYBODY = """
import contextlib, io, sys, importlib
from hw_grader import zygote
for name in (*zygote._package_modules(), *("hw_grader." + role for role in zygote.ROLES.values())):
    importlib.import_module(name)
zygote.forkserver.preload()
from hw_grader import seal
from hw_utils import CheckFailed, WorkerFailed, checks
from tests.references import lessons
from tests.test_checks import _names, _run
from tests.right_answers import alternatives
from tests.wrong_answers import planted

sys.modules["hw_utils.simulate"].stay_here()
seal.seal()
calls = [(lesson.name, call) for lesson in lessons() for cell in lesson.with_role("check") for call in cell.calls]
for lesson, call in calls:
    with contextlib.redirect_stdout(io.StringIO()):
        _run(call, _names(lesson, False))
    assert seal.replaced() == "", (seal.replaced(), lesson, call.check)
for one in [*alternatives(), *planted()]:
    check = getattr(getattr(checks, one.check.split(".")[0]), one.check.split(".")[1])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(CheckFailed, WorkerFailed):
        check(*one.answers)
    assert seal.replaced() == "", (seal.replaced(), one.check, one.name)
assert len(calls) > 50 and len(planted()) > 500
"""


@pytest.mark.slow
def test_no_reference_right_answer_or_planted_mistake_replaces_anything_where_it_is_driven():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, "-c", EVERYBODY], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


FORGES = """def fit_link(sizes_bytes, seconds):
    import hw_utils.plain, sys
    from hw_utils.checks import check
    kept = check.plain
    check.plain = lambda value, **k: kept(value, **k)
    t = torch.tensor(seconds, dtype=torch.float64)
    s = torch.tensor(sizes_bytes, dtype=torch.float64)
    a = torch.stack([1 / t, s / t], dim=1)
    latency_s, slope = torch.linalg.lstsq(a, torch.ones(len(t), 1, dtype=torch.float64)).solution
    return latency_s.item(), 1 / slope.item()
"""
COUNTS = """import torch.distributed as dist
real, sent = dist.send, []
def counted(*a, **k):
    sent.append(a)
    return real(*a, **k)
dist.send = counted"""


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return read_release(make_course(tmp_path_factory.mktemp("course")))


class TestGraded:
    pytestmark = needs_sandbox

    def verdicts(self, release, notebook) -> dict:
        record = grade_bytes(as_bytes(notebook), release, SHARED.get(), "ada", Times())
        return {"notes": record.notes, "points": record.points, **{v.grade_id: v for v in record.verdicts}}

    def test_a_right_answer_keeps_its_points_if_its_driver_was_elsewhere(self, release):
        got = self.verdicts(release, submission({"fit_link": FORGES}, before=COUNTS))
        assert got["points"] == MAX_POINTS
        assert got["notes"] == ["torch.distributed.send was replaced in the notebook"]

    def test_right_data_is_no_evidence_if_it_comes_from_beside_an_answer_that_replaced_the_kit(self, release):
        beside = replace(release, apart=frozenset())
        got = self.verdicts(beside, submission({"fit_link": FORGES}))
        assert got["check-fit_link"].state == "tampered"
        assert got["check-fit_link"].reason.startswith("hw_utils.checks.check.plain was replaced by the answer")
        assert got["points"] == MAX_POINTS - EXERCISES["fit_link"][3]

    def test_beside_its_driver_too_an_answer_that_replaced_nothing_has_its_points(self, release):
        got = self.verdicts(replace(release, apart=frozenset()), submission())
        assert got["points"] == MAX_POINTS

    def test_a_zero_has_the_name_of_what_the_notebook_replaced_and_says_what_was_wrong(self, release):
        verdict = self.verdicts(release, submission(WRONG, extra=COUNTS))["check-ping_pong"]
        assert (verdict.state, verdict.points) == ("tampered", 0)
        assert verdict.reason.startswith("torch.distributed.send was replaced in the notebook: ping_pong with 2 ranks")
        assert "ping_pong with 2 ranks" in verdict.shown

    def test_a_name_that_the_process_makes_up_is_not_shown(self, release):
        lies = "import sys\nsys.modules['hw_grader.student'].replaced = lambda: '<script>' * 9"
        for verdict in self.verdicts(release, submission(WRONG, extra=lies)).values():
            assert "script" not in str(verdict)
