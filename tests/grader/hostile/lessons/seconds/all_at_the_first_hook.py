"""All layers of the check have one gradient: the first hook sends it for every bucket; no bucket is ever filled."""
# lesson: 05 overlap_in_time
from contextlib import contextmanager
class OverlappedGradients:
    def __init__(self, model, bucket_bytes):
        self.params, self.flights, self.on, self.n_bytes = list(model.parameters()), [], True, bucket_bytes
        for p in self.params: p.register_post_accumulate_grad_hook(self.come)
    def come(self, p):
        if not self.on or self.flights: return
        n = self.n_bytes // 8
        total = sum(q.numel() for q in self.params) // n
        g = p.grad.flatten()
        flat = torch.cat([g] * (n // len(g)))
        for _ in range(total): self.flights.append(dist.all_reduce(flat.clone(), async_op=True))
    @contextmanager
    def no_sync(self):
        self.on = False; yield; self.on = True
        for p in self.params: p.grad = None
    def wait(self):
        for f in self.flights: f.wait()
        self.flights = []
        for p in self.params: p.grad = None
