"""A student's communication layer under watch: its calls become the trace of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from hw_utils.core.collective_algorithms import cost
from hw_utils.core.trace import Event
from hw_utils.threads.rank_thread import RankThread


def watch(context: Any) -> Any:
    """The context, with every `all_gather` and `all_reduce` that a rank of `run_threads` calls in the run's trace.

    Threads send nothing. The bytes in the trace are those that N devices would send with the ring algorithms.
    """
    return _Watched(context)


class _Watched:
    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def all_gather(self, tensor: Any, rank: int, group_id: str) -> Any:
        return self._timed("all_gather", tensor, rank, lambda: self._context.all_gather(tensor, rank, group_id))

    def all_reduce(self, tensor: Any, rank: int, group_id: str, op: str = "sum") -> Any:
        return self._timed("all_reduce", tensor, rank, lambda: self._context.all_reduce(tensor, rank, group_id, op))

    def _timed(self, op: str, tensor: Any, rank: int, call: Callable[[], Any]) -> Any:
        thread = threading.current_thread()
        if not isinstance(thread, RankThread):
            return call()
        start_s = time.perf_counter() - thread.thread_run.start_s
        result = call()
        end_s = time.perf_counter() - thread.thread_run.start_s
        order, n_bytes = len(thread.events), tensor.numel() * tensor.element_size()
        sent = cost(op, n_bytes, thread.thread_run.world_size, itemsize=tensor.element_size())
        thread.events.append(
            Event(
                rank, op, None, n_bytes, start_s, end_s, message=order, order=order, waited=order,
                wait_start_s=start_s, wait_end_s=end_s, sent_bytes=sent.sent_bytes[rank],
                sent_messages=sent.sent_messages[rank], rounds=sent.rounds,
            )
        )  # fmt: skip
        return result
