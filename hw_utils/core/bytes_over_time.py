"""Bytes over time: from a network interface's counters on real hosts, from the ledger everywhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from hw_utils.core.trace import Trace


@dataclass(frozen=True)
class Profile:
    """Bytes a second of each rank: sent_Bps[rank][i] between times_s[i] and times_s[i + 1]."""

    times_s: np.ndarray
    sent_Bps: np.ndarray
    received_Bps: np.ndarray

    def sent_bytes(self, rank: int) -> float:
        return float(np.sum(self.sent_Bps[rank] * np.diff(self.times_s)))


def interface_to(host: str, port: int = 9) -> str:
    """The name of the network interface that leads to `host`.

    Raises:
        ValueError: no interface does; names those there are.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            mine = probe.getsockname()[0]
    except OSError as error:
        raise ValueError(f"no way leads to {host}: {error}; interfaces here: {', '.join(interfaces())}") from None
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == mine for a in addresses):
            return name
    raise ValueError(f"no interface has the address {mine}; interfaces here: {', '.join(interfaces())}")


def interfaces() -> list[str]:
    """The names of this machine's network interfaces."""
    return sorted(psutil.net_if_addrs())


def address_of(interface: str) -> str:
    """The interface's first IP address, or nothing."""
    found = psutil.net_if_addrs().get(interface, [])
    return next((a.address for a in found if a.family in (socket.AF_INET, socket.AF_INET6)), "")


def counters(interface: str) -> tuple[int, int]:
    """(bytes sent, bytes received) by the interface since it came up.

    Raises:
        ValueError: there is no such interface; names those there are.
    """
    found = psutil.net_io_counters(pernic=True, nowrap=False).get(interface)
    if found is None:
        raise ValueError(f"there is no interface {interface!r} here, only {', '.join(interfaces())}")
    return found.bytes_sent, found.bytes_recv


class Sampler:
    """Reads an interface's counters every `every_s` seconds while the block runs: `samples` has (s, sent, received).

    Times count from `began_s`, a value of time.monotonic(), or from the start of the block.
    """

    def __init__(self, interface: str, every_s: float = 0.1) -> None:
        self.interface, self.every_s = interface, every_s
        self.samples: list[tuple[float, int, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="netprofile", daemon=True)

    def __enter__(self) -> Sampler:
        self._began_s = time.monotonic()
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            self._sample()

    def _sample(self) -> None:
        sent, received = counters(self.interface)
        self.samples.append((time.monotonic() - self._began_s, sent, received))

    @property
    def total(self) -> tuple[int, int]:
        """(bytes sent, bytes received) from the first sample to the last."""
        (_, *first), (_, *last) = self.samples[0], self.samples[-1]
        return last[0] - first[0], last[1] - first[1]


def profile_of_samples(samples: Sequence[Sequence[Sequence[float]]], n_intervals: int = 120) -> Profile:
    """What the hosts' counters say: samples[rank] is a list of (s, bytes sent, bytes received)."""
    end_s = max((rows[-1][0] for rows in samples if len(rows)), default=1.0)
    times_s = np.linspace(0.0, end_s or 1.0, n_intervals + 1)
    counted = np.zeros((2, len(samples), len(times_s)))
    for rank, rows in enumerate(samples):
        at_s, *both = np.asarray(rows, float).T
        for way, values in enumerate(both):
            counted[way, rank] = np.interp(times_s, at_s, values)
    rates = np.diff(counted, axis=2) / np.diff(times_s)
    return Profile(times_s, rates[0], rates[1])


def profile_of(trace: Trace, n_intervals: int = 120) -> Profile:
    """The ledger as a network monitor would have seen it: an operation's bytes are spread evenly over its time."""
    records = trace.records
    end_s = float(records["end_s"].max()) if len(records) else 1.0
    times_s = np.linspace(0.0, end_s or 1.0, n_intervals + 1)
    sent, received = np.zeros((2, trace.world_size, n_intervals))
    for record, n_in in zip(records, _incoming(trace)):
        share = _shares(times_s, record["start_s"], record["end_s"])
        sent[record["rank"]] += share * record["sent_bytes"]
        received[record["rank"]] += share * n_in
    return Profile(times_s, sent / np.diff(times_s), received / np.diff(times_s))


def _shares(times_s: np.ndarray, start_s: float, end_s: float) -> np.ndarray:
    """The part of [start_s, end_s] that falls into each interval; all of it into one if it takes no time."""
    if end_s <= start_s:
        share = np.zeros(len(times_s) - 1)
        share[min(np.searchsorted(times_s, start_s, side="right") - 1, len(share) - 1)] = 1.0
        return share
    return np.diff(np.clip(times_s, start_s, end_s)) / (end_s - start_s)


def _incoming(trace: Trace) -> np.ndarray:
    """Bytes that each record's rank receives by it: a receive's own; of a collective, what its members sent."""
    records = trace.records
    sends = np.isin(records["op"], [i for i, name in enumerate(trace.names) if name in ("send", "isend")])
    incoming = np.where((records["peer"] >= 0) & ~sends & (records["message"] >= 0), records["n_bytes"], 0).astype("f8")
    collective = np.flatnonzero((records["peer"] < 0) & (records["message"] >= 0))
    order = collective[np.argsort(records["message"][collective], kind="stable")]
    _, first = np.unique(records["message"][order], return_index=True)
    for members in np.split(order, first[1:]):
        incoming[members] = _received(records["sent_bytes"][members].astype("f8"))
    return incoming


def _received(sent: np.ndarray) -> np.ndarray:
    """What each member of one collective receives, from what each sends: the total arrives, and nobody's own share."""
    n = len(sent)
    if n < 2 or not sent.any() or np.allclose(sent, sent[0]):
        return sent
    if (sent > 0).sum() == 1:  # a scatter: one sends, all others receive alike
        return np.where(sent > 0, 0.0, sent.sum() / (n - 1))
    if (sent == 0).sum() == 1:  # a gather: all send to one
        return np.where(sent == 0, sent.sum(), 0.0)
    return np.full(n, sent.sum() / n)  # a tree: on average
