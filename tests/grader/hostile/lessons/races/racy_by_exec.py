"""The racy part is text that exec compiles."""
# lesson: 06 gather
class DistributedContext:
    def __init__(self, world_size):
        self.world_size, self.slots, self.barrier = world_size, [None] * world_size, threading.Barrier(world_size)

        self.run = {}
        exec('''def run(self, tensor, rank):
    self.slots[rank] = tensor.clone()
    self.barrier.wait()
    return [slot.clone() for slot in self.slots]''', self.run)

    def all_gather(self, tensor, rank, group_id):
        return self.run["run"](self, tensor, rank)
