"""What a process has once is a rank's own on the virtual cluster, as it is on real processes: both are asked."""

from __future__ import annotations

import builtins
import copyreg
import csv
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
import types
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hw_utils import launch, simulate
from hw_utils.virtual.ending import Ending
from hw_utils.virtual.ranks.per_rank_state import watched_calls
from hw_utils.virtual.ranks.per_rank_state.new_imports import Imports

GENERATOR = types.GeneratorType
SETTINGS = {  # what a rank sets, what it then reads; rank 0 often sets what is there already
    "handlers": (lambda r: logging.getLogger("x").addHandler(logging.NullHandler()),
                 lambda: len(logging.getLogger("x").handlers)),
    "level": (lambda r: logging.getLogger("x").setLevel(10 * r), lambda: logging.getLogger("x").level),
    "propagate": (lambda r: setattr(logging.getLogger("x.y"), "propagate", r == 1),
                  lambda: logging.getLogger("x.y").propagate),
    "format": (lambda r: logging.basicConfig(format=f"{r} %(message)s", force=True),
               lambda: logging.root.handlers[0].formatter._fmt),
    "disabled levels": (lambda r: logging.disable(10 * r), lambda: logging.root.manager.disable),
    "level names": (lambda r: logging.addLevelName(33, f"L{r}"), lambda: logging.getLevelName(33)),
    "warnings": (lambda r: warnings.simplefilter("error" if r else "ignore", BytesWarning),
                 lambda: warnings.filters[0][0]),
    "collector": (lambda r: gc.disable() if r else None, gc.isenabled),
    "signals": (lambda r: signal.signal(signal.SIGUSR2, signal.SIG_IGN if r else signal.SIG_DFL),
                lambda: int(signal.getsignal(signal.SIGUSR2))),
    "locale": (lambda r: locale.setlocale(locale.LC_ALL, "C.UTF-8" if r else "C"),
               lambda: locale.setlocale(locale.LC_ALL)),
    "sockets": (lambda r: socket.setdefaulttimeout(5.0 + r if r else None), socket.getdefaulttimeout),
    "csv": (lambda r: csv.field_size_limit(1000 + r), csv.field_size_limit),
    "recursion": (lambda r: sys.setrecursionlimit(3000 + r), sys.getrecursionlimit),
    "path": (lambda r: sys.path.insert(0, f"/nowhere{r}"), lambda: [p for p in sys.path if "nowhere" in p]),
    "umask": (lambda r: os.umask(0o22 + r), lambda: _umask()),
    "excepthook": (lambda r: setattr(sys, "excepthook", lambda *_: r), lambda: sys.excepthook(None, None, None)),
    "temporary folder": (lambda r: setattr(tempfile, "tempdir", f"/t{r}"), lambda: tempfile.tempdir),
    "pickles": (lambda r: copyreg.pickle(GENERATOR, lambda _: r), lambda: copyreg.dispatch_table[GENERATOR](None)),
    "protocol": (lambda r: setattr(pickle, "DEFAULT_PROTOCOL", 4 - r), lambda: pickle.DEFAULT_PROTOCOL),
    "start method": (lambda r: multiprocessing.set_start_method("spawn" if r else "fork", force=True),
                     multiprocessing.get_start_method),
    "priority": (os.nice, lambda: os.nice(0)),
    "core files": (lambda r: resource.setrlimit(resource.RLIMIT_CORE, (0, 10 - r)),
                   lambda: resource.getrlimit(resource.RLIMIT_CORE)[1]),
    "builtins": (lambda r: setattr(builtins, "rank_of_a_test", r), lambda: builtins.rank_of_a_test),
    "a module of the standard library": (lambda r: setattr(json, "rank", r), lambda: json.rank),
    "a class of torch.nn": (lambda r: setattr(torch.nn.Linear, "rank", r), lambda: torch.nn.Linear.rank),
    "threads": (lambda r: torch.set_num_threads(r + 1), torch.get_num_threads),
    "printed digits": (lambda r: torch.set_printoptions(precision=r + 2), lambda: repr(torch.tensor(1 / 3))),
    "mkldnn": (lambda r: torch._C._set_mkldnn_enabled(r == 0), torch._C._get_mkldnn_enabled),
    "cudnn": (lambda r: setattr(torch.backends.cudnn, "benchmark", r == 1), lambda: torch.backends.cudnn.benchmark),
    "attention": (lambda r: torch.backends.cuda.enable_math_sdp(r == 0), torch.backends.cuda.math_sdp_enabled),
    "hub": (lambda r: torch.hub.set_dir(f"/h{r}"), torch.hub.get_dir),
    "sharing": (lambda r: torch.multiprocessing.set_sharing_strategy("file_system" if r else "file_descriptor"),
                torch.multiprocessing.get_sharing_strategy),
}  # fmt: skip
APART = ["priority", "core files", "builtins", "a module of the standard library", "a class of torch.nn"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def set_and_read(rank, world_size, names):
    for name in names:
        SETTINGS[name][0](rank)
        dist.barrier()
    return {name: SETTINGS[name][1]() for name in names}


@pytest.fixture(scope="module")
def real():
    return launch(set_and_read, 3, (list(SETTINGS),)).results


@pytest.mark.parametrize("names", [[n for n in SETTINGS if n not in APART], APART], ids=["exchanged", "apart"])
def test_what_a_rank_sets_is_read_by_that_rank_alone(names, real):
    found = simulate(set_and_read, 3, (names,)).results
    assert found == [{name: of_rank[name] for name in names} for of_rank in real]
    same = [name for name in names if len({str(of_rank[name]) for of_rank in found}) == 1]
    assert same in ([], ["handlers"])  # one each


@pytest.mark.parametrize("name", ["level", "warnings", "signals", "umask", "threads", "printed digits", "protocol"])
def test_a_setting_alone_is_noticed(name, real):
    found = simulate(set_and_read, 3, ([name],)).results
    assert found == [{name: of_rank[name]} for of_rank in real]


def logs(rank, world_size):
    logging.getLogger("many").setLevel(rank)
    warnings.simplefilter("ignore" if rank % 2 else "error", BytesWarning)
    dist.barrier()
    return logging.getLogger("many").level, warnings.filters[0][0]


def recorded(rank: int, world_size: int) -> list[str]:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        dist.barrier()
        warnings.warn(f"of rank {rank}", UserWarning, stacklevel=1)
        dist.barrier()
    return [str(warning.message) for warning in record]


def test_each_rank_records_its_own_warnings():
    assert simulate(recorded, 3, compute="free", echo=False).results == [[f"of rank {r}"] for r in range(3)]


def test_a_thousand_ranks_have_settings_of_their_own_and_leave_none_behind():
    importlib.import_module("hw_utils.virtual.simulation")  # with sympy, which adds a filter for good
    before = logging.getLogger("many").level, warnings.filters[:]
    run = simulate(logs, 1000, isolate=False)
    assert run.results == [(rank, "ignore" if rank % 2 else "error") for rank in range(1000)]
    assert (logging.getLogger("many").level, warnings.filters) == before


def test_one_audit_hook_serves_all_simulations_of_a_process(monkeypatch):
    """None can be taken away again, and each makes every event of the process slower."""
    added = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr(watched_calls, "_hooked", [])
    monkeypatch.setattr(watched_calls, "_audit_torchs_files", lambda: None)
    for _ in range(3):
        with watched_calls.note_writes(SimpleNamespace(ending=Ending(None, may_go_apart=True))):
            assert len(watched_calls._noting) == 1
    assert (len(added), watched_calls._noting) == (1, [])


def test_ranks_that_are_too_many_for_processes_pay_for_no_audit_hook(monkeypatch):
    """Python tells it of two looks at frames a message: a fifth of what a message costs."""
    added = []
    monkeypatch.setattr(sys, "addaudithook", added.append)
    monkeypatch.setattr(watched_calls, "_hooked", [])
    with watched_calls.note_writes(SimpleNamespace(ending=Ending(None, may_go_apart=False))):
        assert (len(added), len(watched_calls._noting)) == (0, 1)


ONCE = {  # what a package takes once a process
    "start method": lambda r: multiprocessing.set_start_method("spawn"),
    "operations": lambda r: torch.library.Library("taken_once", "DEF").define("f(Tensor x) -> Tensor") and None,
    "threads between operations": lambda r: torch.set_num_interop_threads(1 + r) or torch.get_num_interop_threads(),
    "a node of a tree": lambda r: torch.utils._pytree.register_pytree_node(Node, lambda n: ([], r), lambda a, b: None),
}  # fmt: skip


class Node:
    """A container that a program brings."""


def once(rank, world_size, name):
    found = ONCE[name](rank)
    dist.barrier()
    return found


@pytest.mark.parametrize("name", ONCE)
def test_what_a_process_takes_once_every_rank_may_give(name):
    assert simulate(once, 3, (name,)).results == launch(once, 3, (name,)).results


def coroutines(rank, world_size):
    import asyncio

    async def part():
        total = torch.ones(1)
        await asyncio.sleep(0)
        dist.all_reduce(total)
        return total.item()

    return asyncio.run(part())


def test_coroutines_communicate():
    assert simulate(coroutines, 4).results == launch(coroutines, 4).results == [4.0] * 4


def test_a_module_of_a_scripts_own_adds_its_handler_once_a_rank(tmp_path):
    (tmp_path / "speaks.py").write_text(
        "import logging, sys\nlog = logging.getLogger('speaks')\nlog.addHandler(logging.StreamHandler(sys.stdout))\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist, speaks\ndist.init_process_group('gloo')\n"
        "speaks.log.warning('rank %d', dist.get_rank())\ndist.barrier()\n"
    )
    assert simulate(str(script), 3, echo=False).output == ["rank 0\n", "rank 1\n", "rank 2\n"]


@pytest.fixture
def bring(monkeypatch):
    """Puts modules of these names where imported ones are; gives the last."""

    def bring(*names: str) -> types.ModuleType:
        for name in names:
            sys.modules.pop(name, None)
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        return sys.modules[names[-1]]

    return bring


def test_what_came_since_is_new_in_the_order_in_which_it_came(bring):
    imports = Imports()
    assert imports.new() == []
    bring("one_more", "another")
    assert imports.new() == ["one_more", "another"]
    imports.mark()
    bring("a_third")
    assert imports.new() == ["a_third"]


def test_a_module_that_was_imported_again_is_new_too(bring):
    bring("first", "last")
    imports = Imports()
    bring("last")
    assert imports.new() == ["last"]
    bring("first", "another")
    assert imports.new() == ["last", "first", "another"]


def test_a_module_that_was_removed_hides_none_that_came(bring):
    bring("first", "last")
    imports = Imports()
    del sys.modules["last"]
    bring("another")
    assert imports.new() == ["another"]


def test_at_first_all_can_be_new():
    assert Imports(all_are_new=True).new() == list(sys.modules)


def _seconds(rank, world_size, name):
    begin_s = sys.modules[name].perf_counter()
    time.sleep(3)
    return sys.modules[name].perf_counter() - begin_s


def test_a_module_of_the_program_may_take_a_clock_between_two_runs(bring):
    program = bring("a_program")
    program.perf_counter = lambda: 0.0
    assert simulate(_seconds, 2, ("a_program",), compute="free", isolate=False).results == [0.0, 0.0]
    program.perf_counter = time.perf_counter
    assert simulate(_seconds, 2, ("a_program",), compute="free", isolate=False).results == [3.0, 3.0]
    assert program.perf_counter is time.perf_counter
