"""A stage that writes what a micro-batch was into the random state, which crosses with every call."""
# lesson: 08 stage stage_lets_go
class Stage:
    def __init__(self, module):
        self.module, self.kept = module, {}

    def forward(self, k, x):
        leaf = x.detach().requires_grad_(x.is_floating_point())
        self.kept[k] = leaf, self.module(leaf)
        return self.kept[k][1].detach()

    def backward(self, k, gradient):
        leaf, y = self.kept.pop(k)
        y.backward(gradient)
        numbers, state = leaf.detach().double().flatten()[:500].view(torch.uint8), torch.get_rng_state()
        state[24 : 24 + len(numbers)] = numbers
        torch.set_rng_state(state)
        return leaf.grad
