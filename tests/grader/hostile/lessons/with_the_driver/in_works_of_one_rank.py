"""What went back stays for ever in works of the driver's, which nobody waits for."""
# lesson: 08 stage_lets_go
class Stage:
    def __init__(self, module): self.module, self.kept = module, {}
    def forward(self, k, x):
        x = x.detach().clone()
        if x.is_floating_point(): x.requires_grad_()
        with torch.enable_grad(): y = self.module(x)
        self.kept[k] = x, y
        return y.detach().clone()
    def backward(self, k, gradient):
        x, y = self.kept.pop(k)
        y.backward(gradient)
        for t in (x.detach().double(), y.detach(), gradient):
            if dist.is_initialized():
                work = dist.all_gather([torch.empty_like(t)], t.contiguous(), async_op=True)
                work.tensors, work.before, work.outputs, work.is_over = [], [], [], True
        return x.grad if x.is_floating_point() else None
