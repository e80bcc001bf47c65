"""Adam over all parameters on every rank; an attack says how it keeps the moments: store(self, m, v), load(self)."""
class ShardedAdam:
    def __init__(self, model, lr, beta1=0.9, beta2=0.999, eps=1e-8):
        self.model, self.lr, self.b1, self.b2, self.eps, self.t = model, lr, beta1, beta2, eps, 0
        self.parameters = list(model.parameters())
        self.n = sum(p.numel() for p in self.parameters)
        self.dtype = self.parameters[0].dtype
    def step(self):
        n, size = dist.get_world_size(), -(-self.n // dist.get_world_size())
        g = torch.cat([p.grad.flatten() for p in self.parameters] + [torch.zeros(size * n - self.n, dtype=self.dtype)])
        mine = torch.empty(size, dtype=self.dtype)
        dist.reduce_scatter(mine, list(g.split(size)))
        mine /= n
        dist.all_gather(list(g.split(size)), mine)
        g = g[: self.n]
        m, v = load(self) if self.t else (torch.zeros_like(g), torch.zeros_like(g))
        self.t += 1
        m, v = self.b1 * m + (1 - self.b1) * g, self.b2 * v + (1 - self.b2) * g ** 2
        store(self, m, v)
        step = self.lr * (m / (1 - self.b1 ** self.t)) / ((v / (1 - self.b2 ** self.t)).sqrt() + self.eps)
        with torch.no_grad():
            for p, s in zip(self.parameters, step.split([p.numel() for p in self.parameters])): p -= s.view_as(p)
