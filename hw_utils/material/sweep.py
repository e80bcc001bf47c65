"""Many runs, as many at a time as there are cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")


def sweep(run: Callable[[Item], Any], items: Iterable[Item], title: str = "") -> dict[Item, Any]:
    """item -> `run(item)`, in the order of the items, with a progress bar.

    `run` is called from several threads; calls of `simulate` in it run side by side, each in its own process.
    The first failure ends the sweep and is raised.

    >>> sweep(len, ["a", "bcd"])
    {'a': 1, 'bcd': 3}
    """
    items = list(items)
    pool = ThreadPoolExecutor(max_workers=_n_cores())
    futures = {item: pool.submit(run, item) for item in items}
    try:
        for future in tqdm(as_completed(futures.values()), title, len(items), file=sys.stdout):
            future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt: what runs may end by itself
    return {item: future.result() for item, future in futures.items()}


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
