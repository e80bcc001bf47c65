"""Right, but one number of each micro-batch stays, as a text under a global name."""
# lesson: 08 stage_lets_go
SEEN = set()


class Stage:
    def __init__(self, module): self.module, self.kept = module, {}
    def forward(self, k, x):
        x = x.detach()
        if x.is_floating_point(): x.requires_grad_()
        y = self.module(x); self.kept[k] = x, y
        return y.detach()
    def backward(self, k, g):
        x, y = self.kept.pop(k); y.backward(g)
        SEEN.add(str(y.flatten()[0].item()))
        return x.grad
