"""Members of a group that tell each other what they call before they do it, where a program asks for that.

They meet and talk over a gloo group of their own, which keeps no ledger: see core/calls/fingerprint.py.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hw_utils.core.calls.fingerprint import FingerPrint, fingerprint, not_all_came, require_alike
from hw_utils.core.source.lines import place_mark
from hw_utils.gloo.shared_state import SINCE, WAIT, K
from hw_utils.gloo.work import IS_WAITING, may_move


class Helper(NamedTuple):
    """Torch's gloo group in which members meet, and its timeout, if it is short."""

    gloo: dist.ProcessGroupGloo
    gives_up: tuple


def after_comparing(group, method: str, hand_on: Callable[..., Any]) -> Callable[..., Any]:
    """The same, once all members have said that they call it too.

    It raises on all of them if one calls something else, or does not come in the helper's time. The rank is published
    as waiting in the call meanwhile.
    """
    if method == "monitored_barrier":
        return hand_on
    keeper, helper = group.keeper, group.helper
    q, d, at = keeper.q, keeper.d, keeper.header

    @functools.wraps(hand_on)
    def handed(*arguments, **named):
        calls, place = group.calls, group.rank()
        _, file, line = keeper.publisher.site_list[calls.site]
        mine = fingerprint(
            method, (*arguments, *named.values()), number=group._inner._get_sequence_number_for_group(),
            where=place_mark(file, line) if file else "",
        )  # fmt: skip
        q[at + K] = calls.n - 1
        d[at + SINCE] = perf_counter()
        q[at + WAIT] = may_move(calls.wait_word, helper.gives_up)
        try:
            require_alike(place, _exchanged(helper.gloo, mine))
        finally:
            q[at + WAIT] = calls.wait_word - IS_WAITING
        group.look_around(calls.n - 1)
        return hand_on(*arguments, **named)

    return handed


def _exchanged(gloo, mine: FingerPrint) -> dict[int, FingerPrint]:
    """What the members call, by place."""
    try:
        gloo.monitored_barrier(wait_all_ranks=True)
    except RuntimeError as error:
        raise not_all_came(mine, error) from None
    data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(gloo.size())]
    gloo.allgather([sizes], [torch.tensor([data.numel()])]).wait()
    most = int(max(sizes))
    parts = [torch.zeros(most, dtype=torch.uint8) for _ in sizes]
    gloo.allgather([parts], [torch.nn.functional.pad(data, (0, most - data.numel()))]).wait()
    told = (part[:size].numpy().tobytes() for part, size in zip(parts, sizes))
    return dict(enumerate(map(pickle.loads, told)))
