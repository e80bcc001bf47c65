"""Right, but each micro-batch stays, as a text."""
# lesson: 08 stage_lets_go
class Stage:
    def __init__(self, module): self.module, self.kept, self.past = module, {}, ""
    def forward(self, k, x):
        x = x.detach()
        if x.is_floating_point(): x.requires_grad_()
        y = self.module(x); self.kept[k] = x, y
        self.past += repr(x.tolist())
        return y.detach()
    def backward(self, k, g):
        x, y = self.kept.pop(k); y.backward(g)
        return x.grad
