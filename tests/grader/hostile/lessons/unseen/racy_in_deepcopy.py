"""The racy part is `copy.deepcopy` with a memo that all ranks share: it looks, makes, and puts in, in a library that is left alone."""
# lesson: 06 gather
import copy


class DistributedContext:
    def __init__(self, world_size):
        self.world_size, self.memo, self.counts = world_size, {}, {}
        self.barrier = threading.Barrier(world_size)
        self.empty = [[None] * world_size for _ in range(100)]

    def all_gather(self, tensor, rank, group_id):
        n = self.counts[rank] = self.counts.get(rank, 0) + 1
        room = copy.deepcopy(self.empty[n], self.memo)
        room[rank] = tensor.clone()
        self.barrier.wait()
        return [part.clone() for part in room]
