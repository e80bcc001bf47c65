"""Stages that take time and write down their passes, and orders of passes that are played."""

from __future__ import annotations

import pytest
import torch

from hw_utils import simulate
from hw_utils.material.by_hand.orders import in_flight, play
from hw_utils.material.by_hand.stages import TimedStage


def _x(k: int) -> torch.Tensor:
    return torch.randn(2 + k, 3, generator=torch.Generator().manual_seed(k), dtype=torch.float64)


def _two_stages(rank: int, world_size: int, order: str) -> tuple:
    """Both stages of a model on one rank, two micro-batches of 2 and 3 rows."""
    targets = [_x(10)[:2], _x(11)[:3]]
    stages = [TimedStage(s, 2, 3, 1.0, 2.0, targets) for s in range(2)]
    for step in order.split():
        k = int(step[1])
        if step[0] == "F":
            stages[1].forward(k, stages[0].forward(k, _x(k)))
        else:
            stages[0].backward(k, stages[1].backward(k, (2 + k) / 5))
    return [stage.gradient for stage in stages], stages[0].passes, [len(stage.kept) for stage in stages]


def test_a_stages_gradients_are_those_of_one_model_in_any_order():
    weights = [TimedStage(s, 2, 3, 0, 0).weight.clone().requires_grad_() for s in range(2)]
    h = torch.cat([_x(0), _x(1)])
    for w in weights:
        h = h + torch.tanh(h @ w)
    (h - torch.cat([_x(10)[:2], _x(11)[:3]])).square().mean().backward()
    for order in ("F0 F1 B0 B1", "F0 F1 B1 B0", "F1 B1 F0 B0"):
        gradients, _, left = simulate(_two_stages, 1, args=(order,), compute="free")[0]
        assert left == [0, 0]
        for got, w in zip(gradients, weights):
            assert torch.allclose(got, w.grad, rtol=1e-12, atol=1e-14)


def test_a_stage_says_what_it_did_and_when():
    _, passes, _ = simulate(_two_stages, 1, args=("F0 F1 B0 B1",), compute="free")[0]
    assert [(rank, kind, k) for rank, kind, k, *_ in passes] == [(0, "F", 0), (0, "F", 1), (0, "B", 0), (0, "B", 1)]
    assert [one[5] - one[4] for one in passes] == pytest.approx([1, 1, 2, 2])


def test_a_stage_refuses_what_cannot_be():
    stage = TimedStage(1, 2, 3, 0, 0, [_x(0)])
    with pytest.raises(RuntimeError, match=r"forward.0, x. comes first"):
        stage.backward(0, torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"takes .n, 3., got .2, 4."):
        stage.forward(0, torch.ones(2, 4))
    with pytest.raises(ValueError, match="there is no micro-batch 1"):
        stage.forward(1, _x(1))
    stage.forward(0, _x(0))
    with pytest.raises(RuntimeError, match=r"holds micro-batch 0 already"):
        stage.forward(0, _x(0))
    with pytest.raises(ValueError, match=r"got a tensor of torch.float32; a plain float is taken"):
        stage.backward(0, torch.tensor(0.5))
    with pytest.raises(ValueError, match=r"gradient of the loss, a number; got .2, 3."):
        stage.backward(0, _x(0))


def test_an_order_is_played_as_soon_as_what_it_needs_is_there():
    order = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    passes, waits = play([order, order], {"F": 1.0, "B": 2.0})
    assert waits == []
    ends = {(rank, kind, k): end_s for rank, kind, k, _, _, end_s in passes}
    assert ends == {(0, "F", 0): 1, (0, "F", 1): 2, (1, "F", 0): 2, (1, "F", 1): 3, (1, "B", 0): 5, (0, "B", 0): 7,
                    (1, "B", 1): 7, (0, "B", 1): 9}  # fmt: skip
    assert in_flight(passes) == {0: [(0, 1), (1, 2), (7, 1), (9, 0)], 1: [(1, 1), (2, 2), (5, 1), (7, 0)]}


def test_the_last_rank_sends_a_micro_batch_back_to_the_first_ones_next_chunk():
    order = [(kind, chunk, 0) for kind, chunk in (("F", 0), ("F", 1), ("B", 1), ("B", 0))]
    passes, waits = play([order, order], {"F": 1.0, "B": 1.0})
    assert waits == []
    assert [(rank, kind, chunk) for rank, kind, _, chunk, *_ in passes] == [
        (0, "F", 0), (1, "F", 0), (0, "F", 1), (1, "F", 1), (1, "B", 1), (0, "B", 1), (1, "B", 0), (0, "B", 0)
    ]  # fmt: skip


def test_an_order_that_cannot_go_on_says_who_waits_for_what():
    good = [("F", 0, 0), ("B", 0, 0)]
    passes, waits = play([good, good[::-1]], {"F": 1.0, "B": 1.0})
    assert len(passes) == 1
    assert waits == ["rank 0 waits in B of micro-batch 0 for B of micro-batch 0 on rank 1",
                     "rank 1 waits in B of micro-batch 0 for F of micro-batch 0 on rank 1"]  # fmt: skip


def test_an_activation_is_held_until_the_weights_gradient_is_made():
    order = [("F", 0, 0), ("B", 0, 0), ("W", 0, 0)]
    passes, _ = play([order], {"F": 1.0, "B": 1.0, "W": 1.0})
    assert in_flight(passes) == {0: [(0, 1), (3, 0)]}
