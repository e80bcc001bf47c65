"""When the members of a collective are done: its schedule played on the ports of the network, all members at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hw_utils.core.collective_algorithms import Cost, Step


def replay(ports, ranks: Sequence[int], ready_s: Sequence[float], schedule: Iterable[Step]) -> tuple[list, Cost]:
    """(when each member is done, what each sends); takes the ports for as long.

    A member starts a step when it has finished the one before. In a step every member sends to at most one other
    and receives from at most one.
    """
    ids = np.asarray(ranks)
    clock = np.array(ready_s, float)
    sending, receiving = np.array(ports.sending)[ids], np.array(ports.receiving)[ids]
    sent_bytes, sent_messages, rounds = np.zeros(len(ids), "i8"), np.zeros(len(ids), "i8"), 0
    ports_may_wait = True
    for step in schedule:
        rounds += step.times
        cost_s = _cost_s(ports.network, ids, step)
        if step.shift:
            if ports_may_wait:
                _first_shift(clock, sending, receiving, step.shift, cost_s)
            _shifts(clock, sending, receiving, step.shift, cost_s, step.times - ports_may_wait)
            ports_may_wait = False  # now a rank is never done before its ports are
            sent_bytes += step.n_bytes * step.times
            sent_messages += step.times
        else:
            _some(clock, sending, receiving, step, cost_s)
            sent_bytes[step.src] += step.n_bytes
            sent_messages[step.src] += 1
    _put_back(ports, ranks, sending, receiving)
    return clock.tolist(), Cost(tuple(sent_bytes.tolist()), tuple(sent_messages.tolist()), rounds)


def _put_back(ports, ranks: Sequence[int], sending: np.ndarray, receiving: np.ndarray) -> None:
    for rank, s, r in zip(ranks, sending.tolist(), receiving.tolist()):
        ports.sending[rank], ports.receiving[rank] = s, r


def _first_shift(clock, sending, receiving, shift: int, cost_s) -> None:
    """Every member sends to the one `shift` places further, as soon as both are there and their ports are free."""
    start = np.maximum(clock, np.roll(clock, -shift))
    np.maximum(start, sending, out=start)
    np.maximum(start, np.roll(receiving, -shift), out=start)
    sending[:] = start + cost_s
    receiving[:] = np.roll(sending, shift)
    np.maximum(sending, receiving, out=clock)


def _shifts(clock, sending, receiving, shift: int, cost_s, times: int) -> None:
    """The same `times` more, where no port is busy longer than its rank; slices, for the sake of 10,000 ranks."""
    for left in range(times, 0, -1):
        if left > 1 and clock.max() == clock.min() and cost_s.max() == cost_s.min():
            sending[:] = receiving[:] = clock[:] = clock + left * cost_s  # all in step from here on
            return
        np.maximum(clock[:-shift], clock[shift:], out=sending[:-shift])
        np.maximum(clock[-shift:], clock[:shift], out=sending[-shift:])
        np.add(sending, cost_s, out=sending)
        receiving[shift:] = sending[:-shift]
        receiving[:shift] = sending[-shift:]
        np.maximum(sending, receiving, out=clock)


def _some(clock, sending, receiving, step: Step, cost_s) -> None:
    src, dst = step.src, step.dst
    start = np.maximum(np.maximum(clock[src], clock[dst]), np.maximum(sending[src], receiving[dst]))
    end = start + cost_s
    sending[src] = receiving[dst] = end
    clock[src] = np.maximum(clock[src], end)
    clock[dst] = np.maximum(clock[dst], end)


def _cost_s(network, ids: np.ndarray, step: Step) -> np.ndarray:
    """Seconds that each message of a step occupies its ports."""
    cost_s = network.latency_s + step.n_bytes / network.bandwidth_Bps
    if network.inside is None:
        return cost_s
    same = ids[step.src] // network.ranks_per_host == ids[step.dst] // network.ranks_per_host
    return np.where(same, network.inside.latency_s + step.n_bytes / network.inside.bandwidth_Bps, cost_s)
