"""An exception that comes of another one is told with it, and keeps it, on real ranks and on virtual ones."""

from __future__ import annotations

import threading

import pytest

from hw_utils import WorkerFailed, launch, simulate

pytestmark = pytest.mark.parametrize("way", [launch, simulate])


def _failing(way, worker) -> WorkerFailed:
    with pytest.raises(WorkerFailed) as caught:
        way(worker, 2, echo=False)
    return caught.value


def stage(rank, _):
    try:
        try:
            [][rank]
        except IndexError as error:
            raise KeyError("layer") from error
    except KeyError:
        raise RuntimeError("stage failed")  # noqa: B904 (what is tested: no `from`)


def test_each_cause_has_a_line_with_its_place_and_is_kept(way):
    error = _failing(way, stage)
    lines = str(error).splitlines()
    assert lines[0].endswith(": RuntimeError: stage failed")
    first = stage.__code__.co_firstlineno
    assert lines[-2:] == [
        f"    because of KeyError: 'layer', at test_chained_errors.py, line {first + 5}",
        f"    because of IndexError: list index out of range, at test_chained_errors.py, line {first + 3}",
    ]
    raised = error.failures[0].exception
    assert (type(raised), type(raised.__context__)) == (RuntimeError, KeyError)
    assert isinstance(raised.__context__.__cause__, IndexError)


def unrelated(*_):
    try:
        [][0]
    except IndexError:
        raise RuntimeError("no rows") from None


def test_a_context_that_the_program_suppresses_is_not_told(way):
    error = _failing(way, unrelated)
    assert "because of" not in str(error)
    assert error.failures[0].exception.__cause__ is None


def of_what_stays(*_):
    try:
        raise ValueError(threading.Lock())
    except ValueError as error:
        raise RuntimeError("stage failed") from error


def test_a_cause_that_cannot_be_sent_is_told_and_the_exception_arrives_without_it(way):
    error = _failing(way, of_what_stays)
    assert "because of ValueError: <unlocked _thread.lock object" in str(error)
    assert (str(error.failures[0].exception), error.failures[0].exception.__cause__) == ("stage failed", None)


def round_in_a_circle(*_):
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def test_a_circle_of_causes_ends(way):
    assert str(_failing(way, round_in_a_circle)).count("because of ") == 1
