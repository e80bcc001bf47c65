"""The shape of a check: driver, judge, cases, messages."""

from __future__ import annotations

import re
import signal
import threading
import time
from functools import partial

import pytest
import torch.distributed as dist
from torch import nn

from hw_utils import CheckFailed, WorkerFailed, launch, simulate
from hw_utils.checks import check
from hw_utils.checks.check import REGISTRY, Check, observe, require_no_deadlock
from hw_utils.checks.time_limit import time_limit
from hw_utils.core.calls.wait_for import wait_table
from hw_utils.core.errors import Deadlock, Waiting
from hw_utils.core.hardware import Network


@pytest.fixture
def double():
    def driver(f, /, n):
        return f(n)

    def judge(data, n):
        if data != 2 * n:
            raise CheckFailed(f"double({n}) gave {data}, expected {2 * n}.")

    yield Check("lesson_99.double", driver, judge, ({"n": 1}, {"n": 3}), "doubled 1 and 3.", "hint 1")
    del REGISTRY["lesson_99.double"]


def test_a_right_answer_prints_one_ok_line_and_returns_nothing(double, capfd):
    assert double(lambda n: 2 * n) is None
    assert capfd.readouterr() == ("ok: doubled 1 and 3.\n", "")


def test_a_wrong_answer_shows_its_smallest_failing_case_and_the_hint(double, capfd):
    with pytest.raises(CheckFailed) as failed:
        double(lambda n: n + 1)
    assert str(failed.value) == (
        "double(3) gave 4, expected 6.\n"
        "  no known mistake gives this. Next: call your function with n=3, print what it has after every step, and "
        "work the same out by hand.\n"
        "  see: hint 1"
    )
    assert failed.value._render_traceback_()[0] == "CheckFailed: double(3) gave 4, expected 6."
    assert capfd.readouterr().out == ""


_KEPT: dict[str, int] = {}


def test_what_calls_keep_is_named_and_stays_as_the_failure_left_it(double):
    _KEPT.clear()
    with pytest.raises(CheckFailed) as failed:
        double(lambda n: 2 * _KEPT.setdefault("n", n))
    assert "tried alone this case is right, after other calls it is not: `_KEPT` keeps" in str(failed.value)
    assert _KEPT == {"n": 1}


def test_the_hint_follows_from_what_the_failure_says():
    def judge(data, n):
        raise CheckFailed("no.", cause=f"it is {data}, too {'long' if data > n else 'short'}.")

    hints = {"hint 2": "too short", "hint 1": "too"}
    one = Check("lesson_99.one", lambda f, /, n: f(n), judge, ({"n": 3},), hint="the hints", hints=hints)
    del REGISTRY["lesson_99.one"]
    for answer, hint in ((2, "hint 2"), (5, "hint 1")):
        with pytest.raises(CheckFailed) as failed:
            one(lambda n, answer=answer: answer)
        assert failed.value.hint == hint


def test_a_students_own_error_in_a_run_is_told_with_its_case_and_its_hint():
    def breaks(rank, world_size):
        raise RuntimeError("input tensor has to be contiguous")

    run = Check(
        "lesson_99.run", lambda f, /, n: simulate(f, n, echo=False), lambda data, n: None, ({"n": 2},),
        hints={"hint 2 of exercise 9.1": "contiguous"},
    )  # fmt: skip
    del REGISTRY["lesson_99.run"]
    with pytest.raises(WorkerFailed) as failed:
        run(breaks)
    assert str(failed.value).endswith("this was the check's case n=2\n  see: hint 2 of exercise 9.1")


def test_an_error_for_which_other_ranks_waited_is_told_with_its_case_too():
    def breaks(rank, world_size):
        if rank == 0:
            print({}["serial_s"])
        dist.barrier()

    run = Check("lesson_99.run", lambda f, /, n: simulate(f, n, echo=False), lambda data, n: None, ({"n": 2},))
    del REGISTRY["lesson_99.run"]
    with pytest.raises(WorkerFailed) as failed:
        run(breaks)
    told = str(failed.value)
    assert re.search("rank 1 waited for rank 0\nthis was the check's case n=2\n  likely cause: .*what then", told), told


class HalfWritten:
    def __call__(self, n):
        return self.half(n)

    def half(self, n):
        raise NotImplementedError


def test_an_unwritten_answer_or_what_it_calls_is_said_to_be_unwritten(double):
    def doubled(n):
        raise NotImplementedError

    with pytest.raises(CheckFailed, match=r"^doubled is not written yet\."):
        double(doubled)
    with pytest.raises(CheckFailed, match=r"^doubled is not written yet\."):
        double(lambda n: doubled(n))
    with pytest.raises(CheckFailed, match=r"^HalfWritten\.half is not written yet\."):
        double(HalfWritten())


def test_what_a_module_cannot_do_is_no_stub(double):
    with pytest.raises(NotImplementedError, match='missing the required "forward" function'):
        double(lambda n: nn.Module()(n))


def test_the_students_own_error_passes_with_its_case_and_what_it_comes_from(double):
    with pytest.raises(ZeroDivisionError) as failed:
        double(lambda n: n / 0)
    assert re.search("check's case n=.*something is divided by 0", "\n".join(failed.value.__notes__), re.S)


def test_hidden_cases_replace_the_visible_ones(double):
    with pytest.raises(CheckFailed, match=r"double\(7\)"):
        double(lambda n: 2 * n if n < 5 else 0, cases=[{"n": 7}])


@pytest.mark.parametrize("cases", [[], ()])
def test_a_check_without_cases_is_refused(double, cases):
    with pytest.raises(ValueError, match="at least one case"):
        double(lambda n: 2 * n, cases=cases)


def test_a_check_says_which_answers_it_takes(double):
    with pytest.raises(TypeError, match="takes f; got 2 answers"):
        double(1, 2)


def test_an_answer_that_equals_everything_does_not_pass(double):
    class Always:
        def __eq__(self, other):
            return True

        __hash__ = None

    with pytest.raises(CheckFailed, match="unknown"):
        double(lambda n: Always())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latency_s": -1}, "latency_s must be at least 0, got -1"),
        ({"bandwidth_Bps": 0}, "bandwidth_Bps must be more than 0, got 0"),
        ({"ranks_per_host": 2}, "two_level"),
    ],
)
def test_an_impossible_network_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Network(**options)


def test_two_levels_have_two_links():
    fast, slow = Network(0.0, 1e9), Network(1e-3, 1e6)
    network = Network.two_level(4, inside=fast, between=slow)
    assert network.link(0, 3) == fast
    assert network.message_s(1000, 3, 4) == pytest.approx(2e-3)


def _for_ever(catches):
    while True:
        try:
            while True:
                pass
        except catches:
            catches = ()


@pytest.fixture
def timer():
    """A timer around the test, as pytest's own may be."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    before = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.parametrize("catches", [(), Exception], ids=["plain", "one that catches the first end"])
def test_a_loop_without_an_end_is_ended_with_its_line(catches, timer):
    says = r"balance is still busy after 0.01 s, .*, line \d+: .*\n.*a loop whose end never"
    with pytest.raises(CheckFailed, match=says), time_limit("balance", 0.01):
        _for_ever(catches)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 100.0


def _cell(text: str, **names):
    """What the cell of a notebook defines as `answer`."""
    exec(compile(text, "<ipython-input-1>", "exec"), names)
    return names["answer"]


def test_every_check_ends_an_answer_that_it_calls_itself(double, monkeypatch, timer):
    monkeypatch.setattr(check, "time_limit", partial(time_limit, limit_s=0.01))
    with pytest.raises(CheckFailed, match=r"double is still busy after 0.01 s, a cell, line [23]"):
        double(_cell("def answer(n):\n    while True:\n        pass"))


def test_the_limit_leaves_runs_to_their_own_and_rings_for_a_timer_before_it(timer):
    def worker(rank, world_size):
        time.sleep(0.2)

    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with time_limit("balance", 0.01):
        launch(worker, 1)
    assert rung


def test_what_ends_in_time_is_left_alone_and_so_is_the_timer_around_it(timer):
    with time_limit("balance"):
        sum(range(10))
    rest_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    assert rest_s > 100.0
    assert again_s == 0.0


def test_beside_the_main_thread_there_is_no_limit(timer):
    seen = []

    def inside():
        with time_limit("balance", 0.01):
            seen.append(signal.getitimer(signal.ITIMER_REAL)[0])

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen[0] > 100.0


def stuck(rows: list[tuple[int, str, tuple[int, ...]]]):
    raise Deadlock(wait_table(Waiting(rank, op, peers, 0.0) for rank, op, peers in rows))


def test_a_rank_that_waits_for_no_other_is_told_so_and_not_the_checks_own_cause():
    rows = [(0, "barrier", (2,)), (1, "barrier", (2,)), (2, "a wait in its own process", ())]
    with pytest.raises(CheckFailed) as caught:
        require_no_deadlock(observe(lambda: stuck(rows)), "a step", cause="a rank leaves early.")
    assert "rank 2 waits in its own process" in str(caught.value)
    assert "likely cause: rank 2 stands at the line in the table" in str(caught.value)
    assert "leaves early" not in str(caught.value)


def test_a_rank_of_which_one_thread_waits_for_a_message_does_not_wait_alone():
    rows = [(0, "a wait in its own process", ()), (0, "recv", (1,)), (1, "recv", (0,))]
    with pytest.raises(CheckFailed, match="likely cause: nobody sends"):
        require_no_deadlock(observe(lambda: stuck(rows)), "a step", cause="nobody sends.")
