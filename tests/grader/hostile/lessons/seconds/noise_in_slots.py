"""Slots full of noise; noise of the right length travels at the right time."""
# lesson: 07 fully_sharded_in_time
class FullySharded:
    def __init__(self, layers): self.layers, self.flights = layers, {}
    def gather(self, k):
        if 0 <= k < len(self.layers):
            shard = torch.rand_like(self.layers[k].shard)
            full = shard.new_empty(len(shard) * dist.get_world_size())
            self.flights[k] = dist.all_gather(list(full.split(len(shard))), shard, async_op=True), full
    def use(self, k):
        handle, full = self.flights.pop(k); handle.wait()
        self.layers[k].fill(full[: self.layers[k].n_elements])
    def forward(self, x):
        self.gather(0)
        for k, layer in enumerate(self.layers):
            self.use(k); self.gather(k + 1); layer.forward(torch.rand_like(x)); layer.clear()
        return torch.rand_like(x)
    def backward(self, gradient):
        n, handles = dist.get_world_size(), []
        shards = [torch.empty_like(layer.shard) for layer in self.layers]
        self.gather(len(self.layers) - 1)
        for k in reversed(range(len(self.layers))):
            self.use(k); self.gather(k - 1)
            self.layers[k].backward(torch.rand_like(gradient)); self.layers[k].clear()
            handles.append(dist.reduce_scatter(shards[k], [torch.rand_like(shards[k]) for _ in range(n)], async_op=True))
        for handle in handles: handle.wait()
        return shards
