"""When the members of a collective are done: its schedule played on the ports of the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hw_utils.schedules import Cost, Step


def replay(engine, ranks: Sequence[int], ready_s: Sequence[float], schedule: Iterable[Step]) -> tuple[list, Cost]:
    """(when each member is done, what each sends); takes the ports of `engine` for as long.

    A member starts a step when it has finished the one before.
    """
    ids = np.asarray(ranks)
    clock = np.asarray(ready_s, float)
    sending = np.asarray([engine.sending[r] for r in ranks])
    receiving = np.asarray([engine.receiving[r] for r in ranks])
    sent_bytes, sent_messages, rounds = np.zeros(len(ids), "i8"), np.zeros(len(ids), "i8"), 0
    for step in schedule:
        cost_s = _cost_s(engine.network, ids, step)
        src, dst = step.src, step.dst
        start = np.maximum(np.maximum(clock[src], clock[dst]), np.maximum(sending[src], receiving[dst]))
        end = start + cost_s
        sending[src] = end
        receiving[dst] = end
        clock[src] = np.maximum(clock[src], end)
        clock[dst] = np.maximum(clock[dst], end)
        sent_bytes[src] += step.n_bytes
        sent_messages[src] += 1
        rounds += 1
    for i, rank in enumerate(ranks):
        engine.sending[rank], engine.receiving[rank] = float(sending[i]), float(receiving[i])
    return clock.tolist(), Cost(tuple(sent_bytes.tolist()), tuple(sent_messages.tolist()), rounds)


def _cost_s(network, ids: np.ndarray, step: Step) -> np.ndarray:
    """Seconds that each message of a step occupies its ports."""
    cost_s = network.latency_s + step.n_bytes / network.bandwidth_Bps
    if network.inside is None:
        return cost_s
    same = ids[step.src] // network.ranks_per_host == ids[step.dst] // network.ranks_per_host
    return np.where(same, network.inside.latency_s + step.n_bytes / network.inside.bandwidth_Bps, cost_s)
