"""Which cells need not run: the lesson's own, unchanged, whose running no answer can notice.

Most of a lesson's seconds are its pictures and measurements. Such a cell is left out if its text is that of a released
code cell without marks and

- no answer, and no cell that runs, reads a name that it binds;
- what it reads are its own names, those of other cells that are left out, what `HARMLESS` lists, and functions that
  themselves touch nothing else: so nothing that runs can see that it did not.

Whatever this analysis does not know makes a cell run; a cell that may reach names in other ways makes all of them run.
Ids and metadata have no say. names.py says what a cell's text reads, binds and does.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from nbformat import NotebookNode

from hw_grader.names import Facts, facts_of
from hw_grader.release import Release

NOTE = "not run for grading: unchanged, and no answer uses it"
_HARMLESS = """
    hw_utils.Network hw_utils.Network.* hw_utils.launch hw_utils.simulate hw_utils.Deadlock hw_utils.WorkerFailed
    hw_utils.programs hw_utils.programs.* hw_utils.plots* hw_utils.stepper.* hw_utils.watch.watch
    hw_utils.errors.WorkerFailed
    inspect inspect.getsource IPython.display.Code matplotlib.pyplot.subplots math math.* statistics.*
    itertools itertools.* functools.partial time.perf_counter time.monotonic typing.* copy.copy copy.deepcopy
    collections.Counter collections.defaultdict collections.deque
    torch.Tensor torch.tensor torch.as_tensor torch.arange torch.linspace torch.eye torch.zeros torch.ones torch.empty
    torch.full torch.zeros_like torch.ones_like torch.empty_like torch.full_like torch.stack torch.cat torch.chunk
    torch.split torch.equal torch.allclose torch.isclose torch.sum torch.mean torch.max torch.min torch.abs torch.sqrt
    torch.exp torch.log torch.maximum torch.minimum torch.where torch.matmul torch.outer torch.dot torch.diff
    torch.linalg.* torch.float16 torch.bfloat16 torch.float32 torch.float64 torch.float torch.double torch.int
    torch.long torch.bool torch.uint8 torch.int8 torch.int16 torch.int32 torch.int64 torch.dtype torch.no_grad
    torch.nn.functional.gelu torch.nn.functional.mse_loss torch.nn.functional.cross_entropy
    torch.distributed.send torch.distributed.recv torch.distributed.isend torch.distributed.irecv
    torch.distributed.batch_isend_irecv torch.distributed.P2POp torch.distributed.all_* torch.distributed.reduce*
    torch.distributed.broadcast torch.distributed.barrier torch.distributed.gather torch.distributed.scatter
    torch.distributed.ReduceOp torch.distributed.ReduceOp.* torch.distributed.get_rank
    torch.distributed.get_world_size
"""
_BUILTINS = """
    abs all any bool bytes complex dict divmod enumerate filter float format frozenset getattr hasattr hash int
    isinstance issubclass len list map max min object pow print range repr reversed round set slice sorted str sum
    super tuple type zip staticmethod classmethod property NotImplementedError Exception ValueError TypeError
    RuntimeError AssertionError IndexError KeyError ArithmeticError ZeroDivisionError StopIteration
"""
HARMLESS = tuple(_HARMLESS.split())  # what may be used by a cell that is left out
BUILTINS = frozenset(_BUILTINS.split())


def unused(cells: list[NotebookNode], release: Release) -> frozenset[int]:
    """The places of the cells of a restored notebook that need not run."""
    given = {c.source for c in release.cells if c.kind == "code" and not c.marks}
    locked = {c.grade_id for c in release.cells if c.is_locked}
    checks = {c.grade_id for c in release.checks}
    marks = [cell.metadata.get("nbgrader", {}).get("grade_id", "") for cell in cells]
    code = [n for n, cell in enumerate(cells) if cell.cell_type == "code" and marks[n] not in checks]
    open_ = {n for n in code if not cells[n].metadata.get("nbgrader") and cells[n].source.rstrip("\n") in given}
    facts = {n: facts_of(cells[n].source) for n in code}
    trusted = {n for n in code if marks[n] in locked}
    answers = {name.split(".")[0] for check in release.checks for call in check.calls for name in call.names}
    return _Search(facts, trusted, answers).without(open_)


class _Search:
    """The largest set of cells that can be left out together."""

    def __init__(self, facts: dict[int, Facts | None], trusted: set[int], answers: set[str]) -> None:
        self.facts, self.trusted, self.answers = facts, trusted, answers
        self.binders: dict[str, list[int]] = {}
        for n, found in facts.items():
            for name in found.binds if found else ():
                self.binders.setdefault(name, []).append(n)

    def without(self, out: set[int]) -> frozenset[int]:
        """Those of `out` that can stay out: one that cannot joins the cells that run, until nothing changes."""
        while out:
            runs = [n for n in self.facts if n not in out]
            if any(self._hides_something(n) for n in runs):
                return frozenset()
            needed = self.answers.union(*(self.facts[n].reads for n in runs))
            closed = self._closed(runs)
            stay = {n for n in out if self._can_stay_out(n, out, needed, closed)}
            if stay == out:
                break
            out = stay
        return frozenset(out)

    def _hides_something(self, n: int) -> bool:
        """Whether a cell may read any name, or changes what other cells have imported."""
        found = self.facts[n]
        if found is None or (found.is_dynamic and n not in self.trusted):
            return True
        return any(name in self.facts[m].imports for name in found.patches for m in self.binders.get(name, ()))

    def _can_stay_out(self, n: int, out: set[int], needed: set[str], closed: set[int]) -> bool:
        found = self.facts[n]
        if found is None or not found.is_tame or found.binds & needed or not self._uses_harmless(found):
            return False
        return all(self._may_read(name, out, closed) for name in found.reads)

    def _closed(self, runs: Iterable[int]) -> set[int]:
        """The cells whose functions touch nothing but what they are given: by and by without those that use others."""
        closed = {n for n in runs if self.facts[n].is_tame and self._uses_harmless(self.facts[n])}
        while True:
            kept = {n for n in closed if all(self._may_read(name, set(), closed) for name in self.facts[n].reads)}
            if kept == closed:
                return closed
            closed = kept

    def _may_read(self, name: str, out: set[int], closed: set[int]) -> bool:
        """Whether a name is a harmless import, a cell's that is left out, or a function that touches nothing else."""
        binders = self.binders.get(name, [])
        if not binders:
            return name in BUILTINS
        if all(name in self.facts[n].imports for n in binders):
            return True  # what is used of it, `_uses_harmless` knows
        return all(n in out or (n in closed and name in self.facts[n].functions) for n in binders)

    def _uses_harmless(self, found: Facts) -> bool:
        """Whether everything that it imports, or uses of any import, is listed."""
        if not all(is_harmless(origin) or _holds_harmless(origin) for origin in found.imports.values()):
            return False
        for name, chain in found.chains:
            for n in self.binders.get(name, ()):
                origin = self.facts[n].imports.get(name)
                if origin and not is_harmless(".".join([origin, *chain])):
                    return False
        return True


def _holds_harmless(module: str) -> bool:
    return any(pattern.startswith(module + ".") for pattern in HARMLESS)


def is_harmless(path: str) -> bool:
    """Whether using it leaves nothing behind that a cell could notice."""
    return any(fnmatchcase(path, pattern) for pattern in HARMLESS)
