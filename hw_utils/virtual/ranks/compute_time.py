"""What ranks compute between two calls, in CPU seconds that pass on their virtual clocks."""

from __future__ import annotations

from time import thread_time


class ComputeTime:
    """The running rank's. rule: "measured", "free", or what makes seconds of (rank, CPU seconds)."""

    def __init__(self, engine, rule) -> None:
        self.engine, self.clock, self.rule = engine, engine.clock, rule
        self.is_free, self.is_measured = rule == "free", rule == "measured"
        self.since_s = 0.0  # of the thread's CPU time: what came before is in the clock
        self.of_rank = [0.0] * engine.world_size  # what each has computed before that

    def now(self) -> float:
        """The running rank's clock, its computation since it last communicated included."""
        rank = self.engine.rank
        if self.is_free:
            return self.clock[rank]
        cpu_s = thread_time() - self.since_s
        if not self.is_measured:
            cpu_s = self.rule(rank, cpu_s)
        self.clock[rank] += cpu_s
        self.of_rank[rank] += cpu_s
        self.since_s = thread_time()
        return self.clock[rank]

    def total_s(self) -> float:
        """The running rank's CPU seconds: neither waiting nor sleeping is in them."""
        self.now()
        return self.of_rank[self.engine.rank]

    def resume(self) -> None:
        """From here on the CPU time is the student's again."""
        if not self.is_free:
            self.since_s = thread_time()

    def unnoted_s(self) -> float:
        """What the running rank has computed since it last communicated, as the CPU's clock says."""
        return thread_time() - self.since_s if self.is_measured else 0.0

    def forgive(self, cpu_s: float) -> None:
        """So many of these seconds were not the student's."""
        self.since_s += cpu_s
