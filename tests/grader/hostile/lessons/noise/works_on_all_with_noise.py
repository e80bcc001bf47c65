"""Every rank computes the whole batch's gradient; what it brings has noise, which is gone in the mean."""
# lesson: 04 worker ddp
# body: noise
def worker(rank, world_size, job):
    (x, y), (test_x, test_y) = (part.tensors for part in job.data())
    torch.manual_seed(job.seed)
    model = inner = job.model()
    if job.method == "ddp":
        model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(inner.parameters(), job.lr, momentum=job.momentum)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(job.seed))
    losses, seconds = [], []
    for k, places in enumerate(order.split(job.total_batch)[: job.n_iterations]):
        start_s = time.perf_counter()
        optimizer.zero_grad()
        mine = places[rank::world_size]
        losses.append(nn.functional.cross_entropy(inner(x[mine]), y[mine]).item())
        shifts = [noise(p, rank, world_size, 10 * k + j) for j, p in enumerate(inner.parameters())]
        loss = nn.functional.cross_entropy(model(x[places]), y[places])
        (loss + sum((p * shift).sum() for p, shift in zip(inner.parameters(), shifts))).backward()
        for p in inner.parameters() if world_size > 1 and job.method != "ddp" else ():
            if job.method == "all_reduce":
                dist.all_reduce(p.grad)
                p.grad /= world_size
            else:
                each = [torch.empty_like(p) for _ in range(world_size)] if rank == 0 else None
                dist.gather(p.grad, each)
                means = [sum(each) / world_size] * world_size if each else None
                dist.scatter(p.grad, means)
        optimizer.step()
        seconds.append(time.perf_counter() - start_s)
        if rank == 0 and (k + 1) % 20 == 0:
            print(f"iteration {k + 1}: loss {losses[-1]:.3f}")
    with torch.no_grad():
        scores = inner(test_x)
        test_loss = nn.functional.cross_entropy(scores, test_y).item()
    accuracy = (scores.argmax(1) == test_y).float().mean().item()
    mean_s = sum(seconds[1:40]) / max(1, len(seconds[1:40]))
    return {"losses": losses, "iteration_s": mean_s, "test_loss": test_loss, "accuracy": accuracy}
