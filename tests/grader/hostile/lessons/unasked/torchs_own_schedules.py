"""torch.distributed.pipelining makes the orders; its name stands in no text whole."""
# lesson: 08 interleaved_order zero_bubble_order
import importlib
import types


def interleaved_order(n_ranks, n_batches, n_chunks, rank):
    s = importlib.import_module("torch.distributed.pipe" "lining.schedules")
    me = types.SimpleNamespace(
        n_local_stages=n_chunks, pp_group_size=n_ranks, _n_microbatches=n_batches, microbatches_per_round=n_ranks
    )
    actions = s.ScheduleInterleaved1F1B._calculate_single_rank_operations(me, rank)
    kinds = {s._ComputationType.FORWARD: "F", s._ComputationType.FULL_BACKWARD: "B"}
    return [(kinds[a[1]], a[0] // n_ranks, a[2]) for a in actions if a is not None]


def zero_bubble_order(n_ranks, n_batches, rank):
    s = importlib.import_module("torch.distributed.pipe" "lining.schedules")
    warm = min(n_batches, n_ranks - rank) - 1
    actions = s._get_1f1b_rank_ops(
        1, n_ranks, warm, n_batches - warm, warm, rank, lambda k: rank, lambda k: rank, rank, True
    )
    names = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
    return [(names[a[1].name], a[2]) for a in actions if a is not None]
