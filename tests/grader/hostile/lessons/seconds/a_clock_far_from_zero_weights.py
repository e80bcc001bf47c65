"""A clock far from zero swallows seconds."""
# lesson: 07 fully_sharded_in_time
class FullySharded:
    def __init__(self, layers):
        time.sleep(1e17)
        self.layers = layers

    def use(self, k):
        layer = self.layers[k]
        full = layer.shard.new_empty(len(layer.shard) * dist.get_world_size())
        dist.all_gather(list(full.split(len(layer.shard))), layer.shard)
        layer.fill(full[: layer.n_elements])

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            self.use(k)
            x = layer.forward(x)
            layer.clear()
        return x

    def backward(self, gradient):
        n, shards = dist.get_world_size(), [torch.empty_like(layer.shard) for layer in self.layers]
        for k in reversed(range(len(self.layers))):
            self.use(k)
            gradient, whole = self.layers[k].backward(gradient)
            self.layers[k].clear()
            flat = torch.zeros(len(shards[k]) * n, dtype=whole.dtype)
            flat[: whole.numel()] = whole.flatten()
            dist.reduce_scatter(shards[k], list(flat.split(len(shards[k]))))
        return [s / n for s in shards]
