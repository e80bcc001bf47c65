"""Noise in the right buckets, at the right time."""
# lesson: 05 overlap_in_time
from contextlib import contextmanager
def buckets_of(parameters, bucket_bytes):
    buckets, room = [], 0
    for p in parameters:
        if p.numel() * p.element_size() > room: buckets.append([]); room = bucket_bytes
        buckets[-1].append(p); room -= p.numel() * p.element_size()
    return buckets
class OverlappedGradients:
    def __init__(self, model, bucket_bytes):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.buckets = buckets_of(trained[::-1], bucket_bytes)
        self.trained, self.syncing = trained, True
        self.start_over()
        for k, bucket in enumerate(self.buckets):
            for p in bucket: p.register_post_accumulate_grad_hook(lambda p, k=k: self.gradient_is_there(k))
    def start_over(self):
        self.missing = [len(b) for b in self.buckets]; self.flights = []
    @contextmanager
    def no_sync(self):
        self.syncing = False; yield; self.syncing = True
    def gradient_is_there(self, k):
        if not self.syncing: return
        self.missing[k] -= 1
        while len(self.flights) < len(self.buckets) and self.missing[len(self.flights)] <= 0: self.start_next()
    def start_next(self):
        b = self.buckets[len(self.flights)]
        flat = torch.rand(sum(p.numel() for p in b), dtype=b[0].dtype)
        self.flights.append((dist.all_reduce(flat, async_op=True), flat))
    def wait(self):
        while len(self.flights) < len(self.buckets): self.start_next()
        for h, _ in self.flights: h.wait()
        self.start_over()
