"""The stage that checks give to a schedule: it also counts what the schedule keeps of what the stage got."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from hw_utils.checks import drawn_numbers
from hw_utils.core.source.students_files import students_frames
from hw_utils.material.by_hand.layers import drawn_weights
from hw_utils.material.by_hand.stages import TimedStage
from hw_utils.material.kept.tensors import Memories, kept_by_frames
from hw_utils.material.kept.watching import MemoryRef


def stage_weights(number: int, width: int) -> torch.Tensor:
    """Those that the lesson's stages draw, (width, width); with a salt others, which only the stage itself knows."""
    return drawn_weights(width, width, drawn_numbers.seed(number, "stage"))


class WatchedStage(TimedStage):
    """Of its inputs at a pass, whoever kept them: `n_kept`, the most that were alive beside those in flight, and
    `kept_bytes`, the most memory in which they lay, in flight or not. A copy that the schedule keeps counts as the
    input; one that went back and was found nowhere is not looked for again. `n_gradients`: the most that were alive of
    the gradients that earlier passes were given."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.weight = stage_weights(self.number, self.width)
        self.n_kept, self.kept_bytes = 0, 0
        self.n_gradients, self._gradients = 0, []  # most alive of those that passes were given, and all of them
        self._theirs: list[torch.Tensor] = []
        self.crossed: dict[str, list[torch.Tensor]] = {}  # "F0" -> what the pass was given, and what it gave
        self.look: Callable[[], list[int] | None] | None = None  # at the memory of the answer's own process
        self.looks: list[tuple[list[int] | None, list[int]]] = []  # what it found, and each rank's place in the ledger
        # k -> its memory, bytes of that, and its numbers
        self._inputs: dict[int, tuple[MemoryRef, int, torch.Tensor]] = {}

    def is_theirs(self, batches: Sequence[torch.Tensor]) -> None:
        """The caller keeps these himself, whatever the schedule does."""
        self._theirs = list(batches)

    def forward(self, k: int, x: torch.Tensor) -> torch.Tensor:
        """As a timed stage."""
        self._count()
        if isinstance(x, torch.Tensor) and all(x.data_ptr() != y.data_ptr() for y in self._theirs):
            numbers = x.new_empty(0) if Memories(self._theirs).have(x) else x.detach().clone()
            self._inputs[k] = MemoryRef(x.untyped_storage()), x.untyped_storage().nbytes(), numbers
        y = super().forward(k, x)
        self.crossed[f"F{k}"] = [self.kept[k], y.clone()]
        return y

    def backward(self, k: int, gradient: torch.Tensor) -> torch.Tensor:
        """As a timed stage."""
        self._count()
        if self.look is not None and k in (0, len(self.targets) - 1):
            self.looks.append((self.look(), list(dist.group.WORLD.engine.rows.order)))
        back = super().backward(k, gradient)
        if isinstance(gradient, torch.Tensor):
            self._gradients.append(MemoryRef(gradient.untyped_storage()))
        self.crossed[f"B{k}"] = [torch.as_tensor(gradient).detach().clone(), back.clone()]
        return back

    def sums(self, seed: int) -> dict[str, list]:
        """Of what crossed the weighted sums of its rows: few numbers, which are as many times larger as it is."""
        return {
            name: [drawn_numbers.weighted_sum(t.detach().numpy(), seed) if t.ndim else t for t in both]
            for name, both in self.crossed.items()
        }

    def _count(self) -> None:
        # a grader's own frames hold what crosses
        frames = (f for f in students_frames() if not f.f_globals.get("__name__", "hw_").startswith("hw_"))
        kept = Memories(kept_by_frames(frames))
        alive = {
            k: (-k if ref.expired() else ref.cdata, n_bytes)
            for k, (ref, n_bytes, numbers) in self._inputs.items()
            if not ref.expired() or kept.have(numbers)
        }
        self._inputs = {k: given for k, given in self._inputs.items() if k in alive or k in self.kept}
        self._gradients = [ref for ref in self._gradients if not ref.expired()]
        self.n_gradients = max(self.n_gradients, len({ref.cdata for ref in self._gradients}))
        in_flight = {place for k, place in alive.items() if k in self.kept}
        self.n_kept = max(self.n_kept, len(set(alive.values()) - in_flight))
        self.kept_bytes = max(self.kept_bytes, sum(n_bytes for _, n_bytes in set(alive.values())))
