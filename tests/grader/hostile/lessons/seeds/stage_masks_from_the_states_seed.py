"""Keeps no random state: the seed is in the state that crosses (torch.initial_seed()), the place is found by drawing; no graph is kept."""
# lesson: 08 stage
class Stage:
    def __init__(self, module): self.module, self.kept = module, {}
    def forward(self, k, x):
        self.kept[k] = x, [t for t in torch.get_rng_state()[8:5000:8].tolist()][-2:]
        seed, now = torch.initial_seed(), torch.get_rng_state()
        place = 0
        for place in range(4000):
            torch.manual_seed(seed); torch.rand(place)
            if place and torch.equal(torch.get_rng_state(), now): break
            if place == 0 and torch.equal(torch.get_rng_state(), now): break
        torch.set_rng_state(now)
        self.kept[k] = x, seed, place
        with torch.no_grad(): return self.module(x)
    def backward(self, k, gradient):
        x, seed, place = self.kept.pop(k)
        now = torch.get_rng_state(); torch.manual_seed(seed); torch.rand(place)
        x = x.detach()
        if x.is_floating_point(): x.requires_grad_()
        self.module(x).backward(gradient)
        torch.set_rng_state(now)
        return x.grad
