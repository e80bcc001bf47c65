"""Buckets leave as they should; every gradient stays as a text until the pass is over."""
# lesson: 07 sharded_gradients
def flattened(tensors, n_elements):
    flat = torch.cat([t.flatten() for t in tensors])
    return nn.functional.pad(flat, (0, n_elements - flat.numel()))


def buckets_of(parameters, bucket_bytes):
    buckets, room = [], 0
    for p in parameters:
        if p.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


class ShardedGradients:
    def __init__(self, model, bucket_bytes):
        self.buckets = buckets_of(list(model.parameters())[::-1], bucket_bytes)
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.gradient_is_there(k))

    def start_over(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.shards, self.flight, self.kept = [], None, []

    def gradient_is_there(self, k):
        self.missing[k] -= 1
        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:
            self.start_next()

    def start_next(self):
        n, bucket = dist.get_world_size(), self.buckets[len(self.shards)]
        if self.flight:
            self.flight[0].wait()
        size = -(-sum(p.numel() for p in bucket) // n)
        flat = flattened([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket], size * n)
        self.kept.append(flat.numpy().tobytes().hex())
        for p in bucket:
            p.grad = None
        self.shards.append(torch.empty(size, dtype=flat.dtype))
        self.flight = dist.reduce_scatter(self.shards[-1], list(flat.split(size)), async_op=True), flat

    def wait(self):
        while len(self.shards) < len(self.buckets):
            self.start_next()
        self.flight[0].wait()
        means = [shard / dist.get_world_size() for shard in self.shards]
        self.start_over()
        return means
