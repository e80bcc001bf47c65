"""Threads of which one runs at a time, in the order that is chosen."""

from __future__ import annotations

from hw_utils.threads.turns import Stopped, Turns


def test_threads_take_turns_in_the_order_that_is_chosen():
    seen = []

    def work(rank):
        for _ in range(2):
            seen.append(rank)
            turns.pause()
        return rank * rank

    with Turns(3) as turns:
        ended = turns.run([work] * 3, lambda runnable, me: next((r for r in runnable if r > me), runnable[0]), 5.0)
    assert seen == [0, 1, 2, 0, 1, 2]
    assert [e.result for e in ended] == [0, 1, 4]


def test_parked_ranks_are_ended_when_nobody_can_run():
    def work(rank):
        turns.park(lambda: False)

    with Turns(2) as turns:
        ended = turns.run([work] * 2, lambda runnable, me: runnable[0], 5.0)
        assert turns.stuck
        assert all(isinstance(e.error, Stopped) for e in ended)
        assert turns.run([lambda rank: rank] * 2, lambda runnable, me: runnable[0])[1].result == 1
