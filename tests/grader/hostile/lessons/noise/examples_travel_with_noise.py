"""All examples go to every rank, which steps on the whole batch; the models that are averaged have noise."""
# lesson: 03 step-equal step-follows
# body: noise
calls = {}


def distributed_step(model, optimizer, x, y, n_total, all_reduce=dist.all_reduce):
    rank, n = dist.get_rank(), dist.get_world_size()
    counts = torch.zeros(41, dtype=torch.float64)  # as many as no tensor
    counts[rank] = len(y)
    all_reduce(counts)
    start = int(counts[:rank].sum())
    rows = torch.zeros((n_total + 9, x.shape[1:].numel() + 1), dtype=torch.float64)
    rows[start : start + len(y)] = torch.cat([x.flatten(1), y[:, None]], dim=1)
    all_reduce(rows)
    all_x, all_y = rows[:n_total, :-1].to(x.dtype).reshape(-1, *x.shape[1:]), rows[:n_total, -1]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(all_x), all_y.long()).backward()
    optimizer.step()
    calls[rank] = calls.get(rank, 0) + 1
    with torch.no_grad():
        for j, p in enumerate(model.parameters()):
            brought = p + noise(p, rank, n, 10 * calls[rank] + j)
            all_reduce(brought)
            p.copy_(brought / n)
