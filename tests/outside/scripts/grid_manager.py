"""Where a rank stands in the grid: a module's global that `setup` writes, as picotron's process_group_manager."""

import torch
import torch.distributed as dist

here = None


class Here:
    def __init__(self, tp_size, pp_size, dp_size):
        rank = dist.get_rank()
        ranks = torch.arange(dist.get_world_size()).view(dp_size, pp_size, tp_size)
        self.dp_rank, self.pp_rank, self.tp_rank = ((ranks == rank).nonzero()[0]).tolist()
        self.dp_size, self.pp_size, self.tp_size = dp_size, pp_size, tp_size
        tensor = ranks.reshape(-1, tp_size).tolist()
        data = ranks.permute(1, 2, 0).reshape(-1, dp_size).tolist()
        self.tp_group, _ = dist.new_subgroups_by_enumeration(tensor)
        self.dp_group, _ = dist.new_subgroups_by_enumeration(data)
        line = ranks[self.dp_rank, :, self.tp_rank].tolist()
        self.is_first, self.is_last = self.pp_rank == 0, self.pp_rank == pp_size - 1
        self.before = None if self.is_first else line[self.pp_rank - 1]
        self.after = None if self.is_last else line[self.pp_rank + 1]

    def __str__(self):
        return f"dp{self.dp_rank} pp{self.pp_rank} tp{self.tp_rank}"


def setup(tp_size, pp_size, dp_size):
    global here
    assert here is None
    here = Here(tp_size, pp_size, dp_size)
