"""The ledger and its sums."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hw_utils import Event, Trace
from hw_utils.core.plain_data import decode, encode


def messages(*pairs: tuple[int, int], world_size: int, n_bytes: int = 8) -> Trace:
    """A trace of blocking messages in the given order, one after another on each rank."""
    order = [0] * world_size
    events = []
    for k, (src, dst) in enumerate(pairs):
        for rank, op, peer in ((src, "send", dst), (dst, "recv", src)):
            sent = op == "send"
            events.append(
                Event(
                    rank,
                    op,
                    peer,
                    n_bytes,
                    float(k),
                    float(k + 1),
                    message=k,
                    order=order[rank],
                    waited=order[rank],
                    sent_bytes=n_bytes * sent,
                    sent_messages=int(sent),
                )
            )
            order[rank] += 1
    return Trace.of(events, world_size)


def exchange(world_size: int) -> Trace:
    """Every rank posts a send to the right and a receive from the left, then waits for both."""
    events = []
    for r in range(world_size):
        right, left = (r + 1) % world_size, (r - 1) % world_size
        events.append(
            Event(r, "isend", right, 4, 0.0, 1.0, message=r, order=0, waited=3, sent_bytes=4, sent_messages=1)
        )
        events.append(Event(r, "irecv", left, 4, 0.0, 1.0, message=left, order=1, waited=2))
    return Trace.of(events, world_size)


def test_bytes_and_messages_are_counted_on_the_senders_side():
    trace = messages((0, 1), (0, 2), (1, 0), world_size=3)
    assert [trace.bytes_sent(r) for r in range(3)] == [16, 8, 0]
    assert [trace.messages_sent(r) for r in range(3)] == [2, 1, 0]


def test_a_chain_takes_as_many_rounds_as_it_has_messages():
    assert messages((0, 1), (1, 2), (2, 3), world_size=4).rounds == 3


def test_independent_messages_take_one_round():
    trace = messages((0, 1), (2, 3), world_size=4)
    assert (trace.rounds, trace.max_in_flight) == (1, 2)


def test_a_port_carries_one_message_a_round():
    trace = messages((1, 0), (2, 0), (3, 0), world_size=4)
    assert (trace.rounds, trace.max_in_flight) == (3, 1)


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_an_exchange_around_a_ring_takes_one_round(world_size):
    trace = exchange(world_size)
    assert (trace.rounds, trace.max_in_flight) == (1, world_size)


def test_of_messages_that_can_go_at_one_time_the_one_sent_first_goes_first():
    """Rank 0 sends to 2, which passes it on, and to 1, which receives no later than 2."""
    sends = [("isend", 2, 0), ("isend", 1, 1)]
    calls = {0: sends, 1: [("recv", 0, 1)], 2: [("recv", 0, 0), ("send", 3, 2)], 3: [("recv", 2, 2)]}
    events = [
        Event(rank, op, peer, 8, 0.0, 1.0, message=message, order=order, waited=order + 2 * (op == "isend"))
        for rank, made in calls.items()
        for order, (op, peer, message) in enumerate(made)
    ]
    assert Trace.of(events, 4).rounds == 2


def test_a_ring_of_blocking_calls_in_turn_takes_n_rounds():
    assert messages(*[(r, (r + 1) % 5) for r in range(5)], world_size=5).rounds == 5


def test_a_collective_counts_the_rounds_of_its_algorithm():
    events = [
        Event(r, "all_reduce", None, 40, 0.0, 1.0, message=0, rounds=6, sent_bytes=60, sent_messages=6)
        for r in range(4)
    ]
    trace = Trace.of(events)
    assert (trace.rounds, trace.bytes_sent(2), trace.ops) == (6, 60, {"all_reduce"})


def test_what_nobody_matched_costs_no_round():
    assert Trace.of([Event(0, "send", 1, 8, 0.0, 0.0, message=-1)], 2).rounds == 0


def test_an_empty_trace_has_empty_sums():
    trace = Trace.of([], 3)
    assert (len(trace), trace.rounds, trace.max_in_flight, trace.bytes_sent(2), trace.ops) == (0, 0, 0, 0, frozenset())


def test_events_come_back_as_they_were_given():
    events = [
        Event(1, "irecv", 0, 12, 0.5, 1.5, 7, "cell.py", 3, (0, 1), 4, 2, None, 1.0, 1.5),
        Event(0, "broadcast", None, 12, 0.75, 1.5, 9, "cell.py", group=(0, 1)),
    ]
    assert list(Trace.of(events)) == events


def test_a_trace_keeps_its_events_through_plain_data_and_pickle():
    trace = exchange(3)
    assert list(Trace.from_plain(decode(encode(trace.as_plain())))) == list(trace)
    assert list(pickle.loads(pickle.dumps(trace))) == list(trace)


@pytest.mark.parametrize("column", ["op", "file", "group", "rank"])
def test_a_forged_trace_is_refused(column):
    data = exchange(3).as_plain()
    data["columns"][column] = np.full_like(data["columns"][column], 1_000)
    with pytest.raises(ValueError, match=f"{column} out of range"):
        Trace.from_plain(data)


@pytest.mark.parametrize("data", [None, [], {}, {"columns": {}}, {"columns": 3, "names": 4}])
def test_what_is_no_trace_is_refused(data):
    with pytest.raises(ValueError, match="not a trace"):
        Trace.from_plain(data)


def test_slices_and_selections_are_traces():
    trace = messages((0, 1), (1, 2), world_size=3)
    assert [e.rank for e in trace.of_rank(1)] == [1, 1]
    assert trace.of_op("send").ops == {"send"}
    assert isinstance(trace[1:3], Trace)
    assert len(trace[1:3]) == 2
