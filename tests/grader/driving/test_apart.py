"""Answers in a process of their own, called from afar: right ones pass there too, wrong ones are told why.

The references go the same way in tests/grader/course/test_whole_lessons.py.
"""

from __future__ import annotations

import importlib
import linecache
import os
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from hw_grader.driving.driver_processes import Driving, Jails
from hw_grader.driving.judge_client import Judge, judge_of
from hw_grader.sandbox.sandbox import SHARED
from hw_utils.core import pickling
from tests.checks import right_answers, wrong_answers
from tests.checks.right_answers import alternatives
from tests.checks.wrong_answers import planted
from tests.grader.in_sandbox import needs_sandbox
from tests.virtual import algorithms

# What shows only if tensors keep their memory and ranks their own variables on the way.
SUBTLE = (
    "tree_forgets_to_copy_back", "tree_sends_what_is_not_contiguous", "tree_keeps_the_last_sum", "tree_takes_a_view",
    "tree_changes_the_data_pointer", "ring_works_on_a_flat_copy", "ring_resizes_its_tensor",
    "ring_writes_beside_its_tensor", "reduces_functionally", "KeepsAllParts", "ClosesOverTheWhole",
    "KeepsTheWholeInADictionary",
    "KeepsTheWholeInAGlobal", "KeepsTheWholeOnItsClass", "KeepsMomentsOnTheParameters", "CopiesThemOutside",
    "KeepsTheWholeOutside", "AddsItsOwnFirst", "RefusesOnRankZeroOnly", "WritesIntoOneBufferForAll",
    "CutsColumnsUnevenly", "KeepsItOnTheModule", "KeepsOneNumberOfEach", "TurnsTrainingOn",
    "gpipe_receives_gradients_in_the_batch", "keeps_all_inputs", "makes_buffers_for_all", "makes_one_buffer_for_all",
    "makes_new_parameters", "puts_new_parameters_in_place", "KeepsInputsInAGlobal", "KeepsInputsAsLists",
    "HangsInputsOnLayers", "LooksIntoLayers", "counts_the_ranks_by_all_names", "empties_the_shard",
    "CutsItsPartOutOfTheWhole", "empties_the_input", "stops_following_the_weights", "StepsInBackward",
    "gives_zeros_to_the_frozen", "has_two_orders_in_turn", "reports_when_it_is_over", "times_the_batch",
    "another_report", "whole_batches", "steps_with_the_step_size_alone", "splits_in_single_precision", "f_before_w",
    "too_few", "keeps_copies", "joins_all_inputs", "ReceivesInOneTensor", "FillsBeforeItWaits",
    "hangs_the_whole", "squares_the_number", "keeps_copies_under_a_global_name", "keeps_copies_by_globals",
    "KeepsTheFirstNumber", "KeepsTheFirstNumberAsText", "KeepsAFractionOnTheModule", "HoldsTwoRowsPacked",
    "KeepsTheFirstNumberInASet", "BeginsAtTheCallersTensor", "gpipe_takes_the_batch_apart", "takes_layers_out",
    "shares_what_is_whole", "one_tensor_for_both", "no_step", "CountsOnTheModule", "LeavesAHook",
    "RowLetsAutogradDoIt", "averages_the_updates", "assigns_the_quotient", "puts_new_buffers_in_place",
    "assigns_the_means", "gives_the_models_one_by_one", "KeepsTheLastGradientOnAFunction",
    "remembers_models_by_shape", "RemembersItsCut", "remembers_the_output",
    "KeepsAllThatAPassGathers", "KeepsAllWholeGradients",
)  # fmt: skip

FEW_ORDERS = 60  # of threads: the plainest one, and a switch at each of the first points; the others are made nearby
pytestmark = needs_sandbox


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """The tests' own modules are not in the sandbox."""
    modules = [algorithms, right_answers, wrong_answers, sys.modules[__name__]]
    for package in (right_answers, wrong_answers):
        modules += [
            importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)
        ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


def sources(answers: list) -> dict[str, list]:
    """File -> [cell number, text] of all that answers stand in here: the lessons' cells and the answers' modules."""
    cells = {f: kept[2] for f, kept in linecache.cache.items() if f.startswith("<ipython-input")}
    modules = {sys.modules[answer.__module__] for answer in answers if hasattr(answer, "__module__")}
    files = {module.__file__: linecache.getlines(module.__file__) for module in modules if hasattr(module, "__file__")}
    return {file: [0, "".join(lines)] for file, lines in {**cells, **files}.items()}


def problem(check: str, answers: list, chosen: Callable[[list], list] = list, *, repeats: bool = True) -> str:
    """What is wrong with the answers, "" if nothing is: on some of the check's own cases, then apart."""
    judge, opened = judge_of(SHARED.get()), bytes(pickling.dump(answers, "the answers", with_locks=True))
    try:
        in_orders = judge.is_in_orders(check)
        with (
            Jails(SHARED.get()) as jails,
            Driving(jails, opened, sources(answers), lambda: 75.0, in_orders=in_orders) as driving,
        ):
            reply = driving.open(check)
            for case in chosen(judge.cases(check)):
                data = None
                if "opened" in reply or "data" in reply:
                    reply, data = driving.case(case)
                if "data" not in reply:
                    return "\n".join(reply.get("lines", ())) or str(reply)
                said = judge.judge(check, case, data, 75)
                if said.get("right") is not True:
                    return said.get("wrong") or str(said)
            return wrong_apart(driving, judge, check) if repeats else ""
    finally:
        judge.forget_submission()


def wrong_apart(driving: Driving, judge: Judge, check: str) -> str:
    """What is wrong with the last case whose ranks are few, with other numbers and a process for each rank."""
    for case, n_ranks in driving.to_repeat(check)[-1:]:
        reply, data = driving.case_apart(case | {"salt": 7}, n_ranks)
        said = judge.judge(check, case | {"salt": 7}, data, 75) if "data" in reply else reply
        if said.get("right") is True and n_ranks > 1 and judge.follows_messages(check):
            reply, data = driving.case_apart(case | {"salt": 7}, n_ranks, alters=True)
            altered = judge.judge(check, case | {"salt": 7}, data, 75) if "data" in reply else reply
            return "it does not follow its messages" if altered.get("right") else ""
        return "" if said.get("right") is True else f"apart: {said}"
    return ""


_RIGHT: dict[str, list] = {}
for one in alternatives():
    _RIGHT.setdefault(one.check, []).append(one)


def _in_turn(k: int) -> Callable[[list[dict]], list[dict]]:
    """The k-th case from the end, so that answers to one check share its cases; and those in half precision."""

    def chosen(cases: list[dict]) -> list[dict]:
        some = [case for case in cases if case.get("n_rounds") != 0]  # in which something travels
        own = some[-1 - k % len(some)]
        found = [case for case in cases if case is own or "float16" in case.values()]
        return [{**case, "n_interleavings": FEW_ORDERS} if "n_interleavings" in case else case for case in found]

    return chosen


@pytest.mark.parametrize("check", sorted(_RIGHT))
def test_right_answers_of_another_kind_are_right_from_afar(check):
    """Every second one with a process for each rank, too."""
    found = {
        one.name: problem(check, list(one.answers), _in_turn(k), repeats=k % 2 == 0)
        for k, one in enumerate(_RIGHT[check])
    }
    assert found == dict.fromkeys(found, "")


def _start_and(more: Callable[[int, int], None]) -> Callable[[torch.nn.Module], None]:
    def start_equal(model: torch.nn.Module) -> None:
        for tensor in [p.data for p in model.parameters()] + list(model.buffers()):
            dist.broadcast(tensor, 0, group=dist.group.WORLD)
        more(dist.get_rank(dist.group.WORLD), dist.get_world_size())

    return start_equal


def _objects(rank: int, n: int) -> None:
    everybody, first, mine = [None] * n, [rank], [None]
    dist.all_gather_object(everybody, rank)
    dist.broadcast_object_list(first, 0)
    dist.gather_object(rank, [None] * n if rank == 0 else None, 0)
    dist.scatter_object_list(mine, everybody if rank == 0 else None, 0)
    assert (everybody, first, mine) == (list(range(n)), [0], [rank])


def _subgroups(rank: int, n: int) -> None:
    alone, everybody = dist.new_group([0]), dist.new_group(list(range(n)))
    assert (dist.get_rank(alone), everybody.size()) == (0 if rank == 0 else -1, n)
    came = torch.zeros(1)
    right, left = (rank + 1) % n, (rank - 1) % n
    ops = [
        dist.P2POp(dist.isend, torch.ones(1) * rank, right, everybody),
        dist.P2POp(dist.irecv, came, left, everybody),
    ]
    if n > 1:
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert came.item() == left


def _objects_in_subgroups(rank: int, n: int) -> None:
    ends = dist.new_group(ranks := sorted({0, n - 1}))
    if rank in ranks:
        both, last, mine = [None] * len(ranks), [rank], [None]
        dist.all_gather_object(both, rank, group=ends)
        dist.broadcast_object_list(last, n - 1, group=ends)
        dist.gather_object(rank, [None] * len(ranks) if rank == 0 else None, 0, group=ends)
        dist.scatter_object_list(mine, both if rank == 0 else None, 0, group=ends)
        assert (both, last, mine) == (ranks, [n - 1], [rank])
        assert (dist.get_global_rank(ends, len(ranks) - 1), dist.get_process_group_ranks(ends)) == (n - 1, ranks)


class _Kind(torch.Tensor):
    """A class of the answer's own."""


def _tensors_of_a_class(rank: int, n: int) -> None:
    mine, came = torch.full((2,), float(rank)).as_subclass(_Kind), [torch.zeros(2).as_subclass(_Kind) for _ in range(n)]
    dist.all_gather(came, mine)
    assert [tensor[1].item() for tensor in came] == [*range(n)]
    if n > 1 and rank < 2:
        ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, came[0], 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert came[0][0].item() == 1 - rank


def _monitored_barriers(rank: int, n: int) -> None:
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)
    dist.group.WORLD.monitored_barrier()


@pytest.mark.parametrize(
    "more", [_objects, _subgroups, _objects_in_subgroups, _tensors_of_a_class, _monitored_barriers]
)
def test_object_collectives_and_groups_cross(more):
    """Whatever they send, the check then says; but no rank fails."""
    found = problem("lesson_03.start_equal", [_start_and(more)])
    assert "every value is right, but" in found


@pytest.mark.parametrize("name", SUBTLE)
def test_what_depends_on_memory_is_seen_from_afar(name):
    (one,) = (one for one in planted() if one.name == name)
    assert re.search(one.says, problem(one.check, list(one.answers)), re.S)


def _ends_its_process(rank, world_size, n_rounds):
    os._exit(3)


def test_a_crash_is_told_without_what_the_grader_met_on_its_own_account():
    said = problem("lesson_01.ping_pong", [_ends_its_process])
    assert "the answer ended its process: os._exit, or a crash?" in said
    assert "because of" not in said
    assert "hw_grader" not in said
    assert "just before that line" not in said


class EndsWhenItsNameIsAsked:
    def __call__(self, rank, world_size, n_rounds):
        return None

    def __getattr__(self, name):
        if name == "__name__" and threading.current_thread() is not threading.main_thread():
            os._exit(3)  # it is open, and is described to a driver
        raise AttributeError(name)


def test_answers_that_end_before_their_first_call_are_told_as_any_that_end():
    assert "the answer ended" in problem("lesson_01.ping_pong", [EndsWhenItsNameIsAsked()])


def _looks_up(name: str) -> int:
    try:
        return {"even": 0}[name]
    except KeyError as error:
        raise ValueError(f"no such turn: {name}") from error


def _looks_up_in_a_rank(rank, world_size, n_rounds):
    _looks_up("odd")


def _looks_up_a_cost(*numbers):
    return _looks_up("odd")


@pytest.mark.parametrize(
    ("check", "answer"),
    [("lesson_01.ping_pong", _looks_up_in_a_rank), ("lesson_02.point_to_point_s", _looks_up_a_cost)],
)
def test_what_an_exception_comes_of_is_told_with_its_line(check, answer):
    said = problem(check, [answer])
    line = _looks_up.__code__.co_firstlineno + 2
    assert "ValueError: no such turn: odd" in said
    assert re.search(rf"because of KeyError: 'odd', at Cell In\[0\], line {line}", said)
    assert "hw_grader" not in said
