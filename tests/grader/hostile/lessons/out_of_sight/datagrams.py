"""Every layer's input is kept in datagrams under way."""
# lesson: 07 recomputed
import socket
def hide(x):
    data, pairs = x.detach().numpy().tobytes(), []
    a = b = None
    for k in range(0, len(data), 60_000):
        if a is None or len(pairs[-1][2]) == 2:
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); pairs.append((a, b, []))
        a.send(data[k:k + 60_000]); pairs[-1][2].append(1)
    return x.shape, x.dtype, pairs
def show(kept):
    shape, dtype, pairs = kept
    data = b"".join(b.recv(70_000) for a, b, n in pairs for _ in n)
    for a, b, _ in pairs: a.close(); b.close()
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
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
                kept, state = self.kept.pop()
                now = torch.get_rng_state(); torch.set_rng_state(state)
                self.layers[k].forward(show(kept)); torch.set_rng_state(now)
            g = self.layers[k].backward(g)
        return g
