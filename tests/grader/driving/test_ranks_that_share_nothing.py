"""Which case is repeated with a process for each rank, and which process a rank asks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from hw_grader.course.grading import drawn
from hw_grader.driving.driver_processes import Driving
from hw_grader.driving.process_of_each_rank import ProcessOfEachRank
from hw_grader.notebook.course_secret import FILE, secret_of
from hw_utils.checks import drawn_numbers
from hw_utils.checks.lesson_02 import ring_sum
from hw_utils.core.errors import CheckFailed
from hw_utils.threads.turns import Turns


def driven(*cases: tuple[dict, int, bool]) -> Driving:
    driving = Driving.__new__(Driving)
    driving.driven = {"a check": list(cases)}
    return driving


def test_what_has_ranks_is_repeated_and_of_these_what_a_salt_changes():
    alone, plain, salted = ({"n": 1}, 1, True), ({"n": 2}, 2, False), ({"n": 3}, 3, True)
    assert driven(({"n": 1}, 1, False)).to_repeat("a check") == []
    assert driven(({"n": 1}, 1, False), alone).to_repeat("a check") == [({"n": 1}, 1)]
    assert driven(alone, plain).to_repeat("a check") == [({"n": 2}, 2)]
    assert driven(alone, plain, salted).to_repeat("a check") == [({"n": 3}, 3)]


def test_a_case_of_three_or_four_ranks_is_repeated_if_there_is_one_else_one_of_the_fewest():
    two, four, many, more = (({"n": n}, n, True) for n in (2, 4, 7, 9))
    assert driven(two, four, many).to_repeat("a check") == [({"n": 4}, 4)]
    assert driven(two, many).to_repeat("a check") == [({"n": 2}, 2)]
    assert driven(many, more).to_repeat("a check") == [({"n": 7}, 7)]


def test_each_rank_has_a_process_and_keeps_it_and_the_rest_has_the_first():
    places = ProcessOfEachRank()
    places.begin(["one", "two"])
    assert [places.of_caller("first", copy) for copy in ("a", "b", "a", None)] == ["one", "two", "one", "first"]
    with pytest.raises(IndexError):
        places.of_caller("first", "c")


def test_a_case_whose_ranks_are_to_share_nothing_gets_processes_once_and_keeps_them_in_each_run():
    asked = []
    places = ProcessOfEachRank(more=lambda n: asked.append(n) or ["one", "two"], look=lambda number, lent: [number])
    places.begin([])
    assert places.of_caller("first", "before") == "first"
    for run in ("a run", "the same, begun again", "another"):
        if run != "the same, begun again":
            places.share_nothing(2)
        assert {places.of_caller("first", f"{run} {rank}") for rank in range(2)} == {"one", "two"}
        assert places.of_caller("first", None) == "first"
    assert asked == [2]
    assert [places.look_at(path, []) for path in ("one", "two", "first")] == [[0], [1], [None]]
    places.begin([])
    assert places.of_caller("first", "a") == "first"


def test_threads_that_take_turns_are_ranks_too():
    places = ProcessOfEachRank()
    places.begin(["one", "two"])
    with Turns(2) as turns:
        ended = turns.run([lambda rank: places.of_caller("first", None)] * 2, lambda runnable, me: runnable[0])
    assert sorted(turn.result for turn in ended) == ["one", "two"]


def test_what_is_drawn_is_the_same_again_and_another_for_another_course_or_work(tmp_path):
    secret = secret_of(tmp_path)
    assert secret == secret_of(tmp_path) == (tmp_path / FILE).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    numbers = {drawn(secret, "work", "what"), drawn(secret, "other", "what"), drawn(b"other", "work", "what")}
    assert len(numbers) == 3
    assert drawn(secret, "work", "what") in numbers


def numbers_of(salt: int) -> tuple:
    with drawn_numbers.of({"salt": salt, "n": 3}) as case:
        return case, drawn_numbers.seed(5, "rank"), drawn_numbers.digits([40], 1).tolist()


def test_a_salt_changes_every_number_in_driver_and_judge_alike():
    assert numbers_of(0) == ({"n": 3}, 5, [0] * 40)
    assert numbers_of(1) == numbers_of(1)
    assert numbers_of(1)[1:] != numbers_of(2)[1:]
    assert numbers_of(1)[0] == {"n": 3}
    assert not drawn_numbers.are_salted()


def works_it_out(tensor: torch.Tensor) -> None:
    """From its own share, as the checks say what the others are; ranks that meet cannot tell it from a sum."""
    rank, n = dist.get_rank(), dist.get_world_size()
    tensor.copy_((tensor / 10**rank).round() * sum(10**other for other in range(n)))


def test_who_works_out_what_others_hold_is_right_in_the_cases_that_are_known():
    case = {"world_size": 3, "n_elements": 5}
    ring_sum.judge_one(ring_sum.drive_one([works_it_out], case), case)
    salted = case | {"salt": 9}
    with pytest.raises(CheckFailed, match="on rank 0, element 0 is"):
        ring_sum.judge_one(ring_sum.drive_one([works_it_out], salted), salted)
