"""Right, but what was kept for backward stays in a module."""
# lesson: 08 stage_lets_go
import sys

class Stage:
    def __init__(self, module):
        self.module, self.kept = module, {}
    def forward(self, k, x):
        x = x.detach()
        if x.is_floating_point(): x.requires_grad_()
        y = self.module(x)
        self.kept[k] = x, y
        sys.__dict__.setdefault("kept_for_ever", []).append((x, y))
        return y.detach()
    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        y.backward(gradient)
        return x.grad if x.grad is not None else None
