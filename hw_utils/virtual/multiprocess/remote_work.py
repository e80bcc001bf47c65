"""What a rank's process holds of a call that the server makes for it."""

from __future__ import annotations

import threading

import torch
from torch._C._distributed_c10d import Work

from hw_utils.virtual.multiprocess import packed_tensors
from hw_utils.virtual.ranks.dispatch_modes import unseen
from hw_utils.virtual.traffic.messages.requests import NO_SOURCE
from hw_utils.virtual.traffic.reductions import flat
from hw_utils.virtual.traffic.tensor_bytes import contents
from hw_utils.virtual.traffic.work import WithFuture


class RemoteWork(WithFuture, Work):
    """A collective, or a message: both are waited for alike."""

    def __init__(
        self, proxy, number: int, name: str, outputs: list[torch.Tensor], sent: torch.Tensor | None = None, *,
        by_shape: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.by_shape = by_shape  # what comes is in the order of the outputs' shapes, not of their memory
        self.proxy, self.number, self.name, self.outputs = proxy, number, name, outputs
        self.is_done, self.has_outputs, self.source, self.done_s = False, False, -1, -1.0
        self.members = None
        self.sent = None if sent is None else (sent, _bytes_of(sent))
        self.text = ""
        self.lock = threading.Lock()  # several threads may ask: the first one does, the others find what it got

    def of_group(self, members) -> RemoteWork:
        """It is a message; ranks are counted within the group."""
        self.members, self.is_mute = members, self.proxy.lines is None
        return self

    def take(self, found: tuple[list[bytes], int, float]) -> None:
        """It is over: what came goes to where the rank wants it."""
        if self.is_done:
            return
        self.is_done = True
        self.proxy.under_way.pop(self.number, None)
        data, self.source, self.done_s = found
        self.fill(data)

    def fill(self, data: list[bytes]) -> None:
        """Puts what came where the rank wants it, once."""
        if self.has_outputs:
            return
        self.has_outputs = True
        if data and not self.outputs:  # of sizes that nobody knew
            self.outputs = [packed_tensors.unpacked((torch.uint8, len(part), "cpu", part)) for part in data]
            return
        touched = self.proxy.in_flight.look(self.proxy.rank, self.watched, self.outputs)
        with unseen():
            for tensor, part in zip(self.outputs, data):
                packed_tensors.write(tensor, part, by_shape=self.by_shape)
        for one in touched:
            one.renew()

    def wait(self, timeout=None) -> bool:
        with self.lock:
            if not self.is_done:
                found, others = self.proxy.ask("wait", self.number, timeout)
                self.take(found)
                self.proxy.fill(others)
                if self.sent is not None and _bytes_of(self.sent[0]) != self.sent[1]:
                    raise RuntimeError(
                        f"{self.text} and changes the tensor between isend and wait: wait() before you write to it, "
                        "or send a clone()"
                    )
        if self.watched is not None:
            self.watched.require_unchanged()
        self.settle_future()
        self.let_go()
        return True

    def waits_for(self) -> tuple[int, ...]:
        """The ranks that have not come yet."""
        return self.proxy.ask("waits_for", self.number)

    def is_completed(self) -> bool:
        if not self.lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            found = None if self.is_done else self.proxy.ask("test", self.number)
            if found is not None:
                self.take(found)
        finally:
            self.lock.release()
        if not self.is_done:
            return False
        self.settle_future()
        return not self.is_mute or self.members is not None

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if self.members is None or self.sent is not None:
            raise RuntimeError(NO_SOURCE)
        return self.members.place_of[self.source]

    _source_rank = source_rank

    @property
    def is_over(self) -> bool:
        return self.is_done

    was_waited_for = is_over

    def future_is_taken(self) -> None:
        self.proxy.listen_for(self)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    with unseen():
        return contents(flat(tensor), tensor.nbytes)
