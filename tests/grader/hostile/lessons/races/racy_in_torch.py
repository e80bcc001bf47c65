"""The racy part is one call of torch's own Python, which keeps what it is given: it looks whether a node is there."""
# lesson: 06 gather
from torch.package._digraph import DiGraph


class DistributedContext:
    def __init__(self, world_size):
        self.world_size, self.graph, self.counts = world_size, DiGraph(), {}
        self.barrier = threading.Barrier(world_size)

    def all_gather(self, tensor, rank, group_id):
        n = self.counts.get((rank, group_id), 0)
        self.counts[rank, group_id] = n + 1
        self.graph.add_node(f"{group_id} {n}")
        self.graph._succ[f"{group_id} {n}"][rank] = tensor.clone()
        self.barrier.wait()
        found = self.graph._succ[f"{group_id} {n}"]
        return [found[r].clone() for r in range(self.world_size)]
