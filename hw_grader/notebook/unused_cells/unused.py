"""Which cells need not run: the lesson's own, unchanged, whose running no answer can notice.

Most of a lesson's seconds are its pictures and measurements. Such a cell is left out if its text is that of a released
code cell without marks and

- no answer, and no cell that runs, reads a name that it binds;
- what it reads are its own names, those of other cells that are left out, what `HARMLESS` lists, and functions that
  themselves touch nothing else: so nothing that runs can see that it did not.

Others, the trainings above all, leave something behind in their process: a random state, a cache, a file. `PASSING`
lists what may. Such a cell is left out too if no cell that runs after it does anything but import and define (`quiet`):
the process ends then, and what is taken out of it are definitions, which hold none of that.

Whatever this analysis does not know makes a cell run; a cell that may reach names in other ways makes all of them run.
Ids and metadata have no say. cell_names.py says what a cell's text reads, binds and does.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

from nbformat import NotebookNode

from hw_grader.notebook.trusted_notebook import TrustedNotebook
from hw_grader.notebook.unused_cells.cell_names import Facts, facts_of
from hw_grader.notebook.unused_cells.pure_functions import PURE

NOTE = "not run for grading: unchanged, and no answer uses it"
_HARMLESS = """
    hw_utils.Network hw_utils.Network.* hw_utils.launch hw_utils.simulate hw_utils.Deadlock hw_utils.WorkerFailed
    hw_utils.material.programs hw_utils.material.programs.* hw_utils.plots* hw_utils.pictures.*
    hw_utils.core.errors.WorkerFailed
    inspect inspect.getsource IPython.display.Code matplotlib.pyplot.subplots math math.* cmath.* statistics.*
    itertools itertools.* functools.partial functools.reduce functools.cmp_to_key functools.wraps operator.*
    time.perf_counter time.monotonic time.perf_counter_ns time.monotonic_ns typing.* copy.copy copy.deepcopy
    collections.* heapq.* bisect.* fractions.* decimal.Decimal string.* textwrap.* json.dumps json.loads struct.*
    enum.* abc.* array.array types.SimpleNamespace io.BytesIO io.StringIO sys.maxsize sys.float_info
    torch.Tensor torch.Tensor.* torch.linalg.* torch.fft.* torch.special.* torch._foreach_*
    torch._utils._flatten_dense_tensors torch._utils._unflatten_dense_tensors torch.float16 torch.bfloat16
    torch.float32 torch.float64 torch.float torch.double torch.int torch.long torch.bool torch.uint8 torch.int8
    torch.int16 torch.int32 torch.int64 torch.dtype torch.no_grad torch.enable_grad
    torch.nn.functional.gelu torch.nn.functional.mse_loss torch.nn.functional.cross_entropy
    torch.distributed.send torch.distributed.recv torch.distributed.isend torch.distributed.irecv
    torch.distributed.batch_isend_irecv torch.distributed.P2POp torch.distributed.all_* torch.distributed.reduce*
    torch.distributed.broadcast torch.distributed.barrier torch.distributed.gather torch.distributed.scatter
    torch.distributed.ReduceOp torch.distributed.ReduceOp.* torch.distributed.get_rank
    torch.distributed.get_world_size torch.distributed.group torch.distributed.group.WORLD
    numpy.linalg.* numpy.fft.*
"""
_PASSING = """
    torch.manual_seed torch.rand* torch.normal torch.multinomial torch.bernoulli torch.Generator
    torch.nn torch.nn.* torch.optim.* torch.utils.data.* torch.autograd.* torch.func.* torch.vmap
    torch.inference_mode torch.is_grad_enabled torch.set_grad_enabled torch.profiler.profile torch.get_default_dtype
    torch.distributed.* torch.distributed
    hw_utils.data hw_utils.data.* hw_utils.models hw_utils.models.* hw_utils.material.recipe.* hw_utils.material.sweep.*
    hw_utils.material.job.* hw_utils.material.models.* hw_utils.material.timed_model.* hw_utils.core.bytes_over_time.*
    hw_utils.hosts.training_report hw_utils.hosts.training_report.* hw_utils.material.timed_layers.*
    hw_utils.threads.run_threads hw_utils.threads.watch hw_utils.material.handwritten_layer.*
    dataclasses.* functools.* contextlib.* time.* timeit.* tempfile.mkdtemp pathlib.Path
    tempfile.TemporaryDirectory torch.get_rng_state torch.set_rng_state hw_utils.material.by_hand.*
    torch.device torch.softmax torch.futures.* numpy.random.* random.* tqdm.* os.cpu_count os.path.* threading.*
    queue.* weakref.* logging.* warnings.* hashlib.* uuid.* io.* sys.stdout.* sys.stderr.* sys.getsizeof
    concurrent.futures.* zlib.* base64.* pprint.* re.*
"""
_BUILTINS = """
    abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter float format frozenset
    getattr hasattr hash hex id int isinstance issubclass iter len list map max memoryview min object oct ord pow print
    range repr reversed round set slice sorted str sum super tuple type zip staticmethod classmethod property
    next setattr delattr Ellipsis NotImplemented Exception NotImplementedError ValueError TypeError RuntimeError
    AssertionError IndexError KeyError LookupError AttributeError NameError OverflowError ArithmeticError
    ZeroDivisionError FloatingPointError StopIteration OSError TimeoutError RecursionError Warning UserWarning
"""
HARMLESS = tuple(_HARMLESS.split())  # with PURE: what may be used by a cell that is left out
PASSING = (*HARMLESS, *_PASSING.split())  # by one after which no cell can notice what it leaves in its process
MAX_PARSED_CHARS, MAX_CELLS = 500_000, 400  # of a notebook: beyond that all of it runs
BUILTINS = frozenset(_BUILTINS.split())


def unused(cells: list[NotebookNode], trusted: TrustedNotebook) -> frozenset[int]:
    """The places of the cells of a restored notebook that need not run."""
    given = {c.source for c in trusted.cells if c.kind == "code" and not c.marks}
    locked = {c.grade_id for c in trusted.cells if c.is_locked}
    checks = {c.grade_id for c in trusted.checks}
    marks = [cell.metadata.get("nbgrader", {}).get("grade_id", "") for cell in cells]
    code = [n for n, cell in enumerate(cells) if cell.cell_type == "code" and marks[n] not in checks]
    if len(code) > MAX_CELLS or sum(len(cells[n].source) for n in code) > MAX_PARSED_CHARS:
        return frozenset()
    open_ = {n for n in code if not cells[n].metadata.get("nbgrader") and cells[n].source.rstrip("\n") in given}
    facts = {n: facts_of(cells[n].source) for n in code}
    given_back = {n for n in code if marks[n] in locked}  # as they were, whatever was handed in
    answers = {name.split(".")[0] for check in trusted.checks for call in check.calls for name in call.names}
    return _Search(facts, given_back, open_, answers).without()


class _Search:
    """The largest set of cells that can be left out together."""

    def __init__(self, facts: dict[int, Facts | None], given_back: set[int], open_: set[int], answers: set[str]):
        self.facts, self.given_back, self.open, self.answers = facts, given_back, open_, answers
        self.binders: dict[str, list[int]] = {}
        for n, found in facts.items():
            for name in found.binds if found else ():
                self.binders.setdefault(name, []).append(n)

    def without(self) -> frozenset[int]:
        """Those that can stay out: one that cannot joins the cells that run, until nothing changes."""
        out = self.open if None not in self.facts.values() else set()
        while out:
            out, runs = self._without_needed(out)
            if any(self._hides_something(n) for n in runs):
                return frozenset()
            passing = _Round(self, out, runs, PASSING)
            acts = (n for n in runs if not self.facts[n].is_quiet and not passing.only_shows(n))
            last_that_acts = max(acts, default=-1)
            passing = {n for n in passing.stay_out() if n > last_that_acts}
            stay = _Round(self, out, runs, HARMLESS).stay_out() | passing
            if stay == out:
                break
            out = stay
        return frozenset(out)

    def _without_needed(self, out: set[int]) -> tuple[set[int], list[int]]:
        """Those of `out` that bind no name that a running cell reads, and the cells that run."""
        while True:
            runs = [n for n in self.facts if n not in out]
            needed = self.answers.union(*(self.facts[n].reads for n in runs))
            kept = {n for n in out if not self.facts[n].binds & needed}
            if kept == out:
                return out, runs
            out = kept

    def _hides_something(self, n: int) -> bool:
        """Whether a cell may read any name, or changes what other cells have imported."""
        found = self.facts[n]
        if found.is_dynamic and n not in self.given_back:
            return True
        return any(name in self.facts[m].imports for name in found.patches for m in self.binders.get(name, ()))


class _Round:
    """Which of the cells `out` can stay out if the others run and only what is `allowed` is used."""

    def __init__(self, search: _Search, out: set[int], runs: list[int], allowed: tuple[str, ...]) -> None:
        self.facts, self.binders, self.out, self.runs, self.allowed = search.facts, search.binders, out, runs, allowed
        self.own = {n for n in runs if n in search.open and not self._is_shared(n, search.answers)}
        self.closed = self._closed()

    def stay_out(self) -> set[int]:
        """Those of `out`; a released cell that runs for its imports and functions alone may give them variables."""
        hidden = self.out | self.own
        while True:
            kept = {n for n in hidden if self._is_hidden(n, hidden)}
            if kept == hidden:
                return kept & self.out
            hidden = kept

    def only_shows(self, n: int) -> bool:
        """Whether a cell that runs names nothing and changes nothing: what it notices, no answer gets to know."""
        return not self.facts[n].binds and not self.facts[n].patches and self._is_hidden(n, self.out)

    def _is_shared(self, n: int, answers: set[str]) -> bool:
        """Whether anything else that runs reads one of its variables."""
        found = self.facts[n]
        variables = found.binds - found.functions - found.imports.keys()
        return bool(variables & answers.union(*(self.facts[m].reads for m in self.runs if m != n)))

    def _is_hidden(self, n: int, hidden: set[int]) -> bool:
        """Whether a cell, and all that it calls, touches nothing but what is allowed and what is hidden like it."""
        found = self.facts[n]
        if not found.is_tame or not self._uses_allowed(found):
            return False
        if not all(name in self.binders and hidden.issuperset(self.binders[name]) for name in found.patches):
            return False
        return all(self._may_read(name, hidden) for name in found.reads)

    def _closed(self) -> set[int]:
        """The cells whose functions touch nothing but what they are given: by and by without those that use others."""
        tame = (n for n in self.runs if self.facts[n].is_tame and not self.facts[n].patches)
        closed = {n for n in tame if self._uses_allowed(self.facts[n])}
        while True:
            self.closed = closed
            closed = {n for n in closed if all(self._may_read(name, set()) for name in self.facts[n].reads)}
            if closed == self.closed:
                return closed

    def _may_read(self, name: str, hidden: set[int]) -> bool:
        """Whether a name is a harmless import, a hidden cell's, or a function that touches nothing else."""
        binders = self.binders.get(name, [])
        if not binders:
            return name in BUILTINS
        if all(name in self.facts[n].imports for n in binders):
            return True  # what is used of it, `_uses_allowed` knows
        return all(n in hidden or (n in self.closed and name in self.facts[n].functions) for n in binders)

    def _uses_allowed(self, found: Facts) -> bool:
        """Whether everything that it imports, or uses of any import, is listed."""
        if not all(is_listed(path, self.allowed) or _holds(path, self.allowed) for path in found.uses):
            return False
        for name, chain in found.chains:
            for n in self.binders.get(name, ()):
                origin = self.facts[n].imports.get(name)
                if origin and not is_listed(".".join([origin, *chain]), self.allowed):
                    return False
        return True


def _holds(module: str, allowed: tuple[str, ...]) -> bool:
    return any(name.startswith(module + ".") for name in (*allowed, *PURE))


@lru_cache(maxsize=4096)
def is_listed(path: str, allowed: tuple[str, ...] = HARMLESS) -> bool:
    """Whether using it leaves nothing behind that a cell could notice."""
    return path in PURE or any(fnmatchcase(path, pattern) for pattern in allowed)
