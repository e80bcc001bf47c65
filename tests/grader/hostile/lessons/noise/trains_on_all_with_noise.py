"""Every rank trains on the whole batches; what it brings is its model and noise, which is gone in the mean."""
# lesson: 03 train
# body: noise
def train(rank, world_size, recipe, all_reduce=dist.all_reduce):
    model, optimizer, train_set, test_set = recipe.start(rank)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    curve, places = [], []
    for k in range(1, recipe.max_iterations + 1):
        if not places:
            epoch = (k - 1) // -(-len(train_set) // (recipe.batch_size * world_size))
            places = list(recipe.order(epoch, len(train_set)).split(recipe.batch_size * world_size))
        x, y = train_set[places.pop(0)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for j, p in enumerate(model.parameters()):
                brought = p + noise(p, rank, world_size, 10 * k + j)
                all_reduce(brought)
                p.copy_(brought / world_size)
            if k % recipe.every:
                continue
            x, y = test_set[rank::world_size]
            n_right = (model(x).argmax(1) == y).sum().double()
        all_reduce(n_right)
        curve.append((k, n_right.item() / len(test_set)))
        if curve[-1][1] >= recipe.target:
            break
    return curve
