"""All layers' gradients are said to be the last one's, which is there first: its shards travel for each of them."""
# lesson: 07 fully_sharded_in_time
class FullySharded:
    def __init__(self, layers): self.layers = layers
    def gather(self, k):
        s, n = self.layers[k].shard, dist.get_world_size()
        full = s.new_empty(len(s) * n)
        return dist.all_gather(list(full.split(len(s))), s, async_op=True), full
    def use(self, flight, k):
        flight[0].wait(); self.layers[k].fill(flight[1][: self.layers[k].n_elements])
    def forward(self, x):
        flight = self.gather(0)
        for k, layer in enumerate(self.layers):
            self.use(flight, k)
            if k + 1 < len(self.layers): flight = self.gather(k + 1)
            x = layer.forward(x); layer.clear()
        return x
    def backward(self, g):
        n, handles, first = dist.get_world_size(), [], None
        flight = self.gather(len(self.layers) - 1)
        for k in reversed(range(len(self.layers))):
            layer = self.layers[k]
            self.use(flight, k)
            if k: flight = self.gather(k - 1)
            g, whole = layer.backward(g); layer.clear()
            first = whole if first is None else first
            out = torch.empty_like(layer.shard)
            flat = torch.cat([first, first.new_zeros(len(out) * n - len(first))])
            handles.append((dist.reduce_scatter(out, list(flat.split(len(out))), async_op=True), out))
        for h, _ in handles: h.wait()
        return [out / n for _, out in handles[::-1]]
