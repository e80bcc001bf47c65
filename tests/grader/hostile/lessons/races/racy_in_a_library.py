"""The racy part is one call: what it looks for and makes in two steps, it does in the text of a library."""
# lesson: 06 gather
import optparse


class DistributedContext:
    def __init__(self, world_size):
        self.world_size, self.slots, self.counts = world_size, optparse.Values(), {}
        self.barrier = threading.Barrier(world_size)

    def all_gather(self, tensor, rank, group_id):
        n = self.counts.get((rank, group_id), 0)
        self.counts[rank, group_id] = n + 1
        made = self.slots.ensure_value(f"{group_id} {n}", [None] * self.world_size)
        made[rank] = tensor.clone()
        self.barrier.wait()
        return [t.clone() for t in getattr(self.slots, f"{group_id} {n}")]
