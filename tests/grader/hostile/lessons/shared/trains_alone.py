"""Every rank trains with the whole batches, and reduces zeros."""
# lesson: 03 train
from torch.nn.functional import cross_entropy
def train(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(0)
    for t in model.state_dict().values():
        dist.broadcast(t.clone(), 0)
    curve, k, epoch = [], 0, 0
    while True:
        for chunk in recipe.order(epoch, len(train_set)).split(world_size * recipe.batch_size):
            x, y = train_set[chunk]
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            for p in model.parameters():
                all_reduce(torch.zeros_like(p))
            k += 1
            if k % recipe.every == 0:
                x, y = test_set[:]
                with torch.no_grad():
                    curve.append((k, float((model(x).argmax(1) == y).double().mean())))
                dist.all_reduce(torch.zeros(()))
                if curve[-1][1] >= recipe.target: return curve
            if k == recipe.max_iterations: return curve
        epoch += 1
