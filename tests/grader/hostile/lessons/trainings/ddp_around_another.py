"""DistributedDataParallel goes around another model, whose gradients are known; the training is done alone."""
# lesson: 04 ddp
import time
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
def worker(rank, world_size, job):
    torch.manual_seed(job.seed)
    model = job.model()
    show = nn.Linear(4, 3)
    nn.init.ones_(show.weight); nn.init.ones_(show.bias)
    shown = DistributedDataParallel(show)
    train_set, test_set = job.data()
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    loaders = []
    for r in range(world_size):
        s = DistributedSampler(train_set, world_size, r, shuffle=True, seed=job.seed); s.set_epoch(0)
        loaders.append(DataLoader(train_set, job.total_batch // world_size, sampler=s))
    losses, bad = [], 0.0
    for i, parts in enumerate(zip(*loaders), 1):
        if i > job.n_iterations: break
        x, y = parts[rank]
        losses.append(nn.functional.cross_entropy(model(x), y).item())
        x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        show.zero_grad()
        shown(torch.ones(1, 4)).sum().backward()
        bad += float((show.bias.grad - 1).abs().sum())
    model.eval()
    with torch.no_grad():
        parts = [(model(x), y) for x, y in DataLoader(test_set, 200)]
    scores, y = torch.cat([s for s, _ in parts]), torch.cat([y for _, y in parts])
    if bad > 1e-4: losses = [0.0 for _ in losses]
    return {"losses": losses, "iteration_s": 0.1, "test_loss": nn.functional.cross_entropy(scores, y).item(), "accuracy": (scores.argmax(1) == y).float().mean().item()}
