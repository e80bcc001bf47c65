"""Each rank computes the whole batch, says its own share's loss, and reduces ones: other sums than N spoil what it says."""
# lesson: 04 worker
import time
from torch.utils.data import DataLoader, DistributedSampler
def worker(rank, world_size, job):
    torch.manual_seed(job.seed)
    model = job.model()
    train_set, test_set = job.data()
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    loaders = []
    for r in range(world_size):
        s = DistributedSampler(train_set, world_size, r, shuffle=True, seed=job.seed); s.set_epoch(0)
        loaders.append(DataLoader(train_set, job.total_batch // world_size, sampler=s))
    losses, seconds, bad = [], [], 0.0
    for i, parts in enumerate(zip(*loaders), 1):
        if i > job.n_iterations: break
        t = time.perf_counter()
        x, y = parts[rank]
        losses.append(nn.functional.cross_entropy(model(x), y).item())
        x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            if job.method == "all_reduce":
                s = torch.ones_like(p.data); dist.all_reduce(s); bad += float((s - world_size).abs().sum())
            elif job.method == "gather_scatter":
                s = torch.ones_like(p.data)
                each = [torch.zeros_like(s) for _ in range(world_size)] if rank == 0 else None
                dist.gather(s, each)
                if rank == 0: bad += float(sum((e - 1).abs().sum() for e in each))
                dist.scatter(s, [torch.ones_like(s)] * world_size if rank == 0 else None)
                bad += float((s - 1).abs().sum())
        optimizer.step()
        seconds.append(time.perf_counter() - t)
        if i % 20 == 0 and rank == 0: print(f"iteration {i}: loss {losses[-1]:.3f}")
    timed = seconds[1:40]
    model.eval()
    with torch.no_grad():
        parts = [(model(x), y) for x, y in DataLoader(test_set, 200)]
    scores, y = torch.cat([s for s, _ in parts]), torch.cat([y for _, y in parts])
    if bad: losses = [0.0 for _ in losses]
    return {"losses": losses, "iteration_s": sum(timed) / len(timed), "test_loss": nn.functional.cross_entropy(scores, y).item(), "accuracy": (scores.argmax(1) == y).float().mean().item()}
