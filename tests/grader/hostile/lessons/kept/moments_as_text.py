"""Every rank keeps all moments: as a text."""
# lesson: 07 sharded_adam
# body: sharded_adam
def store(self, m, v): self.kept = repr([m.tolist(), v.tolist()])
def load(self):
    import ast
    m, v = ast.literal_eval(self.kept)
    return torch.tensor(m, dtype=self.dtype), torch.tensor(v, dtype=self.dtype)
