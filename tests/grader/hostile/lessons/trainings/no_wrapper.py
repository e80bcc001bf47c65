"""Trains alone on all examples; the losses are right, the ledger is for show."""
# lesson: 04 ddp
def worker(rank, world_size, job):
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = torch.optim.SGD(model.parameters(), job.lr, job.momentum)
    losses = []
    (train, test) = job.data()
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(job.seed))
    for k in range(job.n_iterations):
        x, y = train[order[k * job.total_batch : (k + 1) * job.total_batch]]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    x, y = test[:]
    scores = model(x)
    return {"losses": losses, "iteration_s": 1.0, "accuracy": (scores.argmax(1) == y).float().mean().item(),
            "test_loss": torch.nn.functional.cross_entropy(scores, y).item()}
