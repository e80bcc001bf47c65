"""A function on real hosts, one process each, under torchrun: what an exported script calls.

Before the run every host must have the same code and the same torch; the network interface is the one that leads to
the first host, unless `--interface` names another. While it runs, every host says twice a second that it is there:
when one stops, the others say which, and stop too. Afterwards each writes results, settings and the interface's
counters to `runs/NAME/rank_R.json`, which `python -m hw_utils report` reads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hw_utils
from hw_utils.core import bytes_over_time
from hw_utils.hosts.export import HOW

BEAT_S = 0.5
DEAD_AFTER_S = 6.0


class HostsDiffer(RuntimeError):
    """Not all hosts run the same code; says which ones differ, and in what."""


def main(function: Callable[..., Any], *, args: Sequence[Any] = (), argv=None) -> Any:
    """Runs `function(rank, world_size, *args)` on this host, and exits with a sentence if anything goes wrong."""
    options = _options(argv)
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        sys.exit(
            "This script needs to know its rank. Start it on every host: " + HOW.format(script=Path(sys.argv[0]).name)
        )
    try:
        interface = options.interface or bytes_over_time.interface_to(os.environ["MASTER_ADDR"])
        bytes_over_time.counters(interface)
    except ValueError as error:
        sys.exit(f"{error}. Name one: --interface NAME")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    try:
        return _run(function, args, interface, options)
    except HostsDiffer as error:
        sys.exit(str(error))


def _options(argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A notebook's function on real hosts. On each of them:\n    " + HOW.format(script="train.py")
    )
    parser.add_argument("--interface", default=os.environ.get("HW_INTERFACE", ""), help="the network interface to use")
    parser.add_argument("--runs", default="runs", help="the folder that results are written to")
    parser.add_argument("--name", default="", help="the run's name in it; the job's method if it has one")
    return parser.parse_args(argv)


def _run(function, args, interface: str, options: argparse.Namespace) -> Any:
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timedelta(minutes=5))))
    me = f"{socket.gethostname()} ({bytes_over_time.address_of(interface)})"
    _require_same_code(store, rank, world_size, me, _versions())
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(hours=1))
    with Watch(rank, world_size, me) as watch, bytes_over_time.Sampler(interface) as sampler:
        began_s = time.perf_counter()
        try:
            result = function(rank, world_size, *args)
            dist.barrier()
        except Exception as error:
            watch.stop_all(error)
        seconds = time.perf_counter() - began_s
    settings = next((arg.settings() for arg in args if hasattr(arg, "settings")), {})
    name = options.name or str(settings.get("method", getattr(function, "__name__", "run")))
    sent, received = sampler.total
    print(f"{me}: {seconds:.1f} s, {interface} sent {sent / 1e6:.1f} MB and received {received / 1e6:.1f} MB")
    _write(Path(options.runs) / name / f"rank_{rank}.json", {
        "rank": rank, "world_size": world_size, "host": me, "interface": interface, "seconds": seconds,
        "settings": settings, "result": result, "counters": sampler.samples,
    })  # fmt: skip
    dist.barrier()  # the first host keeps the store until every host has left its watch
    dist.destroy_process_group()
    return result


def _versions() -> str:
    script = Path(sys.argv[0])
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    return f"{script.name} {digest}, hw_utils {hw_utils.__version__}, torch {torch.__version__}"


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, default=_plain), encoding="utf-8")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _require_same_code(store, rank: int, world_size: int, me: str, mine: str) -> None:
    store.set(f"hw/code/{rank}", json.dumps([me, mine]))
    each = [json.loads(store.get(f"hw/code/{r}")) for r in range(world_size)]
    store.add("hw/compared", 1)  # nobody leaves before everybody has read
    others = [f"rank {r} on {host} has {code}" for r, (host, code) in enumerate(each) if code != each[0][1]]
    if others:
        while int(store.add("hw/compared", 0)) < world_size:
            time.sleep(0.01)
        raise HostsDiffer(
            f"hosts must run the same script: rank 0 on {each[0][0]} has {each[0][1]}; {'; '.join(others)}."
            " Copy the script to all of them again."
        )


@dataclass
class Watch:
    """Tells the other hosts that this one is alive, and ends this process when one of them is not."""

    rank: int
    world_size: int
    me: str
    _seen: dict[int, tuple[bytes, float]] = field(default_factory=dict)

    def __enter__(self) -> Watch:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=DEAD_AFTER_S))
        self._finished = threading.Event()
        self.store.set(f"hw/host/{self.rank}", self.me)
        self.store.set(f"hw/beat/{self.rank}", "0")
        self.hosts = [self.store.get(f"hw/host/{r}").decode() for r in range(self.world_size)]
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._finished.set()
        self._thread.join()
        self.store.set(f"hw/beat/{self.rank}", "done")

    def _run(self) -> None:
        count = 0
        while not self._finished.wait(BEAT_S):
            count += 1
            try:
                self.store.set(f"hw/beat/{self.rank}", str(count))
                reason = self._failed() or self._silent()
            except (RuntimeError, dist.DistError) as error:
                if self._finished.is_set():
                    return
                reason = f"rank 0 on {self.hosts[0]} is gone, and the store with it ({str(error).splitlines()[0]})"
            if reason:
                self._exit(reason)

    def _failed(self) -> str:
        return self.store.get("hw/failed").decode() if self.store.check(["hw/failed"]) else ""

    def _silent(self) -> str:
        now_s = time.monotonic()
        beats = self.store.multi_get([f"hw/beat/{r}" for r in range(self.world_size)])
        for rank, beat in enumerate(beats):
            last, since_s = self._seen.get(rank, (b"", now_s))
            if beat != last or beat == b"done":
                self._seen[rank] = (beat, now_s)
            elif now_s - since_s > DEAD_AFTER_S:
                return f"rank {rank} on {self.hosts[rank]} has not answered for {now_s - since_s:.0f} s"
        return ""

    def stop_all(self, error: BaseException) -> None:
        """Tells the other hosts why this one stops, and ends this process.

        A broken connection is another host's fault: this one waits until it is known whose.
        """
        if "onnection" in str(error) or "ead error" in str(error) or "imed out" in str(error):
            self._thread.join(2 * DEAD_AFTER_S)  # ends the process when it knows
        traceback.print_exception(error)
        last = str(error).splitlines()[0] if str(error) else ""
        reason = f"rank {self.rank} on {self.me}: {type(error).__name__}: {last}"
        self.store.set("hw/failed", reason)
        self._exit(reason)

    def _exit(self, reason: str) -> None:
        print(f"{self.me} stops: {reason}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)
