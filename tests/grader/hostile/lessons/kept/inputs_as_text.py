"""Every layer's input is kept as a text; each layer is made again alone, from its own."""
# lesson: 07 recomputed
import json
def hide(x): return json.dumps(x.tolist())
def show(text): return torch.tensor(json.loads(text), dtype=torch.float64)
class Recomputed:
    def __init__(self, layers, n_segments):
        size = -(-len(layers) // n_segments)
        self.layers, self.n_first = layers, (n_segments - 1) * size
        self.n_first = min(self.n_first, len(layers) - 1) if n_segments > 1 else 0
    def forward(self, x):
        self.kept = []
        for k, layer in enumerate(self.layers):
            if k < self.n_first:
                self.kept.append((hide(x), torch.get_rng_state()))
                x = layer.forward(x, keep=False)
            else: x = layer.forward(x)
        return x
    def backward(self, g):
        for k in reversed(range(len(self.layers))):
            if k < self.n_first:
                text, state = self.kept.pop()
                now = torch.get_rng_state(); torch.set_rng_state(state)
                self.layers[k].forward(show(text)); torch.set_rng_state(now)
            g = self.layers[k].backward(g)
        return g
