"""An attempt at a simulation with a process for each rank."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from hw_utils.core.errors import Failure, Frame
from hw_utils.virtual.multiprocess import packed_tensors
from hw_utils.virtual.multiprocess.engine_server import DeviceServedEngine, EngineServer, ServedEngine
from hw_utils.virtual.ranks.turns import Stop
from hw_utils.virtual.run_in_one_process import Attempt
from hw_utils.virtual.traffic.without_values import nothing_moves


class AttemptApart(Attempt):
    """One attempt with a process a rank; the engine is here, see `engine_server`."""

    Engine, DeviceEngine, is_here = ServedEngine, DeviceServedEngine, False

    def without_values(self) -> AbstractContextManager:
        return nothing_moves(packed_tensors)

    def parts(self) -> tuple:
        self.server = EngineServer(self.engine, self.call, self.job, self.streams)
        return (self.server.processes,)

    def host(self, carrier) -> None:
        self.engine.Carrier(self.world_size, self.server.serve, Stop).host(self.engine.run)
        self.returned = [result is not None for result in self.server.results]

    def frames_of(self, rank: int, frame) -> tuple[Frame, ...]:
        return self.server.processes.frames(rank)

    def exception_of(self, failure: Failure) -> bytes | None:
        return self.server.exceptions.get(failure.rank)

    def books(self) -> dict:
        parts = [part for rank in sorted(self.server.memory) for part in self.server.memory[rank]]
        return {"memory": parts} if self.job.get("memory") else {}

    def device_streams(self) -> np.ndarray | None:
        found = self.server.device_streams
        return np.concatenate([found[rank] for rank in sorted(found)]) if found else None

    def packed_results(self) -> dict:
        return {"each": self.server.results}
