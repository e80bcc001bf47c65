"""When the members of a collective are done: its schedule played on the ports of the network, all members at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hw_utils.schedules import Cost, Step


def replay(engine, ranks: Sequence[int], ready_s: Sequence[float], schedule: Iterable[Step]) -> tuple[list, Cost]:
    """(when each member is done, what each sends); takes the ports of `engine` for as long.

    A member starts a step when it has finished the one before. In a step every member sends to at most one other
    and receives from at most one.
    """
    ids = np.asarray(ranks)
    clock = np.array(ready_s, float)
    sending, receiving = np.array(engine.sending)[ids], np.array(engine.receiving)[ids]
    sent_bytes, sent_messages, rounds = np.zeros(len(ids), "i8"), np.zeros(len(ids), "i8"), 0
    for step in schedule:
        rounds += 1
        cost_s = _cost_s(engine.network, ids, step)
        if step.shift:
            _shift(clock, sending, receiving, step.shift, cost_s)
            sent_bytes += step.n_bytes
            sent_messages += 1
        else:
            _some(clock, sending, receiving, step, cost_s)
            sent_bytes[step.src] += step.n_bytes
            sent_messages[step.src] += 1
    _put_back(engine, ranks, sending, receiving)
    return clock.tolist(), Cost(tuple(sent_bytes.tolist()), tuple(sent_messages.tolist()), rounds)


def _put_back(engine, ranks: Sequence[int], sending: np.ndarray, receiving: np.ndarray) -> None:
    for rank, s, r in zip(ranks, sending.tolist(), receiving.tolist()):
        engine.sending[rank], engine.receiving[rank] = s, r


def _shift(clock, sending, receiving, shift: int, cost_s) -> None:
    """Every member sends to the one `shift` places further; in place."""
    start = np.maximum(clock, np.roll(clock, -shift))  # both ends are there
    np.maximum(start, sending, out=start)
    np.maximum(start, np.roll(receiving, -shift), out=start)
    sending[:] = start + cost_s
    receiving[:] = np.roll(sending, shift)
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
